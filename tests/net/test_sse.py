from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

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


def test_an_event_is_given_as_soon_as_its_empty_line_is_there() -> None:
    parser = SseParser()
    assert parser.feed(b"data: 1\n") == []
    assert parser.feed(b"\n") == [SseEvent("", b"1")]


def test_an_event_ended_by_a_bare_carriage_return_does_not_wait_for_what_follows() -> None:
    parser = SseParser()
    assert parser.feed(b"data: 1\r\r") == [SseEvent("", b"1")]
    assert parser.feed(b"\ndata: 2\r\n\r\n") == [SseEvent("", b"2")]
