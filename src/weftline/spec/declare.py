"""Declares the fields of a spec: their limits, their units, and what happens when two specs are merged.

A field is a line of a struct. `Meta` has what msgspec checks while it decodes, `check` what it cannot, and `opt` in
which requests the field may appear and how it merges. The declared structs say what a client may send; `exact` and
`stored` derive from them what decodes in one pass without unknown fields, and what was checked before and is trusted
now.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Flag, auto
from functools import cache
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from msgspec import NODEFAULT, Meta, Raw, Struct, defstruct, json, structs

S = TypeVar("S", bound=Struct)


class Part(Struct, frozen=True, rename="camel", omit_defaults=True):
    """An object whose unknown fields are accepted, as clients may be newer than servers, with a warning."""


class Group(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """An object of limits. Nothing unknown is let through, as a misspelt limit would be one that does not hold."""


class Whole(Struct, frozen=True, rename="camel", omit_defaults=True):
    """An object that is passed on as it was sent, so it has no unknown fields."""


# Where a field may appear, and how it merges


class Where(Flag):
    """The kinds of requests with a spec."""

    AGENT = auto()
    SESSION = auto()
    MESSAGE = auto()
    RUN = auto()


ANY = Where.AGENT | Where.SESSION | Where.MESSAGE | Where.RUN
FIXED = Where.AGENT | Where.SESSION | Where.RUN
"""Fields that a session sets for all its runs."""
INPUT = Where.MESSAGE | Where.RUN
"""Fields of a run, and of nothing that lasts longer."""

Rule: TypeAlias = Callable[[Raw | None, Raw | None], Raw | None]
"""Merges a request's own value with the one above it. A rule that returns one of the two keeps its bytes."""


def override(own: Raw | None, above: Raw | None) -> Raw | None:
    """The request's value, if it has one."""
    return above if own is None else own


def own_only(own: Raw | None, above: Raw | None) -> Raw | None:
    """Never inherited."""
    return own


def upper(own: Raw | None, above: Raw | None) -> Raw | None:
    """Fixed by the layer above, even if that has none."""
    return above


def both(merge: Callable[[Raw, Raw], Raw]) -> Rule:
    """A rule for two values; a value that only one of the layers has stays."""

    def rule(own: Raw | None, above: Raw | None) -> Raw | None:
        return own if above is None else above if own is None else merge(own, above)

    return rule


class Opt(Struct, frozen=True):
    """The declarations of a field besides its type."""

    where: Where = ANY
    merge: Rule = override
    agent: Rule | None = None
    """The rule for what is above in a stored agent, if it is another one."""
    session: Rule | None = None
    """The rule for what is above in a session, if it is another one."""
    client: bool = True
    """True if the Python client sends the field as it is given. It has its own spelling of the others."""

    def rule(self, above: Where) -> Rule:
        if not self.where & FIXED & ~Where.RUN:
            return own_only
        own = self.agent if above is Where.AGENT else self.session if above is Where.SESSION else None
        return own or self.merge


def opt(
    where: Where = ANY,
    merge: Rule = override,
    *,
    agent: Rule | None = None,
    session: Rule | None = None,
    client: bool = True,
) -> Meta:
    return Meta(extra={"opt": Opt(where, merge, agent, session, client)})


def tighten(merge: Callable[[Any, Any], Any]) -> Meta:
    """Declares how a value of a group merges with the one above it."""
    return Meta(extra={"tighten": merge})


# What msgspec cannot check


def check(problem: Callable[[Any], str], *, schema: dict[str, Any] | None = None) -> Meta:
    """Checks a value as plain JSON: `problem` returns what is wrong with it, or "".

    `schema` is what JSON Schema can say about it.
    """
    return Meta(extra={"check": problem}, extra_json_schema=schema)


def says(problem: str, **limits: Any) -> Meta:
    """Limits with their own words for what does not match them."""
    return Meta(extra={"says": problem}, **limits)


PASSED_ON = Meta(extra={"whole": True})
"""An object whose unknown fields are its own, so that nobody is warned about them."""


def whole(pattern: str) -> str:
    """Returns the pattern for a whole string: msgspec searches, and `$` would also match before a final line break."""
    return rf"\A(?:{pattern})\Z"


if TYPE_CHECKING:
    Seconds: TypeAlias = float
    Wait: TypeAlias = float
    Span: TypeAlias = float
else:

    class Seconds(float):
        """Seconds in Python, whole milliseconds in JSON."""

        least_ms: ClassVar[int] = 0
        most_ms: ClassVar[int]

    class Span(Seconds):
        """Up to a week; 0 means no limit."""

        most_ms = 7 * 24 * 3600 * 1000

    class Wait(Seconds):
        """For people. Long, as they go on holiday."""

        least_ms = 1
        most_ms = 366 * 24 * 3600 * 1000


def milliseconds_problem(kind: Any, value: object) -> str:
    """Returns what is wrong with a time in JSON; "" if nothing is."""
    if type(value) is not int:
        return "must be an integer"
    if value < kind.least_ms:
        return f"must be at least {kind.least_ms}"
    return f"must be at most {kind.most_ms}" if value > kind.most_ms else ""


