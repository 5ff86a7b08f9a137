"""Lets a tool make the final arguments of a call, whatever its code does meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import cast

from msgspec import Raw
from msgspec.json import Decoder

from weftline import prompts
from weftline.runtime.services import Services
from weftline.tools.arguments import InvalidArguments
from weftline.tools.base import Tool
from weftline.tools.function import FunctionTool
from weftline.tools.injected import NotInjected
from weftline.tools.results import reason_of
from weftline.tools.validation_work import NOT_CHECKED, SMALL_BYTES
from weftline.work.outcomes import is_being_cancelled, is_interruption
from weftline.work.threads import not_started

PREPARE_TIMEOUT_S = 30.0
"""The time-out for preparing the arguments of one call, if its tool has none of its own."""
_check_object = Decoder(dict[str, Raw]).decode
"""What a tool has prepared goes into the log unchanged."""


class PrepareFailed(Exception):
    """The tool broke, hung or returned something else. The message is the reason, as a model reads it."""


class NotChecked(PrepareFailed):
    """The arguments waited too long for their turn to be checked, which is not the fault of the tool."""


async def final_args(
    tool: Tool, args: str, services: Services, *, prepare: Callable[[str], Awaitable[bytes]] | None = None
) -> bytes:
    """The final arguments of a call. `prepare` is called in place of the tool's own.

    Raises `InvalidArguments` or `NotInjected` as the tool does, `NotChecked`, and `PrepareFailed` for everything else.
    """
    prepare = tool.prepare if prepare is None else prepare
    limit_s = tool.timeout_s or PREPARE_TIMEOUT_S
    kind: type[object] = type(tool)
    at_once = kind is FunctionTool and len(args) <= SMALL_BYTES
    deadline = None if at_once else services.deadlines.after(limit_s)
    try:
        if deadline is None:  # its validators do not await, so no deadline could end them
            made = cast(object, await prepare(args))
        else:
            with deadline:
                made = cast(object, await prepare(args))
        if not isinstance(made, bytes):
            raise TypeError(f"prepare returned {type(made).__name__}, not bytes")
        _check_object(made)
        return made
    except (InvalidArguments, NotInjected):
        raise
    except BaseException as error:
        if is_being_cancelled() or is_interruption(error):
            raise
        late = deadline is not None and deadline.expired
        if late and not_started(error.__cause__) is NOT_CHECKED:
            raise NotChecked(prompts.calls.waited_too_long(limit_s)) from None
        raise PrepareFailed(prompts.calls.took_too_long(limit_s) if late else reason_of(error)) from error
