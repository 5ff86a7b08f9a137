"""C4 and M1: every request to the model is in the log with its cost, and contained what is in the log.

By design, one request may be missing. A model may be called as soon as its `attempt.started` is accepted, which means
appended in memory: waiting until it is durable would add a commit to every turn. In return, it is called only when the
outcome of the previous attempt is durable and the store accepts writes (`RunSink.permit`). So what the log does not
know about is at most the one request that was in progress when the run's memory was lost: in a crash, or because the
store refused a write that a caller was waiting for, which drops the run from memory.

That is one for each time that the run was in memory, not one in all: after several crashes there may be several more
requests than attempts in the log, as in seed 21307 of an earlier version. So the two numbers are not compared. What
must hold is that no memory of a run made more than one unknown request, and none if nothing of it was lost. Tools have
no such exception: their `call.started` is durable before they begin.
"""

from __future__ import annotations

from collections import Counter

from msgspec import Struct
from msgspec.json import Decoder

from campaigns.simulation.conversation import check_conversation, naive_conversation
from campaigns.simulation.evidence import Evidence, RunLog
from campaigns.simulation.trace import require
from campaigns.simulation.world import Asked
from weftline.kernel import bodies
from weftline.kernel.entries import AttemptFailed, AttemptStarted, CancelRequested, TurnCompleted
from weftline.kernel.notes import TEXT_DELTA, THINKING_DELTA
from weftline.runtime.driver import CUT_S
from weftline.runtime.fleet.driving import CANCEL_GRACE_S
from weftline.runtime.model_calls.spending import BYTES_PER_TOKEN


def check_requests(evidence: Evidence, log: RunLog) -> None:
    mine = [asked for asked in evidence.ledger.asked if asked.tag == log.order.tag]
    known = {asked.number: entry for asked in mine if (entry := _permit(evidence, log, asked)) is not None}
    _at_most_one_unknown(evidence, log, [asked for asked in mine if asked.number not in known])
    thread = log.row.thread
    history = [bodies.decode_message(one) for one in evidence.disk.messages(thread)] if thread is not None else []
    facts = [(entry.head, entry.body) for entry in log.entries]
    for asked in mine:
        if asked.number in known:
            right = naive_conversation(log.order.plan.messages, facts[: asked.basis.version], history=history)
            check_conversation(asked.messages, right, f"run {log.key}: request {asked.number}")
            _is_booked(evidence, log, asked)
    _billed_by_somebody(log, mine)
    _what_was_streamed_is_billed(log)


def _permit(evidence: Evidence, log: RunLog, asked: Asked) -> AttemptStarted | None:
    """The entry that permitted a request; None if the log never got it."""
    basis = asked.basis
    if not 0 < basis.version <= len(log.entries):
        return None
    troubles = evidence.troubles
    # Other facts may come between the permit and the request only while watchers hold the request back.
    since = 0 if troubles.held_s else basis.version - 1
    started = [entry for entry in log.entries[since : basis.version] if isinstance(entry.head, AttemptStarted)]
    if not started:
        return None
    entry = started[-1]
    head = entry.head
    if not isinstance(head, AttemptStarted) or (head.turn, head.attempt) != (basis.turn, basis.attempt):
        return None
    # Another in-memory copy of the run may have taken the same place in the log at another time.
    passed_s, late_s = (basis.at - entry.at) / 1_000_000, troubles.stalled_s + troubles.held_s
    same_time = any(0 <= passed_s - set_by_s <= late_s for set_by_s in (0.0, troubles.clock_was_set_by_s))
    return head if same_time else None


def _at_most_one_unknown(evidence: Evidence, log: RunLog, unknown: list[Asked]) -> None:
    for (life, memory), count in Counter((asked.life, asked.basis.memory) for asked in unknown).items():
        who = f"run {log.key}: {count} requests of life {life} (memory {memory}) are not in the log"
        require("C4", count == 1, who)
        require("C4", evidence.may_have_lost(life, log), f"{who}, and nothing was lost")


def _is_booked(evidence: Evidence, log: RunLog, asked: Asked) -> None:
    """Whether what the provider reported is in the log, unless the process died before it could be recorded."""
    basis = asked.basis
    outcome = next(
        entry.head
        for entry in log.entries[basis.version :]
        if isinstance(entry.head, AttemptFailed | TurnCompleted)
        and (entry.head.turn, entry.head.attempt) == (basis.turn, basis.attempt)
    )
    if asked.reported is None or outcome.usage == asked.reported:
        return
    # Neither a stop nor a cancel waits forever for a provider that ignores its cancellation.
    waited_until_s = [evidence.times[asked.life].until_s + CUT_S, *_graces(evidence, log)]
    stubborn = asked.ended == "aborted" and any(asked.ended_s >= until_s for until_s in waited_until_s)
    lost = evidence.may_have_lost(asked.life, log) or stubborn
    excused = outcome.estimated and (lost or bool(log.order.poison) or log.order.tag == "shaky")
    require("C4", excused, f"run {log.key}: request {asked.number} ({asked.ended}) is booked as {outcome.usage}")


def _graces(evidence: Evidence, log: RunLog) -> list[float]:
    """When a cancelled run no longer waits for its work: by the original clock, or by the changed one."""
    asked_s = [entry.at / 1_000_000 - evidence.epoch_s for entry in log.entries if type(entry.head) is CancelRequested]
    set_by_s = evidence.troubles.clock_was_set_by_s
    return [at_s - by_s + CANCEL_GRACE_S for at_s in asked_s for by_s in {0.0, set_by_s}]


def _what_was_streamed_is_billed(log: RunLog) -> None:
    """An attempt that was interrupted counts at least the part of its answer that is in the log."""
    streamed: Counter[tuple[int, int]] = Counter()
    for item in log.items:
        if item.kind in (TEXT_DELTA, THINKING_DELTA):
            for delta in [_decode_delta(body) for body in item.body.split(b"\n")]:
                streamed[delta.turn, delta.attempt] += len(delta.text.encode())
    for entry in log.entries:
        head = entry.head
        if isinstance(head, AttemptFailed) and head.reason != "error" and head.estimated:
            least = -(-streamed[head.turn, head.attempt] // BYTES_PER_TOKEN)
            who = f"run {log.key}: attempt {head.turn}.{head.attempt} streamed {least} tokens"
            require("C4", head.usage.output >= least, f"{who} and is booked as {head.usage}")


class _Delta(Struct):
    text: str
    turn: int
    attempt: int


_decode_delta = Decoder(_Delta).decode


def _billed_by_somebody(log: RunLog, mine: list[Asked]) -> None:
    bills = {asked.reported for asked in mine}
    for entry in log.entries:
        head = entry.head
        if isinstance(head, AttemptFailed | TurnCompleted):
            nothing = not head.usage.input and not head.usage.output
            billed = head.estimated or nothing or head.usage in bills
            require("C4", billed, f"run {log.key}: {head.usage} was never billed")
            require("C4", not (isinstance(head, TurnCompleted) and nothing), f"run {log.key}: a turn without a bill")
