"""A1 and A2: no await is forgotten or closed twice, and no call begins without the grant that it needs.

Which calls need one is known by the names of their tools, whatever a log says.
"""

from __future__ import annotations

from collections.abc import Sequence

from campaigns.simulation.evidence import Evidence, RunLog
from campaigns.simulation.tools import ASKING, ASKS_A_QUESTION, SUBAGENTS
from campaigns.simulation.trace import require
from weftline.kernel import bodies
from weftline.kernel.entries import (
    AttemptStarted,
    AwaitClosed,
    AwaitOpened,
    CallAsked,
    CallClosed,
    CallStarted,
    RunCreated,
    RunEnded,
    TurnCompleted,
)

NEED_APPROVAL = frozenset((*ASKING, SUBAGENTS[-1]))


def check_approvals(evidence: Evidence, logs: Sequence[RunLog]) -> None:
    for log in logs:
        if log.end is None or log.end.code != "worker_error":
            _closed_once(log)
            _granted(log)
        listed = [id for (key, id) in evidence.disk.memory.awaits if key == log.key]
        require("A1", not listed, f"run {log.key} has ended, and {listed} is listed")
    by_key = {log.key: log for log in logs}
    for (key, id), answer in evidence.people.answers.items():
        heads = [entry.head for entry in by_key[key].entries]
        closed = [(one.outcome, one.by) for one in heads if isinstance(one, AwaitClosed) and one.id == id]
        require("A1", [one[0] for one in closed] == [answer[0]], f"run {key}: {id} was {answer}, and is {closed}")


def _closed_once(log: RunLog) -> None:
    seen: set[str] = set()
    pending: dict[tuple[int, int], str] = {}
    for entry in log.entries:
        head = entry.head
        match head:
            case AwaitOpened():
                call = head.turn, head.index
                require("A1", head.id not in seen and call not in pending, f"run {log.key}: {head.id} is opened again")
                seen.add(head.id)
                pending[call] = head.id
            case AwaitClosed():
                found = pending.pop((head.turn, head.index), "")
                require("A1", found == head.id, f"run {log.key}: {head.id} is closed, and {found!r} is open")
            case CallStarted() | CallClosed():
                found = pending.get((head.turn, head.index), "")
                require("A1", not found, f"run {log.key}: seq {entry.seq} comes while {found} is open")
            case AttemptStarted() | RunEnded():
                require("A1", not pending, f"run {log.key}: seq {entry.seq} comes while {pending} are open")
            case _:
                pass


def _granted(log: RunLog) -> None:
    ttl_us = 0
    names: dict[tuple[int, int], str] = {}
    allowed: dict[tuple[int, int], str] = {}
    grants: dict[tuple[int, int], tuple[str, int]] = {}
    patterns: dict[str, str] = {}
    digests: dict[tuple[int, int], str] = {}
    for entry in log.entries:
        head = entry.head
        match head:
            case RunCreated():
                ttl_us = head.limits.grant_ttl_us
            case TurnCompleted():
                for index, asked in enumerate(head.calls):
                    names[head.turn, index] = asked.name
                    digests[head.turn, index] = asked.digest
                    if asked.allowed_by:
                        allowed[head.turn, index] = asked.allowed_by
            case CallAsked():
                names[head.turn, head.index] = head.call.name
                digests[head.turn, head.index] = head.call.digest
                if head.call.allowed_by:
                    allowed[head.turn, head.index] = head.call.allowed_by
            case AwaitClosed(outcome="approved"):
                answer = bodies.decode_answer(entry.body) if entry.body else bodies.AnswerBody()
                grants[head.turn, head.index] = head.digest, entry.at + ttl_us
                digests[head.turn, head.index] = head.digest
                if answer.remember is not None:
                    patterns[head.id] = answer.remember.tool
            case CallStarted() if names[head.turn, head.index] in NEED_APPROVAL and head.attempt == 1:
                call = head.turn, head.index
                who = f"run {log.key}: call {call} of {names[call]}"
                if call in allowed:
                    require("A2", patterns.get(allowed[call]) == names[call], f"{who} rests on {allowed[call]}")
                    continue
                digest, until = grants.pop(call, ("", 0))
                require("A2", bool(digest), f"{who} began without a grant")
                require("A2", digest == digests[call], f"{who} began with a grant for other arguments")
                require("A2", entry.at < until, f"{who} began with a grant that had lapsed")
            case CallStarted():
                named = names[head.turn, head.index]
                require("A2", named != ASKS_A_QUESTION, f"run {log.key}: a question was carried out")
            case _:
                pass
