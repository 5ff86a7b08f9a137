"""Characters that were cut in two: joined where both halves came, replaced where one is missing, never a failure."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest

from weftline.kernel.notes import TEXT_DELTA, THINKING_DELTA
from weftline.messages import Thinking, Usage
from weftline.net.sse import SseEvent, SseParser
from weftline.providers.assemble import Assembler
from weftline.providers.base import CallStart, Chunk, Finish, TextDelta, ThinkingDelta, ThinkingDone, UsageUpdate
from weftline.providers.whole_pairs import WholePairs
from weftline.runtime.model_calls.deltas import Deltas
from weftline.runtime.services import Outcome
from weftline.text.characters import whole, whole_json

HIGH, LOW = "\ud83d", "\ude00"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("schön 😀", "schön 😀"),
        (f"a{HIGH}{LOW}b", "a😀b"),
        (f"a{HIGH}", "a\ufffd"),
        (f"{LOW}{HIGH}b", "\ufffd\ufffdb"),
        (f"{HIGH}{HIGH}{LOW}", "\ufffd😀"),
    ],
)
def test_text_is_made_whole(text: str, expected: str) -> None:
    assert whole(text) == expected
    # The same in JSON, as those write it who keep to ASCII.
    assert json.loads(whole_json(json.dumps([text, {text: 1}]).encode())) == [expected, {expected: 1}]


def test_a_backslash_that_is_itself_escaped_begins_no_escape() -> None:
    for text in (r"\ud83d", "\\" + HIGH, r"\\ud83d"):
        assert json.loads(whole_json(json.dumps(text).encode())) == whole(text)


def spoken(*texts: str) -> list[str]:
    """What comes of texts that a model API sends as one event each."""
    pairs = WholePairs(SseParser())
    events: list[SseEvent] = []
    for text in texts:
        event = json.dumps({"n": len(text), "text": text, "more": '"x"'})
        events += pairs.feed(f"data: {event}\n\n".encode())
    return [json.loads(event.data)["text"] for event in [*events, *pairs.end()]]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["a" + HIGH, LOW + "b"], ["a😀", "b"]),
        ([HIGH, LOW + HIGH, LOW], ["😀", "😀", ""]),
        ([HIGH, "b"], ["\ufffd", "b"]),
        ([HIGH, HIGH, LOW], ["\ufffd", "😀", ""]),
        (["a", LOW], ["a", "\ufffd"]),
        (["a", HIGH], ["a", "\ufffd"]),
        (["a" + HIGH, f'"{LOW}'], ["a\ufffd", '"\ufffd']),
        ([f"a{HIGH}b", "😀"], ["a\ufffdb", "😀"]),
        (["a\0b", HIGH, "\0" + LOW], ["a\ufffdb", "\ufffd", "\ufffd\ufffd"]),
        (["a" + HIGH, LOW + "\\u0000"], ["a😀", "\\u0000"]),
    ],
)
def test_a_character_that_is_cut_between_two_events_is_joined(texts: list[str], expected: list[str]) -> None:
    assert spoken(*texts) == expected


CHAT = '{"choices":[{"index":0,"delta":%s,"finish_reason":null}]}'


def chat_text(text: str) -> str:
    return CHAT % json.dumps({"content": text})


def anthropic_text(text: str) -> str:
    return json.dumps({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}})


@pytest.mark.parametrize(
    ("said", "between", "joined"),
    [
        (chat_text, [chat_text("")], True),
        (chat_text, [CHAT % '{"role":"assistant","content":null}', chat_text("")], True),
        (anthropic_text, ['{"type": "ping"}', anthropic_text("")], True),
        (chat_text, [chat_text("b")], False),
        (chat_text, [CHAT % '{"tool_calls":[{"index":0}]}'], False),
        (chat_text, ['{"choices":[],"usage":{"prompt_tokens":1}}'], False),
        (chat_text, ["[DONE]"], False),
        (anthropic_text, ['{"type":"content_block_stop","index":0}'], False),
        (anthropic_text, ['{"type":"message_delta","delta":{},"usage":{"output_tokens":1}}'], False),
    ],
    ids=range(9),
)
def test_events_that_say_nothing_do_not_part_halves_of_character(
    said: Callable[[str], str], between: list[str], joined: bool
) -> None:
    pairs = WholePairs(SseParser())
    events: list[SseEvent] = []
    for data in (said("a" + HIGH), *between, said(LOW + "b")):
        events += pairs.feed(f"data: {data}\n\n".encode())
    shown = b"".join(event.data for event in [*events, *pairs.end()])
    assert (b"\\ud83d\\ude00" in shown, b"\\ufffd" in shown) == (joined, not joined)
    assert all(data.encode() in shown for data in between if not joined)


class Sink:
    def __init__(self) -> None:
        self.said: dict[str, str] = {TEXT_DELTA: "", THINKING_DELTA: ""}

    def emit(self, kind: str, lines: bytes, count: int = 1) -> None:
        for one in lines.split(b"\n"):
            self.said[kind] += json.loads(one)["text"]

    async def permit(self, *, all: bool = False) -> None: ...
    async def durable(self) -> None: ...
    def wanted(self) -> bool:
        return True

    def take(self, outcome: Outcome) -> bool:
        return False

    def full(self) -> bool:
        return False


@pytest.mark.parametrize(
    "reads",
    [
        [[TextDelta("a" + HIGH)], [TextDelta(LOW + "b")]],
        [[TextDelta(HIGH), UsageUpdate(Usage())], [TextDelta(LOW)], [TextDelta("c")]],
        [[TextDelta("a"), TextDelta(HIGH), TextDelta("b" + LOW)]],
        [[ThinkingDelta("hm" + HIGH), ThinkingDone()], [TextDelta(LOW + "b" + HIGH)]],
        [[TextDelta(HIGH)], [CallStart(0, "look")], [TextDelta(LOW)]],
        [[TextDelta(HIGH)], [TextDelta("")], [TextDelta(HIGH + LOW)]],
    ],
    ids=range(6),
)
def test_deltas_of_a_custom_provider_match_its_message(reads: Sequence[Sequence[Chunk]]) -> None:
    sink, assembler = Sink(), Assembler("own")
    deltas = Deltas(sink, turn=0, attempt=1)
    for chunks in [*reads, [Finish("end_turn")]]:
        deltas.take(chunks, assembler.feed(chunks))
    thoughts = [part.text for part in assembler.message().parts if isinstance(part, Thinking)]
    assert sink.said == {TEXT_DELTA: assembler.text, THINKING_DELTA: "".join(thoughts)}
    assembler.text.encode()
