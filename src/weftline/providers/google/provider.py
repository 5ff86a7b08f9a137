"""Google Gemini over its own HTTP API (`streamGenerateContent`).

provider = Google(transport=AiohttpTransport(), api_key="…")
async for chunks in provider.stream(ModelRequest("gemini-3.8-flash", [User.of("Hello")])):
    ...
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any, Final, cast
from urllib.parse import quote

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from weftline.net.address import at_path, display_url, with_query
from weftline.net.errors import DEFAULT_LIMITS, RequestFailed, TimeLimits
from weftline.net.sse import SseParser
from weftline.net.transport import AiohttpTransport, Response, Transport
from weftline.providers.base import (
    Chunk,
    ErrorClass,
    ModelInfo,
    ModelRequest,
    NativeRequest,
    ProviderError,
    schema_metadata,
)
from weftline.providers.calls import Call, read_json
from weftline.providers.google.models import DEFAULT_MODELS, bare, traits
from weftline.providers.google.request import BUILTIN_TOOLS, PROVIDER, RequestBuilder, schema_form
from weftline.providers.google.stream import Reader
from weftline.providers.http_errors import ErrorDetail, classify
from weftline.providers.listing import ModelPage, count, fetch, has, page_of, rows, text, words
from weftline.providers.sampling import SamplingLimits
from weftline.providers.whole_pairs import WholePairs
from weftline.text.redaction import REDACTED, redact_template

BASE_URL: Final = "https://generativelanguage.googleapis.com"
_VERSION: Final = "v1beta"
_ENDS_IN_VERSION: Final = re.compile(r"/v\d\w*$")
_TRAILING_S: Final = 1.0


def versioned(url: str) -> str:
    """Returns an address with a version of the API, as Google's own library does, whatever its path."""
    path = url.partition("#")[0].partition("?")[0].rstrip("/")
    return url if _ENDS_IN_VERSION.search(path) else at_path(url, _VERSION)


