"""Bodies are split at their long strings and put together again: the same bytes, whatever they are."""

from __future__ import annotations

from json import dumps
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.json import encode

from weftline.store.pieces import PIECE_BYTES, join, split

LONG = "word " * PIECE_BYTES


def parts_of(*bodies: bytes) -> dict[str, bytes]:
    """What the long strings of all bodies take, each of which is put together again."""
    kept: dict[str, bytes] = {}
    for body in bodies:
        parts = split(body)
        assert parts is not None and len(parts.body) < PIECE_BYTES and parts.size == len(body)
        assert join(parts.body, parts.pieces.get) == body
        kept |= parts.pieces
    return kept


def test_a_string_is_one_piece_wherever_it_is_and_however_it_is_written() -> None:
    text = LONG + 'He said "é \U0001f34b".\n'
    message = {"role": "user", "parts": [{"type": "text", "text": text}]}
    args = encode({"task": text}).decode()
    kept = parts_of(
        encode(message),
        encode({"messages": [message] * 3}),
        dumps(message).encode(),
        dumps(message, ensure_ascii=False).encode(),
        encode({"calls": [{"args": args}]}),
        encode({"said": encode({"calls": [{"args": args}]}).decode()}),
    )
    assert list(kept.values()) == [encode(text)[1:-1]]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        encode("x" * (PIECE_BYTES - 1)),
        encode(["short"] * PIECE_BYTES),
        encode([1] * PIECE_BYTES),
        encode('"' * (PIECE_BYTES // 2 - 1)),
        b"x" * 2 * PIECE_BYTES,
        b'"' + b"x" * 2 * PIECE_BYTES,
        b'\0"%s"' % (b"x" * 2 * PIECE_BYTES),
    ],
    ids=["empty", "short", "many", "numbers", "quotes", "no string", "half a string", "not JSON"],
)
def test_what_has_no_long_strings_is_left_as_it_is(body: bytes) -> None:
    assert split(body) is None


@pytest.mark.parametrize(
    "string",
    [
        dumps("é" + LONG)[1:-1].upper(),
        "\\/" + LONG,
        "\\ud800" + LONG,
        '{\\"a\\": \\"\\u0000' + LONG + '\\"}',
        '{\\"a\\": \\"\\u002f' + LONG + '\\"}',
        '{\\"a\\": \\"\\uffgg' + LONG + '\\"}',
        '[\\"' + "\\\\\\\\" * PIECE_BYTES + '\\"]',
    ],
)
def test_strings_that_nobody_would_write_come_back_too(string: str) -> None:
    parts_of(b'{"text":"%s"}' % string.encode())


def test_strings_in_strings_are_looked_into_as_deep_as_anybody_would_put_them() -> None:
    """However deep they are: each level takes as long as the whole body does."""
    value = LONG
    for _ in range(8):
        value = encode({"a": value}).decode()
    (piece,) = parts_of(encode({"a": value})).values()
    assert piece.count(b"\\") > 32


def test_a_body_whose_piece_is_gone_or_not_what_it_was_cannot_be_read() -> None:
    for body in (encode({"text": LONG}), dumps({"text": LONG + "é"}).encode(), encode({"a": encode([LONG]).decode()})):
        parts = split(body)
        assert parts is not None
        assert join(parts.body, dict[str, bytes]().get) == parts.body and b"\0" in parts.body
    assert join(parts.body, dict.fromkeys(parts.pieces, b"\xff").get) == parts.body
    assert join(b"\0)\0(\0=", dict.fromkeys(parts.pieces, b"").get) == b"\0)\0(\0="


some_text = st.text(st.sampled_from('ab"\\\n\x01é\U0001f34b/{[')).map(lambda text: text * 3_000)
some_json: st.SearchStrategy[Any] = st.recursive(
    st.text(max_size=5) | some_text | st.integers() | some_text.map(lambda text: encode({"a": text}).decode()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None, max_examples=25)
@given(value=some_json, ascii=st.booleans())
def test_any_json_comes_back(value: Any, ascii: bool) -> None:
    body = dumps(value).encode() if ascii else encode(value)
    parts = split(body)
    if parts is not None:
        assert join(parts.body, parts.pieces.get) == body


@settings(deadline=None)
@given(data=st.lists(st.sampled_from([b'"', b"\\", b"\\u00e9", b"{", b"x" * PIECE_BYTES, b"\xff", b"\0"])))
def test_any_bytes_come_back(data: list[bytes]) -> None:
    body = b"".join(data)
    parts = split(body)
    if parts is not None:
        assert join(parts.body, parts.pieces.get) == body
