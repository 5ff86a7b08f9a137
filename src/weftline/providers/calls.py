"""Sends a provider's requests, and raises connection failures as `ProviderError`."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from types import TracebackType

from weftline.net.errors import Reason, RequestFailed
from weftline.net.transport import Response
from weftline.providers.base import ErrorClass, ProviderError
from weftline.text.json_size import excess
from weftline.text.surrogates import whole_json

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


def provider_error(error: RequestFailed) -> ProviderError:
    cls, retryable = _BY_REASON[error.reason]
    return ProviderError(cls, error.message, retryable=retryable, unanswered=error.sent)


async def read_json(response: Response) -> bytes:
    """Returns the whole body, if it does not have too many JSON values. Raises `ProviderError`."""
    body = await response.read()
    if too_much := excess(body):
        raise ProviderError("server", f"The model API's answer has {too_much}.", retryable=False, unanswered=True)
    return whole_json(body)


class Call:
    """`async with Call(transport.post(…)) as response`: raises `ProviderError`, even while the body is read."""

    __slots__ = ("_request",)

    def __init__(self, request: AbstractAsyncContextManager[Response]) -> None:
        self._request = request

    async def __aenter__(self) -> Response:
        try:
            return await self._request.__aenter__()
        except RequestFailed as error:
            raise provider_error(error) from None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._request.__aexit__(kind, error, trace)
        except RequestFailed as failed:
            raise provider_error(failed) from None
        if isinstance(error, RequestFailed):
            raise provider_error(error) from None
