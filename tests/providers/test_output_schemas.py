"""How each family and profile tells the model what its answer must look like."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec import Raw
from openai_chat_kit import DONE, HELLO, chat, part
from openai_stand_in import SSE, answer, answering, ask, events, serving, spec
from pydantic import BaseModel

from weftline import Agent, Engine
from weftline.messages import OutputSchema
from weftline.providers.anthropic.bedrock import Bedrock
from weftline.providers.anthropic.provider import Anthropic
from weftline.providers.base import Provider, ProviderError, SchemaForm
from weftline.providers.google.provider import Google
from weftline.providers.openai.chat import OpenAIChat
from weftline.providers.openai.profiles import PROFILES
from weftline.providers.openai.responses import OpenAIResponses
from weftline.testing.recordings import replay

SCHEMA = OutputSchema("report", Raw(b'{"type":"object","properties":{"rainfall_mm":{"type":"integer"}}}'))
Build = Callable[[str], Provider]
FAMILIES: dict[str, tuple[Build, SchemaForm, SchemaForm]] = {
    "anthropic": (lambda url: Anthropic(base_url=url, api_key="k", models=["claude-sonnet-4-5"]), "native", "native"),
    "anthropic before 4.5": (lambda url: Anthropic(base_url=url, api_key="k"), "tool", "tool"),
    "bedrock": (lambda url: Bedrock(base_url=url, api_key="k", region="eu-west-1"), "tool", "tool"),
    "google": (lambda url: Google(base_url=url, api_key="k"), "native", "native"),
    "google before 3": (lambda url: Google(base_url=url, api_key="k"), "native", "tool"),
    "openai_responses": (lambda url: OpenAIResponses(base_url=url, api_key="k"), "native", "native"),
}
MODELS = {
    "anthropic": "claude-sonnet-4-5",
    "anthropic before 4.5": "claude-3-7-sonnet-latest",
    "bedrock": "claude-sonnet-4-5",
    "google": "gemini-3-pro-preview",
    "google before 3": "gemini-2.5-pro",
}
PROFILE_FORMS: dict[str, tuple[SchemaForm, SchemaForm]] = {
    "openai": ("native", "native"),
    "openrouter": ("native", "native"),
    "groq": ("tool", "tool"),
    "cerebras": ("native", "tool"),
    "xai": ("native", "tool"),
    "deepseek": ("prompt", "prompt"),
    "mistral": ("native", "tool"),
    "ollama": ("native", "tool"),
    "vllm": ("native", "tool"),
    "azure": ("native", "native"),
    "compatible": ("prompt", "prompt"),
}


def of_profile(name: str) -> Build:
    return lambda url: OpenAIChat(profile=name, base_url=url, api_key="k", models=["m"])


CASES = FAMILIES | {name: (of_profile(name), *PROFILE_FORMS[name]) for name in PROFILES}


def form_of(body: dict[str, Any]) -> set[SchemaForm]:
    """Where a request has the schema."""
    field = "rainfall_mm"
    tools = {"tools", "toolConfig", "tool_choice"}
    system = {"messages", "system", "systemInstruction", "instructions"}
    places: set[SchemaForm] = set()
    for name, value in body.items():
        if field in str(value):
            places.add("tool" if name in tools else "prompt" if name in system else "native")
    return places


@pytest.mark.parametrize("with_tools", [False, True])
@pytest.mark.parametrize("name", CASES)
async def test_every_model_is_told_the_output_schema(name: str, with_tools: bool) -> None:
    build, alone, beside_tools = CASES[name]
    expected = beside_tools if with_tools else alone
    tools = [spec()] if with_tools else []
    async with serving(*replay((400, "application/json", b"{}"))) as model_server:
        provider = build(model_server.url)
        request = ask(model=MODELS.get(name, ""), output_schema=SCHEMA, tools=tools)
        try:
            with pytest.raises(ProviderError):
                await answer(provider, request)
        finally:
            await provider.aclose()
    assert form_of(msgspec.json.decode(model_server.bodies[0])) == {expected}
    assert provider.response_metadata(request) == {"output_schema": expected}  # type: ignore[attr-defined]


def call(name: str, arguments: str, key: int = 0) -> dict[str, Any]:
    return part({"tool_calls": [{"index": key, "id": f"c{key}", "function": {"name": name, "arguments": arguments}}]})


@pytest.mark.parametrize(
    ("schema", "sent", "text"),
    [
        (SCHEMA.schema, '{"rainfall_mm":3}', '{"rainfall_mm":3}'),
        (Raw(b'{"type":"array","items":{"type":"integer"}}'), '{"output":[1,2]}', "[1,2]"),
    ],
)
async def test_an_answer_by_tool_is_the_text_of_the_answer(schema: Raw, sent: str, text: str) -> None:
    stream = events(
        part({"content": "Here it is:"}),
        call("final_report", sent[:5]),
        part({"tool_calls": [{"index": 0, "function": {"arguments": sent[5:]}}]}),
        call("final_report", "{}", 1),
        part({"content": "Done."}),
        part({}, "tool_calls"),
        DONE,
    )
    transport = answering(stream)
    got = await answer(chat(transport, "groq"), ask(output_schema=OutputSchema("report", schema)))
    assert got.text == text
    assert (got.call_count, got.finish_reason) == (0, "end_turn")
    body = msgspec.json.decode(transport.sent[0].body)
    assert body["tool_choice"] == {"type": "function", "function": {"name": "final_report"}}


async def test_text_without_the_answer_tool_stays_text() -> None:
    got = await answer(chat(answering(HELLO), "groq"), ask(output_schema=SCHEMA))
    assert got.text == "Hello"


async def test_other_tools_are_called_beside_the_answer_tool() -> None:
    stream = events(part({"content": "I look."}), call("look", "{}"), part({}, "tool_calls"), DONE)
    transport = answering(stream)
    got = await answer(chat(transport, "vllm"), ask(output_schema=SCHEMA, tools=[spec()]))
    assert (got.text, got.call_count, got.finish_reason) == ("I look.", 1, "tool_use")
    assert msgspec.json.decode(transport.sent[0].body)["tool_choice"] == "auto"


async def test_last_turn_forces_the_answer_tool() -> None:
    transport = answering(HELLO)
    tools = [spec("final.report"), spec()]
    await answer(chat(transport, "vllm"), ask(output_schema=SCHEMA, tools=tools, tools_disabled=True))
    body = msgspec.json.decode(transport.sent[0].body)
    assert body["tool_choice"] == {"type": "function", "function": {"name": "final_report_2"}}
    assert [tool["function"]["name"] for tool in body["tools"]] == ["final_report", "look", "final_report_2"]


async def test_answer_that_groq_refuses_as_a_call_is_checked() -> None:
    refused = {"error": {"code": "tool_use_failed", "failed_generation": '{"rainfall_mm":3}'}}
    transport = answering(msgspec.json.encode(refused), status=400, kind="application/json")
    got = await answer(chat(transport, "groq"), ask(output_schema=SCHEMA))
    assert (got.text, got.finish_reason) == ('{"rainfall_mm":3}', "end_turn")


class Rain(BaseModel):
    rainfall_mm: int


async def test_model_is_asked_again_for_schema_that_it_has_seen() -> None:
    wrong = events(part({"content": "much"}), part({}, "stop"), DONE)
    right = events(call("final_report", '{"rainfall_mm":3}'), part({}, "tool_calls"), DONE)
    exchanges = replay(*[(200, SSE, body) for body in (wrong, right)])
    async with serving(*exchanges) as model_server:
        agent = Agent(OpenAIChat(profile="groq", base_url=model_server.url, api_key="k", models=["m"]), output=Rain)
        async with Engine() as engine:
            result = await asyncio.wait_for(agent.run("How much?", engine=engine), 60)
    assert result.output == Rain(rainfall_mm=3)
    assert len(model_server.bodies) == 2
    assert all(form_of(msgspec.json.decode(body)) == {"tool"} for body in model_server.bodies)
