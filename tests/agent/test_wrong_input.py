"""What a newcomer gets wrong: each slip is named where it is made, and nothing of it reaches a log."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from weftline import Agent, Limits, RunFailed, Settings, hook
from weftline.behaviors import Behavior
from weftline.errors import InvalidRequest
from weftline.hooks import Point, ToolGate
from weftline.runs import RunInfo
from weftline.testing import ScriptedModel

AnyAgent: Any = Agent  # what a type checker would say is not the point here


@pytest.mark.parametrize(
    ("given", "near"),
    [("toolz", "'tools'"), ("instruction", "'instructions'"), ("modle", "'model'"), ("sittings", "'settings'")],
)
def test_option_that_agent_does_not_have_is_named_with_nearest(given: str, near: str) -> None:
    with pytest.raises(TypeError, match=rf"an Agent has no option '{given}'\. Did you mean {near}"):
        AnyAgent("openai:gpt-5", **{given: None})


@pytest.mark.parametrize(
    ("option", "given", "words"),
    [
        ("settings", {"temperature": 1}, r"must be Settings, such as Settings\(temperature=0\.2\), not \{"),
        ("limits", 3, "must be Limits"),
        ("behavior", {}, "must be a Behavior"),
        ("budget", 0.5, "must be a Budget"),
        ("instructions", 3, "must be a string, or a function"),
        ("model", 3, "must be a name such as 'openai:gpt-5', or a provider, not 3"),
        ("model", ScriptedModel, "must be a name"),
    ],
)
async def test_agent_and_run_arguments_must_have_their_types(option: str, given: object, words: str) -> None:
    with pytest.raises(TypeError, match=f"{option} {words}"):
        AnyAgent(**{"model": "openai:gpt-5", option: given})
    agent: Any = Agent(ScriptedModel(["Hello."]))
    with pytest.raises(TypeError, match=f"{option} {words}"):
        await agent.run("Hi!", **{option: given})
    assert (await agent.run("Hi!")).text == "Hello."


@pytest.mark.parametrize(
    ("option", "given", "words"),
    [
        ("messages", "Hi!", "messages must be a list, not 'Hi!'"),
        ("messages", [{"role": "user", "content": "Hi!"}], "each of messages must be a message"),
        ("files", "scan.png", "files must be a list, not 'scan.png'"),
        ("hooks", [print], "is not a hook; make one with @hook"),
        ("key", 7, "key must be a string"),
        ("engine", "./data", "engine must be an Engine that is open"),
    ],
)
async def test_run_options_must_have_their_types(option: str, given: object, words: str) -> None:
    agent: Any = Agent(ScriptedModel(["Hello."]))
    with pytest.raises(TypeError, match=words):
        await agent.run("Hi!", **{option: given})


@pytest.mark.parametrize("prompt", [3, ["Hi!"], b"Hi!"])
async def test_a_prompt_is_a_text(prompt: Any) -> None:
    with pytest.raises(TypeError, match="the prompt must be a string"):
        await Agent(ScriptedModel(["Hello."])).run(prompt)


@pytest.mark.parametrize(
    ("kind", "given", "words"),
    [
        (Settings, {"stop": "END"}, "stop must be a list of strings, such as .* not a single string"),
        (Settings, {"stop": [1]}, "each of stop must be a string"),
        (Settings, {"stop": [""]}, "empty string"),
        (Settings, {"temperature": "hot"}, "temperature must be a number, not 'hot'"),
        (Settings, {"temperature": -1}, "temperature must be 0 or more"),
        (Settings, {"temperature": float("nan")}, "temperature must be a finite number"),
        (Settings, {"top_p": 2}, "top_p must be from 0 to 1, not 2"),
        (Settings, {"max_output_tokens": 1.5}, "max_output_tokens must be an integer"),
        (Settings, {"reasoning": True}, "reasoning must be an integer"),
        (Limits, {"max_turns": "3"}, "max_turns must be an integer, not '3'"),
        (Limits, {"max_cost_usd": "1"}, "max_cost_usd must be a number"),
        (Limits, {"four_eyes": "yes"}, "four_eyes must be True or False, not 'yes'"),
        (Limits, {"in_doubt": "maybe"}, "in_doubt must be one of report, ask, not 'maybe'"),
        (Limits, {"on_await_expired": "stop"}, "on_await_expired must be one of deny, end"),
        (Limits, {"tool_budgets": {"search": "5"}}, "the budget of 'search' must be an integer"),
        (Behavior, {"tool_budgets": 3}, "tool_budgets must be budgets by tool"),
        (Behavior, {"tool_budgets": {"search": "5"}}, "the budget of 'search' must be an integer"),
        (Behavior, {"dedup_tools": ["search"]}, "dedup_tools must be functions or None by tool"),
        (Behavior, {"dedup_tools": {"search": "query"}}, "takes a function of the arguments, or None"),
        (Behavior, {"thinking_decay": 3}, "thinking_decay must be a ThinkingDecay"),
        (Behavior, {"tool_search": True}, "tool_search must be a ToolSearch"),
        (Behavior, {"compaction": True}, "compaction must be a Compaction"),
        (Behavior, {"persist_dir": 3}, "persist_dir must be a directory"),
        (Behavior, {"persist_exclude_tools": "search"}, "not a single string"),
        (Behavior, {"compact_keep_turns": "4"}, "compact_keep_turns must be 0 or more"),
    ],
)
def test_unfitting_value_is_refused_when_given(
    kind: Callable[..., object], given: dict[str, object], words: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        kind(**given)


async def test_stop_sequences_may_be_a_list() -> None:
    agent = Agent(ScriptedModel(["{{sampling}}"]), settings=Settings(stop=["END"]))
    assert (await agent.run("Hi!")).text == '{"stop":["END"]}'


def _value(run: RunInfo) -> str:
    return "not entered"


async def _coroutine(run: RunInfo) -> str:
    return "not entered"


async def _undecorated(run: RunInfo) -> AsyncGenerator[str]:
    yield "not entered"


@contextmanager
def _sync(run: RunInfo) -> Generator[str]:
    yield "not entered"


@asynccontextmanager
async def _right(run: RunInfo) -> AsyncGenerator[str]:
    yield "entered"


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("a value", r"deps must be a type, whose value is given with each run \(run\(…, deps=…\)\), or a factory"),
        (_coroutine, "the factory '_coroutine' must be an async context manager"),
        (_sync, "the factory '_sync' must be an async context manager"),
        (_undecorated, "the factory '_undecorated' needs @asynccontextmanager"),
    ],
)
def test_deps_are_a_type_or_an_async_context_manager(factory: object, words: str) -> None:
    AnyAgent("openai:gpt-5", deps=_right)
    with pytest.raises(TypeError, match=words):
        AnyAgent("openai:gpt-5", deps=factory)


async def test_factory_that_returns_deps_is_told_how_to_provide_them() -> None:
    with pytest.raises(RunFailed, match=r"must be an async context manager.*It returned 'not entered'"):
        await AnyAgent(ScriptedModel(["Hello."]), deps=_value).run("Hi!")


def test_a_hook_takes_a_point_and_perhaps_a_context() -> None:
    def three(gate: Point, context: object, more: object) -> None: ...
    def none() -> None: ...
    def keyword(gate: Point, *, more: object) -> None: ...

    register: Any = hook(ToolGate)
    for wrong in (three, none, keyword):
        with pytest.raises(TypeError, match=f"the hook {wrong.__name__} must take the point"):
            register(wrong)


async def test_model_without_its_provider_is_told_how_models_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(InvalidRequest, match=r"A model is named with its provider, as in 'openai:gpt-5'\."):
        await Agent("gpt-5").run("Hi!")
    with pytest.raises(InvalidRequest, match=r"Did you mean 'openai'\?"):
        await Agent("opnai:gpt-5").run("Hi!")
