"""For receivers of webhooks: whether a request comes from the server that knows the secret."""

from __future__ import annotations

import hmac
import json
import time
from typing import Any

from weftline.client.errors import InvalidSignature

_MAX_TIME_DIGITS = 12


def verify_webhook(
    body: bytes, signature: str | None, secret: str, *, tolerance_s: float = 300.0, now_s: float | None = None
) -> dict[str, Any]:
    """Checks the signature of a webhook's request, in constant time, and returns its JSON.

        event = verify_webhook(body, request.headers.get("Weftline-Signature"), secret)

    Args:
        body: The body as it came. JSON that was parsed and written again has another signature.
        signature: The header `Weftline-Signature`.
        secret: What `weftline webhooks create` printed.
        tolerance_s: How far the sender's clock may be from this one, either way. An older request may be a replay.
        now_s: The time now, by default the clock's.

    Raises:
        InvalidSignature: if the header is missing, not of this secret and body, or from another time.
    """
    if not isinstance(body, bytes | bytearray | memoryview):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"body must be the bytes of the request, not {type(body).__name__}")
    parts = [part.strip().partition("=") for part in (signature or "").split(",")]
    times = [value for name, _, value in parts if name == "t"]
    marks = [value for name, _, value in parts if name == "v1"]
    if len(times) != 1 or not marks or not (times[0].isascii() and times[0].isdigit()):
        raise InvalidSignature("The header Weftline-Signature is missing, or is not t=…,v1=….")
    if len(times[0]) > _MAX_TIME_DIGITS:
        raise InvalidSignature("The signature is from another time.")
    right = hmac.new(secret.encode(), times[0].encode() + b"." + bytes(body), "sha256").hexdigest().encode()
    if not any(hmac.compare_digest(right, mark.encode("utf-8", "surrogatepass")) for mark in marks):
        raise InvalidSignature("The signature is not that of this body and secret.")
    if abs((time.time() if now_s is None else now_s) - int(times[0])) > tolerance_s:
        raise InvalidSignature(f"The signature is more than {tolerance_s:g} s from the time here.")
    return json.loads(body)
