"""The options of a run that are the client's own, the request bodies that options produce, and types as answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, TypedDict, TypeVar

import msgspec

from weftline.client.attachments import AttachmentLike, attachments_on_wire
from weftline.client.errors import InvalidSpec, ParseError
from weftline.client.events import ClientEvent
from weftline.client.results import RunResult
from weftline.client.tools import ToolLike
from weftline.text.suggestions import did_you_mean
from weftline.wire.limits import DEFAULT_SCHEMA_NAME

T = TypeVar("T")


def parse_output(result: RunResult | str, output_type: type[T]) -> T:
    """Parses the final text of a run as `output_type`: a pydantic model, a msgspec struct, or any type of pydantic's.

    Raises:
        ParseError: if the text is not JSON or does not match; its `text` is the text.
    """
    text = result if isinstance(result, str) else result.text
    if _is_struct(output_type):
        try:
            return msgspec.json.decode(text, type=output_type)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise ParseError(f"the answer is not a {output_type.__name__}: {error}", text=text) from error
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(output_type).validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = "/".join(map(str, first["loc"])) or "(root)"
        raise ParseError(f"the answer does not match: {place}: {first['msg']}", text=text) from error


def schema_of(output_type: Any) -> dict[str, Any]:
    """Returns the `outputSchema` of a type."""
    if _is_struct(output_type):
        schemas, parts = msgspec.json.schema_components([output_type], ref_template="#/$defs/{name}")
        root = parts.get(output_type.__name__, schemas[0])
        schema = {**root, "$defs": parts} if len(parts) > 1 else root
    else:
        from pydantic import TypeAdapter

        adapter: TypeAdapter[Any] = TypeAdapter(output_type)
        schema = adapter.json_schema()
    name = re.sub(r"[^a-zA-Z0-9_-]", "_", getattr(output_type, "__name__", ""))[:64] or DEFAULT_SCHEMA_NAME
    return {"name": name, "schema": schema}


def _is_struct(output_type: Any) -> bool:
    return isinstance(output_type, type) and issubclass(output_type, msgspec.Struct)


class ToolOptions(TypedDict, total=False):
    """What a session and a run have that is not sent as it is given."""

    tools: Sequence[ToolLike] | None


class CallOptions(ToolOptions, total=False):
    """What a run has that is not sent as it is given."""

    attachments: Sequence[AttachmentLike] | None
    output_type: Any
    """A type for the output, instead of `output_schema`."""
    deadline_s: float | None
    lease_s: float | None
    idempotency_key: str | None
    on_event: Callable[[ClientEvent], object] | None


_LOCAL = CallOptions.__annotations__.keys()


@cache
def _wire_names() -> dict[str, str]:
    from weftline.spec.declare import fields_of
    from weftline.spec.fields import RunSpec

    return {one.name: one.wire for one in fields_of(RunSpec) if one.opt.client}


def check_lease(lease_s: float | None) -> None:
    if lease_s is not None and not 1 <= lease_s <= 600:
        raise InvalidSpec(f"lease_s must be 1 to 600 seconds, not {lease_s:g}")


def body_of(
    options: Mapping[str, Any],
    *,
    prompt: str | None = None,
    tools: list[dict[str, Any]] | None = None,
    asks: bool = True,
) -> bytes:
    """Returns the JSON of a request. `asks` is False for a session, which has no input."""
    from weftline.spec.declare import encode_spec
    from weftline.spec.fields import TIME

    names = _wire_names()
    unknown = options.keys() - names.keys() - _LOCAL
    if unknown:
        near = did_you_mean(min(unknown), [*names, *_LOCAL])
        raise TypeError(f"unknown option {', '.join(sorted(unknown))}.{near}")
    body: dict[str, Any] = {} if prompt is None else {"prompt": prompt}
    body |= {wire: value for name, wire in names.items() if (value := options.get(name)) is not None}
    if attributes := options.get("search_attributes"):
        body["searchAttributes"] = {
            name: {TIME: value} if isinstance(value, datetime) else value for name, value in attributes.items()
        }
    check_lease(options.get("lease_s"))
    if asks and ("prompt" in body) == ("messages" in body):
        raise InvalidSpec("give either a prompt or messages")
    attachments = options.get("attachments")
    if attachments:
        body["attachments"] = attachments_on_wire(attachments)
    output_type = options.get("output_type")
    if output_type is not None:
        if "outputSchema" in body:
            raise InvalidSpec("give output_type or output_schema, not both")

        body["outputSchema"] = schema_of(output_type)
    if tools is not None:
        body["tools"] = tools
    try:
        return encode_spec(body)
    except UnicodeEncodeError as error:
        raise InvalidSpec("an option contains an unpaired surrogate, which is not valid text") from error
    except (TypeError, ValueError) as error:
        raise InvalidSpec(f"an option has no JSON form: {error}") from error
