"""Checks that can only be made at the moment something begins."""

from __future__ import annotations

from collections.abc import Callable

from campaigns.simulation.disk import Disk
from campaigns.simulation.trace import Violation
from campaigns.simulation.world import Asked, Execution, Ledger, Witness
from weftline.kernel.entries import CallClosed, CallStarted, TurnCompleted

MAX_REQUESTS = 1000
"""Of a whole history, which has a handful of runs with a few turns each."""


class DurableWitness(Witness):
    """Compares what begins with what is durable at that moment."""

    def __init__(self, disk: Disk, ledger: Ledger, *, fail: Callable[[Violation], None]) -> None:
        self._disk = disk
        self._fail = fail
        self._ledger = ledger

    def model_asked(self, asked: Asked) -> None:
        tag, basis = asked.tag, asked.basis
        self._require("C6", asked.number < MAX_REQUESTS, f"the model was asked {MAX_REQUESTS} times")
        others = [
            one.number
            for one in self._ledger.asked
            if one is not asked
            and one.tag == tag
            and one.life == asked.life
            and not one.ended
            # A driver whose memory was lost may not have been cut off yet; nothing that it produces counts.
            and one.basis.memory == basis.memory
        ]
        self._require("C12", not others, f"{tag}: request {asked.number} while {others} are under way")
        key = self._disk.key_of(tag)
        turns: set[int] = set()
        for entry in self._disk.facts(key) if key is not None else ():
            if isinstance(entry.head, TurnCompleted):
                turns.add(entry.head.turn)
        self._require("C4", basis.turn not in turns, f"{tag}: turn {basis.turn} was asked for, and is complete")
        before = set(range(basis.turn))
        self._require(
            "C4", before <= turns, f"{tag}: turn {basis.turn} was asked for before {before - turns} is durable"
        )

    def tool_began(self, execution: Execution) -> None:
        started = False
        for entry in self._disk.facts(self._disk.locate(execution.run_id)):
            head = entry.head
            if isinstance(head, CallClosed):
                self._require("C3", head.id != execution.call_id, f"{execution.run_id}: {head.id} began, and is closed")
            elif isinstance(head, CallStarted) and (head.turn, head.attempt) == (execution.turn, execution.attempt):
                started = True
        self._require(
            "C3",
            started or execution.effect == "read",
            f"{execution.run_id}: {execution.call_id} began without a start",
        )

    def _require(self, rule: str, holds: bool, what: str) -> None:
        if not holds:
            self._fail(Violation(rule, what))
