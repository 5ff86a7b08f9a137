from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator, Sequence
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from weftline.messages import Assistant, Image, Opaque, ProviderCall, Text, Thinking, ToolCall, Usage
from weftline.providers.assemble import MAX_COUNT, Assembler, clean_usage, collect
from weftline.providers.base import (
    CallArgs,
    CallDone,
    CallStart,
    Chunk,
    Finish,
    ModelInfo,
    ModelRequest,
    ProviderError,
    TextDelta,
    ThinkingDelta,
    ThinkingDone,
    UsageUpdate,
    Whole,
)


def assembled(*chunks: Chunk) -> Assembler:
    assembler = Assembler("acme")
    assembler.feed(chunks)
    return assembler


def test_adjacent_text_is_one_part_however_it_was_split() -> None:
    assembler = assembled(TextDelta(""), TextDelta("Hel"), TextDelta("lo"))
    assert assembler.text == "Hello"
    assert assembler.message() == Assistant((Text("Hello"),))
    assembler.feed([Whole(Text(", you")), Finish("end_turn")])
    assert assembler.message() == Assistant((Text("Hello, you"),))


def test_parts_stay_in_upstream_order() -> None:
    image = Image("image/png", data="AAAA")
    search = ProviderCall("s1", "web_search", "acme")
    opaque = Opaque("acme", Raw(b"[1]"))
    message = assembled(
        ThinkingDelta("hm"),
        ThinkingDone(),
        TextDelta("a"),
        Whole(search),
        TextDelta("b"),
        CallStart(0, "go", "c1"),
        CallDone(0, "{}"),
        Whole(image),
        Whole(opaque),
        TextDelta("c"),
        Finish("end_turn"),
    ).message()
    assert message.parts == (
        Thinking("hm", "acme"),
        Text("a"),
        search,
        Text("b"),
        ToolCall("c1", "go", "{}", "acme"),
        image,
        opaque,
        Text("c"),
    )


def test_thinking_blocks_keep_their_signature_and_their_opaque_data() -> None:
    opaque = Raw(b'{"encrypted":"x"}')
    message = assembled(
        ThinkingDelta("first "),
        ThinkingDelta("block"),
        ThinkingDone("sig-1"),
        ThinkingDone(opaque=opaque),
        ThinkingDone(),
        ThinkingDelta("cut by text"),
        TextDelta("so"),
        Finish("end_turn"),
    ).message()
    assert message.parts == (
        Thinking("first block", "acme", "sig-1"),
        Thinking("", "acme", None, opaque),
        Thinking("cut by text", "acme"),
        Text("so"),
    )


def test_an_empty_delta_does_not_end_a_block_of_thinking() -> None:
    message = assembled(
        ThinkingDelta("a"), TextDelta(""), ThinkingDelta("b"), ThinkingDone("s"), Finish(None)
    ).message()
    assert message.parts == (Thinking("ab", "acme", "s"),)


@pytest.mark.requirement("provider.stream.tool_calls")
def test_interleaved_calls_are_assembled_by_key() -> None:
    assembler = assembled(
        CallStart("x", "one", "id-1"),
        CallStart("y", "two", "id-2"),
        CallArgs("y", '{"b"'),
        CallArgs("x", '{"a":'),
        CallArgs("y", ":2}"),
        CallArgs("x", "1}"),
        CallDone("y"),
        CallDone("x"),
        Finish("tool_use"),
    )
    assert assembler.message().calls == (
        ToolCall("id-1", "one", '{"a":1}', "acme"),
        ToolCall("id-2", "two", '{"b":2}', "acme"),
    )


def test_text_between_the_pieces_of_a_call_stays_one_part() -> None:
    assembler = assembled(
        CallStart(0, "go", "c"), TextDelta("a"), CallArgs(0, "{"), TextDelta("b"), CallArgs(0, "}"), Finish(None)
    )
    assert assembler.message().parts == (ToolCall("c", "go", "{}", "acme"), Text("ab"))


@pytest.mark.requirement("provider.stream.tool_calls")
def test_arguments_at_end_of_call_win_over_its_pieces() -> None:
    message = assembled(
        CallStart(0, "go", "c"), CallArgs(0, '{"a":'), CallDone(0, '{"a": 1}'), Finish("tool_use")
    ).message()
    assert message.calls[0].args == '{"a": 1}'


