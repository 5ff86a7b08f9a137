"""Every behaviour that we promise (`requirements/*.toml`) is shown by a test that names it, or is on the list below."""

from __future__ import annotations

import ast
import tomllib
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
NOT_BUILT = (
    "thread.define.deprecated",
    "thread.define.pinned",
    "thread.define.public_names",
    "thread.define.references",
    "thread.define.reload",
    "thread.define.served",
    "thread.define.spelling",
    "thread.model.fallbacks",
    "thread.model.provider_tools",
    "thread.model.scripted",
    "thread.prompt.history",
    "thread.prompt.images",
    "thread.prompt.parts",
    "thread.prompt.request_settings",
    "thread.prompt.required_schema",
    "thread.tool.attachments",
    "thread.tool.options",
    "thread.tool.provider_missing",
    "thread.tool.result",
    "thread.tool.strict_schema",
    "thread.tool.uses",
    "thread.variable.",
    "thread.agent.handoff",
    "thread.agent.handoff_facts",
    "thread.agent.icon",
    "thread.agent.session_turns",
    "thread.side.",
    "thread.subprompt.",
    "thread.life.",
    "thread.exec.",
    "thread.state.",
    "thread.message.",
    "thread.env.",
    "thread.value.",
    "thread.file.",
    "thread.subagent.",
    "thread.effect.",
    "thread.hook.failure",
    "thread.hook.messages",
    "thread.hook.order",
    "thread.hook.pairs",
    "thread.hook.request_filters",
    "thread.hook.selection",
    "thread.hook.subagent_created",
    "thread.hook.system_message",
    "thread.hook.thread_created",
    "thread.hook.tool_results",
    "thread.endpoint.errors",
    "thread.endpoint.handler",
    "thread.endpoint.limits",
    "thread.endpoint.not_found",
    "thread.endpoint.packed",
    "thread.endpoint.params",
    "thread.endpoint.precedence",
    "thread.endpoint.public",
    "thread.controller.",
    "thread.package.",
    "run.fork.isolated",
    "run.tree.concurrent",
    "run.engine.boundary",
    "run.engine.conformance",
    "run.engine.continue_as_new",
    "run.engine.ended_outside",
    "run.engine.failover",
    "run.engine.fanout",
    "run.engine.fencing",
    "run.engine.history_replay",
    "run.engine.mailbox",
    "run.engine.options_temporal",
    "run.engine.ready",
    "run.engine.references",
    "run.engine.retries",
    "run.engine.retry_policy",
    "run.engine.servers",
    "run.engine.signals",
    "run.engine.stores",
    "run.engine.task_queue",
)
"""Threads, and what needs more than one server. A name that ends in a dot stands for all below it."""


@cache
def promised() -> list[str]:
    files = sorted((TESTS / "requirements").glob("*.toml"))
    return [one["id"] for file in files for one in tomllib.loads(file.read_text(encoding="utf-8"))["requirement"]]


@cache
def shown() -> set[str]:
    return {name for path in TESTS.rglob("*.py") for name in marks(path.read_text(encoding="utf-8"))}


def marks(source: str) -> Iterable[str]:
    if "requirement(" not in source:
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "requirement":
            yield from (one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str))


def is_not_built(name: str) -> bool:
    return any(name == one or (one.endswith(".") and name.startswith(one)) for one in NOT_BUILT)


def test_each_promise_is_made_once() -> None:
    assert [name for name, times in Counter(promised()).items() if times > 1] == []


def test_each_mark_names_a_promise() -> None:
    assert sorted(shown() - set(promised())) == []


def test_each_promise_is_shown_or_listed_as_not_built() -> None:
    assert [name for name in promised() if name not in shown() and not is_not_built(name)] == []


def test_requirement_with_a_test_is_not_listed_as_unbuilt() -> None:
    assert sorted(filter(is_not_built, shown())) == []


def test_marks_are_found_in_calls_and_decorators() -> None:
    source = '@pytest.mark.requirement("a.b", "c.d")\ndef test(): ...\nx = requirement("e.f")\n'
    assert set(marks(source)) == {"a.b", "c.d", "e.f"}