class Google:
    """Gemini models at one address with one key.

    A `base_url` that does not end in an API version gets `/v1beta`. `models` are the ids to offer, the first being
    the default; without it a list of current models is offered. Any other Gemini id can be requested too. `limits`
    bound every call that does not ask for less. A `transport` that was passed in is not closed with the provider.
    """

    def __init__(
        self,
        *,
        transport: Transport | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        models: Sequence[str | ModelInfo] = (),
        limits: TimeLimits = DEFAULT_LIMITS,
    ) -> None:
        self.name = PROVIDER
        self._base_url = versioned(base_url or BASE_URL)
        self._transport: Transport = transport or AiohttpTransport()
        self._own_transport = transport is None
        self._limits = limits
        self._api_key = api_key or ""
        self._models = tuple(_described(model) for model in models) if models else DEFAULT_MODELS
        self._builder = RequestBuilder()

    def __repr__(self) -> str:
        return f"Google(base_url={display_url(self._base_url)!r})"

    def models(self) -> Sequence[ModelInfo]:
        return self._models

    def builtin_tools(self) -> Sequence[str]:
        """The tools that Gemini runs itself; `provider:<name>` as a tool's name selects one."""
        return tuple(BUILTIN_TOOLS)

    def takes_reasoning(self, model: str) -> bool:
        """Returns True if a reasoning level has any effect on this model."""
        found = traits(model)
        return bool(found.levels) or found.budget is not None

    def sampling_limits(self, model: str, *, reasoning: int | None) -> SamplingLimits:
        return SamplingLimits(max_stops=5)

    def response_metadata(self, request: ModelRequest) -> dict[str, str]:
        return schema_metadata(schema_form(self._with_model(request)))

    def native_request(self, request: ModelRequest) -> NativeRequest:
        """Returns what `stream` would send, with the key redacted and binary content left out."""
        request = self._with_model(request)
        body: Any = msgspec.json.decode(self._builder.build(request).body)
        _elide(body)
        return NativeRequest(
            redact_template(self._url(request.model)), self._headers(REDACTED), msgspec.json.encode(body)
        )

    async def list_models(self, *, search: str = "", cursor: str | None = None) -> ModelPage:
        """Returns a page of the API's models that generate content; see `weftline.providers.listing`."""
        query = {"pageSize": "100", **({"pageToken": cursor} if cursor else {})}
        secrets = (self._api_key,)
        document = await fetch(
            self._transport,
            at_path(self._base_url, "models"),
            query,
            headers=self._headers(self._api_key),
            secrets=secrets,
        )
        models = [
            ModelInfo(
                bare(text(row, "name")),
                text(row, "displayName"),
                count(row, "inputTokenLimit"),
                count(row, "outputTokenLimit"),
                reasoning=row["thinking"] if isinstance(row.get("thinking"), bool) else None,
            )
            for row in rows(document, "models")
            if has(words(row, "supportedGenerationMethods"), "generateContent") is not False
        ]
        return page_of(models, search=search, cursor=text(document, "nextPageToken") or None)

    async def stream(self, request: ModelRequest) -> AsyncIterator[Sequence[Chunk]]:
        request = self._with_model(request)
        built = self._builder.build(request)
        reader = Reader(built, failed=lambda document: self._failure(None, document))
        url, headers = self._url(request.model), self._headers(self._api_key)
        limits = self._limits.within(request.timeout_s)
        async with Call(self._transport.post(url, headers=headers, body=built.body, limits=limits), url) as response:
            if not 200 <= response.status < 300:
                raise self._failure(response, await response.read(), url=url)
            chunks: list[Chunk] = []
            if response.headers.get("content-type", "").startswith("application/json"):
                for document in _whole_answer(await read_json(response)):
                    reader.feed(document, chunks)
            else:
                parser = WholePairs(SseParser())
                pieces = response.chunks()
                async for piece in pieces:
                    for event in parser.feed(piece):
                        reader.feed(event.data, chunks)
                    if chunks:
                        yield chunks
                        chunks = []
                    if reader.finished:
                        break
                else:
                    for event in parser.end():
                        reader.feed(event.data, chunks)
                if reader.finished:
                    await _take_rest(pieces, parser, reader, chunks)
            reader.end(chunks)
            yield chunks

    async def aclose(self) -> None:
        if self._own_transport:
            await self._transport.aclose()

    def _with_model(self, request: ModelRequest) -> ModelRequest:
        return request if request.model else replace(request, model=self._models[0].vendor_id)

    def _url(self, model: str) -> str:
        name = bare(model)
        path = name if "/" in name else f"models/{name}"
        return with_query(at_path(self._base_url, f"{quote(path, safe='/')}:streamGenerateContent"), {"alt": "sse"})

    def _headers(self, key: str) -> dict[str, str]:
        headers = {"content-type": "application/json"}
        if self._api_key:
            headers["x-goog-api-key"] = key
        return headers

    def _failure(self, response: Response | None, body: bytes, *, url: str = "") -> ProviderError:
        status, headers = (response.status, response.headers) if response else (None, None)
        url = url or self._base_url
        return classify(status, body, headers, hook=_class_of, secrets=(self._api_key,), url=url)


async def _take_rest(pieces: AsyncIterator[bytes], parser: WholePairs, reader: Reader, chunks: list[Chunk]) -> None:
    """Reads what follows the finish, if it comes soon: the usage, the sources of a search."""
    with suppress(RequestFailed, TimeoutError):
        async with asyncio.timeout(_TRAILING_S):
            async for piece in pieces:
                for event in parser.feed(piece):
                    reader.feed(event.data, chunks)


def _described(model: str | ModelInfo) -> ModelInfo:
    given = model if isinstance(model, ModelInfo) else ModelInfo(bare(model))
    if given != ModelInfo(given.vendor_id):
        return given
    return next((info for info in DEFAULT_MODELS if info.vendor_id == bare(given.vendor_id)), given)


def _class_of(detail: ErrorDetail) -> ErrorClass | None:
    # A wrong key gets a 400, and only the reason in the details distinguishes it from a bad request.
    if detail.status == 400 and b"API_KEY_INVALID" in detail.body:
        return "auth"
    return None


def _whole_answer(body: bytes) -> list[bytes]:
    """Returns the documents of an answer that was not streamed: one, or a list as the API sends without `alt=sse`."""
    if body.lstrip().startswith(b"["):
        try:
            return [bytes(document) for document in msgspec.json.decode(body, type=list[Raw])]
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
    return [body]


def _elide(value: Any) -> None:
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        blob: Any = fields.get("inlineData")
        if isinstance(blob, dict) and isinstance(data := cast("dict[str, Any]", blob).get("data"), str):
            blob["data"] = f"[{len(data)} base64 characters]"
        for child in fields.values():
            _elide(child)
    elif isinstance(value, list):
        for child in cast("list[Any]", value):
            _elide(child)
