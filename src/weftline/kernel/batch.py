"""The calls of the latest turn, as the state has them: those that the model asked for, and those that running calls
asked for after them.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from weftline.failure import Recovery
from weftline.kernel.entries import Asks, Effect, How, Over, Verdict

Stage: TypeAlias = Literal["asked", "opened", "started", "closed"]
"""Of a call: the model asked for it, it was announced, it has begun, it has its one result.

A call that is `gated` stays in the first stage until the agent's gates have decided on it, and one that a person is
asked about until that person has.
"""


class _Room(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """As `state.Room`."""


class Grant(_Room, frozen=True):
    """A person's approval of one call: for the arguments with this digest, to be used once, for a while."""

    digest: str
    expires_at: int


class Call(_Room, frozen=True):
    """A call of the current turn, from the model's request to its one result."""

    id: str
    name: str
    digest: str
    verdict: Verdict = "ok"
    effect: Effect = "once"
    client: str | None = None
    stage: Stage = "asked"
    attempt: int = 0
    lost: bool = False
    """Begun by an earlier epoch; it is not known here whether it happened."""
    how: How | None = None
    result: str = ""
    """Digest of the result."""
    gated: bool = False
    """The agent's gates have yet to decide on it."""
    yields: bool = False
    """A spent budget goes before the verdict."""
    over: Over | None = None
    """It is beyond a budget that the agent's code keeps."""
    child: str | None = None
    """The run that carries it out; "" before there is one, None for a call without."""
    child_ended: bool = False
    child_waits: bool = False
    """The run that carries it out stands still because of a person, as far as this run has to know."""
    asks: Asks | None = None
    """A person is asked before it begins, or in its place."""
    awaiting: str = ""
    """The open await that is about it."""
    awaits: int = 0
    """How many were opened so far."""
    grant: Grant | None = None
    """The approval that it may begin with, until it does."""
    in_doubt: Literal["report", "ask"] | None = None
    """As in `AskedCall`."""
    begun_at: int = 0
    """When it was begun last, if a person may have to be asked about that."""
    bookkeeping: bool = False
    """No cap counts it."""
    terminal: bool = False
    fallback: str = ""
    """The tool that carries it out in place of its client, which is gone."""
    recovery: Recovery | None = None
    """What is to follow from its failure: what was asked for, or that it can be corrected."""
    asked_back: bool = False
    """It has begun, and its tool has asked a person something in place of a result."""
    host: bool = False
    """It may ask for further calls while it runs."""
    parent: int | None = None
    """The index of the call that asked for it; None for one of the model's."""
    concurrent: bool = False
    """Of one with a parent: whether it may run beside others of that kind."""

    @property
    def tool(self) -> str:
        """The name of the tool that carries it out."""
        return self.fallback or self.name

    @property
    def held(self) -> bool:
        """Whether it is not announced yet because of a person: one is asked, or has approved and it is not its turn."""
        return self.stage == "asked" and (bool(self.awaiting) or (self.grant is not None and self.client is None))

    @property
    def offered(self) -> bool:
        """Whether it is the client that carries it out, and has yet to."""
        return self.client is not None and self.stage == "opened"

    @property
    def waits_for_child(self) -> bool:
        """Whether the run that carries it out is open."""
        return bool(self.child) and not self.child_ended and self.stage == "started"


class Batch(_Room, frozen=True):
    """The calls of the latest turn. The counts and cursors save `decide` a walk over all calls for each result."""

    calls: tuple[Call, ...] = ()
    concurrent: bool = False
    """Whether its calls may run concurrently: every tool involved allows it."""
    asked: int = 0
    """How many are still `asked`."""
    gated: int = 0
    """How many of these the agent's gates have yet to decide on."""
    unclosed: int = 0
    """How many have no result yet."""
    running: tuple[int, ...] = ()
    """The indexes of those that have begun and have no result yet, in order."""
    next: int = 0
    """No server-side call below this index waits to begin."""
    bytes: int = 0
    """The size of its results, until the model is told that it is too much."""
    held: int = 0
    """How many of its calls are `held`."""
    grants: int = 0
    """How many have a grant."""
    good: int = 0
    """In a run with a policy: how many of those that count have succeeded."""
    bad: int = 0
    """And how many have failed."""
    lacking: int | None = None
    """The first call whose failure says that something is missing, until a person is asked for it."""
    nested: int = 0
    """How many calls other calls asked for. They come after those of the model."""

    @property
    def busy(self) -> int:
        """How many of its calls are at work: not those whose tools have asked a person."""
        return len([index for index in self.running if not self.calls[index].asked_back])

    @property
    def own(self) -> tuple[Call, ...]:
        """The calls that the model asked for."""
        return self.calls[: len(self.calls) - self.nested] if self.nested else self.calls

    def next_nested(self, limit: int) -> list[int]:
        """The nested calls that may begin now, in their order, if `most` may run at once.

        One that may not run beside others waits until those before it have their results, and those after it wait for
        it. A call that a person is asked about is passed by.
        """
        begun = [self.calls[index] for index in self.running if self.calls[index].parent is not None]
        running, concurrent = len(begun), all(call.concurrent for call in begun)
        found: list[int] = []
        for index in range(len(self.calls) - self.nested, len(self.calls)):
            call = self.calls[index]
            if call.client is not None or call.awaiting or call.stage not in ("asked", "opened"):
                continue
            if running and not (concurrent and call.concurrent and running < limit):
                break
            found.append(index)
            running, concurrent = running + 1, concurrent and call.concurrent
        return found

    def is_waiting(self, index: int, *, limit: int, paused: bool) -> bool:
        """Whether a call that asked for others cannot go on before somebody outside has moved one of those.

        Nobody knows what it does besides.
        """
        if not self.nested or not self.calls[index].host:
            return False
        open = 0
        for call in self.calls[-self.nested :]:
            if call.parent != index or call.stage == "closed":
                continue
            open += 1
            if call.stage == "started" and not (call.awaiting or call.waits_for_child or (call.lost and paused)):
                return False
            if call.client is not None and call.stage == "asked" and not call.awaiting and not paused:
                return False  # it is about to be offered
        if not open:
            return False
        return paused or not any(self.calls[one].parent == index for one in self.next_nested(limit))


def await_id(turn: int, index: int, call: Call) -> str:
    """The id of the next await about a call."""
    return f"await_{turn}_{index}_{call.awaits + 1}"
