"""Arguments and results of calls, converted between the bytes of the log and the values that hooks see."""

from __future__ import annotations

from typing import Any

from msgspec.json import decode

from weftline import prompts
from weftline.messages import Image, Text, UserPart
from weftline.text.canonical import NotCanonical, canonical_value
from weftline.tools.arguments import InvalidArguments, object_args
from weftline.tools.base import Tool
from weftline.tools.coercion import coerced
from weftline.tools.results import output_of


def object_of(args: bytes) -> dict[str, Any]:
    return decode(args, type=dict[str, Any]) if args else {}


def written_object(args: str) -> dict[str, Any]:
    """Returns the arguments as the model wrote them, or an empty dict if they are not an object."""
    try:
        return dict(object_args(args)[0])
    except InvalidArguments:
        return {}


def coerced_args(args: str, tool: Tool) -> str | None:
    """Returns coerced arguments if those that the model wrote have the wrong types; None if coercion does not help."""
    try:
        value, _ = object_args(args)
        changed = coerced(value, tool.spec.parameters)
        return None if changed is None else canonical_value(changed).decode()
    except (InvalidArguments, NotCanonical):
        return None


def parts_of(result: object, *, before: tuple[UserPart, ...], tool: str) -> tuple[UserPart, ...]:
    """Returns the parts of a result that a hook may have replaced by anything that a tool may return."""
    return before if result is before else output_of(result, tool_name=tool).parts


def in_words(parts: tuple[UserPart, ...]) -> tuple[UserPart, ...]:
    """Replaces images with text, for a model without vision."""
    return tuple(
        [Text(prompts.models.unseen_image(one.media_type)) if isinstance(one, Image) else one for one in parts]
    )
