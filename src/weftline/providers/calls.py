"""Sends a provider's requests, raises connection failures as `ProviderError`, and logs what a model does not get."""

from __future__ import annotations

import logging
from contextlib import AbstractAsyncContextManager
from functools import lru_cache
from types import TracebackType
from urllib.parse import urlsplit

from weftline.net.address import display_url
from weftline.net.errors import Reason, RequestFailed
from weftline.net.transport import Response
from weftline.providers.base import ErrorClass, ProviderError
from weftline.text.characters import storable_json
from weftline.text.json_size import excess
from weftline.trace_context import current_run

logger = logging.getLogger(__name__)
UNREAD_LOG = __name__
"""The logger that tells which attachments a model does not get."""

_BY_REASON: dict[Reason, tuple[ErrorClass, bool | None]] = {
    "invalid": ("invalid_request", None),
    "refused": ("invalid_request", None),
    "redirected": ("invalid_request", None),
    "certificate": ("server", False),
    "connect": ("server", None),
    "proxy": ("server", False),
    "timeout": ("timeout", None),
    "broken": ("server", None),
    "too_large": ("server", False),
    "closed": ("server", False),
    "busy": ("server", None),
    "unknown": ("unknown", None),
}
"""The class of a failed request, and whether to retry it if that differs from the class's default."""


def warn_unread(media_type: str, name: str | None = None) -> None:
    """Tells the developer that an attachment is not sent, because this model or its API cannot read it."""
    run = current_run.get()
    log = _log_unread if run is not None else _log_unread.__wrapped__
    log("" if run is None else f"run {run.run_id}: ", name or "an attachment", media_type)


@lru_cache(maxsize=1024)  # once for each run, as a message may be encoded several times
def _log_unread(run: str, name: str, media_type: str) -> None:
    logger.warning("%s%s (%s) is not sent to the model, which cannot read it and is told so", run, name, media_type)


def provider_error(error: RequestFailed) -> ProviderError:
    cls, retryable = _BY_REASON[error.reason]
    return ProviderError(cls, error.message, retryable=retryable, unanswered=error.sent)


async def read_json(response: Response) -> bytes:
    """Returns the whole body, if it does not have too many JSON values. Raises `ProviderError`."""
    body = await response.read()
    if too_much := excess(body):
        raise ProviderError("server", f"The model API's answer has {too_much}.", retryable=False, unanswered=True)
    return storable_json(body)


class Call:
    """`async with Call(transport.post(url, …), url) as response`: raises `ProviderError`, even while the body is read.

    A page for people in place of an answer is an error too.
    """

    __slots__ = ("_request", "_url")

    def __init__(self, request: AbstractAsyncContextManager[Response], url: str) -> None:
        self._request = request
        self._url = url

    async def __aenter__(self) -> Response:
        try:
            response = await self._request.__aenter__()
        except RequestFailed as error:
            if not error.sent:
                # The host alone does not say which of its servers is down.
                displayed = display_url(self._url, with_port=True)
                error.message = error.message.replace(
                    f"connect to {urlsplit(self._url).hostname}", f"connect to {displayed}"
                )
            raise provider_error(error) from None
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if 200 <= response.status < 300 and kind in ("text/html", "application/xhtml+xml"):
            error = ProviderError(
                "server",
                f"{display_url(self._url)} answered {response.status} with HTML, not with JSON or an event stream. "
                "Is this the address of a model API? Most end in /v1.",
                retryable=False,
                status=response.status,
            )
            await self._request.__aexit__(ProviderError, error, None)
            raise error
        return response

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._request.__aexit__(kind, error, trace)
        except RequestFailed as failed:
            raise provider_error(failed) from None
        if isinstance(error, RequestFailed):
            raise provider_error(error) from None
