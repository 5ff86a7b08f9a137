"""C3 and C12: tools did what the log permitted, with the arguments in the log, and no more often."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from msgspec import UNSET, Struct
from msgspec.json import decode
from msgspec.structs import replace

from campaigns.simulation.evidence import Evidence, RunLog
from campaigns.simulation.tools import SUBAGENTS
from campaigns.simulation.trace import require
from campaigns.simulation.world import Execution
from weftline.kernel import bodies
from weftline.kernel.control import CallUnclaimed
from weftline.kernel.entries import (
    AskedCall,
    AwaitClosed,
    AwaitOpened,
    CallAsked,
    CallClosed,
    CallOpened,
    CallStarted,
    TurnCompleted,
)
from weftline.messages import joined_text
from weftline.runtime import ids
from weftline.text.canonical import digest


class _Call(Struct):
    """A call according to the log."""

    turn: int
    index: int
    asked: AskedCall
    args: bytes
    tool: str = ""
    """The tool that executes it."""


def check_tools(evidence: Evidence, logs: Sequence[RunLog]) -> None:
    by_call: dict[tuple[str, str], list[Execution]] = defaultdict(list)
    for one in evidence.ledger.executions:
        by_call[one.run_id, one.call_id].append(one)
    by_id = {log.run_id: log for log in logs}
    calls = {log.run_id: _calls(log) for log in logs}
    owners: dict[str, tuple[str, str]] = {}
    for (run_id, call_id), executions in by_call.items():
        log, known = by_id.get(run_id), calls.get(run_id, {}).get(call_id)
        certain: list[Execution] = []
        for one in executions:
            if known is not None and (one.turn, one.tool, one.args) == (known.turn, known.tool, known.args):
                certain.append(one)
                continue
            # Only harmless calls may run ahead of the log, and so may belong to a turn that the log never got.
            ahead = one.effect == "read" and (log is None or evidence.may_have_lost(one.life, log))
            require("C3", ahead, f"{run_id}: {call_id} ran with {one.args}, and the log has {known}")
        if log is None or known is None or not certain:
            continue
        _check_executions(evidence, log, known, certain)
        owner = owners.setdefault(certain[0].key, (run_id, call_id))
        require("C3", owner == (run_id, call_id), f"{call_id} and {owner} share a key")
    for log in logs:
        _bytes_are_those_of_the_turn(log, calls[log.run_id])
        _results_came_from_somewhere(evidence, log)


def _calls(log: RunLog) -> dict[str, _Call]:
    found: dict[str, _Call] = {}
    for entry in log.entries:
        head = entry.head
        if isinstance(head, TurnCompleted):
            args = bodies.turn_args(bodies.decode_turn(entry.body))
            for index, asked in enumerate(head.calls):
                found[asked.id] = _Call(head.turn, index, asked, args[index], asked.name)
        elif isinstance(head, CallAsked):
            args = bodies.decode_asked(entry.body).args
            found[head.call.id] = _Call(head.turn, head.index, head.call, args, head.call.name)
        elif isinstance(head, CallUnclaimed) and head.fallback:
            found[head.id].tool = head.fallback
        elif isinstance(head, AwaitClosed) and head.outcome == "approved":
            call = next(one for one in found.values() if (one.turn, one.index) == (head.turn, head.index))
            answer = bodies.decode_answer(entry.body)
            if answer.args is not UNSET:  # a person has changed them
                call.args, call.asked = bytes(answer.args), replace(call.asked, digest=head.digest)
    return found


def _check_executions(evidence: Evidence, log: RunLog, call: _Call, executions: list[Execution]) -> None:
    who = f"run {log.key}: {call.asked.id}"
    unique_id = ids.unique_id(log.row.key, log.row.salt)
    key = ids.idempotency_key(evidence.disk.memory.id, unique_id, call.turn, call.index, call.asked.digest)
    started = {
        entry.head.attempt
        for entry in log.entries
        if isinstance(entry.head, CallStarted) and (entry.head.turn, entry.head.index) == (call.turn, call.index)
    }
    for one in executions:
        # A call that ran ahead may have had another place in a turn that the log never got.
        ahead = one.effect == "read" and evidence.may_have_lost(one.life, log)
        require("C3", one.key == key or ahead, f"{who} ran with another key than that of its bytes")
        require("C3", one.attempt in started or ahead, f"{who} attempt {one.attempt} ran without a start in the log")
    # A harmless one may have run ahead of a start that a crash undid.
    certain = [one for one in executions if one.effect != "read" or not evidence.may_have_lost(one.life, log)]
    attempts = Counter(one.attempt for one in certain)
    # Code that waited for somebody outside begins again, and gets its results from the log.
    once = max(attempts.values(), default=1) == 1 or call.asked.host
    require("C12", once, f"{who} began twice in one attempt")
    took_effect = evidence.ledger.effects[call.tool, key]
    require("C3", took_effect <= 1 or call.asked.effect != "once", f"{who} took effect twice")
    # Whenever a call ran again that may happen only once, by its log or by the code at that time, a person had said
    # that it did not happen. If it ran again before a deploy made it stricter, its tool had decided.
    again = [one for one in executions[1:] if "once" in (one.effect, call.asked.effect)]
    require("C3", len(again) <= _doubts_lifted(log, call), f"{who}: `once` ran {len(executions)} times")


def _doubts_lifted(log: RunLog, call: _Call) -> int:
    """How often a person said that the interrupted call had not happened."""
    heads = [entry.head for entry in log.entries]
    doubts = {head.id for head in heads if isinstance(head, AwaitOpened) and head.kind == "doubt"}
    lifted = [head for head in heads if isinstance(head, AwaitClosed) and head.outcome == "approved"]
    return sum(head.id in doubts and (head.turn, head.index) == (call.turn, call.index) for head in lifted)


def _bytes_are_those_of_the_turn(log: RunLog, calls: dict[str, _Call]) -> None:
    """The arguments are final with the turn: nothing later changed them, whatever code ran."""
    for entry in log.entries:
        head = entry.head
        if isinstance(head, CallOpened):
            call = calls[head.id]
            require(
                "C3", head.digest == call.asked.digest == digest(call.args), f"run {log.key}: {head.id}: its digest"
            )
            opened = bytes(bodies.decode_opened(entry.body).args)
            given_up = log.end is not None and log.end.code == "worker_error"
            require("C3", opened == call.args or given_up, f"run {log.key}: {head.id} was opened with {opened}")


def _answers(log: RunLog) -> set[str]:
    """People's answers to the questions of tools."""
    closed = [entry for entry in log.entries if isinstance(entry.head, AwaitClosed) and entry.body]
    values = [bodies.decode_answer(entry.body).value for entry in closed]
    return {str(decode(value)) for value in values if value is not UNSET}


def _results_came_from_somewhere(evidence: Evidence, log: RunLog) -> None:
    results = {f"{one.tool} {one.number}" for one in evidence.ledger.executions if one.ended in ("returned", "failed")}
    results |= set(evidence.ledger.happened.values())
    results |= _answers(log)  # A3 checks which answer belongs to which call, and H2 those of children
    for entry in log.entries:
        head = entry.head
        if isinstance(head, CallClosed) and head.how == "returned" and not head.client and head.name not in SUBAGENTS:
            text = joined_text(bodies.decode_closed(entry.body).parts[:1])  # the next may report a person's edits
            require("C3", text in results, f"run {log.key}: the result {text!r} came from nowhere")
