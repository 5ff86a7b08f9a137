"""Tells whether the outcome of a running command can still change anything. If not, the command is cancelled."""

from __future__ import annotations

from typing import assert_never

from weftline.kernel.state import (
    Call,
    CallModel,
    CheckOutput,
    Command,
    Compact,
    Consult,
    ConsultAwait,
    ConsultPolicy,
    FinishChild,
    Reconcile,
    RunTool,
    StartChild,
    State,
)


def is_outstanding(s: State, command: Command) -> bool:
    match command:
        case CallModel():
            return s.attempt.open and (command.turn, command.attempt) == (s.turn, s.attempt.number)
        case Compact():
            return s.compaction.open and command.number == s.compaction.number
        case CheckOutput():
            return command.turn == s.turn - 1
        case ConsultPolicy():
            return command.turn == s.turn - 1 and s.policy.decided < command.turn and not s.policy.reached
        case RunTool() | Reconcile():
            call = _call(s, command.turn, command.index)
            return call is not None and call.stage == "started" and call.attempt == command.attempt
        case Consult():
            call = _call(s, command.turn, command.index)
            return call is not None and call.gated
        case ConsultAwait():
            return command.id in s.questions.open
        case StartChild():
            call = _call(s, command.turn, command.index)
            return call is not None and call.stage == "opened"
        case FinishChild():
            return _call(s, command.turn, command.index) is not None
        case _:
            assert_never(command)


def _call(s: State, turn: int, index: int) -> Call | None:
    if turn != s.turn - 1 or index >= len(s.batch.calls):
        return None
    call = s.batch.calls[index]
    return None if call.stage == "closed" else call
