"""What the torture saw from outside: recorded by the clients and peers, never by the server."""

from __future__ import annotations

import time
from typing import Literal, TypeAlias

from msgspec import Struct

Line: TypeAlias = tuple[str, ...]
"""A message as the model read it: its role, its text, and the calls (id, name, arguments) or the call it answers."""


def now_us() -> int:
    """The wall clock, as in the server's log."""
    return time.time_ns() // 1000


class Asked(Struct):
    """One model request that arrived completely."""

    number: int
    order: int
    turn: int
    life: int
    messages: tuple[Line, ...]
    ended: Literal["open", "whole", "failed", "cut"] = "open"


class Life(Struct):
    """One process of the server, from before it was started until it was seen to be gone."""

    number: int
    began_us: int
    ended_us: int = 0
    how: Literal["alive", "killed", "stopped", "died"] = "alive"
    full: int = 0
    """How often its disk was full."""

    @property
    def may_lose(self) -> int:
        """How many model requests of one run may be unknown to the log."""
        return self.full + (self.how in ("killed", "died"))


class View(Struct):
    """What one follower of a run has received, over all its connections."""

    run: str
    frames: dict[int, bytes] = {}
    last: int = 0
    ended: bool = False


class Delivery(Struct, frozen=True):
    """One attempt to deliver a webhook."""

    webhook: str
    id: str
    run: str
    status: str
    accepted: bool
    """Whether the receiver responded with 200, as far as it can tell."""


class Ledger(Struct):
    asked: list[Asked] = []
    lives: list[Life] = []
    created: dict[int, set[str]] = {}
    """For each order, the run ids that creates returned."""
    answered: dict[tuple[str, str], set[str]] = {}
    """For each run and call, the client results that were accepted."""
    cancelled: dict[str, str] = {}
    """For each run, the status that a cancel returned."""
    sessions: dict[str, list[int]] = {}
    """For each session, its orders as they were accepted."""
    views: list[View] = []
    deliveries: list[Delivery] = []
    mishaps: dict[str, int] = {}
    faults: list[str] = []

    def fault(self, what: str) -> None:
        self.faults.append(what)

    @property
    def life(self) -> Life:
        return self.lives[-1]

    def life_at(self, at_us: int) -> Life:
        return next(life for life in reversed(self.lives) if life.began_us <= at_us)
