"""Arguments and results of calls, between the bytes of the log and the values that hooks see."""

from __future__ import annotations

from typing import Any

from msgspec.json import decode

from weftline import prompts
from weftline.canonical import NotCanonical, canonical_value
from weftline.messages import Image, Text, UserPart
from weftline.tools.arguments import InvalidArguments, object_args
from weftline.tools.base import Tool
from weftline.tools.coercion import coerced
from weftline.tools.results import output_of


def object_of(args: bytes) -> dict[str, Any]:
    return decode(args, type=dict[str, Any]) if args else {}


def written_object(args: str) -> dict[str, Any]:
    """The arguments as a model wrote them; nothing if they are no object."""
    try:
        return dict(object_args(args)[0])
    except InvalidArguments:
        return {}


def coerced_args(args: str, tool: Tool) -> str | None:
    """Other arguments to try, if those that the model wrote are of the wrong types; None if there are none."""
    try:
        value, _ = object_args(args)
        changed = coerced(value, tool.spec.parameters)
        return None if changed is None else canonical_value(changed).decode()
    except (InvalidArguments, NotCanonical):
        return None


def parts_of(result: object, *, before: tuple[UserPart, ...], tool: str) -> tuple[UserPart, ...]:
    """What a hook left as a result: the parts as they were, or anything that a tool may return."""
    return before if result is before else output_of(result, tool_name=tool).parts


def in_words(parts: tuple[UserPart, ...]) -> tuple[UserPart, ...]:
    """What a model without vision reads of them."""
    return tuple(
        [Text(prompts.models.unseen_image(one.media_type)) if isinstance(one, Image) else one for one in parts]
    )
