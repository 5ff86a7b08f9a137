"""The provider protocol: what a model family must offer, and the chunks that it streams.

A provider is called once per attempt and makes one upstream request; the runtime handles retries, fallbacks and limits.
It yields *lists* of chunks: everything parsed from one socket read is one list, so that a fast stream costs one
wake-up per read and not one per delta. A good stream ends with exactly one `Finish`; one that ends without it is
an error of class `server`. Failures are raised as `ProviderError`, even in the middle of a stream.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Literal, Protocol, TypeAlias

from msgspec import UNSET, Raw, Struct, UnsetType

from weftline.messages import AssistantPart, Message, OutputSchema, Usage

ErrorClass: TypeAlias = Literal[
    "rate_limit",
    "overloaded",
    "server",
    "context_window",
    "truncation",
    "invalid_request",
    "auth",
    "timeout",
    "upstream_deadline",
    "unknown",
]

RETRYABLE: frozenset[ErrorClass] = frozenset({"rate_limit", "overloaded", "server", "timeout"})
"""The classes that the runtime retries unless the error itself says otherwise."""


class ProviderError(Exception):
    """A model call failed. `message` is safe to show: it holds no key and no header.

    `unanswered` means that the request was sent but its response did not come, broke off or could not be read: it may
    have been billed.
    """

    def __init__(
        self,
        cls: ErrorClass,
        message: str,
        *,
        retryable: bool | None = None,
        status: int | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
        unanswered: bool = False,
    ) -> None:
        super().__init__(message)
        self.cls: ErrorClass = cls
        self.message = message
        self.retryable = cls in RETRYABLE if retryable is None else retryable
        self.status = status
        self.code = code
        self.retry_after_s = retry_after_s
        self.unanswered = unanswered
        self.provider: str | None = None
        """The name of the provider, once it is known."""


class TextDelta(Struct, frozen=True, gc=False):
    text: str


class ThinkingDelta(Struct, frozen=True, gc=False):
    text: str


class ThinkingDone(Struct, frozen=True):
    """Ends the current block of reasoning, or represents one without readable text (redacted, encrypted)."""

    signature: str | None = None
    opaque: Raw | UnsetType = UNSET


class CallStart(Struct, frozen=True):
    """`key` distinguishes the calls of one answer; `id` is the upstream id, None if the API gives none."""

    key: str | int
    name: str
    id: str | None = None
    extra: Raw | UnsetType = UNSET


class CallArgs(Struct, frozen=True, gc=False):
    key: str | int
    json: str


class CallDone(Struct, frozen=True):
    """Ends a call. `args`, if given, overrides the pieces; `extra`, if given, that of the start."""

    key: str | int
    args: str | None = None
    extra: Raw | UnsetType = UNSET


class Whole(Struct, frozen=True):
    """A part that came in one piece: an image, a tool that the provider ran, opaque data."""

    part: AssistantPart


class UsageUpdate(Struct, frozen=True):
    """The usage of this call so far; replaces the previous update."""

    usage: Usage


class Finish(Struct, frozen=True):
    """The end of a good stream, with its canonical lowercase reason (`end_turn`, `tool_use`, `max_tokens`, …)."""

    reason: str | None


Chunk: TypeAlias = (
    TextDelta | ThinkingDelta | ThinkingDone | CallStart | CallArgs | CallDone | Whole | UsageUpdate | Finish
)


class ToolSpec(Struct, frozen=True):
    """A tool as the model sees it. `parameters` is JSON Schema, forwarded verbatim."""

    name: str
    description: str
    parameters: Raw
    output_schema: Raw | UnsetType = UNSET


SchemaForm: TypeAlias = Literal["native", "tool", "prompt"]
"""How a model is told what its answer must look like: by the API's own field, as the input of a tool, or in words."""


def schema_metadata(form: SchemaForm | None) -> dict[str, str]:
    """Returns what the run's log says with each turn about the output schema."""
    return {} if form is None else {"output_schema": form}


ToolChoice: TypeAlias = Literal["auto", "none", "required"] | tuple[Literal["tool"], str]


def _discard(text: str, labels: Mapping[str, str] | None = None) -> None:
    return None


class ModelRequest(Struct):
    """One model call.

    `messages` grows at its end from turn to turn and never changes before it, so a family may keep the native bytes of
    `messages[i]` in `native[i]` and build its body by joining them. The list is the same object on every turn of a run
    in memory, and is emptied when the run switches to another model.
    """

    model: str
    """The vendor's own model id."""
    messages: Sequence[Message]
    system: str | None = None
    tools: Sequence[ToolSpec] = ()
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool | None = None
    reasoning: int | None = None
    """0–100; None if the request has none, 0 turns thinking off."""
    reasoning_budget_tokens: int | None = None
    """A number of tokens to think, for models that support it; others use `reasoning`."""
    output_schema: OutputSchema | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop: Sequence[str] = ()
    tools_disabled: bool = False
    """Whether this is a forced final turn, without tools."""
    cache: bool = True
    """Whether a family with explicit cache markers sets them."""
    cache_key: str | None = None
    """The same for requests that continue one conversation, so that a family can route them to its cache."""
    call_index: int = 0
    """How many model calls this run made before this one."""
    timeout_s: float = 600.0
    native: list[bytes | None] = []
    note: Callable[..., None] = _discard
    """`note(text, labels=None)` records a note about this call in the run's log."""
    run: object = None
    """The `RunContext`, if an agent's run makes the call. For your own providers; it is not sent."""


class NativeRequest(Struct, frozen=True):
    """A model call as the API receives it, safe to display: keys are redacted and binary content is left out."""

    url: str
    headers_redacted: dict[str, str]
    body: bytes


class ModelInfo(Struct, frozen=True, omit_defaults=True):
    """A model as the catalog lists it. None means unknown, never unsupported."""

    vendor_id: str
    label: str = ""
    context_window_tokens: int | None = None
    max_output_tokens: int | None = None
    vision: bool | None = None
    reasoning: bool | None = None
    tools: bool | None = None
    icon: str | None = None
    """The URL of an image, or a `data:` URI."""


class Provider(Protocol):
    """A model family at one address with one key. `name` is the family, lowercase."""

    @property
    def name(self) -> str: ...

    def stream(self, request: ModelRequest) -> AsyncIterator[Sequence[Chunk]]:
        """Makes one upstream request and yields its chunks in upstream order. Closing the iterator aborts it."""
        ...

    def models(self) -> Sequence[ModelInfo]:
        """The models that this provider was configured with or already knows."""
        ...

    async def aclose(self) -> None: ...
