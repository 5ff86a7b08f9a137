"""The calls of the latest turn, as the state keeps them: first those that the model asked for, then those that running
calls asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from weftline.failure import Recovery
from weftline.kernel.entries import Asks, Effect, How, Over, Verdict
from weftline.kernel.seats import Ends

Stage: TypeAlias = Literal["asked", "opened", "started", "closed"]
"""The stages of a call: the model asked for it, it was announced, it has begun, it has its one result.

A call stays in the first stage until the agent's gates have decided on it (`gated`) and the person who is asked about
it has answered.
"""


class _Room(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """Like `state.Room`."""


class Grant(_Room, frozen=True):
    """A person's approval of one call. It covers the arguments with this digest, is used once, and expires."""

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
    """Begun by an earlier epoch; whether it took effect is unknown."""
    how: How | None = None
    result: str = ""
    """Digest of the result."""
    gated: bool = False
    """The agent's gates have yet to decide on it."""
    yields: bool = False
    """A spent budget takes precedence over the verdict."""
    over: Over | None = None
    """Set if it exceeds a budget that the agent's code keeps."""
    child: str | None = None
    """The run that executes it: "" until that is created, None for a call that needs no run."""
    child_ended: bool = False
    child_waits: bool = False
    """That run is waiting for a person. Recorded only in runs that measure active time."""
    asks: Asks | None = None
    """What a person is asked before it begins, or in its place."""
    awaiting: str = ""
    """The id of the open await about it."""
    awaits: int = 0
    """How many awaits about it have been opened."""
    grant: Grant | None = None
    """The approval under which it may begin; cleared when it begins."""
    in_doubt: Literal["report", "ask"] | None = None
    """As in `AskedCall`."""
    begun_at: int = 0
    """When it last began. Recorded only if a person may have to be asked about it after a crash."""
    bookkeeping: bool = False
    """Whether it is exempt from all caps."""
    terminal: bool = False
    fallback: str = ""
    """The server tool that executes it because its client is gone."""
    recovery: Recovery | None = None
    """What its failure means for the next turn: what its tool asked for, or that the model can correct the call."""
    asked_back: bool = False
    """It has begun, and its tool has asked a person a question instead of returning a result."""
    host: bool = False
    """It may ask for further calls while it runs."""
    parent: int | None = None
    """The index of the call that asked for it; None if the model did."""
    concurrent: bool = False
    """For a call with a parent: whether it may run beside other such calls."""
    ends: Ends = ""
    to_seat: int = 0
    """As in `AskedCall`; empty for a call with a parent."""

    @property
    def tool(self) -> str:
        """The name of the tool that executes it."""
        return self.fallback or self.name

    @property
    def held(self) -> bool:
        """True if it is not announced yet because of a person: it is awaiting approval, or approved but not next in
        order.
        """
        return self.stage == "asked" and (bool(self.awaiting) or (self.grant is not None and self.client is None))

    @property
    def offered(self) -> bool:
        """True if it is waiting for a client to execute it."""
        return self.client is not None and self.stage == "opened"

    @property
    def in_line(self) -> bool:
        """True if it is to be executed by a child run and waits for nothing but room for that."""
        return self.child == "" and not self.awaiting and (self.stage == "opened" or self.grant is not None)

    @property
    def waits_for_child(self) -> bool:
        """True if it has a child run that is still open."""
        return bool(self.child) and not self.child_ended and self.stage == "started"


