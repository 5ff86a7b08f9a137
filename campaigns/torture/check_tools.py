"""No `once` tool ran twice, no finished call was repeated, and every result came from an execution."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from campaigns.torture.ledger import Ledger
from campaigns.torture.logs import RunLog
from campaigns.torture.tools import EFFECTS, Execution
from weftline.kernel import bodies
from weftline.kernel.entries import CallClosed, CallOpened, CallStarted
from weftline.messages import joined_text


def check_tools(ledger: Ledger, logs: Sequence[RunLog], executions: Sequence[Execution]) -> Iterator[str]:
    """The faults found, in words."""
    by_run: dict[str, list[Execution]] = defaultdict(list)
    for one in executions:
        by_run[one.run].append(one)
    for log in logs:
        calls: dict[str, list[Execution]] = defaultdict(list)
        for one in by_run.pop(log.run, []):
            calls[one.call].append(one)
        for call, mine in calls.items():
            yield from _call(ledger, log, call, mine)
        yield from _results(log, calls)
    for run in by_run:
        yield f"run {run}: tools ran for it, and it is not in the store"


def _call(ledger: Ledger, log: RunLog, call: str, mine: list[Execution]) -> Iterator[str]:
    who = f"run {log.run}: {mine[0].tool} ({call})"
    opened = next((fact for _, fact in log.of(CallOpened) if fact.id == call), None)
    closed = next(((entry, fact) for entry, fact in log.of(CallClosed) if fact.id == call), None)
    effect = EFFECTS[mine[0].tool]
    if opened is None or closed is None:
        if effect != "read":
            yield f"{who} ran, and the log does not have the call"
        return
    started = sum((fact.turn, fact.index) == (opened.turn, opened.index) for _, fact in log.of(CallStarted))
    if effect != "read" and len(mine) > started:
        yield f"{who} ran {len(mine)} times and was started {started} times"
    if effect in ("once", "reconcile") and len(mine) > 1:
        yield f"{who} ran {len(mine)} times: {mine}"
    if len({(one.key, tuple(one.args.items())) for one in mine}) > 1:
        yield f"{who}: its key or its arguments have changed: {mine}"
    # A cancel may overtake the one start that it follows: the thread that was to run the tool had no CPU time yet.
    again = mine[1:] if closed[1].how == "cancelled" else mine
    late = [one for one in again if one.at_us > closed[0].at_us]
    if late:
        yield f"{who} was closed as {closed[1].how} and ran again: {late}"
    for life, count in Counter(one.life for one in mine).items():
        if count > 1 + ledger.lives[life - 1].full:
            yield f"{who} ran {count} times in life {life}"


def _results(log: RunLog, calls: dict[str, list[Execution]]) -> Iterator[str]:
    for entry, fact in log.of(CallClosed):
        if fact.client is None and fact.how == "returned":
            text = joined_text(bodies.decode_closed(entry.body).parts)
            if text not in [one.result for one in calls[fact.id]]:
                yield f"run {log.run}: the result {text!r} of {fact.name} ({fact.id}) came from nowhere"
        elif fact.client is None and fact.how not in ("in_doubt", "cancelled", "not_run"):
            yield f"run {log.run}: {fact.name} ({fact.id}) was closed as {fact.how}: {entry.body[:200]!r}"
