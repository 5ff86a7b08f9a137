"""What a request says about caching and about tokens to think with, as each family sends it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from weftline.messages import User
from weftline.providers.anthropic.models import thinking_for
from weftline.providers.anthropic.request import RequestBuilder
from weftline.providers.base import ModelRequest, ToolSpec
from weftline.providers.google.models import thinking_config


def request(**fields: Any) -> ModelRequest:
    tools = [ToolSpec("look", "Looks.", Raw(b'{"type":"object","properties":{}}'))]
    return ModelRequest("claude-sonnet-4-5", [User.of("Hi.")], system="Be brief.", tools=tools, **fields)


def without_marks(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_marks(item) for name, item in value.items() if name != "cache_control"}  # pyright: ignore
    return [without_marks(item) for item in value] if isinstance(value, list) else value  # pyright: ignore


@pytest.mark.requirement("loop.cache.knob")
def test_without_caching_request_has_no_marks_and_is_otherwise_same() -> None:
    builder = RequestBuilder()
    marked, plain = (json.loads(builder.build(request(cache=cache)).body) for cache in (True, False))
    assert json.dumps(marked).count("cache_control") == 3
    assert plain == without_marks(marked)


@pytest.mark.requirement("loop.behavior.reasoning")
def test_tokens_to_think_with_go_before_those_of_the_level() -> None:
    exact = request(reasoning=50, reasoning_budget_tokens=4321)
    found = thinking_for(exact, max_tokens=16_000, forced=False)
    assert found.fields == {"thinking": {"type": "enabled", "budget_tokens": 4321}}
    few = thinking_for(request(reasoning=1, reasoning_budget_tokens=5), max_tokens=16_000, forced=False)
    assert few.fields["thinking"]["budget_tokens"] == 1024
    config = thinking_config("gemini-2.5-flash", 50, tokens=4321)
    assert config is not None and config["thinkingBudget"] == 4321
    off = thinking_config("gemini-2.5-flash", 0, tokens=4321)
    assert off is not None and off["thinkingBudget"] == 0
