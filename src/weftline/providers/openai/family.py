"""Common base of the two OpenAI APIs: one request, its answer streamed or whole, errors and inspection."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, Protocol, TypeVar, cast
from urllib.parse import quote, urlsplit

import msgspec
from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace

from weftline.messages import Message, Usage
from weftline.net.address import at_path, display_url
from weftline.net.errors import DEFAULT_LIMITS, RequestFailed, TimeLimits
from weftline.net.sse import SseEvent, SseParser
from weftline.net.transport import AiohttpTransport, Response, Transport
from weftline.providers.assemble import clean_count, clean_usage
from weftline.providers.base import (
    Chunk,
    ErrorClass,
    ModelInfo,
    ModelRequest,
    NativeRequest,
    ProviderError,
    SchemaForm,
    schema_metadata,
)
from weftline.providers.calls import Call, read_json
from weftline.providers.http_errors import ErrorDetail, classify
from weftline.providers.listing import ModelPage, count, fetch, has, nested, page_of, rows, text, words
from weftline.providers.names import NameMap
from weftline.providers.openai.profiles import PROFILES, Knob, Profile, effort_at, knob_of
from weftline.providers.openai.schema import ReportRestorer, Restorer, restorer_for
from weftline.providers.sampling import SamplingLimits, nearest
from weftline.providers.whole_pairs import WholePairs
from weftline.text.redaction import REDACTED, redact_template

T = TypeVar("T")

UNREADABLE = "The model API's answer could not be read."
ELIDED = b"[elided]"
_BINARY = re.compile(rb'(data:[^"\\,]{1,200};base64,|"result":"(?=[A-Za-z0-9+/=]{64}))[A-Za-z0-9+/=]+')
_TEXTUAL = frozenset({"application/json", "application/xml", "application/yaml"})
_SECRET_CHARS = 8
"""A header value of at least this length may be a secret."""
_DRAIN_S = 0.25
"""How long to wait for the end of a body after the last event, so that the connection can be reused."""


class Reader(Protocol):
    """Turns one answer into chunks. After each call `failure` and `finished` give its state."""

    failure: ProviderError | None
    finished: bool

    def feed(self, data: bytes) -> list[Chunk]:
        """Returns the chunks of one event of a stream."""
        ...

    def whole(self, body: bytes) -> list[Chunk]:
        """Returns the chunks of an answer that was not streamed."""
        ...

    def end(self) -> list[Chunk]:
        """Ends the stream, and returns its last chunks."""
        ...

    def recover(self, body: bytes) -> list[Chunk]:
        """Returns the chunks that an error response still contains; usually none."""
        ...


class OpenAIFamily(ABC):
    """A server that speaks one of OpenAI's APIs, with one key.

    `profile` is a name in `PROFILES` or a profile; `base_url`, `api_key` and `name` override it. Without a key, the
    profile's environment variable is used, unless the address differs. `models` are the models to offer, the first
    being the default. `reasoning_levels` declares, by model id, the native words at points on the scale 0–100 (None or
    empty: off) for models that the profile does not know. `cache` asks for cache markers, or for none, where the
    profile leaves the choice. `limits` bound every call that does not ask for less. A `transport` that is passed in is
    not closed.
    """

    path: str
    not_found: str = "Is this the address of the model API? Most end in /v1."
    """What a 404 may mean."""

    def __init__(
        self,
        *,
        profile: str | Profile = "openai",
        transport: Transport | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        models: Sequence[str | ModelInfo] = (),
        name: str | None = None,
        default_model: str | None = None,
        limits: TimeLimits = DEFAULT_LIMITS,
        cache: bool | None = None,
        reasoning_levels: Mapping[str, Mapping[int | str, str | None]] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        found = PROFILES.get(profile) if isinstance(profile, str) else profile
        if found is None:
            raise ValueError(f"There is no profile {profile!r}; use one of {', '.join(PROFILES)}.")
        self._profile = found
        url = base_url or found.base_url
        if not url:
            raise ValueError(f"The profile {found.name!r} needs a base URL.")
        if found.name == "azure" and not urlsplit(url).path.strip("/"):
            url = at_path(url, "openai/v1")
        self._base_url = url
        self._url = at_path(url, self.path)
        self._name = name or found.name
        # The key in the environment belongs to the profile's own address and is sent nowhere else.
        usual = os.environ.get(found.key_env or "", "") if base_url in (None, found.base_url) else ""
        self._key = usual if api_key is None else api_key
        first = next(iter(models), None)
        self._default_model = default_model or (first if isinstance(first, str) or first is None else first.vendor_id)
        self._default_model = self._default_model or found.default_model
        offered = models or ((self._default_model,) if self._default_model else ())
        self._models = tuple(ModelInfo(model) if isinstance(model, str) else model for model in offered)
        self._by_id = {model.vendor_id: model for model in self._models}
        self._limits = limits
        self._cache = found.cache == "on" if cache is None else cache and found.cache != "never"
        self._levels = {
            model: {int(level): word or None for level, word in levels.items()}
            for model, levels in (reasoning_levels or {}).items()
        }
        self._extra_headers = dict(headers or {})
        self._transport: Transport = transport or AiohttpTransport()
        self._own_transport = transport is None

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self._name!r}, url={display_url(self._url)!r})"

    @property
    def name(self) -> str:
        return self._name

    @property
    def profile(self) -> Profile:
        return self._profile

    def models(self) -> Sequence[ModelInfo]:
        return self._models

    def takes_reasoning(self, model: str) -> bool:
        """Returns True if a reasoning level has any effect on this model."""
        return bool(self._levels.get(model)) or bool(self._knob(model).levels)

    def sampling_limits(self, model: str, *, reasoning: int | None) -> SamplingLimits:
        """Returns what the model accepts. Some models accept no sampling settings while they reason."""
        model = model or self._default_model or ""
        levels = self._knob(model).levels
        effort = self._effort(ModelRequest(model, (), reasoning=reasoning))
        if not (self._profile.fixed_sampling and levels and effort != "none"):
            return SamplingLimits(max_stops=self._max_stops(model))
        can_be_off = "none" in levels.values()
        return SamplingLimits(
            max_temperature=None,
            top_p=False,
            max_stops=0,
            condition="unless its reasoning is off (reasoningLevel 0)" if can_be_off else "",
        )

    def _max_stops(self, model: str) -> int | None:
        without = self._profile.without_stops
        return 0 if without and re.match(without, model, re.IGNORECASE) else self._profile.max_stops

    async def aclose(self) -> None:
        if self._own_transport:
            await self._transport.aclose()

    def response_metadata(self, request: ModelRequest) -> dict[str, str]:
        return schema_metadata(self._schema_form(self._named(request)))

    def native_request(self, request: ModelRequest) -> NativeRequest:
        """Returns what `stream` would send, with binary content left out and the key redacted."""
        request = self._named(request)
        body = _BINARY.sub(rb"\1" + ELIDED, self._body(request, self._names(request)))
        headers = {
            name: REDACTED if name in (self._key_header, *self._extra_headers) else value
            for name, value in self._headers().items()
        }
        return NativeRequest(redact_template(self._address(request)), headers, body)

    async def list_models(self, *, search: str = "", cursor: str | None = None) -> ModelPage:
        """Returns a page of the server's models, with hints that some servers add; see `weftline.providers.listing`."""
        query = {"after": cursor} if cursor else {}
        url = at_path(self._base_url, "models")
        document = await fetch(self._transport, url, query, headers=self._headers(), secrets=self._secrets())
        models: list[ModelInfo] = []
        for row in rows(document, "data"):
            takes = words(row, "supported_parameters")
            window = count(row, "context_length", "context_window", "max_model_len")
            limit = count(row, "max_completion_tokens") or count(nested(row, "top_provider"), "max_completion_tokens")
            vision = has(words(nested(row, "architecture"), "input_modalities"), "image")
            reasons, calls = has(takes, "reasoning"), has(takes, "tools")
            models.append(ModelInfo(text(row, "id"), text(row, "name"), window, limit, vision, reasons, calls))
        following = text(document, "last_id") if document.get("has_more") is True else ""
        return page_of(models, search=search, cursor=following or None)

    async def stream(self, request: ModelRequest) -> AsyncIterator[Sequence[Chunk]]:
        request = self._named(request)
        names = self._names(request)
        body = self._body(request, names)
        reader = self._reader(names)
        restorer = self._restorer(request)
        limits = self._limits.within(request.timeout_s)
        url = self._address(request)
        async with Call(self._transport.post(url, headers=self._headers(), body=body, limits=limits), url) as response:
            if not 200 <= response.status < 300:
                answer = await response.read()
                chunks = reader.recover(answer)
                if not chunks:
                    raise self._error(response.status, answer, response.headers, url=url)
                yield restorer.take(chunks)
            else:
                try:
                    async with aclosing(_chunks_of(response, reader)) as several:
                        async for chunks in several:
                            if taken := restorer.take(chunks):
                                yield taken
                except (ProviderError, RequestFailed):
                    if rest := restorer.rest():
                        yield rest
                    raise
            if reader.finished:
                return
            if rest := restorer.rest():
                yield rest
            raise reader.failure or ProviderError(
                "server", f"{self._name}: the stream ended without a finish reason", unanswered=True
            )

    @abstractmethod
    def _body(self, request: ModelRequest, names: NameMap) -> bytes: ...

    @abstractmethod
    def _reader(self, names: NameMap) -> Reader: ...

    def _schema_form(self, request: ModelRequest) -> SchemaForm | None:
        return None if request.output_schema is None else "native"

    def _restorer(self, request: ModelRequest) -> Restorer | ReportRestorer:
        """Returns what undoes the request's changes to its schemas in the answer."""
        return restorer_for(request, answer=True, tools=True)

    def _native(self, request: ModelRequest, encode: Callable[[Message], bytes]) -> list[bytes]:
        """Returns the messages in native form.

        Each is encoded once, and its bytes are kept with the request for later turns.
        """
        native, messages = request.native, request.messages
        native.extend(encode(messages[index]) for index in range(len(native), len(messages)))
        while None in native:
            index = native.index(None)
            native[index] = encode(messages[index])
        # A message with nothing to send to this family has no bytes.
        return [encoded for encoded in native[: len(messages)] if encoded]

    def _names(self, request: ModelRequest) -> NameMap:
        return NameMap(spec.name for spec in request.tools)

    def _named(self, request: ModelRequest) -> ModelRequest:
        if request.model:
            return request
        if not self._default_model:
            raise ProviderError("invalid_request", f"{self._name}: no model was named and there is no default.")
        return replace(request, model=self._default_model)

    def _address(self, request: ModelRequest) -> str:
        """`{model}` in a base URL is the model, as in Azure's older paths."""
        return self._url.replace("{model}", quote(request.model, safe=""))

    @property
    def _key_header(self) -> str:
        return self._profile.key_header or "Authorization"

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream", **self._extra_headers}
        if self._key:
            headers[self._key_header] = self._key if self._profile.key_header else f"Bearer {self._key}"
        return headers

    def _error(
        self, status: int | None, body: bytes, headers: Mapping[str, str] | None = None, *, url: str = ""
    ) -> ProviderError:
        error = classify(
            status,
            body,
            headers,
            hook=_class_by_code,
            secrets=self._secrets(),
            url=url or self._url,
            not_found=self.not_found,
        )
        if error.code == "insufficient_quota":
            # Waiting does not help against this 429.
            error.retryable = False
        return error

    def _secrets(self) -> Sequence[str]:
        return (self._key, *(value for value in self._extra_headers.values() if len(value) >= _SECRET_CHARS))

    def _knob(self, model: str) -> Knob:
        return knob_of(self._profile.knobs, model)

    def _effort(self, request: ModelRequest) -> str | None:
        """Returns the native word for the request's reasoning level; None if no field should be sent."""
        level = request.reasoning
        if level is None:
            return None
        declared = self._levels.get(request.model)
        if declared:
            return declared[nearest(list(declared), level)]
        levels = self._knob(request.model).levels
        return effort_at(levels, level) if levels else None

    def _takes_images(self, model: str) -> bool:
        info = self._by_id.get(model)
        return info is None or info.vision is not False


