"""`weftline serve desk --reload`: what takes a change, what keeps what it has, and what a mistake does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from commands import weftline, weftline_beside
from server.kit import Api, check_error
from weftline.testing import ServerProcess

from .folders import write
from .test_serving import call, joined, said, thread, turns

WAIT_S = 120.0
WORD = "agents/tools/word.py"
FILES: Mapping[str, str] = {
    "scripts.json": json.dumps(
        {
            "desk": turns(call("word"), "{{system}}: {{tool_results.0}}"),
            "slow": turns(call("wait_for_it"), "{{system}}: {{tool_results.0}}"),
            "asking": turns(call("ask"), "{{system}}: {{tool_results.0}}"),
            "asking2": turns(call("ask"), "another model"),
        }
    ),
    "shared/words.py": "WORD = 'old'\n",
    "agents/desk.md": "---\nmodel: scripted:desk\ntools: word\n---\nFirst",
    "agents/slow.md": "---\nmodel: scripted:slow\ntools: wait_for_it\n---\nFirst",
    "agents/asking.md": "---\nmodel: scripted:asking\ntools: ask\n---\nFirst",
    "agents/agents/pinned.py": """
agent = define_agent(name="pinned", side_a=SideConfig(prompt="pinned", max_steps=5), env={"WHO": "Old"})
""",
    "agents/prompts/pinned.py": """
prompt = define_prompt(
    name="pinned", model="scripted:asking", tool_description="x", prompt=["First ", PromptEnvPart("WHO")], tools=["ask"]
)
""",
    WORD: """
from ...shared.words import WORD

@define_tool(effect="read", description="Says a word.")
def word(state: SyncThreadState) -> str:
    return WORD
""",
    "agents/tools/wait_for_it.py": """
import asyncio
from pathlib import Path

@define_tool(effect="idempotent", description="Waits.")
async def wait_for_it(state: ThreadState) -> str:
    folder = Path(__file__).parents[3]
    (folder / "begun").touch()
    while not (folder / "go").exists():
        await asyncio.sleep(0.02)
    from ...shared.words import WORD  # of its own generation
    return WORD
""",
    "agents/tools/ask.py": """
from ...shared.words import WORD

@define_tool(effect="idempotent", description="Asks.", confirm="Really?")
async def ask(state: ThreadState) -> str:
    return WORD
""",
    "agents/effects/note.py": """
from ...shared.words import WORD

@define_effect(description="Notes a word.")
async def note(state: ThreadState) -> None:
    await state.set_value("noted", WORD)
""",
    "agents/api/word.py": """
from ...shared.words import WORD

@define_thread_endpoint
async def word(request, state, params):
    return {"word": WORD}
