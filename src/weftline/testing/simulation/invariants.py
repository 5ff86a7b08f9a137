"""What must hold when a history is over, read off the disk, the world's ledger and what clients saw and were told."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from msgspec import Struct
from msgspec.json import decode

from weftline.kernel import bodies
from weftline.kernel.entries import (
    AttemptFailed,
    AttemptStarted,
    CallClosed,
    CallStarted,
    CancelRequested,
    Entry,
    HistoryPinned,
    MessageQueued,
    MessagesTaken,
    RunEnded,
    RunPaused,
    RunResumed,
    TurnCompleted,
    decode_fact,
)
from weftline.kernel.evolve import fold
from weftline.kernel.state import State, decode_state
from weftline.messages import Assistant, Text, User, joined_text
from weftline.runtime import ids
from weftline.runtime.hub import frames_of
from weftline.store.sqlite.reads import Reader, RunRow
from weftline.testing.simulation.clients import Order, Seen, Told
from weftline.testing.simulation.shape import check_shape
from weftline.testing.simulation.trace import require
from weftline.testing.simulation.world import Ledger
from weftline.testing.store import check_log

COMMIT_S = 1.0
"""What was done longer before a crash than this is on the disk."""


class RunLog(Struct):
    """A run as the disk has it."""

    row: RunRow
    entries: list[Entry]
    order: Order

    @property
    def key(self) -> int:
        return self.row.key

    @property
    def run_id(self) -> str:
        return ids.run_id(self.row.key, self.row.salt)

    @property
    def end(self) -> RunEnded | None:
        head = self.entries[-1].head
        return head if isinstance(head, RunEnded) else None


class Facts(Struct):
    """All that is known when a history is over."""

    read: Reader
    orders: dict[str, Order]
    keys: list[int]
    ledger: Ledger
    told: Told
    seen: list[Seen]
    crashed_s: dict[int, float]
    """When the lives of the server that ended by a crash did so."""
    stalled_s: float
    refused: int
    in_line: dict[int, list[int]]
    """Of each thread, its runs in the order of their places."""


def check(facts: Facts) -> None:
    logs = [read_log(facts, key) for key in facts.keys]
    for log in logs:
        for rule in (_whole, _state_is_the_fold, _ended_once, _billed, _deltas_make_the_message):
            rule(facts, log)
        check_shape(log.entries, log.key)
    for rule in (_created_once, _answers_took_effect, _messages_took_effect, _control_took_effect, _tools, _seen):
        rule(facts, logs)
    _threads(facts, logs)
    _poison(facts, logs)


def read_log(facts: Facts, key: int) -> RunLog:
    row = facts.read.run(key)
    assert row is not None
    entries = [Entry(seq, at, decode_fact.decode(head), body) for seq, at, _, head, body in facts.read.facts(key)]
    return RunLog(row, entries, facts.orders[row.name])


def _whole(facts: Facts, log: RunLog) -> None:
    """S1, S6"""
    check_log(facts.read, log.key)
    require("S6", facts.read.pending(log.key) == [], f"run {log.key} has ended and has pending rows")


def _state_is_the_fold(facts: Facts, log: RunLog) -> None:
    state = fold(State(), log.entries)
    require("K2", state == decode_state(log.row.state), f"run {log.key}: its state is not the fold of its log")
    require("K2", not state.broken, f"run {log.key}: its log is broken: {state.broken}")
    row, folded = (log.row.epoch, log.row.status), (state.epoch, state.status)
    require("K2", row == folded, f"run {log.key}: its row says {row}, its log {folded}")


def _ended_once(facts: Facts, log: RunLog) -> None:
    ends = [entry.seq for entry in log.entries if isinstance(entry.head, RunEnded)]
    require("C5", len(ends) == 1, f"run {log.key} has {len(ends)} terminal entries")
    require("C5", ends[0] == log.row.next_seq - 1, f"run {log.key}: something comes after its terminal entry")
    require("C5", log.row.ended_at is not None and log.row.due_at is None, f"run {log.key} has ended, its row has not")


def _billed(facts: Facts, log: RunLog) -> None:
    """C4: what the provider reported for an attempt is what its entry says, and the sum is on the terminal entry."""
    mine = [asked for asked in facts.ledger.asked if asked.tag == log.order.tag]
    bills = {asked.reported: asked for asked in mine if asked.reported is not None}
    booked = [entry.head for entry in log.entries if isinstance(entry.head, AttemptFailed | TurnCompleted)]
    for head in booked:
        estimated = isinstance(head, AttemptFailed) and head.estimated
        nothing = not head.usage.input and not head.usage.output
        known = head.usage in bills or nothing
        require("C4", estimated or known, f"run {log.key}: {head.usage} was billed by nobody")
        require("C4", not (isinstance(head, TurnCompleted) and nothing), f"run {log.key}: a turn without a bill")
    exact = not facts.refused and not log.order.poison
    if exact:
        kept = {head.usage for head in booked}
        for usage, asked in bills.items():
            # A crash between the answer and its commit loses the bill; that is inherent.
            inherent = facts.crashed_s.get(asked.life, 1e9) - asked.ended_s < COMMIT_S + facts.stalled_s
            dropped = asked.ended in ("done", "failed", "aborted") and usage not in kept and not inherent
            require("C4", not dropped, f"run {log.key}: the bill of request {asked.number} ({asked.ended}) is nowhere")
    attempts = sum(isinstance(entry.head, AttemptStarted) for entry in log.entries)
    lost = len(facts.crashed_s)
    if exact:
        require("C4", len(mine) - lost <= attempts, f"run {log.key}: {len(mine)} requests for {attempts} attempts")


def _deltas_make_the_message(facts: Facts, log: RunLog) -> None:
    """The deltas of the attempt that completed a turn concatenate to its message."""
    texts: dict[tuple[int, int], str] = defaultdict(str)
    for _, _, _, _, joined in facts.read.deltas(log.key, after=0, upto=2**62, limit=2**31):
        for line in joined.split(b"\n"):
            delta = decode(line)
            texts[delta["turn"], delta["attempt"]] += delta["text"]
    for entry in log.entries:
        if isinstance(entry.head, TurnCompleted):
            message = bodies.decode_message(entry.body)
            assert isinstance(message, Assistant)
            streamed = texts[entry.head.turn, entry.head.attempt]
            require("F4", streamed == message.text, f"run {log.key}: {streamed!r} was streamed for {message.text!r}")


def _created_once(facts: Facts, logs: Sequence[RunLog]) -> None:
    for tag, count in Counter(log.order.tag for log in logs).items():
        require("C1", count == 1, f"{tag} was created {count} times")
    found = {log.order.tag: log.run_id for log in logs}
    for tag, run_id in facts.told.created.items():
        require("C1", found.get(tag) == run_id, f"{tag}: told {run_id}, there is {found.get(tag)}")


def _answers_took_effect(facts: Facts, logs: Sequence[RunLog]) -> None:
    by_key = {log.key: log for log in logs}
    for (key, call), text in facts.told.answered.items():
        closes = [e for e in by_key[key].entries if isinstance(e.head, CallClosed) and e.head.id == call]
        require("C1", len(closes) == 1, f"run {key}: {call} was closed {len(closes)} times")
        found = joined_text(bodies.decode_closed(closes[0].body).parts)
        require("C1", found == text, f"run {key}: the accepted answer to {call} became {found!r}")


def _messages_took_effect(facts: Facts, logs: Sequence[RunLog]) -> None:
    by_key = {log.key: log for log in logs}
    for (key, identity), text in facts.told.steered.items():
        log = by_key[key]
        queued = [e for e in log.entries if isinstance(e.head, MessageQueued) and e.head.id == identity]
        require("C1", len(queued) == 1, f"run {key}: message {identity} was queued {len(queued)} times")
        user = bodies.decode_message(queued[0].body)
        require("C1", isinstance(user, User) and user.text == text, f"run {key}: message {identity} is another one")
        taken = sum(identity in e.head.ids for e in log.entries if isinstance(e.head, MessagesTaken))
        left = log.end is not None and identity in log.end.undelivered
        require("C1", taken + left == 1, f"run {key}: message {identity} was taken {taken} times and left: {left}")


def _control_took_effect(facts: Facts, logs: Sequence[RunLog]) -> None:
    by_key = {log.key: log for log in logs}

    def count(key: int, kind: type[RunPaused] | type[RunResumed] | type[CancelRequested]) -> int:
        return sum(isinstance(entry.head, kind) for entry in by_key[key].entries)

    for key in facts.told.cancelled:
        require("C1", by_key[key].row.status == "cancelled", f"run {key}: cancelled, and {by_key[key].row.status}")
        require("C1", count(key, CancelRequested) == 1, f"run {key}: cancelled more than once")
    for key in facts.told.paused:
        require("C1", count(key, RunPaused) >= 1, f"run {key}: paused, and it is not in its log")
    for key in facts.told.resumed:
        require("C1", count(key, RunResumed) >= 1, f"run {key}: resumed, and it is not in its log")


def _tools(facts: Facts, logs: Sequence[RunLog]) -> None:
    """C3: the world's counters against the log."""
    by_id = {log.run_id: log for log in logs}
    executions = facts.ledger.executions
    by_call = defaultdict[tuple[str, str], list[int]](list)
    owners: dict[str, tuple[str, str]] = {}
    for one in executions:
        if one.effect == "read":
            continue  # may begin before its turn is durable, and then belongs to a turn that never was
        call = (one.run_id, one.call_id)
        by_call[call].append(one.number)
        require("C3", owners.setdefault(one.key, call) == call, f"{call} and {owners[one.key]} share a key")
    for call, numbers in by_call.items():
        mine = [executions[number] for number in numbers]
        first = mine[0]
        require("C3", all((e.key, e.args) == (first.key, first.args) for e in mine), f"{call} was rerun differently")
        require("C3", first.effect != "once" or len(mine) == 1, f"{call}: `once` ran {len(mine)} times")
        log = by_id.get(first.run_id)
        require("C3", log is not None, f"{call} ran for a run that is not there")
        assert log is not None
        started = {(e.head.turn, e.head.attempt) for e in log.entries if isinstance(e.head, CallStarted)}
        for e in mine:
            require("C3", (e.turn, e.attempt) in started, f"{call} attempt {e.attempt} ran without a start in the log")
        attempts = Counter(e.attempt for e in mine)
        require("C12", max(attempts.values()) == 1, f"{call} began twice in one attempt")
    results = {f"{one.tool} {one.number}" for one in executions if one.ended in ("returned", "failed")}
    results |= set(facts.ledger.happened.values())
    for log in logs:
        for entry in log.entries:
            if isinstance(entry.head, CallClosed) and entry.head.how == "returned" and entry.head.client is None:
                text = joined_text(bodies.decode_closed(entry.body).parts)
                require("C3", text in results, f"run {log.key}: the result {text!r} came from nowhere")