def read_seconds(kind: type, value: object) -> object:
    """Decodes a time. The `dec_hook` of every decoder of a spec."""
    if not is_seconds(kind):
        raise NotImplementedError
    if problem := milliseconds_problem(kind, value):
        raise ValueError(problem)
    return kind(cast("int", value) / 1000)


def trust_seconds(kind: type, value: object) -> object:
    """Like `read_seconds`, for a time that was checked when it was sent."""
    if not is_seconds(kind):
        raise NotImplementedError
    return kind(cast("int", value) / 1000)


def write_seconds(value: object) -> object:
    """Encodes a time. The `enc_hook` of every encoder of a spec."""
    if not is_seconds(type(value)):
        raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")
    return round(cast("float", value) * 1000)


def schema_of_seconds(kind: type) -> dict[str, Any]:
    """Returns the JSON Schema of a time. The `schema_hook` for the schemas of a spec."""
    if not is_seconds(kind):
        raise NotImplementedError
    described = cast("Any", kind)
    return {"type": "integer", "minimum": described.least_ms, "maximum": described.most_ms}


def is_seconds(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, cast("Any", Seconds)) and kind is not float


encode_spec = json.Encoder(enc_hook=write_seconds).encode


def microseconds(seconds: float | None) -> int | None:
    """Returns a time as the log has it; None for none, and for 0, which means no limit."""
    return max(round(seconds * 1_000_000), 1) if seconds else None


# The structs that follow from a declared one


class Field(Struct, frozen=True):
    """A declared field."""

    name: str
    wire: str
    type: Any
    default: Any
    opt: Opt
    tighten: Callable[[Any, Any], Any] | None


@cache
def fields_of(declared: type[Struct]) -> tuple[Field, ...]:
    hints = get_type_hints(declared, include_extras=True)
    return tuple(
        Field(
            one.name,
            one.encode_name,
            hints[one.name],
            one.default,
            _declared(hints[one.name], "opt") or Opt(),
            _declared(hints[one.name], "tighten"),
        )
        for one in structs.fields(declared)
    )


def _declared(kind: Any, name: str) -> Any:
    metas = [one.extra for one in getattr(kind, "__metadata__", ()) if isinstance(one, Meta) and one.extra]
    return next((extra[name] for extra in metas if name in extra), None)


def layer(name: str, declared: type[Struct], at: Where, doc: str, more: Sequence[tuple[Any, ...]] = ()) -> Any:
    """Returns a struct of those fields that may appear in one kind of request, with `more` of its own."""
    taken = [one for one in fields_of(declared) if one.opt.where & at]
    fields = [(one.name, one.type) if one.default is NODEFAULT else (one.name, one.type, one.default) for one in taken]
    return defstruct(
        name,
        cast("list[Any]", [*fields, *more]),
        bases=(Part,),
        frozen=True,
        kw_only=True,
        rename={one.name: one.wire for one in taken},
        namespace={"__doc__": doc},
        module=__name__,
    )


def exact(declared: type[S]) -> type[S]:
    """Returns a struct that refuses unknown fields at every level."""
    return _derived(declared, False, ())


def stored(declared: type[S], others: Mapping[Any, Any]) -> type[S]:
    """Returns a struct without limits, for what was checked when it was sent: a limit that is lowered later must not
    make it unreadable. `others` are the types that are stored in another form."""
    return _derived(declared, True, tuple(others.items()))


@cache
def _derived(declared: type[S], trusted: bool, others: tuple[tuple[type[Struct], Any], ...]) -> type[S]:
    config = declared.__struct_config__
    fields: list[Any] = []
    for one in fields_of(declared):
        kind = _derived_type(one.type, trusted, others)
        fields.append((one.name, kind) if one.default is NODEFAULT else (one.name, kind, one.default))
    return cast(
        "type[S]",
        defstruct(
            declared.__name__,
            fields,
            bases=(declared,),
            frozen=True,
            kw_only=True,
            tag=config.tag,
            tag_field=config.tag_field,
            rename={one.name: one.wire for one in fields_of(declared)},
            forbid_unknown_fields=not trusted and not issubclass(declared, Whole),
            omit_defaults=True,
            module=__name__,
        ),
    )


def _derived_type(kind: Any, trusted: bool, others: tuple[tuple[type[Struct], Any], ...]) -> Any:
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        inner = _derived_type(args[0], trusted, others)
        return inner if trusted else Annotated[(inner, *kind.__metadata__)]
    if origin in (Union, UnionType):
        members = [_derived_type(arg, trusted, others) for arg in args]
        return cast("Any", Union[tuple(members)])  # noqa: UP007
    if origin is not None and origin is not Literal:
        return origin[tuple([_derived_type(arg, trusted, others) for arg in args])]
    found = dict[Any, Any](others).get(kind)
    if found is not None:
        return found
    if isinstance(kind, type) and issubclass(kind, Struct):
        return _derived(kind, trusted, others)
    return cast("Any", kind)