def _class_by_code(detail: ErrorDetail) -> ErrorClass | None:
    code = detail.code or ""
    if detail.status is None and code.startswith(("invalid_", "unsupported_", "image_", "empty_image", "failed_to_")):
        return "auth" if code == "invalid_api_key" else "invalid_request"
    return None


async def _chunks_of(response: Response, reader: Reader) -> AsyncGenerator[list[Chunk]]:
    """Yields the chunks of an answer, streamed or whole; `reader` says afterwards how it ended."""
    if response.headers.get("content-type", "").startswith("application/json"):
        yield _read(reader.whole, [SseEvent("", await read_json(response))], reader)
        return
    parser = WholePairs(SseParser())
    pieces = response.chunks()
    try:
        async for piece in pieces:
            yield _read(reader.feed, parser.feed(piece), reader)
            if reader.finished or reader.failure is not None:
                break
        else:
            yield _read(reader.feed, parser.end(), reader) + reader.end()
    except RequestFailed:
        # Repeating the request would cost twice.
        if not (rest := reader.end()):
            raise
        yield rest
        return
    if reader.finished:
        await _drained(pieces)


def _read(read: Callable[[bytes], list[Chunk]], events: Iterable[SseEvent], reader: Reader) -> list[Chunk]:
    """Returns the chunks of some events of an answer. An error becomes a failure, after what was read before it."""
    chunks: list[Chunk] = []
    try:
        for event in events:
            chunks += read(event.data)
    except ProviderError as error:
        reader.failure = error
    except (msgspec.DecodeError, UnicodeDecodeError):
        reader.failure = ProviderError("server", UNREADABLE, unanswered=True)
    return chunks