""",
}


@asynccontextmanager
async def reloading(tmp_path: Path) -> AsyncGenerator[tuple[ServerProcess, Api]]:
    write(tmp_path / "desk", FILES)
    arguments = (str(tmp_path / "desk"), "--reload", "--log-level", "debug")
    with ServerProcess(tmp_path, arguments=arguments) as server:
        async with aiohttp.ClientSession() as http:
            yield server, joined(server, http, "acme")


async def logged(server: ServerProcess, text: str, *, times: int = 1) -> str:
    """Waits until the log has lines with this text, and returns the latest."""
    async with asyncio.timeout(WAIT_S):
        while len(found := [line for line in list(server.log) if text in line]) < times:  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.02)
    return found[-1]


def change(tmp_path: Path, files: Mapping[str, str | None]) -> None:
    for name, text in files.items():
        if text is None:
            (tmp_path / "desk" / name).unlink()
    write(tmp_path / "desk", {name: text for name, text in files.items() if text is not None})


NEW = {"shared/words.py": "WORD = 'new'\n", "agents/desk.md": "---\nmodel: scripted:desk\ntools: word\n---\nSecond"}


@pytest.mark.requirement("thread.define.reload")
async def test_change_is_taken_by_what_begins_after_it(tmp_path: Path) -> None:
    async with reloading(tmp_path) as (server, api):
        made = await thread(api, "desk")
        assert await said(api, made) == "First: old"
        assert (await api.get(f"threads/{made}/word")).json == {"word": "old"}
        change(tmp_path, NEW)
        await logged(server, "reloaded")
        assert await said(api, made) == "Second: new"
        assert (await api.get(f"threads/{made}/word")).json == {"word": "new"}
        assert (await api.post(f"threads/{made}/effects", {"name": "note"})).status == 201
        async with asyncio.timeout(WAIT_S):
            while (noted := await api.get(f"threads/{made}/values/noted")).status == 404:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert noted.json["value"] == "new"
        await logged(server, "the modules of an earlier version")


@pytest.mark.requirement("thread.define.reload")
async def test_run_in_hand_finishes_with_the_definitions_it_has(tmp_path: Path) -> None:
    async with reloading(tmp_path) as (server, api):
        made = await thread(api, "slow")
        run = await api.send(made)
        async with asyncio.timeout(WAIT_S):
            while not (tmp_path / "begun").exists():  # noqa: ASYNC110 - another process makes it
                await asyncio.sleep(0.02)
        change(tmp_path, {**NEW, "agents/slow.md": FILES["agents/slow.md"].replace("First", "Second")})
        await logged(server, "reloaded")
        assert not [line for line in list(server.log) if "the modules of an earlier version" in line]
        (tmp_path / "go").touch()
        await api.events(run)
        assert (await api.snapshot(run))["finalText"] == "First: old"
        assert await said(api, made) == "Second: new"
        await logged(server, "the modules of an earlier version")


@pytest.mark.requirement("thread.define.reload", "thread.define.references")
async def test_change_that_does_not_check_changes_nothing(tmp_path: Path) -> None:
    async with reloading(tmp_path) as (server, api):
        made = await thread(api, "desk")
        change(
            tmp_path, {WORD: "def word(:\n", "agents/slow.md": "---\nmodel: scripted:slow\ntools: slwo\n---\nSecond"}
        )
        await logged(server, "not reloaded, the agents stay as they were")
        await logged(server, f"{tmp_path}/desk/{WORD}:2: syntax error: invalid syntax")
        await logged(server, 'desk/agents/slow.md:3: prompt "slow": tools[0]: there is no tool, prompt or agent "slwo"')
        assert await said(api, made) == "First: old"
        change(tmp_path, {WORD: FILES[WORD], "agents/slow.md": FILES["agents/slow.md"], **NEW})
        await logged(server, " reloaded ")
        assert await said(api, made) == "Second: new"


async def parked(api: Api, thread: str) -> tuple[str, str]:
    """Sends a message whose run asks a person; returns the run and the question."""
    run = await api.send(thread)
    async with asyncio.timeout(WAIT_S):
        while not (found := (await api.get(f"agent-runs/{run}/awaits")).json["awaits"]):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return run, found[0]["id"]


async def approve(api: Api, run: str, asked: str) -> None:
    reply = await api.post(f"agent-runs/{run}/awaits/{asked}", {"outcome": "approved"})
    assert reply.status in (200, 202), reply.body


@pytest.mark.requirement("thread.define.pinned")
async def test_thread_waits_while_its_agent_is_gone(tmp_path: Path) -> None:
    async with reloading(tmp_path) as (server, api):
        made = await thread(api, "asking")
        run, asked = await parked(api, made)
        change(tmp_path, {"agents/asking.md": None})
        await logged(server, "reloaded")
        check_error(await api.post(f"agent-sessions/{made}/messages", {"prompt": "x"}), 409, "agent_unavailable")
        await logged(server, "the modules of an earlier version")  # it has left memory
        await approve(api, run, asked)
        done = await weftline_beside("doctor", str(tmp_path / "desk"), "--db", str(server.db), "--json")
        gone = [one for one in json.loads(done.out) if one["kind"] == "agent_gone"]
        assert [(one["runId"], one["agent"]) for one in gone] == [(run, "asking")]
        change(tmp_path, {"agents/asking.md": FILES["agents/asking.md"]})
        await logged(server, " reloaded ", times=2)
        await api.events(run)
        assert (await api.snapshot(run))["finalText"] == "First: old"
        other, _ = await parked(api, made)
        assert other != run


@pytest.mark.requirement("thread.define.pinned")
async def test_run_that_continues_keeps_its_model_and_rules_and_takes_the_rest(tmp_path: Path) -> None:
    async with reloading(tmp_path) as (server, api):
        made = await thread(api, "pinned")
        run, asked = await parked(api, made)
        agent, prompt = "agents/agents/pinned.py", "agents/prompts/pinned.py"
        new = {
            agent: FILES[agent].replace("max_steps=5", "max_steps=5, stop_tool='ask'").replace("Old", "New"),
            prompt: FILES[prompt].replace("First", "Second").replace("scripted:asking", "scripted:asking2"),
            "shared/words.py": NEW["shared/words.py"],
        }
        change(tmp_path, new)
        await logged(server, " reloaded ")
        await logged(server, "the modules of an earlier version")  # it has left memory
        await approve(api, run, asked)
        await api.events(run)
        assert (await api.snapshot(run))["finalText"] == "Second New: new"
        run, asked = await parked(api, made)
        await approve(api, run, asked)
        await api.events(run)
        last = await api.snapshot(run)
        assert (last["status"], last["turns"]) == ("succeeded", 1)  # the new stop tool has ended it


async def test_schedules_follow_their_files(tmp_path: Path) -> None:
    async with reloading(tmp_path) as (server, api):
        morning = "---\ncron: 0 7 * * *\nagent: desk\n---\nGood morning."
        change(tmp_path, {"schedules/morning.md": morning})
        await logged(server, " reloaded ")
        default = joined(server, api.http, "default")
        assert [one["name"] for one in (await default.get("schedules")).json["schedules"]] == ["morning"]


def test_only_a_folder_can_be_reloaded(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("from weftline import Agent\na = Agent('scripted:x', name='a')\n")
    done = weftline("serve", str(tmp_path / "app.py"), "--reload", "--db", str(tmp_path / "store"), "--port", "0")
    assert done.code != 0 and "--reload needs a folder of agents" in done.err
