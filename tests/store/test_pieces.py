"""Bodies are split at their long strings and put together again: the same bytes, whatever they are."""

from __future__ import annotations

from json import dumps
from typing import Any

import pytest
from hypothesis import given
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


def test_string_is_one_piece_however_it_is_written() -> None:
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
def test_value_without_long_strings_is_unchanged(body: bytes) -> None:
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


def history(messages: int) -> list[dict[str, Any]]:
    return [
        {"role": "user", "parts": [{"type": "text", "text": f"{number} said {'a word ' * 200}"}]}
        for number in range(messages)
    ]


def test_growing_list_is_stored_once() -> None:
    """As clients send it that keep the conversation themselves, with every request."""
    rest, kept = 0, dict[str, bytes]()
    for number in range(60, 100):
        plan = {"name": "x" * number, "limits": {"turns": number}, "messages": history(number)}
        for body in (encode({"plan": plan}), dumps({"id": number, **plan}, indent=1).encode()):
            parts = split(body)
            assert parts is not None and join(parts.body, parts.pieces.get) == body
            rest += len(parts.body)
            kept |= parts.pieces
    assert rest / 80 < 2 * PIECE_BYTES
    assert sum(map(len, kept.values())) < 2.2 * len(encode(history(100)))


def test_long_string_among_short_elements_is_piece_of_its_own() -> None:
    text = {"role": "user", "text": LONG}
    parts = split(encode({"messages": [*history(30), text, *history(30), text]}))
    assert parts is not None and encode(LONG)[1:-1] in parts.pieces.values() and len(parts.pieces) > 2
    assert sum(map(len, parts.pieces.values())) < len(LONG) + len(encode(history(30))) + PIECE_BYTES


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":"%s","a":%s}' % ((b"[" + b",".join([b"{}"] * 20_000) + b"]",) * 2),
        b'{"a":%s,"b":"x","a":%s}' % ((b"[" + b",".join([b"{}"] * 20_000) + b"]",) * 2),
        b"[" + b" , ".join([b'{"a" : [ ] }'] * 9_000) + b" \n] ",
        b"[" + b",".join([b"{}"] * 60_000) + b"]",
        b"[{" + b"[" * 40_000,
        b'[{"a":1}' + b"," * 40_000 + b"]",
    ],
    ids=["in a string", "twice", "blanks", "too many", "deep", "not JSON"],
)
def test_odd_lists_come_back_too(body: bytes) -> None:
    parts = split(body)
    assert parts is None or join(parts.body, parts.pieces.get) == body


def test_nested_json_strings_are_redacted_deeply() -> None:
    """However deep they are: each level takes as long as the whole body does."""
    value = LONG
    for _ in range(8):
        value = encode({"a": value}).decode()
    (piece,) = parts_of(encode({"a": value})).values()
    assert piece.count(b"\\") > 32


def test_body_with_a_missing_or_changed_piece_cannot_be_read() -> None:
    for body in (encode({"text": LONG}), dumps({"text": LONG + "é"}).encode(), encode({"a": encode([LONG]).decode()})):
        parts = split(body)
        assert parts is not None
        assert join(parts.body, dict[str, bytes]().get) == parts.body and b"\0" in parts.body
    assert join(parts.body, dict.fromkeys(parts.pieces, b"\xff").get) == parts.body
    assert join(b"\0)\0(\0=", dict.fromkeys(parts.pieces, b"").get) == b"\0)\0(\0="


some_words = st.text(st.sampled_from('ab"\\\n\x01é\U0001f34b/{['))


def many(words: str) -> str:
    return words * 3_000


def in_a_string(words: str) -> str:
    return encode({"a": many(words)}).decode()


def in_a_list(words: str) -> list[dict[str, str]]:
    return [{"a": words * 100, "b": str(number)} for number in range(50)]


some_json: st.SearchStrategy[Any] = st.recursive(
    st.integers() | some_words | some_words.map(many) | some_words.map(in_a_string) | some_words.map(in_a_list),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(value=some_json, ascii=st.booleans())
def test_any_json_comes_back(value: Any, ascii: bool) -> None:
    body = dumps(value).encode() if ascii else encode(value)
    parts = split(body)
    if parts is not None:
        assert join(parts.body, parts.pieces.get) == body


@given(data=st.lists(st.sampled_from([b'"', b"\\", b"\\u00e9", b"{", b"x" * PIECE_BYTES, b"\xff", b"\0"])))
def test_any_bytes_come_back(data: list[bytes]) -> None:
    body = b"".join(data)
    parts = split(body)
    if parts is not None:
        assert join(parts.body, parts.pieces.get) == body
