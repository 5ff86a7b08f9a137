"""Anthropic's Claude over the Messages API.

    provider = Anthropic(api_key="…")
    async for chunks in provider.stream(ModelRequest("claude-sonnet-4-6", [User.of("Hello")])):
        ...

Claude on another platform that takes the same body differs in address, signature and framing only; see
`weftline.providers.anthropic.bedrock`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Final, cast

import msgspec

from weftline.net.address import at_path, display_url
from weftline.net.errors import DEFAULT_LIMITS, RequestFailed, TimeLimits
from weftline.net.sse import SseParser
from weftline.net.transport import AiohttpTransport, Transport
from weftline.providers.anthropic.blocks import PROVIDER
from weftline.providers.anthropic.models import DEFAULT_MODEL, MODELS, Levels, sampling_limits, traits
from weftline.providers.anthropic.request import BUILTIN_TOOLS, RequestBuilder
from weftline.providers.anthropic.stream import Reader
from weftline.providers.base import Chunk, ModelInfo, ModelRequest, NativeRequest, ProviderError, schema_metadata
from weftline.providers.calls import Call, read_json
from weftline.providers.http_errors import classify
from weftline.providers.listing import ModelPage, count, fetch, page_of, rows, text
from weftline.providers.sampling import SamplingLimits
from weftline.providers.whole_pairs import EventParser, WholePairs
from weftline.text.redaction import REDACTED, redact_template

BASE_URL: Final = "https://api.anthropic.com"
VERSION: Final = "2023-06-01"
KEY_ENV: Final = "ANTHROPIC_API_KEY"
"""The environment variable for the key if none is given."""
DRAIN_S: Final = 1.0


class Anthropic:
    """Claude models at one address with one key.

    The caller closes a `transport` that it passes in; without one the provider opens its own.
    `models` are the ids to offer (without it, a list of current ones); any other id can be requested too. `cache` sets
    the three cache breakpoints. `betas` are sent in the `anthropic-beta` header and `context_management` in the body,
    both as they are. `builtin_tools` adds or replaces declarations of tools that Anthropic itself runs.
    `reasoning_levels` declares by model id what it gets at points on the scale 0–100: a budget in tokens, an effort,
    or None for no thinking. `native_schemas=False` is for an address that does not support output schemas. `limits`
    bound every call, even one that asks for more.
    """

    default_model: ClassVar[str] = DEFAULT_MODEL
    known_models: ClassVar[Sequence[ModelInfo]] = MODELS
    known_tools: ClassVar[Mapping[str, Mapping[str, Any]]] = BUILTIN_TOOLS

    def __init__(
        self,
        *,
        transport: Transport | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        models: Sequence[str | ModelInfo] | None = None,
        limits: TimeLimits = DEFAULT_LIMITS,
        cache: bool = True,
        betas: Sequence[str] = (),
        context_management: Mapping[str, Any] | None = None,
        builtin_tools: Mapping[str, Mapping[str, Any]] | None = None,
        reasoning_levels: Mapping[str, Levels] | None = None,
        native_schemas: bool = True,
    ) -> None:
        self._own_transport = transport is None
        self._transport = transport or AiohttpTransport()
        self._url = _messages_url(base_url or BASE_URL)
        self._api_key = os.environ.get(KEY_ENV, "") if api_key is None else api_key
        self._limits = limits
        known = {model.vendor_id: model for model in self.known_models}
        self._models: Sequence[ModelInfo] = tuple(
            known.get(info.vendor_id, info) if info == ModelInfo(info.vendor_id) else info
            for info in (ModelInfo(one) if isinstance(one, str) else one for one in models or self.known_models)
        )
        self._betas = tuple(betas)
        self._builder = RequestBuilder(
            cache=cache,
            context_management=context_management,
            builtin_tools={**self.known_tools, **(builtin_tools or {})},
            models=self._models,
            reasoning_levels=reasoning_levels or {},
            native_schemas=native_schemas,
        )

    def __repr__(self) -> str:
        return f"Anthropic({display_url(self._url)!r})"

    @property
    def name(self) -> str:
        return PROVIDER

    def models(self) -> Sequence[ModelInfo]:
        return self._models

    def builtin_tools(self) -> Sequence[str]:
        """The tools that Anthropic runs itself; `provider:<name>` as a tool's name selects one."""
        return tuple(self._builder.builtin_tools)

    def takes_reasoning(self, model: str) -> bool:
        """Returns True if a reasoning level has any effect on this model."""
        return model in self._builder.reasoning_levels or traits(model).thinking != "none"

    def sampling_limits(self, model: str, *, reasoning: int | None) -> SamplingLimits:
        return sampling_limits(model, reasoning=reasoning)

    def response_metadata(self, request: ModelRequest) -> dict[str, str]:
        return schema_metadata(self._builder.schema_form(request))

    def native_request(self, request: ModelRequest) -> NativeRequest:
        """Returns what `stream` would send, with the key redacted and binary content left out."""
        body: Any = msgspec.json.decode(self._builder.build(request).body)
        _elide(body)
        url = redact_template(self._address(request.model))
        return NativeRequest(url, self._safe_headers(), msgspec.json.encode(body))

    async def list_models(self, *, search: str = "", cursor: str | None = None) -> ModelPage:
        """Returns a page of the models that the API lists; see `weftline.providers.listing`."""
        query = {"limit": "100", **({"after_id": cursor} if cursor else {})}
        head, mark, rest = self._url.partition("?")
        url = f"{head.removesuffix('/messages')}/models{mark}{rest}"
        secrets = (self._api_key,)
        document = await fetch(self._transport, url, query, headers=self._headers(self._api_key), secrets=secrets)
        models = [
            ModelInfo(
                text(row, "id"),
                text(row, "display_name"),
                count(row, "max_input_tokens"),
                count(row, "max_tokens"),
            )
            for row in rows(document, "data")
        ]
        following = text(document, "last_id") if document.get("has_more") is True else ""
        return page_of(models, search=search, cursor=following or None)

    async def stream(self, request: ModelRequest) -> AsyncIterator[Sequence[Chunk]]:
        built = self._builder.build(request)
        reader = Reader(built.names, built.report, provider=self.name)
        url = self._address(request.model)
        headers = self._call_headers(url, built.body)
        limits = self._limits.within(request.timeout_s)
        async with Call(self._transport.post(url, headers=headers, body=built.body, limits=limits), url) as response:
            if not 200 <= response.status < 300:
                raise self._failure(response.status, await response.read(), response.headers, url=url)
            try:
                if response.headers.get("content-type", "").startswith("application/json"):
                    yield reader.whole(await read_json(response))
                else:
                    parser = WholePairs(self._parser())
                    pieces = response.chunks()
                    async for data in pieces:
                        if chunks := reader.feed(parser.feed(data)):
                            yield chunks
                        if reader.finished or reader.error_body is not None:
                            break
                    else:
                        if chunks := reader.feed(parser.end()):
                            yield chunks
                    if reader.finished:
                        await _drain(pieces)
            except (ProviderError, RequestFailed) as error:
                if isinstance(error, RequestFailed) and (rest := reader.end()):
                    yield rest
                    return
                if rest := reader.release():
                    yield rest
                raise
        if rest := reader.end():
            yield rest
        if not reader.finished:
            if rest := reader.release():
                yield rest
            if reader.error_body is not None:
                raise self._failure(None, reader.error_body, {})
            raise ProviderError("server", "Anthropic's answer ended before it was complete.", unanswered=True)

    async def aclose(self) -> None:
        if self._own_transport:
            await self._transport.aclose()

    def _address(self, model: str) -> str:
        return self._url

    def _parser(self) -> EventParser:
        return SseParser()

    def _call_headers(self, url: str, body: bytes) -> dict[str, str]:
        return self._headers(self._api_key)

    def _safe_headers(self) -> dict[str, str]:
        return self._headers(REDACTED)

    def _headers(self, key: str) -> dict[str, str]:
        headers = {"content-type": "application/json", "anthropic-version": VERSION}
        if self._api_key:
            headers["x-api-key"] = key
        if self._betas:
            headers["anthropic-beta"] = ",".join(self._betas)
        return headers

    def _failure(self, status: int | None, body: bytes, headers: Mapping[str, str], *, url: str = "") -> ProviderError:
        return classify(status, body, headers, secrets=(self._api_key,), url=url or self._url)


async def _drain(pieces: AsyncIterator[bytes]) -> None:
    """Reads the rest of a body whose answer is complete, so that its connection can be reused."""
    # A failure after the end of an answer does not invalidate it.
    with suppress(RequestFailed, TimeoutError):
        async with asyncio.timeout(DRAIN_S):
            async for _ in pieces:
                pass


def _messages_url(base_url: str) -> str:
    head, mark, query = base_url.partition("#")[0].partition("?")
    head = head.rstrip("/")
    if head.endswith("/messages"):
        return f"{head}{mark}{query}"
    return at_path(base_url, "messages" if head.endswith("/v1") else "v1/messages")


def _elide(value: Any) -> None:
    """Replaces base64 content with a note of its size."""
    if isinstance(value, list):
        for item in cast("list[Any]", value):
            _elide(item)
    elif isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        data = fields.get("data")
        if fields.get("type") == "base64" and isinstance(data, str):
            fields["data"] = f"[{len(data)} characters of base64 left out]"
        for item in fields.values():
            _elide(item)
