"""What failed answers of model APIs mean."""

from __future__ import annotations

import pytest

from weftline.providers.base import ErrorClass
from weftline.providers.http_errors import classify


@pytest.mark.requirement("provider.error.classes")
@pytest.mark.parametrize(
    ("status", "body", "cls"),
    [
        (429, b'{"error":{"type":"rate_limit_error","message":"slow"}}', "rate_limit"),
        (529, b'{"error":{"type":"overloaded_error","message":"Overloaded"}}', "overloaded"),
        (503, b"<html>no</html>", "overloaded"),
        (500, b'{"error":{"message":"The engine is currently overloaded"}}', "overloaded"),
        (500, b"", "server"),
        (502, b"<html>bad gateway</html>", "server"),
        (400, b'{"error":{"message":"prompt is too long: 210000 tokens > 200000 maximum"}}', "context_window"),
        (400, b'{"error":{"code":"context_length_exceeded","message":"no"}}', "context_window"),
        (400, b'{"error":{"message":"The input token count (9) exceeds the maximum"}}', "context_window"),
        (413, b'{"error":{"type":"request_too_large","message":"Request exceeds the maximum size"}}', "context_window"),
        (400, b'{"error":{"message":"max_tokens: must be positive"}}', "invalid_request"),
        (404, b'{"error":{"type":"not_found_error","message":"model: x"}}', "invalid_request"),
        (401, b'{"error":"bad key"}', "auth"),
        (403, b"[]", "auth"),
        (418, b"teapot", "unknown"),
        (307, b"", "unknown"),
        (None, b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}', "overloaded"),
        (None, b'{"type":"error","error":{"type":"api_error","message":"Internal server error"}}', "server"),
        (None, b'{"error":{"code":429,"message":"later"}}', "rate_limit"),
        (None, b'{"error":{"code":502,"message":"upstream"}}', "server"),
        (None, b'{"error":{"type":"novel_error","message":"?"}}', "unknown"),
    ],
)
def test_an_error_answer_has_one_class(status: int | None, body: bytes, cls: ErrorClass) -> None:
    error = classify(status, body, {})
    assert error.cls == cls
    assert error.retryable == (cls in {"rate_limit", "overloaded", "server", "timeout"})
    assert error.message


@pytest.mark.requirement("provider.error.classes", "provider.request.key_secrecy")
def test_the_providers_own_words_are_kept_but_for_the_key() -> None:
    body = b'{"error":{"type":"authentication_error","message":"invalid x-api-key: sk-ant-1"}}'
    error = classify(401, body, {}, secrets=["sk-ant-1"])
    assert (error.status, error.code) == (401, "authentication_error")
    assert error.message == "invalid x-api-key: [redacted]"


@pytest.mark.requirement("provider.error.classes")
@pytest.mark.parametrize(
    ("headers", "body", "seconds"),
    [
        ({"Retry-After": "7"}, b"", 7.0),
        ({"retry-after-ms": "1500", "retry-after": "2"}, b"", 1.5),
        ({"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT", "Date": "Fri, 31 Dec 1999 23:59:29 GMT"}, b"", 30.0),
        ({"retry-after": "-3"}, b"", 0.0),
        ({"retry-after": "soon"}, b"", None),
        ({}, b'{"error":{"details":[{"retryDelay":"17.5s"}]}}', 17.5),
        ({}, b"", None),
    ],
)
def test_time_to_wait_is_read_from_where_api_puts_it(
    headers: dict[str, str], body: bytes, seconds: float | None
) -> None:
    assert classify(429, body, headers).retry_after_s == seconds


def test_a_family_may_decide_on_the_class_first() -> None:
    body = b'{"error":{"code":"tool_use_failed","message":"no"}}'
    assert (
        classify(400, body, {}, hook=lambda detail: "server" if detail.code == "tool_use_failed" else None).cls
        == "server"
    )
    assert classify(400, body, {}, hook=lambda _: None).cls == "invalid_request"
