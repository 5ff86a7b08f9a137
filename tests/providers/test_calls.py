"""Failures below HTTP, as a provider tells them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import get_args

import pytest

from weftline.net.errors import Reason, RequestFailed
from weftline.net.limits import TimeLimits
from weftline.net.transport import Response
from weftline.providers.base import ErrorClass, ProviderError
from weftline.providers.calls import Call, provider_error
from weftline.testing.recordings import RecordedTransport, replay

CLASSES: dict[Reason, tuple[ErrorClass, bool]] = {
    "invalid": ("invalid_request", False),
    "refused": ("invalid_request", False),
    "redirected": ("invalid_request", False),
    "certificate": ("server", False),
    "connect": ("server", True),
    "proxy": ("server", False),
    "timeout": ("timeout", True),
    "broken": ("server", True),
    "too_large": ("server", False),
    "closed": ("server", False),
    "busy": ("server", True),
    "unknown": ("unknown", False),
}


@pytest.mark.requirement("provider.error.classes")
@pytest.mark.parametrize("reason", get_args(Reason))
def test_each_reason_has_its_class(reason: Reason) -> None:
    error = provider_error(RequestFailed(reason, "why", sent=True))
    assert (error.cls, error.retryable, error.message) == (*CLASSES[reason], "why")


@pytest.mark.parametrize("when", ["before", "in the middle", "at the end"])
async def test_a_call_fails_as_the_providers_call_whenever_it_does(when: str) -> None:
    failed = RequestFailed("broken", "It broke.", sent=True)

    @asynccontextmanager
    async def request() -> AsyncGenerator[Response]:
        if when == "before":
            raise failed
        async with RecordedTransport(replay((200, "text/plain", b""))).get(
            "", headers={}, limits=TimeLimits()
        ) as response:
            yield response
        raise failed

    async def call() -> None:
        async with Call(request(), "http://stand-in/v1"):
            if when == "in the middle":
                raise failed

    with pytest.raises(ProviderError) as raised:
        await call()
    assert (raised.value.cls, raised.value.message) == ("server", "It broke.")
