"""What must hold when a history is over, according to the disk, the world's ledger and what clients saw and were
told.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from msgspec.json import decode

from campaigns.simulation.approvals import check_approvals
from campaigns.simulation.billing import check_requests
from campaigns.simulation.children import check_children
from campaigns.simulation.conversation import naive_exchange
from campaigns.simulation.deadlines import check_deadlines, check_time_budgets
from campaigns.simulation.downtime import check_downtime
from campaigns.simulation.effects import check_tools
from campaigns.simulation.evidence import Evidence, RunLog
from campaigns.simulation.leases import check_leases
from campaigns.simulation.nested import check_nested
from campaigns.simulation.policies import check_policy
from campaigns.simulation.questions import check_questions
from campaigns.simulation.shape import check_shape
from campaigns.simulation.trace import require
from weftline.kernel import bodies
from weftline.kernel.entries import (
    AttemptStarted,
    CallClosed,
    CancelRequested,
    HistoryPinned,
    MessageQueued,
    MessagesTaken,
    RunEnded,
    RunPaused,
    RunResumed,
    TurnCompleted,
)
from weftline.kernel.evolve import fold
from weftline.kernel.notes import TEXT_DELTA
from weftline.kernel.state import State, decode_state
from weftline.messages import Assistant, Text, User, joined_text
from weftline.testing.lines import lines_of


def check(evidence: Evidence) -> None:
    logs = evidence.logs()
    for log in logs:
        for rule in (_whole, _state_is_the_fold, _ended_once, _deltas_make_the_message, check_deadlines):
            rule(evidence, log)
        check_shape(log.entries, log.key)
        check_policy(log.entries)
        check_leases(log.entries)
        check_nested(evidence, log)
        check_questions(evidence, log)
        check_downtime(evidence, log)
        check_time_budgets(evidence, log)
        check_requests(evidence, log)
    for rule in (_created_once, _answers_took_effect, _messages_took_effect, _control_took_effect, check_tools, _seen):
        rule(evidence, logs)
    check_approvals(evidence, logs)
    check_children(evidence, logs)
    _threads(evidence, logs)
    _innocents(logs)


def _whole(evidence: Evidence, log: RunLog) -> None:
    """S1: seqs have no holes, and the row knows where the log ends."""
    after = 0
    for item in log.items:
        require("S1", item.seq == after + 1 and item.count >= 1, f"run {log.key}: seq {item.seq} comes after {after}")
        after = item.last_seq
    require("S1", log.row.next_seq == after + 1, f"run {log.key}: its row goes on from {log.row.next_seq}")


def _state_is_the_fold(evidence: Evidence, log: RunLog) -> None:
    state = fold(State(), [(entry.at, entry.head) for entry in log.entries])
    require("K2", state == decode_state(log.row.state), f"run {log.key}: its state is not the fold of its log")
    require("K2", not state.broken, f"run {log.key}: its log is broken: {state.broken}")
    row = (log.row.version, log.row.status)
    require("K2", row == (state.version, state.status), f"run {log.key}: its row says {row}, its log {state.version}")


def _ended_once(evidence: Evidence, log: RunLog) -> None:
    ends = [entry.seq for entry in log.entries if isinstance(entry.head, RunEnded)]
    require("C5", len(ends) == 1, f"run {log.key} has {len(ends)} terminal entries")
    require("C5", ends[0] == log.row.next_seq - 1, f"run {log.key}: something comes after its terminal entry")
    require("C5", log.row.ended_at is not None and log.row.due_at is None, f"run {log.key} has ended, its row has not")


def _deltas_make_the_message(evidence: Evidence, log: RunLog) -> None:
    """The deltas of the attempt that completed a turn concatenate to its message."""
    texts: dict[tuple[int, int], str] = defaultdict(str)
    for line in lines_of(log.items):
        if line.kind == TEXT_DELTA:
            delta = decode(line.body)
            texts[delta["turn"], delta["attempt"]] += delta["text"]
    for entry in log.entries:
        if isinstance(entry.head, TurnCompleted):
            message = bodies.decode_turn(entry.body).message
            streamed = texts[entry.head.turn, entry.head.attempt]
            require("F4", streamed == message.text, f"run {log.key}: {streamed!r} was streamed for {message.text!r}")


def _created_once(evidence: Evidence, logs: Sequence[RunLog]) -> None:
    for tag, count in Counter(log.order.tag for log in logs).items():
        require("C1", count == 1, f"{tag} was created {count} times")
    found = {log.order.tag: log.run_id for log in logs}
    for tag, run_id in evidence.acknowledged.created.items():
        require("C1", found.get(tag) == run_id, f"{tag}: told {run_id}, there is {found.get(tag)}")


def _answers_took_effect(evidence: Evidence, logs: Sequence[RunLog]) -> None:
    by_key = {log.key: log for log in logs}
    for (key, call), text in evidence.acknowledged.answered.items():
        closes = [e for e in by_key[key].entries if isinstance(e.head, CallClosed) and e.head.id == call]
        require("C1", len(closes) == 1, f"run {key}: {call} was closed {len(closes)} times")
        found = joined_text(bodies.decode_closed(closes[0].body).parts)
        require("C1", found == text, f"run {key}: the accepted answer to {call} became {found!r}")


def _messages_took_effect(evidence: Evidence, logs: Sequence[RunLog]) -> None:
    by_key = {log.key: log for log in logs}
    texts: dict[tuple[int, str], str] = {}
    for log in logs:
        for entry in log.entries:
            if isinstance(entry.head, MessageQueued):
                user = bodies.decode_message(entry.body)
                assert isinstance(user, User)
                texts[log.key, entry.head.id] = user.text
    for (key, identity), text in evidence.acknowledged.steered.items():
        log = by_key[key]
        queued = texts.get((key, identity))
        require("C1", queued == text, f"run {key}: message {identity} is {queued!r}")
        taken = sum(identity in e.head.ids for e in log.entries if isinstance(e.head, MessagesTaken))
        left = log.end is not None and identity in log.end.undelivered
        require("C1", taken + left == 1, f"run {key}: message {identity} was taken {taken} times and left: {left}")
    for key, text in evidence.acknowledged.not_steered:
        found = [identity for (run, identity), queued in texts.items() if run == key and queued == text]
        require("S3", not found, f"run {key}: a message that was refused is {found}")


def _control_took_effect(evidence: Evidence, logs: Sequence[RunLog]) -> None:
    by_key = {log.key: log for log in logs}

    def count(key: int, kind: type[RunPaused] | type[RunResumed] | type[CancelRequested]) -> int:
        return sum(isinstance(entry.head, kind) for entry in by_key[key].entries)

    for key in evidence.acknowledged.cancelled:
        require("C1", by_key[key].row.status == "cancelled", f"run {key}: cancelled, and {by_key[key].row.status}")
        require("C1", count(key, CancelRequested) == 1, f"run {key}: cancelled more than once")
    for key in evidence.acknowledged.paused:
        require("C1", count(key, RunPaused) >= 1, f"run {key}: paused, and it is not in its log")
    for key in evidence.acknowledged.resumed:
        require("C1", count(key, RunResumed) >= 1, f"run {key}: resumed, and it is not in its log")


def _seen(evidence: Evidence, logs: Sequence[RunLog]) -> None:
    """C2, S9: each reader has exactly the entries that are in the log, byte for byte."""
    whole = {log.key: list(lines_of(log.items)) for log in logs}
    for seen in evidence.seen:
        if seen.lines == whole[seen.run]:
            continue
        missing = [line for line in whole[seen.run] if line not in seen.lines]
        extra = [line for line in seen.lines if line not in whole[seen.run]]
        require("S9", not missing, f"run {seen.run}: a reader missed {missing[:3]}")
        require("C2", not extra, f"run {seen.run}: a reader saw what is not in the log: {extra[:3]}")
        require("S9", False, f"run {seen.run}: a reader saw another order")


def _threads(evidence: Evidence, logs: Sequence[RunLog]) -> None:
    """C8: history = successful runs in the order of their places, each once, and pinned as such."""
    disk = evidence.disk
    for thread in evidence.threads:
        mine = {log.key: log for log in logs if log.row.thread == thread}
        active = disk.active_run(thread)
        require("C8", active is None, f"thread {thread} is idle and held by run {active}")
        expected: list[bytes] = []
        for key in disk.queue_of(thread):
            log = mine[key]
            pins = [entry.head.upto for entry in log.entries if isinstance(entry.head, HistoryPinned)]
            attempted = any(isinstance(entry.head, AttemptStarted) for entry in log.entries)
            require("C8", len(pins) <= 1, f"run {key}: pinned its history {len(pins)} times")
            require("C8", bool(pins) or not attempted, f"run {key} asked the model before it had a history")
            if pins:
                require("C8", pins[0] == len(expected), f"run {key}: starts from {pins[0]} of {len(expected)} messages")
            if log.row.status == "succeeded":
                text = bodies.decode_ended(log.entries[-1].body).text
                require("C8", text.startswith(f"{log.order.tag}:"), f"run {key}: answered {text!r}")
                expected.append(bodies.encode(User.of(f"prompt of {log.order.tag}")))
                exchange = naive_exchange([(entry.head, entry.body) for entry in log.entries])
                require("C8", exchange[-1] == Assistant((Text(text),)), f"run {key}: its answer is not its last text")
                expected += [bodies.encode(message) for message in exchange]
        require("C8", disk.messages(thread) == expected, f"thread {thread}: its messages are others")


def _innocents(logs: Sequence[RunLog]) -> None:
    """C13: whatever the kills, a run that did not kill the process is never given up."""
    for log in logs:
        code = log.end.code if log.end is not None else ""
        require("C13", code != "worker_error" or bool(log.order.poison), f"run {log.key}: an innocent was given up")
