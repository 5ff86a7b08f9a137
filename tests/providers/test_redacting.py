"""A provider that repeats its key: the key is in nothing that it says."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from weftline.messages import ProviderCall, Text, Thinking, Usage, User
from weftline.providers.assemble import Assembler, collect
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
    UsageUpdate,
    Whole,
)
from weftline.providers.redacting import RedactingProvider
from weftline.text.redaction import REDACTED

KEY = "sk-sk-Abc123+/def"


class Parrot:
    """Says what it was told to say."""

    name = "parrot"
    extra = 7

    def __init__(self, *reads: Sequence[Chunk], error: ProviderError | None = None) -> None:
        self._reads = reads
        self._error = error

    async def stream(self, request: ModelRequest) -> AsyncIterator[Sequence[Chunk]]:
        for chunks in self._reads:
            yield chunks
        if self._error is not None:
            raise self._error

    def models(self) -> Sequence[ModelInfo]:
        return [ModelInfo("m")]

    async def aclose(self) -> None:
        return None


async def answered(*reads: Sequence[Chunk]) -> Assembler:
    return await collect(RedactingProvider(Parrot(*reads), [KEY]), ModelRequest("m", [User.of("hi")]))


async def fed(assembler: Assembler, provider: RedactingProvider) -> None:
    async for chunks in provider.stream(ModelRequest("m", [])):
        assembler.feed(chunks)


@pytest.mark.parametrize("size", [1, 2, 5, 16, 17, 40])
async def test_key_is_redacted_from_text_however_it_is_cut(size: int) -> None:
    said = f"my key: {KEY}, really {KEY[:4]}"
    pieces = [said[at : at + size] for at in range(0, len(said), size)]
    shown = f"my key: {REDACTED}, really {KEY[:4]}"
    answer = await answered(
        [ThinkingDelta(piece) for piece in pieces], *[[TextDelta(piece)] for piece in pieces], [Finish("x")]
    )
    thinking, text = answer.message().parts
    assert isinstance(thinking, Thinking) and isinstance(text, Text) and thinking.text == text.text == shown


@pytest.mark.parametrize("size", [1, 3, 16])
@pytest.mark.parametrize(
    "between",
    [
        [ThinkingDelta("hm")],
        [TextDelta("")],
        [CallStart(0, "t", "c"), CallDone(0, "{}")],
        [UsageUpdate(Usage(input=1))],
        [Whole(ProviderCall("s", "search", "parrot"))],
    ],
)
async def test_a_key_is_blacked_out_whatever_comes_between_its_pieces(size: int, between: list[Chunk]) -> None:
    pieces = [KEY[at : at + size] for at in range(0, len(KEY), size)]
    chunks = [chunk for piece in pieces for chunk in (TextDelta(piece), *between)]
    answer = await answered([TextDelta("key: ")], *[[chunk] for chunk in chunks], [TextDelta("!"), Finish("x")])
    assert answer.text == f"key: {REDACTED}!"


async def test_text_that_only_looks_like_a_key_keeps_its_place() -> None:
    call = [CallStart(0, "t", "c"), CallDone(0, "{}")]
    chunks: list[Chunk] = [TextDelta("It asks"), *call, TextDelta("k- me"), Finish("x")]
    assert KEY.startswith("sk-")
    shown = [
        chunk async for read in RedactingProvider(Parrot(chunks), [KEY]).stream(ModelRequest("m", [])) for chunk in read
    ]
    assert shown == [TextDelta("It ask"), TextDelta("s"), *call, TextDelta("k- me"), Finish("x")]


async def test_a_key_is_blacked_out_of_calls() -> None:
    encoded = base64.b64encode(KEY.encode()).decode()
    args = json.dumps({"x": KEY, "y": encoded})
    answer = await answered(
        [CallStart(0, KEY, KEY), *[CallArgs(0, char) for char in args], CallDone(0)],
        [CallStart(1, "t", "c1"), CallDone(1, args)],
        [CallStart(2, "t", "c2"), CallArgs(2, args)],
        [Whole(ProviderCall("s", KEY, "parrot", input=Raw(args.encode()), result=Raw(args.encode())))],
        [UsageUpdate(Usage(input=1)), Finish(KEY)],
    )
    assert KEY not in repr(answer.message()) and encoded[:12] not in repr(answer.message())
    assert [call.name for call in answer.message().calls] == [REDACTED, "t", "t"]
    assert all(json.loads(call.args) for call in answer.message().calls)
    assert answer.finish_reason == REDACTED and answer.usage.input == 1


async def test_held_text_is_released_unless_mostly_a_key() -> None:
    for end, shown in ((KEY[:4], KEY[:4]), (KEY[:-1], REDACTED)):
        assembler = Assembler("parrot")
        stream = RedactingProvider(Parrot([TextDelta(f"x {end}")], error=ProviderError("server", "gone")), [KEY])
        with pytest.raises(ProviderError):
            await fed(assembler, stream)
        assert assembler.text == f"x {shown}"


@given(st.lists(st.tuples(st.text(alphabet="sk-A", max_size=6), st.text(alphabet="sk-A", max_size=6))))
async def test_text_and_thinking_without_the_key_arrive_as_they_were(pieces: list[tuple[str, str]]) -> None:
    reads: list[list[Any]] = [[TextDelta(text), ThinkingDelta(thought)] for text, thought in pieces]
    answer = await answered(*reads, [Finish("end_turn")])
    assert answer.text == "".join(text for text, _ in pieces)
    thoughts = [part.text for part in answer.message().parts if isinstance(part, Thinking)]
    assert "".join(thoughts) == "".join(thought for _, thought in pieces)


@given(st.lists(st.text(alphabet="sk-A", max_size=6)))
async def test_text_without_the_key_arrives_as_it_was(pieces: list[str]) -> None:
    reads: list[list[Any]] = [[TextDelta(piece)] for piece in pieces]
    assert (await answered(*reads, [Finish("end_turn")])).text == "".join(pieces)


def test_everything_else_is_passed_through() -> None:
    provider: Any = RedactingProvider(Parrot(), [KEY])
    assert provider.name == "parrot" and provider.extra == 7 and [one.vendor_id for one in provider.models()] == ["m"]
    assert not hasattr(provider, "nothing")


@pytest.mark.parametrize("secret", [KEY, "Tq7x"])
async def test_secret_is_not_in_error_nor_in_what_caused_it(secret: str) -> None:
    error = ProviderError("server", f"{secret} is wrong", code=f"no_{secret}")
    error.__cause__ = ValueError(secret)
    with pytest.raises(ProviderError) as raised:
        await fed(Assembler("parrot"), RedactingProvider(Parrot(error=error), [secret]))
    found = raised.value
    assert (found.message, found.code, str(found)) == (f"{REDACTED} is wrong", f"no_{REDACTED}", f"{REDACTED} is wrong")
    assert found.__cause__ is None
