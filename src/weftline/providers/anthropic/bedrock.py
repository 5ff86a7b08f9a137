"""Claude on Amazon Bedrock: the Messages API behind Amazon's address, signature and framing.

    provider = Bedrock(api_key="ACCESS_KEY:SECRET", region="eu-central-1")
    async for chunks in provider.stream(ModelRequest("eu.anthropic.claude-sonnet-4-5-20250929-v1:0", messages)):
        ...

Requests and responses are the same as in `weftline.providers.anthropic.provider`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar, Final, cast
from urllib.parse import quote

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from weftline.net.address import at_path, display_url, with_query
from weftline.net.errors import DEFAULT_LIMITS, TimeLimits
from weftline.net.sse import SseEvent
from weftline.net.transport import Transport
from weftline.providers.anthropic.models import Levels
from weftline.providers.anthropic.provider import Anthropic
from weftline.providers.aws import Credentials, Frame, FrameDecoder, signed
from weftline.providers.base import ErrorClass, ModelInfo, ProviderError
from weftline.providers.http_errors import ErrorDetail, classify
from weftline.providers.listing import ModelPage, fetch, has, page_of, rows, text, words
from weftline.providers.whole_pairs import EventParser
from weftline.text.json_size import excess
from weftline.text.redaction import REDACTED

PROVIDER: Final = "bedrock"
SERVICE: Final = "bedrock"
VERSION: Final = "bedrock-2023-05-31"
DEFAULT_MODEL: Final = "global.anthropic.claude-sonnet-4-5-20250929-v1:0"
MODELS: Final = (
    ModelInfo(DEFAULT_MODEL, "Claude Sonnet 4.5", 200_000, 64_000, True, True, True),
    ModelInfo("global.anthropic.claude-haiku-4-5-20251001-v1:0", "Claude Haiku 4.5", 200_000, 64_000, True, True, True),
)
_REGION = re.compile(r"[a-z0-9-]+")
_REGION_OF_HOST = re.compile(r"//bedrock(?:-runtime)?(?:-fips)?\.([a-z0-9-]+)\.")
_CLASSES: dict[str, ErrorClass] = {
    "throttlingexception": "rate_limit",
    "toomanyrequestsexception": "rate_limit",
    "servicequotaexceededexception": "rate_limit",
    "serviceunavailableexception": "overloaded",
    "modelnotreadyexception": "overloaded",
    "internalserverexception": "server",
    "modelerrorexception": "server",
    "modelstreamerrorexception": "server",
    "modeltimeoutexception": "timeout",
    "accessdeniedexception": "auth",
    "unrecognizedclientexception": "auth",
    "expiredtokenexception": "auth",
    "invalidsignatureexception": "auth",
    "incompletesignatureexception": "auth",
    "missingauthenticationtokenexception": "auth",
}


class Bedrock(Anthropic):
    """Claude models on Bedrock in one region.

    `api_key` is `ACCESS_KEY:SECRET` or `ACCESS_KEY:SECRET:SESSION_TOKEN`, with which requests are signed, or a Bedrock
    API key, which is sent as it is. Without one, `AWS_BEARER_TOKEN_BEDROCK`, or `AWS_ACCESS_KEY_ID` with
    `AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN`, are taken from the environment. `region` defaults to that of
    the address, or `AWS_REGION`. `betas` are sent as `anthropic_beta`. Most models refuse output schemas here, so
    `native_schemas` is off by default. The other arguments are `Anthropic`'s. Raises `ValueError` if the region is
    missing or malformed.
    """

    default_model: ClassVar[str] = DEFAULT_MODEL
    known_models: ClassVar[Sequence[ModelInfo]] = MODELS
    known_tools: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Empty, as Bedrock runs no tools itself."""

    def __init__(
        self,
        *,
        transport: Transport | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        region: str | None = None,
        models: Sequence[str | ModelInfo] | None = None,
        limits: TimeLimits = DEFAULT_LIMITS,
        cache: bool = True,
        betas: Sequence[str] = (),
        context_management: Mapping[str, Any] | None = None,
        builtin_tools: Mapping[str, Mapping[str, Any]] | None = None,
        reasoning_levels: Mapping[str, Levels] | None = None,
        native_schemas: bool = False,
    ) -> None:
        key = _key_of_environment() if api_key is None else api_key
        self._credentials = _credentials(key)
        self._region = _region(region, base_url)
        super().__init__(
            transport=transport,
            base_url=base_url,
            api_key=key,
            models=models,
            limits=limits,
            cache=cache,
            context_management=context_management,
            builtin_tools=builtin_tools,
            reasoning_levels=reasoning_levels,
            native_schemas=native_schemas,
        )
        self._url = base_url or f"https://bedrock-runtime.{self._region}.amazonaws.com"
        beta = {"anthropic_beta": list(betas)} if betas else {}
        platform = {"anthropic_version": VERSION, **beta}
        self._builder = replace(self._builder, provider=PROVIDER, platform=platform)

    def __repr__(self) -> str:
        return f"Bedrock({display_url(self._url)!r})"

    @property
    def name(self) -> str:
        return PROVIDER

    async def list_models(self, *, search: str = "", cursor: str | None = None) -> ModelPage:
        """Returns the Claude models of the region on one page, without inference profiles."""
        query = {"byProvider": "anthropic"}
        url = at_path(self._url.replace("//bedrock-runtime", "//bedrock", 1), "foundation-models")
        headers = self._signed("GET", with_query(url, query), {"accept": "application/json"}, b"")
        document = await fetch(self._transport, url, query, headers=headers, secrets=self._secrets())
        models = [
            ModelInfo(text(row, "modelId"), text(row, "modelName"), vision=has(words(row, "inputModalities"), "IMAGE"))
            for row in rows(document, "modelSummaries")
        ]
        return page_of(models, search=search, cursor=None)

    def _address(self, model: str) -> str:
        name = model or self.default_model
        if name in (".", ".."):
            raise ProviderError("invalid_request", f"There is no model {name!r}.")
        # The colon stays, as HTTP libraries do not escape it in a path, and the signature must match what is sent.
        return at_path(self._url, f"model/{quote(name, safe=':')}/invoke-with-response-stream")

    def _parser(self) -> EventParser:
        return _Events()

    def _call_headers(self, url: str, body: bytes) -> dict[str, str]:
        headers = {"content-type": "application/json", "accept": "application/vnd.amazon.eventstream"}
        return self._signed("POST", url, headers, body)

    def _safe_headers(self) -> dict[str, str]:
        headers = {"content-type": "application/json", "accept": "application/vnd.amazon.eventstream"}
        return {**headers, "authorization": REDACTED} if self._api_key else headers

    def _signed(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> dict[str, str]:
        if self._credentials is not None:
            return signed(
                method,
                url,
                headers,
                body,
                credentials=self._credentials,
                region=self._region,
                service=SERVICE,
                now=datetime.now(UTC),
            )
        return {**headers, "authorization": f"Bearer {self._api_key}"} if self._api_key else dict(headers)

    def _secrets(self) -> Sequence[str]:
        if self._credentials is None:
            return (self._api_key,)
        return (self._credentials.secret, self._credentials.session or "")

    def _failure(self, status: int | None, body: bytes, headers: Mapping[str, str], *, url: str = "") -> ProviderError:
        if status is not None:
            body = _error_event(*_error_of(body, headers.get("x-amzn-errortype", "")))
        return classify(status, body, headers, hook=_class_of, secrets=self._secrets(), url=url or self._url)


class _Chunk(Struct):
    data: bytes = field(name="bytes")
    """Base64 on the wire."""


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


class _Events:
    """The events of Anthropic's stream, unpacked from the frames that carry them."""

    def __init__(self) -> None:
        self._frames = FrameDecoder()

    def feed(self, data: bytes) -> Sequence[SseEvent]:
        return [event for frame in self._frames.feed(data) for event in _events_of(frame)]


def _events_of(frame: Frame) -> Sequence[SseEvent]:
    headers = frame.headers
    match headers.get(":message-type"):
        case "exception":
            code, message = _error_of(frame.payload, headers.get(":exception-type", ""))
            return [SseEvent("error", _error_event(code, message))]
        case "error":
            code, message = headers.get(":error-code", ""), headers.get(":error-message", "")
            return [SseEvent("error", _error_event(code, message))]
        case _:
            if headers.get(":event-type") != "chunk":
                return ()
    try:
        data = _decode_chunk(frame.payload).data
    except (msgspec.DecodeError, RecursionError):
        raise ProviderError("server", "Bedrock's answer could not be read.", unanswered=True) from None
    if too_much := excess(data):
        raise ProviderError("server", f"An event of Bedrock's answer has {too_much}.", retryable=False, unanswered=True)
    return [SseEvent("", data)]


def _error_event(code: str, message: str) -> bytes:
    """Returns an error as it would appear in Anthropic's own stream."""
    return msgspec.json.encode({"type": "error", "error": {"type": code, "message": message}})


def _error_of(body: bytes, code: str) -> tuple[str, str]:
    """Returns the code and message of an error; services differ in where they put them and how they spell them."""
    try:
        value: Any = None if excess(body) else msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        value = None
    fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    code = code.partition(":")[0] or text(fields, "__type").rpartition("#")[2]
    if fields:
        message = text(fields, "message") or text(fields, "Message") or text(fields, "originalMessage")
    else:
        message = body.decode("utf-8", "replace").strip()
    return code, "" if message.startswith("<") else message


def _class_of(detail: ErrorDetail) -> ErrorClass | None:
    code = (detail.code or "").lower()
    if code == "validationexception" and detail.status is None:
        # An error in a stream has no status, so its message decides.
        return classify(400, detail.body).cls
    return _CLASSES.get(code)


def _key_of_environment() -> str:
    environ = os.environ
    if bearer := environ.get("AWS_BEARER_TOKEN_BEDROCK"):
        return bearer
    pieces = [environ.get(name, "") for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")]
    return ":".join(pieces).rstrip(":") if pieces[0] and pieces[1] else ""


def _credentials(key: str) -> Credentials | None:
    """Parses a key into credentials; None for a key that is sent unchanged."""
    if ":" not in key:
        return None
    access_key, secret, *session = key.split(":", 2)
    if not (access_key and secret):
        raise ValueError("api_key must be ACCESS_KEY:SECRET, ACCESS_KEY:SECRET:SESSION_TOKEN or a Bedrock API key")
    return Credentials(access_key, secret, session[0] if session else None)


def _region(region: str | None, base_url: str | None) -> str:
    found = _REGION_OF_HOST.search(base_url or "")
    name = (
        region
        or (found[1] if found else "")
        or os.environ.get("AWS_REGION", "")
        or os.environ.get("AWS_DEFAULT_REGION", "")
    )
    if not name:
        raise ValueError("region is missing; set it, or AWS_REGION")
    if not _REGION.fullmatch(name):
        raise ValueError(f"region: {name!r} is not a region name")
    return name
