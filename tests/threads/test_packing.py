"""`weftline pack`: what a package takes with it, what it refuses, and that it can be installed and served."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import aiohttp
import pytest

from commands import weftline
from weftline.testing import ServerProcess

from .folders import write
from .test_serving import call, joined, said, thread, turns

PROMPT = (
    'prompt = define_prompt(name="{0}", model="fast", tool_description="{0}.", prompt={1}, tools=[{2}], hooks=[{3}])\n'
)
FILES: Mapping[str, str] = {
    "agents/models/fast.py": 'model = define_model(name="fast", provider="test", model="tea", fallbacks=["slow"])\n',
    "agents/models/slow.py": 'model = define_model(name="slow", provider="test", model="slow")\n',
    "agents/models/unused.py": 'model = define_model(name="unused", provider="test", model="slow")\n',
    "agents/prompts/desk.py": PROMPT.format(
        "desk", '["Sell. ", PromptIncludePart("tone")]', '"brew", "milk"', '"keep"'
    ),
    "agents/prompts/tone.py": PROMPT.format("tone", '"Be kind."', "", ""),
    "agents/prompts/other.py": PROMPT.format("other", '"Other."', "", ""),
    "agents/agents/desk.py": 'agent = define_agent(name="desk", side_a=SideConfig(prompt="desk"), version="2")\n',
    "agents/agents/milk.py": 'agent = define_agent(name="milk", side_a=SideConfig(prompt="tone"))\n',
    "agents/agents/other.py": 'agent = define_agent(name="other", side_a=SideConfig(prompt="other"))\n',
    "agents/tools/brew.py": """
from ...shared import leaves
from ...shared.deep.water import HOT

@define_tool(effect="idempotent", uses=["pour"])
async def brew(state: ThreadState) -> str:
    '''Brews.'''
    return f"{leaves.KIND}, {HOT}, {state.get_prompt_names()}"
""",
    "agents/tools/pour.py": """
@define_tool(effect="idempotent")
async def pour(state: ThreadState) -> str:
    '''Pours.'''
    return str(await state.schedule_effect("remind"))
""",
    "agents/tools/deploy.py": """
@define_tool(effect="once")
async def deploy(state: ThreadState) -> str:
    '''Deploys.'''
    return state.host.deploy()
""",
    "agents/effects/remind.py": "@define_effect\ndef remind(state: SyncThreadState):\n    '''Reminds.'''\n",
    "agents/effects/forget.py": "@define_effect\ndef forget(state: SyncThreadState):\n    '''Forgets.'''\n",
    "agents/hooks/keep.py": '@define_hook("filter_messages", id="keep")\ndef keep(state, messages): ...\n',
    "agents/api/notes/[id].put.py": "@define_thread_endpoint\nasync def note(request, state, params): return params\n",
    "shared/leaves.py": "from .kinds import KIND\n",
    "shared/kinds.py": "KIND = 'Assam'\n",
    "shared/deep/water.py": "HOT = 'hot'\n",
    "shared/secret.py": "TOKEN = 'x'\n",
    "host.py": "class Host:\n    def deploy(self):\n        return 'deployed'\n\nhost = Host()\n",
}


def desk(tmp_path: Path, files: Mapping[str, str] | None = None) -> Path:
    return write(tmp_path / "desk", {**FILES, **(files or {})})


@pytest.mark.requirement("thread.package.closure")
def test_package_has_all_that_its_agent_reaches_and_no_more(tmp_path: Path) -> None:
    done = weftline("pack", f"{desk(tmp_path)}:desk", "--out", str(tmp_path / "out"), "--json")
    assert done.code == 0, done.err
    made = json.loads(done.out)
    assert made["definitions"] == {
        "agent": ["desk", "milk"],
        "effect": ["remind"],
        "hook": ["keep"],
        "model": ["fast", "slow"],
        "prompt": ["desk", "tone"],
        "tool": ["brew", "pour"],
    }
    files = [path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.*")]
    assert sorted([f"desk/{one}" for one in made["files"]] + ["_build.py", "desk/__init__.py", "pyproject.toml"]) == (
        sorted(files)
    )
    assert {"shared/leaves.py", "shared/kinds.py", "shared/deep/water.py"} <= set(made["files"])
    assert "shared/secret.py" not in made["files"] and "host.py" not in made["files"]


@pytest.mark.requirement("thread.package.closure")
def test_everything_that_cannot_be_found_is_named(tmp_path: Path) -> None:
    broken = {
        "agents/prompts/desk.py": PROMPT.format("desk", '["x", PromptIncludePart("tune")]', '"brw", "fetch"', '"kept"'),
        "agents/tools/pour.py": "nothing here\n",
    }
    done = weftline("pack", f"{desk(tmp_path, broken)}:desk", "--out", str(tmp_path / "out"))
    assert done.code == 1 and not (tmp_path / "out").exists()
    for problem in (
        'prompt "desk": there is no prompt "tune". Did you mean \'tone\'?',
        'prompt "desk": there is no tool, prompt or agent "brw". Did you mean \'brew\'?',
        'prompt "desk": there is no hook "kept". Did you mean \'keep\'?',
    ):
        assert problem in done.err, done.err
    required = ("--requires", "tune", "--requires", "brw", "--requires", "kept")
    assert weftline("pack", f"{tmp_path}/desk:desk", "--out", str(tmp_path / "out"), *required).code == 0
    assert weftline("pack", f"{tmp_path}/desk:dsk", "--out", str(tmp_path / "new")).err.endswith("mean 'desk'?\n")


@pytest.mark.requirement("thread.package.host_context")
@pytest.mark.parametrize(
    ("shared", "place"),
    [("", "agents/tools/brew.py:6"), ("def run(state):\n    return getattr(state, 'host')\n", "shared/leaves.py:2")],
)
def test_tool_that_uses_its_host_is_not_packed(tmp_path: Path, shared: str, place: str) -> None:
    body = "leaves.run(state)" if shared else "state.host.deploy()"
    tool = f"""from ...shared import leaves

