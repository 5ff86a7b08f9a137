"""What a use case is given: the host that it works on, its caller, and what was sent.

The signature of a case declares its route; `weftline.server.case` reads it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct

from weftline.api.principal import Principal
from weftline.runtime.engine import Engine
from weftline.store.records.pages import RowPage
from weftline.store.rows import IdempotencyKey
from weftline.wire.responses import Warnings
from weftline.wire.unknown_fields import UnknownField
from weftline.workspace.context import Workspaces

Fields = TypeVar("Fields")


class Host(Protocol):
    """The server, as use cases need it."""

    @property
    def engine(self) -> Engine: ...
    @property
    def workspaces(self) -> Workspaces: ...


def require_accepting(on: Host, by: Principal) -> None:
    """Raises `Unavailable` while the engine takes no work; the operator may prepare a store that is held."""
    if not by.operator:
        on.engine.require_accepting()


class Page(Struct, frozen=True):
    """The part of a list that is asked for: up to `limit` items, after the one with the key `after`."""

    after: int
    limit: int
    seal: Callable[[int], str]

    def next_cursor(self, page: RowPage[Any]) -> str | None:
        """Returns the cursor of the next page; None if this is the last."""
        return None if page.more_after is None else self.seal(page.more_after)


class Body(Struct, Generic[Fields], frozen=True):
    """A body that was sent: its valid fields, the fields that nobody knows, and its bytes."""

    fields: Fields
    unknown: Sequence[UnknownField]
    raw: bytes


class Sent(Struct, Generic[Fields], frozen=True):
    """A request. `Sent[None]` has no body."""

    read: Callable[[], Awaitable[Body[Fields]]]
    """Returns the body. A case first finds what the request is about, so that nobody sends a body for nothing."""
    warn: Callable[[Sequence[UnknownField]], Warnings]
    """Returns the warnings about unknown fields; raises if they are refused."""
    root: str = ""
    """The path that the server is mounted at."""


class Repeatable(Sent[Fields], Generic[Fields], frozen=True, kw_only=True):
    """A request that may be sent again with the same `Idempotency-Key`."""

    once: Callable[[str, bytes], Awaitable[IdempotencyKey | None]]
    """Returns the key, for requests of this kind with this body; None if it has none."""
