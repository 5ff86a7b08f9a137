"""Hooks of a served folder: which run, in which order, what they change, and what becomes of those that fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Generator
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest

from server.kit import Api, Json, check_error, logged
from weftline.testing import ServerProcess

from .folders import write
from .test_serving import call, joined, said, thread, turns

SCRIPTS: dict[str, Json] = {
    "system": turns("{{system}}"),
    "calling": turns(call("work", how="well"), "{{tool_results.0}}"),
    "failing": turns(call("work", how="badly"), "{{tool_results.0}}"),
    "seen": turns("{{user_messages}} / {{message_count}}"),
    "trace": turns(call("trace"), "{{tool_results.0}}"),
}
HOOKS = {
    "first": 'after_system_message|state, text|return text + " first"',
    "second": 'after_system_message|state, text|return text + " second"',
    "last": 'after_system_message|state, text|return text + " last"',
    "silent": "after_system_message|state, text|return None",
    "emptied": 'after_system_message|state, text|return ""',
    "raising": 'after_system_message|state, text|raise RuntimeError("the hook is broken")',
    "shapeless": "after_system_message|state, text|return 5",
    "slow": "after_system_message|state, text|await asyncio.sleep(60)",
    "short": "prefilter_llm_history|state, messages|return messages[-1:]",
    "emptying": "prefilter_llm_history|state, messages|return []",
    "halved": (
        "prefilter_llm_history|state, messages|return [one for one in messages if type(one).__name__ != 'ToolResults']"
    ),
    "praise": (
        "after_tool_call_success|state, call, result|"
        "return ToolResult(result=f'{call.function.name} {call.function.arguments} {result.result} praised')"
    ),
    "mend": "after_tool_call_failure|state, call, result|return ToolResult(result='mended: ' + result.error)",
    "spoil": "after_tool_call_success|state, call, result|return ToolResult(status='error', error='spoiled')",
    "stored": (
        "before_store_tool_result|state, call, result|return result.status + ' ' + (result.result or result.error)"
    ),
    "welcome": "after_thread_created|state|await state.set_value('opened', [state.execution, state.agent_id])",
    "printing": "after_thread_created|state|print('CALLED', file=sys.stderr, flush=True)",
    "noting": "after_system_message|state, text|state.context.setdefault('noted', []).append('system')",
    "noting_call": "before_store_tool_result|state, call, result|return str(state.context['noted'])",
}
LISTS: dict[str, tuple[str, str | None]] = {
    "ordered": ("system", "last, first"),
    "silently": ("system", "first, silent"),
    "emptied": ("system", "first, emptied"),
    "survivor": ("system", "first, raising, shapeless, slow, last"),
    "ofagent": ("system", None),
    "none": ("system", ""),
    "shortened": ("seen", "short"),
    "whole": ("seen", "emptying"),
    "halved": ("calling", "halved"),
    "praised": ("calling", "praise, stored"),
    "spoiled": ("calling", "spoil, stored"),
    "mended": ("failing", "mend, stored"),
    "welcomed": ("system", "welcome"),
    "guarded": ("system", "printing"),
    "contextual": ("trace", "noting, noting_call"),
}
"""By agent: its script, and the hooks of its prompt; None if it has no list of its own."""


def folder() -> dict[str, str]:
    files: dict[str, str] = {"scripts.json": json.dumps(SCRIPTS)}
    for id, text in HOOKS.items():
        point, takes, body = text.split("|", 2)
        timeout = ", timeout_s=0.2" if id == "slow" else ""
        files[f"agents/hooks/{id}.py"] = (
            f"import asyncio\nimport sys\n\n@define_hook({point!r}, id={id!r}{timeout})\n"
            f"async def hook({takes}):\n    {body}\n"
        )
    files["agents/tools/work.py"] = """
@define_tool(effect="read")
def work(how: str) -> ToolResult:
    '''Works.'''
    return ToolResult(result="done") if how == "well" else ToolResult(status="error", error="broken")
"""
    files["agents/tools/trace.py"] = """
@define_tool(effect="read")
async def trace(state: ThreadState) -> str:
    '''Notes that it was called.'''
    state.context["noted"].append("tool")
    return ""