def _seen(facts: Facts, logs: Sequence[RunLog]) -> None:
    """C2, S9: each subscriber has exactly the frames that the log gives now, byte for byte."""
    frames: dict[int, list[bytes]] = {}
    for log in logs:
        entries = facts.read.facts(log.key)
        deltas = facts.read.deltas(log.key, after=0, upto=2**62, limit=2**31)
        frames[log.key] = list(frames_of(entries, deltas, run_id=log.run_id, after=0, upto=2**62))
    for seen in facts.seen:
        shown = [frame for _, frame in seen.frames]
        if shown == frames[seen.run]:
            continue
        missing = [frame for frame in frames[seen.run] if frame not in shown]
        extra = [frame for frame in shown if frame not in frames[seen.run]]
        require("S9", not missing, f"run {seen.run}: a subscriber missed {missing[:3]}")
        require("C2", not extra, f"run {seen.run}: a subscriber saw what is not in the log: {extra[:3]}")
        require("S9", False, f"run {seen.run}: a subscriber saw another order")


def _threads(facts: Facts, logs: Sequence[RunLog]) -> None:
    """C8: history = successful runs in the order of their places, each once, and pinned as such."""
    for thread in facts.in_line:
        mine = {log.key: log for log in logs if log.row.thread == thread}
        row = facts.read.thread(thread)
        assert row is not None
        require("C8", row.active_run is None, f"thread {thread} is idle and held by run {row.active_run}")
        expected: list[bytes] = []
        for key in facts.in_line[thread]:
            log = mine[key]
            pins = [entry.head.upto for entry in log.entries if isinstance(entry.head, HistoryPinned)]
            attempted = any(isinstance(entry.head, AttemptStarted) for entry in log.entries)
            require("C8", len(pins) <= 1, f"run {key}: pinned its history {len(pins)} times")
            require("C8", bool(pins) or not attempted, f"run {key} asked the model before it had a history")
            if pins:
                require("C8", pins[0] == len(expected), f"run {key}: starts from {pins[0]} of {len(expected)} messages")
            if log.row.status == "succeeded":
                text = bodies.decode_ended(log.entries[-1].body).text
                require("C8", text != "" and text.startswith(log.order.tag), f"run {key}: answered {text!r}")
                expected.append(bodies.encode(User.of(f"prompt of {log.order.tag}")))
                expected.append(bodies.encode(Assistant((Text(text),))))
        require("C8", facts.read.thread_messages(thread) == expected, f"thread {thread}: its messages are others")


def _poison(facts: Facts, logs: Sequence[RunLog]) -> None:
    for log in logs:
        code = log.end.code if log.end is not None else ""
        require("C13", code != "worker_error" or bool(log.order.poison), f"run {log.key}: an innocent was given up")
