from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weftline.net import sse
from weftline.net.errors import RequestFailed
from weftline.net.sse import SseEvent, SseParser

STREAM = (
    b"\xef\xbb\xbfevent: first\ndata: one\n\n"
    b": a comment\r\ndata:two\r\ndata:  lines\r\n\r\n"
    b"id: 7\rretry: 10\revent:third\rdata: \xe2\x82\xac\r\r"
    b"event: without data\nid: 8\n\n"
    b"data\n\n"
    b'data: {"a": "b: c"}\nunknown: field\n\n'
    b"data: cut off\n"
)
EVENTS = [
    SseEvent("first", b"one"),
    SseEvent("", b"two\n lines"),
    SseEvent("third", "€".encode(), "7"),
    SseEvent("", b""),
    SseEvent("", b'{"a": "b: c"}'),
]


def test_events_are_read_whatever_ends_their_lines() -> None:
    assert SseParser().feed(STREAM) == EVENTS


@given(st.lists(st.integers(0, len(STREAM))))
def test_any_split_of_the_bytes_gives_the_same_events(cuts: list[int]) -> None:
    parser = SseParser()
    edges = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[start:end] for start, end in pairwise(edges)]
    assert [event for piece in pieces for event in parser.feed(piece)] == EVENTS


def test_event_is_given_at_its_empty_line() -> None:
    parser = SseParser()
    assert parser.feed(b"data: 1\n") == []
    assert parser.feed(b"\n") == [SseEvent("", b"1")]


def test_event_ended_by_a_carriage_return_is_not_delayed() -> None:
    parser = SseParser()
    assert parser.feed(b"data: 1\r\r") == [SseEvent("", b"1")]
    assert parser.feed(b"\ndata: 2\r\n\r\n") == [SseEvent("", b"2")]


@pytest.fixture
def idle_lines(monkeypatch: pytest.MonkeyPatch) -> int:
    """As many lines as may tell nothing: fewer than usual."""
    monkeypatch.setattr(sse, "MAX_IDLE_LINES", 20_000)
    return sse.MAX_IDLE_LINES


@pytest.mark.parametrize("line", [b":\n", b"data:\n", b"data:\n\n", b": keep-alive\n\n", b"retry: 1\n"])
def test_lines_without_end_that_tell_nothing_fail_the_stream(line: bytes, idle_lines: int) -> None:
    parser = SseParser()
    for _ in range(20):
        parser.feed(line * (idle_lines // 40))
    with pytest.raises(RequestFailed) as caught:
        parser.feed(line * idle_lines)
    assert caught.value.reason == "too_large"


def test_a_stream_that_tells_something_may_go_on_for_ever(idle_lines: int) -> None:
    parser = SseParser()
    for _ in range(4):
        parser.feed(b":\n" * (idle_lines // 2))
        assert parser.feed(b"data: x\n\n") == [SseEvent("", b"x")]
