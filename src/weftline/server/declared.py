"""Declarations of what a route reads of a request. The OpenAPI page lists it, and `Request` gives out nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Generic, TypeVar

from msgspec import Meta, Struct
from msgspec.json import schema_components

from weftline.wire.limits import MAX_BODY_BYTES

T = TypeVar("T")

OF_EVERY_REQUEST = frozenset(
    {
        b"accept",
        b"access-control-request-headers",
        b"access-control-request-method",
        b"authorization",
        b"content-length",
        b"content-type",
        b"cookie",
        b"host",
        b"origin",
        b"sec-fetch-site",
        b"traceparent",
        b"user-agent",
        b"x-api-key",
        b"x-forwarded-for",
    }
)
"""Headers that any request may have: HTTP, browsers, proxies, tracing and the credentials define them, not a route."""


class Undeclared(Exception):
    """A handler reads something of a request that its route does not declare."""


class QueryParameter(Struct, frozen=True):
    """An optional query parameter. A list may be given several times."""

    name: str
    type: Any
    about: str


def parameters_of(fields: type[Struct]) -> tuple[QueryParameter, ...]:
    """Returns the parameters that a struct describes: strings, each with a description."""
    described: dict[str, Any] = schema_components([fields])[1][fields.__name__]["properties"]
    return tuple(QueryParameter(name, str, one["description"]) for name, one in described.items())


class Header(Struct, frozen=True):
    """An optional header that means something to a route."""

    name: str
    type: Any
    about: str


class OtherProtocol:
    """A body or a response that another protocol defines."""


class RawBytes:
    """A body or a response of bytes, of any media type."""


class Body(Struct, Generic[T], frozen=True, eq=False):
    """The body of a request. The handler gets it with `Request.read`, so that both use the same type."""

    type: Any
    """A struct, a pydantic model or `OtherProtocol`. A model that is loaded later is given by name, `module:Model`."""
    parse: Callable[..., T] | None = None
    """Reads the bytes; raises `InvalidRequest`. None if the use case gets the bytes."""
    limit_bytes: int = MAX_BODY_BYTES
    repaired: bool = False
    """Whether `parse` replaces what cannot be stored; otherwise U+0000 is refused before."""
    or_bytes: bool = False
    """Whether it may also be `RawBytes`, which the handler gets with `Request.pieces`."""


class Form(Struct, Generic[T], frozen=True, eq=False):
    """A form-encoded body, with the fields of this struct, or of one of a union. See `server.oauth.forms`."""

    type: Any
    limit_bytes: int = 64 * 1024


AnyBody = Body[Any] | Form[Any]


class Declared(Struct, frozen=True):
    """The declared inputs of a route, for checking each read of them."""

    query: frozenset[str] = frozenset()
    headers: frozenset[bytes] = OF_EVERY_REQUEST
    body: AnyBody | None = None


NOTHING = Declared()

IDEMPOTENCY_KEY_PATTERN = "^[ -~¡-¬®-ÿ]+$"
"""The printable characters that a header can have."""
IDEMPOTENCY_KEY_CHARS = 255
IDEMPOTENCY_KEY = Header(
    "Idempotency-Key",
    Annotated[str, Meta(min_length=1, max_length=IDEMPOTENCY_KEY_CHARS, pattern=IDEMPOTENCY_KEY_PATTERN)],
    "Sending the same key and body again returns the same response.",
)
PREFER = Header("Prefer", str, "`handling=strict` refuses unknown fields, which are otherwise listed in `warnings`.")