class Batch(_Room, frozen=True):
    """The calls of the latest turn. Thanks to its counts and cursors, `decide` need not visit every call for each
    result.
    """

    calls: tuple[Call, ...] = ()
    concurrent: bool = False
    """Whether its calls may run concurrently: every tool involved allows it."""
    asked: int = 0
    """How many are still `asked`."""
    gated: int = 0
    """How many of these are still waiting for the agent's gates."""
    first_gated: int = 0
    """None below this index is waiting for them."""
    unclosed: int = 0
    """How many have no result yet."""
    running: tuple[int, ...] = ()
    """The indexes of those that have begun and have no result yet, in order."""
    next: int = 0
    """No server-side call below this index waits to begin."""
    bytes: int = 0
    """The total size of its results, until the model has been told that it is too large."""
    held: int = 0
    """How many of its calls are `held`."""
    grants: int = 0
    """How many have a grant."""
    good: int = 0
    """How many of its calls succeeded. Counted only in runs with a policy, without bookkeeping calls."""
    bad: int = 0
    """How many of them failed, counted in the same way."""
    lacking: int | None = None
    """The first call that failed because something is missing, until a person has been asked for it."""
    ending: bool = False
    """Whether a call has succeeded that ends something, in a run with seats."""
    nested: int = 0
    """How many of its calls were requested by other calls. They come after those of the model."""
    first_nested: int = 0
    """No such call below this index is without a result."""
    orphaned: bool = False
    """Whether one of the calls that requested others has ended before them."""
    ready: int = 0
    """How many have not begun, are not offered to a client, and wait for no person."""
    undecided: int = 0
    """No call below this index is still to be announced or answered, unless gates or a person have to decide first."""
    to_offer: int = 0
    """How many of its client-side calls are still `asked`."""
    grants_due: int = 0
    """No grant expires earlier than this; it may belong to one that has since been used. 0 if there is none."""

    @property
    def busy(self) -> int:
        """The number of its calls that are executing. A call whose tool has asked a person does not count."""
        return len([index for index in self.running if not self.calls[index].asked_back]) if self.running else 0

    @property
    def to_admit(self) -> int:
        """The number of calls that are neither announced yet nor waiting for gates or a person."""
        return self.asked - self.gated - self.held

    @property
    def own(self) -> tuple[Call, ...]:
        """The calls that the model asked for."""
        return self.calls[: len(self.calls) - self.nested] if self.nested else self.calls

    @property
    def earliest_grant(self) -> int:
        """When the first grant expires; there must be one."""
        return min([call.grant.expires_at for call in self.calls if call.grant is not None])

    def with_call(self, index: int, call: Call, **also: Any) -> Batch:
        """The batch with one call replaced, its counts of held calls and grants updated, and `also` these changes."""
        calls = [*self.calls]
        before, calls[index] = calls[index], call
        if not call.awaits:  # without an await it was never held and has no grant
            return replace(self, calls=tuple(calls), **also)
        held = self.held + call.held - before.held
        grants, due = self.grants + (call.grant is not None) - (before.grant is not None), self.grants_due
        if call.grant is not None and call.grant is not before.grant:
            due = min(due or call.grant.expires_at, call.grant.expires_at)
        return replace(self, calls=tuple(calls), held=held, grants=grants, grants_due=due if grants else 0, **also)

    def next_nested(self, limit: int, room: int) -> list[int]:
        """The nested calls that may begin now, in order, if at most `limit` may run at once and `room` of these as
        child runs.

        A call that may not run concurrently waits for those before it, and those after it wait for it. Calls that a
        person is asked about are skipped, and so are those without room.
        """
        begun = [self.calls[index] for index in self.running if self.calls[index].parent is not None]
        running, concurrent, passed = len(begun), all(call.concurrent for call in begun), False
        found: list[int] = []
        for index in range(max(self.next, len(self.calls) - self.nested), len(self.calls) if self.ready else 0):
            call = self.calls[index]
            if call.client is not None or call.awaiting or call.stage not in ("asked", "opened"):
                continue
            if (running or passed) and not (concurrent and call.concurrent and running < limit):
                break
            concurrent = concurrent and call.concurrent
            if call.child is not None and room <= 0:
                passed = True
                continue
            room -= call.child is not None
            found.append(index)
            running += 1
            if len(found) == self.ready:
                break
        return found

    @property
    def only_in_line(self) -> bool:
        """True if all calls that could begin wait for room for their child runs."""
        return self.ready == sum([call.in_line for call in self.calls])

    def is_waiting(self, index: int, *, limit: int, room: int, paused: bool) -> bool:
        """Returns True if the call waits for nested calls that can only advance through somebody outside.

        Whether its own code is busy with something else meanwhile is not known here.
        """
        if not self.nested or not self.calls[index].host:
            return False
        for one in self.running:
            call = self.calls[one]
            if call.parent == index and not (call.awaiting or call.waits_for_child or (call.lost and paused)):
                return False
        if self.to_offer and not paused and any(map(_is_about_to_be_offered, self._open_below(index))):
            return False
        if next(self._open_below(index), None) is None:
            return False
        return paused or not any(self.calls[one].parent == index for one in self.next_nested(limit, room))

    def _open_below(self, index: int) -> Iterator[Call]:
        """The calls without a result that this one has requested."""
        for one in range(self.first_nested, len(self.calls)):
            call = self.calls[one]
            if call.parent == index and call.stage != "closed":
                yield call


def _is_about_to_be_offered(call: Call) -> bool:
    return call.client is not None and call.stage == "asked" and not call.awaiting


def await_id(turn: int, index: int, call: Call) -> str:
    """The id of the next await about a call."""
    return f"await_{turn}_{index}_{call.awaits + 1}"