async def _drained(pieces: AsyncIterator[bytes]) -> None:
    with suppress(TimeoutError, RequestFailed):
        async with asyncio.timeout(_DRAIN_S):
            async for _ in pieces:
                pass


MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What is raised for documents that are not JSON, or not of the expected type."""


def decode(data: bytes, kind: type[T], decoder: msgspec.json.Decoder[T]) -> T:
    """Decodes one JSON document of an answer. Numbers that JSON does not allow (NaN) count as missing."""
    try:
        return decoder.decode(data)
    except MALFORMED:
        return decode_loosely(data, kind)


def decode_loosely(data: bytes, kind: type[T]) -> T:
    """Decodes a document that is not quite JSON. Raises `ProviderError` if it cannot be read at all."""
    try:
        loose = json.loads(data, parse_constant=lambda _: None)
        return msgspec.json.decode(msgspec.json.encode(loose), type=kind)
    except (ValueError, RecursionError):
        raise ProviderError("server", UNREADABLE, unanswered=True) from None


_decode_any = msgspec.json.Decoder().decode
_NOTHING = frozenset({b"null", b"[]", b"{}", b'""'})


def present(value: Raw | UnsetType) -> bool:
    """Returns True if a field was present and not empty."""
    return value is not UNSET and bytes(value) not in _NOTHING


def loose_object(value: Raw | UnsetType) -> dict[str, Any]:
    """Returns a JSON object with untrusted fields; empty for anything else."""
    if value is UNSET:
        return {}
    data = bytes(value)
    try:
        found: object = _decode_any(data)
    except MALFORMED:
        # Python's own parser takes numbers and surrogates that this one refuses.
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            return {}
    return _object(found)


def _object(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def usage_of(value: Raw | UnsetType, *, reasoning_outside_output: bool = False) -> Usage | None:
    """Reads token counts, in the names of either API and those that servers have added."""
    fields = loose_object(value) if present(value) else None
    if not fields:
        return None
    reading = _object(_first(fields, "prompt_tokens_details", "input_tokens_details"))
    writing = _object(_first(fields, "completion_tokens_details", "output_tokens_details"))
    usage = clean_usage(
        Usage(
            input=_first(fields, "prompt_tokens", "input_tokens"),
            cached=_first(reading, "cached_tokens") or _first(fields, "prompt_cache_hit_tokens"),
            output=_first(fields, "completion_tokens", "output_tokens"),
            cache_write=_first(reading, "cache_write_tokens", "cache_creation_tokens"),
        )
    )
    reasoning = clean_count(_first(writing, "reasoning_tokens"))
    output = usage.output + reasoning if reasoning_outside_output else usage.output
    return replace(usage, output=output, reasoning=min(reasoning, output))


def _first(fields: dict[str, Any], *names: str) -> Any:
    for name in names:
        value = fields.get(name)
        if value is not None:
            return value
    return 0


def joined(head: bytes, items: Sequence[bytes], tail: bytes) -> bytes:
    """Returns a body whose long middle is copied only once."""
    if not items:
        return head + tail
    if len(items) == 1:
        return b"".join((head, items[0], tail))
    return b",".join((head + items[0], *items[1:-1], items[-1] + tail))


def data_url(media_type: str, data: str) -> str:
    return f"data:{media_type};base64,{data}"


def is_textual(media_type: str) -> bool:
    """Returns True if any model can read a file of this type as text."""
    return media_type.startswith("text/") or media_type in _TEXTUAL


def is_readable(media_type: str) -> bool:
    """Returns True if the API accepts a file of this type. Audio, video and untyped bytes would fail the whole
    request.
    """
    return not media_type.startswith(("audio/", "video/", "image/")) and media_type != "application/octet-stream"


def text_file(name: str | None, data: str) -> str:
    """Returns a base64 text file as part of the message."""
    text = base64.b64decode(data).decode("utf-8", "replace")
    return f'<file name="{name or "file"}">\n{text}\n</file>'
