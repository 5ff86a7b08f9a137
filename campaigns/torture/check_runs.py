"""Nothing that was acknowledged is lost, every run ends once and as it should, and readers saw exactly its log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from campaigns.torture.ledger import Ledger
from campaigns.torture.logs import RunLog
from weftline.kernel import bodies
from weftline.kernel.entries import CallClosed, CallOpened, RunEnded, TurnCompleted
from weftline.messages import joined_text


def check_runs(ledger: Ledger, logs: Sequence[RunLog]) -> Iterator[str]:
    """The faults found, in words."""
    for log in logs:
        yield from _whole(log)
        yield from _innocent(ledger, log)
    yield from _created_once(ledger, logs)
    yield from _acknowledged(ledger, logs)
    yield from _seen(ledger, logs)
    yield from _sessions(ledger, logs)


def _whole(log: RunLog) -> Iterator[str]:
    after = 0
    for item in log.items:
        if item.seq != after + 1:
            yield f"run {log.run}: seq {item.seq} comes after {after}"
        after = item.last_seq
    ends = len(list(log.of(RunEnded)))
    if ends != 1 or log.end is None:
        yield f"run {log.run}: has {ends} terminal entries, the last entry is {log.entries[-1].fact}"
    opened = sorted((fact.turn, fact.index) for _, fact in log.of(CallOpened))
    closed = sorted((fact.turn, fact.index) for _, fact in log.of(CallClosed))
    if opened != closed or len(set(opened)) != len(opened):
        yield f"run {log.run}: opened {opened} and closed {closed}"
    again = [turn for turn, count in Counter(fact.turn for _, fact in log.of(TurnCompleted)).items() if count > 1]
    if again:
        yield f"run {log.run}: completed the turns {again} more than once"


def _innocent(ledger: Ledger, log: RunLog) -> Iterator[str]:
    """None of our runs can fail on its own: it succeeds, or it is cancelled."""
    end = log.end
    if end is not None and end.status == "failed":
        error = bodies.decode_ended(log.entries[-1].body).error
        yield f"run {log.run}: was given up as {end.code}: {error}"


def _created_once(ledger: Ledger, logs: Sequence[RunLog]) -> Iterator[str]:
    for number, count in Counter(log.order for log in logs).items():
        if count > 1:
            yield f"order {number} was carried out {count} times"
    found = {log.order: log.run for log in logs}
    for number, runs in ledger.created.items():
        if runs != {found.get(number)}:
            yield f"order {number}: its client was told {runs}, and there is {found.get(number)}"


def _acknowledged(ledger: Ledger, logs: Sequence[RunLog]) -> Iterator[str]:
    results = {
        (log.run, fact.id): joined_text(bodies.decode_closed(entry.body).parts)
        for log in logs
        for entry, fact in log.of(CallClosed)
    }
    for place, texts in ledger.answered.items():
        if texts != {results.get(place)}:
            yield f"run {place[0]}: the accepted results {texts} of {place[1]} became {results.get(place)!r}"
    statuses = {log.run: log.row.status for log in logs}
    for run, status in ledger.cancelled.items():
        if statuses.get(run) != status:
            yield f"run {run}: the answer to a cancel was {status}, and it is {statuses.get(run)}"
    for log in logs:
        if log.row.status == "cancelled" and log.run not in ledger.cancelled:
            yield f"run {log.run}: is cancelled, but no client was told"


def _seen(ledger: Ledger, logs: Sequence[RunLog]) -> Iterator[str]:
    frames = {log.run: log.frames() for log in logs}
    for view in ledger.views:
        whole = frames.get(view.run, {})
        if view.frames == whole and list(view.frames) == list(whole):
            continue
        missing = [seq for seq in whole if seq not in view.frames]
        wrong = [seq for seq, seen in view.frames.items() if whole.get(seq) != seen]
        yield f"run {view.run}: a reader missed {missing[:5]} and saw {wrong[:5]} otherwise"


def _sessions(ledger: Ledger, logs: Sequence[RunLog]) -> Iterator[str]:
    """A session has the messages of its successful runs, in the order of their acceptance."""
    by_order = {log.order: log for log in logs}
    for session, numbers in ledger.sessions.items():
        mine = [by_order[number] for number in numbers if number in by_order]
        if [log.row.key for log in mine] != sorted(log.row.key for log in mine):
            yield f"session {session}: its runs are in another order"
        expected: list[tuple[str, str]] = []
        for log in mine:
            if log.row.status == "succeeded":
                text = bodies.decode_ended(log.entries[-1].body).text
                expected += [("User", f"order {log.order}"), ("Assistant", text)]
        found = [(type(message).__name__, getattr(message, "text", "")) for message in mine[-1].history] if mine else []
        if found != expected:
            yield f"session {session}: has {found} and should have {expected}"
