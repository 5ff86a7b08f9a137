"""Checks that can be made only at the moment when something begins."""

from __future__ import annotations

from collections.abc import Callable

from weftline.kernel.entries import CallClosed, CallStarted, TurnCompleted, decode_fact
from weftline.runtime import ids
from weftline.store.sqlite.reads import Reader
from weftline.testing.simulation.trace import Violation
from weftline.testing.simulation.world import Asked, Execution, Ledger, SimTool, Witness


class DurableWitness(Witness):
    """Compares what begins with what is durable just then."""

    def __init__(
        self, read: Reader, ledger: Ledger, *, key_of: Callable[[str], int | None], fail: Callable[[Violation], None]
    ) -> None:
        self._read = read
        self._key_of = key_of
        self._fail = fail
        self._ledger = ledger

    def model_asked(self, asked: Asked) -> None:
        others = [
            one.number
            for one in self._ledger.asked
            if one is not asked and one.tag == asked.tag and one.life == asked.life and not one.ended
        ]
        self._require("C12", not others, f"{asked.tag}: request {asked.number} while {others} are under way")
        key = self._key_of(asked.tag)
        if key is None:
            return
        for row in self._read.of_kinds(key, ("turn.completed",)):
            head = decode_fact.decode(row[3])
            assert isinstance(head, TurnCompleted)
            self._require(
                "C4", head.turn < asked.turn, f"{asked.tag}: turn {asked.turn} was asked for, and is complete"
            )

    def tool_began(self, execution: Execution, tool: SimTool) -> None:
        parsed = ids.parse(execution.run_id, prefix="run_")
        assert parsed is not None
        started = False
        for row in self._read.of_kinds(parsed[0], ("call.started", "call.closed")):
            head = decode_fact.decode(row[3])
            if isinstance(head, CallClosed):
                self._require("C3", head.id != execution.call_id, f"{execution.run_id}: {head.id} began, and is closed")
            elif isinstance(head, CallStarted) and (head.turn, head.attempt) == (execution.turn, execution.attempt):
                started = True
        self._require(
            "C3", started or tool.effect == "read", f"{execution.run_id}: {execution.call_id} began without a start"
        )

    def _require(self, rule: str, holds: bool, what: str) -> None:
        if not holds:
            self._fail(Violation(rule, what))