def test_extra_of_the_end_wins_over_that_of_the_start() -> None:
    start, end = Raw(b'"start"'), Raw(b'"end"')
    message = assembled(
        CallStart(0, "kept", "a", start),
        CallDone(0),
        CallStart(1, "replaced", "b", start),
        CallDone(1, extra=end),
        Finish("tool_use"),
    ).message()
    assert [call.extra for call in message.calls] == [start, end]


def test_a_call_without_argument_text_has_an_empty_object() -> None:
    message = assembled(CallStart(0, "go"), CallArgs(0, ""), CallDone(0), Finish("tool_use")).message()
    assert message.calls == (ToolCall("", "go", "{}", "acme"),)


def test_key_may_be_used_again_once_its_call_is_done() -> None:
    message = assembled(
        CallStart(0, "go", "a"), CallDone(0, "[1]"), CallStart(0, "go", "b"), CallDone(0, "[2]"), Finish("tool_use")
    ).message()
    assert [(call.id, call.args) for call in message.calls] == [("a", "[1]"), ("b", "[2]")]


def test_malformed_arguments_are_kept_as_the_model_wrote_them() -> None:
    message = assembled(CallStart(0, "go", "a"), CallArgs(0, '{"a": '), Finish("max_tokens")).message()
    assert message.calls[0].args == '{"a": '


def test_whole_calls_and_thinking_get_the_providers_name() -> None:
    assembler = assembled(Whole(Thinking("t", opaque=Raw(b"1"))), Whole(ToolCall("c", "go")), Finish("end_turn"))
    assert assembler.message().parts == (
        Thinking("t", "acme", opaque=Raw(b"1")),
        ToolCall("c", "go", "{}", "acme"),
    )
    assert assembler.finish_reason == "tool_use"


@pytest.mark.requirement("provider.stream.finish_reason")
@pytest.mark.parametrize(
    ("said", "with_call", "reason"),
    [
        ("end_turn", False, "end_turn"),
        ("end_turn", True, "tool_use"),
        ("tool_use", True, "tool_use"),
        ("max_tokens", True, "max_tokens"),
        ("refusal", False, "refusal"),
        (None, False, None),
        (None, True, None),
    ],
)
def test_a_turn_that_ends_with_calls_finished_for_their_sake(
    said: str | None, with_call: bool, reason: str | None
) -> None:
    call: list[Chunk] = [CallStart(0, "go", "c"), CallDone(0)] if with_call else []
    assert assembled(*call, Finish(said)).finish_reason == reason


def test_provider_executed_tool_does_not_prolong_the_run() -> None:
    assembler = assembled(Whole(ProviderCall("s", "web_search", "acme")), Finish("end_turn"))
    assert assembler.finish_reason == "end_turn"


def test_stream_without_its_finish_is_incomplete() -> None:
    assembler = assembled(TextDelta("Hal"), CallStart(0, "go", "c"), CallArgs(0, '{"a'))
    assert not assembler.complete
    assert assembler.finish_reason is None
    assert assembler.text == "Hal"
    assert assembler.message().calls[0].args == '{"a'


def test_a_finish_alone_is_a_complete_and_empty_answer() -> None:
    assembler = assembled(Finish("end_turn"))
    assert assembler.complete
    assert assembler.message() == Assistant(())
    assert assembler.text == ""


@pytest.mark.parametrize("late", [TextDelta("x"), TextDelta(""), UsageUpdate(Usage()), Finish("end_turn")])
def test_a_chunk_after_the_finish_is_a_server_error(late: Chunk) -> None:
    assembler = assembled(TextDelta("a"), Finish("end_turn"))
    assembler.feed([])
    with pytest.raises(ProviderError) as caught:
        assembler.feed([late])
    assert caught.value.cls == "server"


@pytest.mark.parametrize(
    "chunks",
    [
        [CallArgs(0, "{}")],
        [CallDone(0)],
        [CallStart(0, "go"), CallStart(0, "go")],
        [CallStart(0, "go"), CallDone(0), CallArgs(0, "{}")],
    ],
)
def test_pieces_of_call_that_is_not_open_are_server_error(chunks: list[Chunk]) -> None:
    with pytest.raises(ProviderError) as caught:
        assembled(*chunks)
    assert caught.value.cls == "server"