@define_tool(effect="once", description="Brews.")
async def brew(state: ThreadState) -> str:
    return {body}
"""
    folder = desk(tmp_path, {"agents/tools/brew.py": tool, "shared/leaves.py": shared})
    done = weftline("pack", f"{folder}:desk", "--out", str(tmp_path / "out"))
    assert done.code == 1
    assert f'tool "brew": uses state.host ({folder}/{place}), which no package can have' in done.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--id", "a/b"), "cannot be the id of a package"),
        (("--version", "new"), "is not a version"),
        (("--out", "."), "is not empty: name a new folder"),
    ],
)
def test_option_that_is_wrong_is_refused(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    done = weftline("pack", f"{desk(tmp_path)}:desk", "--out", str(tmp_path / "out"), *arguments)
    assert done.code == 1 and said in done.err


HOST: Mapping[str, str] = {
    "scripts.json": json.dumps(
        {
            "tea": turns(call("tea__brew"), "{{tool_results.0}}"),
            "slow": turns("slow"),
            "deploying": turns(call("deploy"), "{{tool_results.0}}"),
        }
    ),
    "agents/helper.md": "---\nmodel: scripted:deploying\ntools: deploy\n---\nHelp.\n",
    "agents/tools/deploy.py": FILES["agents/tools/deploy.py"],
    "host.py": FILES["host.py"],
}


@pytest.mark.requirement("thread.package.load", "thread.package.closure", "thread.endpoint.packed")
async def test_packed_agent_is_installed_and_served(tmp_path: Path) -> None:
    out, site = tmp_path / "out", tmp_path / "site"
    options = ("--out", str(out), "--id", "tea", "--version", "1.2", "--endpoints")
    assert weftline("pack", f"{desk(tmp_path)}:desk", *options).code == 0
    pip = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--no-build-isolation", "--quiet"]
    command = partial(subprocess.run, [*pip, "--target", str(site), str(out)], check=True, capture_output=True)
    await asyncio.to_thread(command)
    folder = write(tmp_path / "host", HOST)
    with ServerProcess(tmp_path, arguments=(str(folder),), env={"PYTHONPATH": str(site)}) as server:
        async with aiohttp.ClientSession() as http:
            api = joined(server, http, "acme")
            made = await thread(api, "tea/desk")
            assert await said(api, made) == "Assam, hot, ['tea/desk', 'tea/tone']"
            reply = await api.call("PUT", f"threads/{made}/notes/7", {})
            assert reply.json == {"id": "7"}


@pytest.mark.requirement("thread.package.host_context")
async def test_code_of_a_folder_has_what_its_host_gives(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, arguments=(str(write(tmp_path / "host", HOST)),)) as server:
        async with aiohttp.ClientSession() as http:
            api = joined(server, http, "acme")
            assert await said(api, await thread(api, "helper")) == "deployed"