"""
    for script in SCRIPTS:
        model = f'model = define_model(name="{script}", provider="test", model="{script}")\n'
        files[f"agents/models/{script}.py"] = model
    needs = {"guarded": '[VariableDefinition("KEY", required=True)]'}
    for name, (script, listed) in LISTS.items():
        tools = {"calling": '["work"]', "failing": '["work"]', "trace": '["trace"]'}.get(script, "[]")
        own = None if listed is None else [one for one in listed.split(", ") if one]
        files[f"agents/prompts/{name}.py"] = (
            f'prompt = define_prompt(name="{name}", model="{script}", tool_description="x", prompt="Be.",'
            f" tools={tools}, hooks={own!r}, variables={needs.get(name, '[]')})\n"
        )
        files[f"agents/agents/{name}.py"] = (
            f'agent = define_agent(name="{name}", side_a=SideConfig(prompt="{name}"), hooks=["first"])\n'
        )
    return files


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[ServerProcess]:
    root = tmp_path_factory.mktemp("hooks")
    with ServerProcess(root, arguments=(str(write(root / "desk", folder())),)) as running:
        yield running


@pytest.fixture
async def api(server: ServerProcess) -> AsyncGenerator[Api]:
    async with aiohttp.ClientSession() as http:
        yield joined(server, http, "acme")


@pytest.mark.requirement("thread.hook.selection", "thread.hook.system_message")
@pytest.mark.parametrize(
    ("agent", "system"),
    [
        ("ordered", "Be. last first"),
        ("silently", "Be. first"),
        ("emptied", ""),
        ("ofagent", "Be. first"),
        ("none", "Be."),
    ],
)
async def test_hooks_of_the_prompt_or_else_of_the_agent_run_in_order(api: Api, agent: str, system: str) -> None:
    assert await said(api, await thread(api, agent)) == system


async def test_hook_that_fails_is_logged_and_skipped(api: Api, server: ServerProcess) -> None:
    assert await said(api, await thread(api, "survivor")) == "Be. first last"
    for id in ("raising", "shapeless", "slow"):
        assert await logged(server, f"the hook {id} at after_system_message failed")


async def test_history_is_shaped_for_one_request_only(api: Api) -> None:
    made = await thread(api, "shortened")
    for number in (1, 2):
        run = await api.send(made, f"Message {number}.")
        await api.events(run)
        assert (await api.snapshot(run))["finalText"] == f"Message {number}. / 1"
    kept = (await api.get(f"threads/{made}/messages")).json["messages"]
    assert [one["role"] for one in kept] == ["user", "assistant", "user", "assistant"]
    assert (await said(api, await thread(api, "whole"))).endswith("/ 1")


async def test_request_has_no_half_of_a_pair(api: Api) -> None:
    assert "done" not in await said(api, await thread(api, "halved"))


@pytest.mark.requirement("thread.hook.tool_results")
@pytest.mark.parametrize(
    ("agent", "result"),
    [
        ("praised", 'success work {"how":"well"} done praised'),
        ("spoiled", "error spoiled"),
        ("mended", "success mended: broken"),
    ],
)
async def test_result_of_a_call_may_be_replaced(api: Api, agent: str, result: str) -> None:
    made = await thread(api, agent)
    assert await said(api, made) == result
    [row] = [one for one in (await api.get(f"threads/{made}/messages")).json["messages"] if one["role"] == "tool"]
    assert (row["content"], row["tool_status"]) == (result, "success")


@pytest.mark.requirement("thread.state.context")
async def test_context_is_shared_by_the_tools_and_hooks_of_a_run(api: Api) -> None:
    made = await thread(api, "contextual")
    for _ in range(2):
        assert await said(api, made) == "['system', 'tool']"


async def test_new_thread_has_what_its_hook_has_written(api: Api) -> None:
    made = await thread(api, "welcomed")
    assert (await api.get(f"threads/{made}/values/opened")).json["value"] == [None, "welcomed"]
    await api.call("DELETE", f"threads/{made}/values/opened")
    await said(api, made)
    assert (await api.get(f"threads/{made}/values")).json["values"] == []
    run = (await api.post("agent-runs", {"agentId": "welcomed", "prompt": "Hi."})).json["runId"]
    await api.events(run)
    newest = (await api.get("threads?agentId=welcomed")).json["threads"][0]["id"]
    assert (await api.get(f"threads/{newest}/values/opened")).json["value"] == [None, "welcomed"]


@pytest.mark.requirement("thread.variable.required")
async def test_thread_that_lacks_a_variable_is_not_created_and_calls_no_hook(api: Api, server: ServerProcess) -> None:
    check_error(await api.post("threads", {"agentId": "guarded"}), 400, "missing_variable")
    assert (await api.get("threads?agentId=guarded")).json["threads"] == []
    assert not [line for line in server.log if "CALLED" in line]
    await thread(api, "guarded", env={"KEY": "k"})
    assert await logged(server, "CALLED")


@pytest.mark.requirement("thread.hook.thread_created")
async def test_hook_of_a_new_thread_is_called_again_after_a_crash(tmp_path: Path) -> None:
    files = folder()
    files["agents/hooks/welcome.py"] = """
import os, signal

@define_hook("after_thread_created", id="welcome")
async def hook(state: ThreadState) -> None:
    tries = (await state.get_value("tries") or 0) + 1
    await state.set_value("tries", tries)
    if tries == 1:
        os.kill(os.getpid(), signal.SIGKILL)
"""
    with ServerProcess(tmp_path, arguments=(str(write(tmp_path / "desk", files)),)) as server:
        async with aiohttp.ClientSession() as http:
            api = joined(server, http, "acme")
            body, once = {"agentId": "welcomed"}, {"Idempotency-Key": "go"}
            with suppress(aiohttp.ClientConnectionError):
                await api.post("threads", body, headers=once)
            assert await asyncio.to_thread(server.wait) < 0
            server.start()
            api = joined(server, http, "acme")
            made = (await api.post("threads", body, headers=once)).json["id"]
            await said(api, made)
            await said(api, made)
            assert (await api.get(f"threads/{made}/values/tries")).json["value"] == 2
            assert len((await api.get("threads")).json["threads"]) == 1