def test_the_last_usage_wins() -> None:
    assembler = assembled(UsageUpdate(Usage(10, 2)), UsageUpdate(Usage(10, 4, 1, 7)), Finish("end_turn"))
    assert assembler.usage == Usage(10, 4, 1, 7)


@pytest.mark.requirement("provider.usage.robust")
def test_an_answer_without_usage_has_used_nothing() -> None:
    assembler = assembled(TextDelta("a"), Finish("end_turn"))
    assert assembler.complete
    assert assembler.usage == Usage()


counts: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.integers(), st.floats(allow_nan=True, allow_infinity=True), st.booleans(), st.text(max_size=3)
)


@pytest.mark.requirement("provider.usage.robust")
@given(counts, counts, counts, counts, counts)
def test_counts_are_sane_whatever_the_api_said(a: Any, b: Any, c: Any, d: Any, e: Any) -> None:
    usage = assembled(UsageUpdate(Usage(a, b, c, d, e)), Finish("end_turn")).usage
    values = (usage.input, usage.cached, usage.reasoning, usage.output, usage.cache_write)
    assert all(type(value) is int and 0 <= value <= MAX_COUNT for value in values)
    assert usage.cached + usage.cache_write <= usage.input
    assert usage.reasoning <= usage.output
    assert clean_usage(usage) == usage


@pytest.mark.requirement("provider.usage.robust")
def test_good_counts_are_kept_and_bad_ones_are_zero() -> None:
    nan: Any = float("nan")
    missing: Any = None
    assert clean_usage(Usage(100, 60, 5, 20, 30)) == Usage(100, 60, 5, 20, 30)
    assert clean_usage(Usage(100, 160, 25, 20)) == Usage(100, 100, 20, 20)
    assert clean_usage(Usage(-1, 5, nan, missing)) == Usage()


texts = st.lists(st.text(max_size=4), max_size=8)


@given(texts, st.data())
def test_grouping_of_chunks_into_lists_does_not_matter(pieces: list[str], data: st.DataObject) -> None:
    chunks: list[Chunk] = [
        data.draw(st.sampled_from([TextDelta(piece), ThinkingDelta(piece), Whole(Text(piece))])) for piece in pieces
    ]
    chunks.append(Finish("end_turn"))
    one_by_one = Assembler("acme")
    for chunk in chunks:
        one_by_one.feed([chunk])
    assert one_by_one.message() == assembled(*chunks).message()


class Upstream:
    """A provider of given chunk lists."""

    name = "acme"

    def __init__(self, *lists: list[Chunk]) -> None:
        self.lists = lists
        self.closed = False

    def models(self) -> Sequence[ModelInfo]:
        return ()

    async def aclose(self) -> None:
        return None

    async def stream(self, request: ModelRequest) -> AsyncIterator[Sequence[Chunk]]:
        try:
            for chunks in self.lists:
                yield chunks
        finally:
            self.closed = True


async def test_collect_reads_a_call_to_its_end() -> None:
    answer = await collect(Upstream([TextDelta("a")], [TextDelta("b"), Finish("end_turn")]), ModelRequest("m", []))
    assert answer.text == "ab"


async def test_collect_refuses_a_cut_stream() -> None:
    with pytest.raises(ProviderError) as caught:
        await collect(Upstream([TextDelta("a")]), ModelRequest("m", []))
    assert caught.value.cls == "server"


async def test_collect_closes_a_stream_that_breaks_the_protocol() -> None:
    upstream = Upstream([Finish("end_turn")], [TextDelta("late")], [TextDelta("never read")])
    with pytest.raises(ProviderError):
        await collect(upstream, ModelRequest("m", []))
    assert upstream.closed


def test_text_in_many_small_pieces_takes_hardly_more_than_text() -> None:
    """Also if a character is cut in two where pieces are joined."""
    assembler = Assembler("p")
    count = 5_000
    tracemalloc.start()
    try:
        for number in range(count):
            assembler.feed([TextDelta(f"word{number:06d}"), TextDelta("\ud83d"), TextDelta("\ude00")])
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assembler.feed([Finish("end_turn")])
    text = "".join(f"word{number:06d}😀" for number in range(count))
    assert assembler.message() == Assistant((Text(text),))
    assert held < 12 * count * 2 * 1.5  # such text has two bytes per character


def test_every_kind_of_chunk_is_taken() -> None:
    assert {*Assembler.takes, TextDelta, ThinkingDelta} == set(get_args(Chunk))
