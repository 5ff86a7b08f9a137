"""What a client knows about a failed call besides its text."""

from __future__ import annotations

from msgspec import Struct, ValidationError, convert
from msgspec.json import encode
from msgspec.structs import fields

from weftline.errors import Issue, invalid
from weftline.events.parts import WireHint
from weftline.failure import CORRECTABLE, Failure, FailureKind, Recovery, recovery_by, recovery_problem
from weftline.wire.limits import MAX_FAILURE_BYTES
from weftline.wire.unknown_fields import Shape
from weftline.wire.validation import json_words


class SentFailure(Struct, frozen=True, rename="camel", omit_defaults=True):
    """What a client reports about an error besides its text."""

    kind: FailureKind | None = None
    recovery: Recovery | None = None
    hint: WireHint | None = None

    def failure(self, text: str) -> Failure:
        recovery = self.recovery
        if recovery is None and self.kind is not None and self.kind not in CORRECTABLE:
            recovery = recovery_by(self.kind)
        return Failure(text, self.kind, recovery, None if self.hint is None else self.hint.hint)


class _ExactHint(WireHint, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    pass


class ExactFailure(SentFailure, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """A `SentFailure` that refuses unknown fields."""

    hint: _ExactHint | None = None


FAILURE_SHAPE = Shape(
    frozenset([field.encode_name for field in fields(SentFailure)]),
    {"hint": Shape(frozenset([field.encode_name for field in fields(WireHint)]))},
)


def failure_problem(value: object) -> Issue | None:
    """Returns what is wrong with the shape of a `failure`."""
    try:
        convert(value, SentFailure)
    except ValidationError as error:
        message, _, where = json_words(error).partition(" - at `$")
        return Issue("failure" + where.rstrip("`"), message)
    return None


def require_failure(sent: SentFailure, *, error: str | None) -> None:
    """Raises `InvalidRequest` for an impossible one."""
    if error is None:
        raise invalid([Issue("failure", "can only be given with `error`")])
    if len(encode(sent)) > MAX_FAILURE_BYTES:
        raise invalid([Issue("failure", f"must not be larger than {MAX_FAILURE_BYTES // 1024} KB")])
    if problem := recovery_problem(sent.kind or "domain_rejection", sent.recovery):
        raise invalid([Issue("failure.recovery", problem)])
