"""Calls in Chat Completions, however servers number, name and split them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from openai_chat_kit import DONE, chat, part, sent
from openai_stand_in import (
    answer,
    answering,
    ask,
    chunks_of,
    events,
    spec,
)

from traffic import exchange, recorded
from weftline.messages import (
    Assistant,
    ProviderCall,
    User,
)
from weftline.providers.base import (
    CallStart,
)
from weftline.testing.recordings import RecordedTransport


def named(*pieces: str, index: int = 0) -> list[dict[str, Any]]:
    return [part({"tool_calls": [{"index": index, "function": {"name": piece}}]}) for piece in pieces]


@pytest.mark.requirement("provider.stream.tool_calls")
@pytest.mark.parametrize(
    ("pieces", "names"),
    [
        (("get", "_wea", "ther"), ["get_weather"]),
        (("get_weather", "get_weather"), ["get_weather"]),
        (("", "get_weather"), ["get_weather"]),
        (("get_weather", "now"), ["get_weather", "now"]),
        (("get_", "now"), ["get_now"]),
    ],
)
@pytest.mark.parametrize("args", ["", '{"a":1}'])
async def test_a_name_that_comes_in_pieces_is_put_together(
    pieces: tuple[str, ...], names: list[str], args: str
) -> None:
    tools = [spec(name) for name in ("get_weather", "now")]
    rest = [part({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}) for piece in (args[:3], args[3:])]
    stream = events(*named(*pieces), *rest, part({}, "tool_calls"), DONE)
    calls = (await answer(chat(answering(stream)), ask(tools=tools))).message().calls
    assert [call.name for call in calls] == names and calls[-1].args == (args or "{}")


@pytest.mark.requirement("provider.stream.tool_calls")
async def test_interleaved_calls_are_told_apart_by_their_index() -> None:
    stream = events(
        part({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "one", "arguments": ""}}]}),
        part({"tool_calls": [{"index": 1, "id": "b", "function": {"name": "two", "arguments": ""}}]}),
        part({"tool_calls": [{"index": 0, "function": {"arguments": '{"x":'}}]}),
        part({"tool_calls": [{"index": 1, "function": {"arguments": "{}"}}]}),
        part({"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]}),
        part({}, "stop"),
        DONE,
    )
    got = await answer(chat(answering(stream)))
    assert [(call.id, call.name, call.args) for call in got.message().calls] == [
        ("a", "one", '{"x":1}'),
        ("b", "two", "{}"),
    ]
    assert got.finish_reason == "tool_use"


async def test_calls_with_equal_server_numbers_differ_by_ids() -> None:
    stream = events(
        part({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "one", "arguments": "{}"}}]}),
        part({"tool_calls": [{"index": 0, "id": "b", "function": {"name": "one", "arguments": "{}"}}]}),
        part({}, "tool_calls"),
        DONE,
    )
    assert [call.id for call in (await answer(chat(answering(stream), "ollama"))).message().calls] == ["a", "b"]


async def test_calls_without_ids_differ_by_their_arguments() -> None:
    def piece(arguments: str) -> dict[str, Any]:
        return part({"tool_calls": [{"index": 0, "id": "", "function": {"name": "one", "arguments": arguments}}]})

    stream = events(piece('{"a"'), piece(":1}"), piece('{"a":2}'), part({}, "tool_calls"), DONE)
    calls = (await answer(chat(answering(stream), "compatible"))).message().calls
    assert [call.args for call in calls] == ['{"a":1}', '{"a":2}']


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("streams/openai_chat/call_without_id", "time_now"),
        *recorded([("openai_chat/compatible_api_with_tool_calls_without_id", "get_current_time")]),
    ],
)
async def test_a_call_without_an_upstream_id_starts_without_one(file: str, name: str) -> None:
    chunks = await chunks_of(chat(RecordedTransport([exchange(file)]), "compatible"))
    starts = [chunk for chunk in chunks if isinstance(chunk, CallStart)]
    assert [(start.name, start.id) for start in starts] == [(name, None)]


@pytest.mark.requirement("provider.extra.round_trip")
async def test_extra_content_of_calls_and_messages_goes_back() -> None:
    extra = {"google": {"thought_signature": "AVSo"}}
    call = {"index": 0, "id": "c1", "function": {"name": "look", "arguments": "{}"}, "extra_content": extra}
    stream = events(part({"tool_calls": [call], "extra_content": extra}), part({}, "stop"), DONE)
    message = (await answer(chat(answering(stream), "compatible"))).message()
    stored = msgspec.json.decode(msgspec.json.encode(message), type=Assistant)
    body = await sent(ask(User.of("a"), stored), "compatible")
    assert body["messages"][1]["tool_calls"][0]["extra_content"] == extra
    assert body["messages"][1]["extra_content"] == extra


@pytest.mark.requirement("provider.tools.executed")
async def test_tools_that_the_server_ran_are_recorded_and_never_called() -> None:
    tool = {"index": 0, "type": "search", "arguments": '{"q":"x"}', "output": "found"}
    notes = [{"type": "url_citation", "url_citation": {"url": "https://example.org"}}]
    stream = events(part({"content": "Yes.", "executed_tools": [tool], "annotations": notes}), part({}, "stop"), DONE)
    got = await answer(chat(answering(stream), "groq"))
    ran = [one for one in got.message().parts if isinstance(one, ProviderCall)]
    assert [(one.name, one.provider, one.status) for one in ran] == [
        ("search", "groq", "completed"),
        ("web_search", "groq", "completed"),
    ]
    assert (got.message().calls, got.finish_reason) == ((), "end_turn")
    assert [one["role"] for one in (await sent(ask(User.of("a"), got.message()), "groq"))["messages"]] == [
        "user",
        "assistant",
    ]
