"""Requests of MCP servers during a call: values from a person, or text from a model.

Over most transports, a question does not say which call it belongs to. In revision 2026-07-28 it is asked within its
call. Otherwise it is only clear if all calls in progress belong to one run, and so did the interrupted ones, whose
questions may still arrive. In all other cases the question is dropped unread: neither a person nor a model may see what
another run is about.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextvars import ContextVar
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from msgspec import Struct

from weftline import prompts
from weftline.messages import joined_text
from weftline.text.redaction import Redactor
from weftline.tools.base import FurtherCalls, ToolFailed
from weftline.tools.mcp.forms import Form, ask_further, with_defaults
from weftline.work.outcomes import attempt

if TYPE_CHECKING:
    from mcp.types import CreateMessageRequestParams, CreateMessageResult, ElicitRequestParams, ErrorData

logger = logging.getLogger(__name__)

MAX_SAMPLED_CHARS = 200_000


class Question(Struct, frozen=True):
    """A form that a server wants a person to fill in; `schema` is a JSON Schema of flat values."""

    message: str
    schema: dict[str, Any]


class SampleMessage(Struct, frozen=True):
    role: Literal["user", "assistant"]
    text: str


class SampleRequest(Struct, frozen=True):
    """A text that a server wants a model to continue."""

    messages: tuple[SampleMessage, ...]
    system: str | None
    max_tokens: int
    temperature: float | None = None


OnElicit: TypeAlias = Callable[[Question], Mapping[str, Any] | Awaitable[Mapping[str, Any] | None] | None]
"""Answers a question with its values; None declines."""
OnSample: TypeAlias = Callable[[SampleRequest], str | Awaitable[str]]


class Caller(Struct, frozen=True):
    """A call in progress, as needed for the questions of its server."""

    run: str
    """Identifies the run among all that use the server: workspace and id, as another workspace may have the same id."""
    decline: Callable[[str], object]
    """Called with a question that is declined; with an empty one if it may belong to another run."""
    ask: Callable[[Form], Awaitable[dict[str, Any] | None]] | None = None
    """Asks the people of its run; None declines."""
    sample: OnSample | None = None
    """Asks the model of its run."""


CALLER: ContextVar[Caller | None] = ContextVar("CALLER", default=None)


def caller_of(callers: Sequence[Caller], cut_off: Collection[str] = ()) -> Caller | None:
    """Returns the call during which a server asks; None if that is unclear.

    `cut_off` has the runs of interrupted calls.
    """
    own = CALLER.get()
    if own is not None and own in callers:
        return own
    return callers[0] if callers and len({*cut_off, *(one.run for one in callers)}) == 1 else None


class Responders(Struct, frozen=True):
    """Answers the requests of servers. Without a responder, questions are declined, and no model is offered."""

    on_elicit: OnElicit | Literal["ask"] | None = None
    on_sample: OnSample | Literal["model"] | None = None

    async def values(self, params: ElicitRequestParams, caller: Caller | None) -> dict[str, Any] | None:
        """Returns the answer to a question; None if it is declined."""
        if self.on_elicit == "ask":
            ask = None if caller is None else caller.ask
            return None if ask is None else await ask(Form.of(params))
        schema = getattr(params, "requested_schema", None)
        if self.on_elicit is None or schema is None:
            return None
        answer: Mapping[str, Any] | None = None
        with attempt(logger, "on_elicit failed; the question is declined"):
            given = self.on_elicit(Question(params.message, dict(schema)))
            answer = await given if isawaitable(given) else given
        return None if answer is None else with_defaults(schema, answer)

    async def text(self, params: CreateMessageRequestParams, caller: Caller | None) -> CreateMessageResult | ErrorData:
        """Returns a model's answer to a request."""
        from mcp.types import INTERNAL_ERROR, CreateMessageResult, ErrorData, TextContent

        on_sample = (None if caller is None else caller.sample) if self.on_sample == "model" else self.on_sample
        if on_sample is None:
            return ErrorData(code=INTERNAL_ERROR, message="There is no model for this request.")
        messages = tuple([SampleMessage(one.role, _text(one.content)) for one in params.messages])
        request = SampleRequest(messages, params.system_prompt, params.max_tokens, params.temperature)
        with attempt(logger, "on_sample failed"):
            given = on_sample(request)
            text = await given if isawaitable(given) else given
            return CreateMessageResult(
                role="assistant", content=TextContent(type="text", text=text), model="given", stop_reason="endTurn"
            )
        return ErrorData(code=INTERNAL_ERROR, message="The model could not be asked.")


async def ask_model(request: SampleRequest, *, further: FurtherCalls, tool: str, redactor: Redactor) -> str:
    """Returns the answer of the run's own model. Raises `ToolFailed` if it cannot be called."""
    messages = prompts.remote.sampled_messages([(one.role, one.text) for one in request.messages])
    system = prompts.remote.sampled_system(request.system or "", request.max_tokens)
    args = {"task": redactor.text(messages[:MAX_SAMPLED_CHARS]), "system": redactor.text(system[:MAX_SAMPLED_CHARS])}
    answer = await ask_further(further, tool, args)
    if answer is None or answer.is_error:
        raise ToolFailed("" if answer is None else joined_text(answer.parts))
    return joined_text(answer.parts)


def _text(content: Any) -> str:
    blocks = cast("list[Any]", content) if isinstance(content, list) else [content]
    return "\n".join([block.text for block in blocks if block.type == "text"])
