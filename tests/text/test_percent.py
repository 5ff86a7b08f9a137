from __future__ import annotations

import json
import tracemalloc
from urllib.parse import parse_qsl, unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weftline.errors import InvalidRequest
from weftline.spec.door import parse_run
from weftline.text.percent import decoded, decoded_up_to, fields

texts = st.lists(st.sampled_from([b"%", b"4", b"1", b"aF", b"=", b"%3d", b"%0A", b"\r\n", b" ", b"\xc3\xa9"])).map(
    b"".join
)


@given(texts)
def test_a_text_is_decoded_as_by_the_standard_library(text: bytes) -> None:
    assert decoded(text) == unquote_to_bytes(text) == decoded_up_to(text, len(text))


@given(st.text("ab=&+%41 \u00e9"))
def test_fields_are_read_as_by_the_standard_library(text: str) -> None:
    assert fields(text.encode(), max_fields=1000) == parse_qsl(text, keep_blank_values=True)


def test_long_text_is_decoded_without_cutting_escapes() -> None:
    for shift in range(3):
        text = b"x" * shift + b"%41" * 30_000
        assert decoded_up_to(text, 1_000_000) == b"x" * shift + b"A" * 30_000
        assert decoded_up_to(text, 20_000) is None


def test_a_thousand_percent_signs_that_are_not_escapes_are_refused() -> None:
    assert decoded(b"100% " * 900) == b"100% " * 900
    with pytest.raises(ValueError, match="percent"):
        decoded(b"100% " * 1000)
    with pytest.raises(ValueError, match="fields"):
        fields(b"a&" * 1000, max_fields=1000)


def request(url: str) -> bytes:
    return json.dumps({"modelId": "scripted:hello", "prompt": "x", "attachments": [{"url": url}]}).encode()


@pytest.mark.parametrize(
    "url",
    [
        "data:text/plain," + "%41" * 200_000,
        "data:text/plain," + "%" * 600_000,
        "data:text/plain" + ";" * 600_000 + ",x",
        "data:text/plain;base64," + "QUFB" * 150_000,
    ],
    ids=["escapes", "percent signs", "parameters", "base64"],
)
def test_a_data_url_takes_a_few_times_its_own_memory(url: str) -> None:
    parse_run(request("data:text/plain,x"))  # what is imported by the first request is not the URL's
    body = request(url)
    tracemalloc.start()
    try:
        parse_run(body)
    except InvalidRequest:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 10 * len(body)
