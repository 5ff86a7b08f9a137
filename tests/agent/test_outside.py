"""Commands beside a script that has a durable engine open: they reach its runs as they reach those of a server."""

from __future__ import annotations

import asyncio
import getpass
import json
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from commands import weftline, weftline_beside
from forked import python
from weftline import Agent, Engine, tool
from weftline.errors import InvalidRequest
from weftline.events import AwaitOpened
from weftline.server.own_socket import OwnSocket
from weftline.store import owner_of
from weftline.testing import ScriptedModel, calls

SCRIPT = '''
import asyncio, sys, threading
from weftline import Agent, Engine, tool
from weftline.testing import ScriptedModel, calls


@tool(confirm="Pay {amount}?")
def pay(amount: int) -> str:
    """Pays."""
    return f"paid {amount}"


payer = Agent(ScriptedModel([calls("pay", amount=5), "{{tool_results.0}}."]), name="payer", tools=[pay])


async def main() -> None:
    async with Engine(sys.argv[1], agents=[payer]) as engine:
        run = await engine.start(payer, "Pay.", key="payment")
        print("started", flush=True)
        print((await run.result()).text or "no text", flush=True)


def blocking() -> None:
    with Engine(sys.argv[1], agents=[payer]) as engine:
        print("started", flush=True)
        print(payer.run_sync("Pay.", engine=engine, key="payment").text, flush=True)


match sys.argv[2]:
    case "async":
        asyncio.run(main())
    case "sync":
        blocking()
    case "uvloop":
        import uvloop

        uvloop.run(main())
    case _:
        thread = threading.Thread(target=asyncio.run, args=(main(),))
        thread.start()
        thread.join()
'''


@tool(confirm="Pay {amount}?")
def pay(amount: int) -> str:
    """Pays."""
    return f"paid {amount}"


def payer() -> Agent[Any, str]:
    return Agent(ScriptedModel([calls("pay", amount=5), "{{tool_results.0}}."]), name="payer", tools=[pay])


@contextmanager
def scripted(folder: Path, how: str = "async") -> Generator[Any]:
    """Another process with a durable engine, whose run waits for a person."""
    (folder / "script.py").write_text(SCRIPT)
    with python(str(folder / "script.py"), str(folder / "data"), how) as script:
        try:
            script.stdin.close()
            assert script.stdout.readline() == "started\n", script.stderr.read()
            yield script
        finally:
            script.kill()


def asked(folder: Path) -> dict[str, Any]:
    while not (found := json.loads(weftline("awaits", "--db", str(folder / "data"), "--json").out)):
        pass
    return found[0]


@pytest.mark.parametrize(
    "how",
    ["async", "sync", "thread", pytest.param("uvloop", marks=pytest.mark.skipif(sys.platform == "win32", reason="-"))],
)
def test_a_script_is_answered_from_outside(tmp_path: Path, how: str) -> None:
    db = str(tmp_path / "data")
    with scripted(tmp_path, how) as script:
        question = asked(tmp_path)
        assert question["question"] == "Pay 5?"
        done = json.loads(weftline("approve", question["ref"], "--db", db, "--json").out)
        assert done["by"] == f"operator:{getpass.getuser()}"
        assert script.stdout.readline() == "paid 5.\n" and script.wait(240) == 0, script.stderr.read()


def test_a_run_of_a_script_is_backed_up_and_cancelled(tmp_path: Path) -> None:
    db = str(tmp_path / "data")
    with scripted(tmp_path) as script:
        run = asked(tmp_path)["runId"]
        assert weftline("backup", str(tmp_path / "copy"), "--db", db).code == 0
        assert weftline("runs", "cancel", run, "--db", db).out == "cancelled\n"
        assert script.stdout.readline() == "no text\n" and script.wait(240) == 0
    restored = weftline("restore", str(tmp_path / "copy"), "--db", str(tmp_path / "again"))
    assert restored.code == 0 and run in weftline("runs", "list", "--db", str(tmp_path / "again")).out


def test_a_killed_script_leaves_a_way_out(tmp_path: Path) -> None:
    db = str(tmp_path / "data")
    with scripted(tmp_path) as script:
        ref = asked(tmp_path)["ref"]
        script.kill()
    refused = weftline("approve", ref, "--db", db)
    assert refused.code == 1 and "script" in refused.err and f"weftline serve --db {db}" in refused.err
    with scripted(tmp_path) as script:
        assert weftline("approve", ref, "--db", db).out == "approved\n"
        assert script.stdout.readline() == "paid 5.\n"


async def test_the_socket_goes_with_the_engine(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "data")
    for _ in range(2):  # an engine may be opened again
        async with engine:
            owner = owner_of(tmp_path / "data")
            assert owner is not None
            path = tmp_path / "data" / owner.socket
            assert path.is_socket()
        assert not path.exists()


async def test_an_engine_that_cannot_listen_still_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(self: OwnSocket, folder: Path) -> None:
        raise OSError("no sockets here")

    monkeypatch.setattr(OwnSocket, "_listen", refuse)
    agent = Agent(ScriptedModel(["Hello."]), name="hello")
    async with Engine(tmp_path / "data", agents=[agent]) as engine:
        assert (await agent.run("Hi.", engine=engine)).text == "Hello."
        refused = await weftline_beside("backup", str(tmp_path / "copy"), "--db", str(tmp_path / "data"))
        assert refused.code == 1 and "in use by process" in refused.err and "takes no commands" in refused.err
    assert "cannot reach this process" in caplog.text


async def test_an_answer_may_end_the_script(tmp_path: Path) -> None:
    agent = payer()
    async with Engine(tmp_path / "data", agents=[agent]) as engine:
        run = await engine.start(agent, "Pay.", run_id="payment")
        async for event in run.events():
            if isinstance(event, AwaitOpened):
                break
        answering = asyncio.create_task(weftline_beside("approve", "payment", "--db", str(tmp_path / "data")))
        assert (await run.result()).text == "paid 5."
    assert (await answering).out == "approved\n"


async def test_a_limit_that_is_raised_from_outside_counts_at_once(tmp_path: Path) -> None:
    async with Engine(tmp_path / "data") as engine:
        done = await weftline_beside(
            *("budgets", "set", "--workspace", "default", "--tokens", "100", "--db", str(tmp_path / "data"))
        )
        assert done.code == 0, done
        assert await engine.budgets()


async def test_a_provider_that_is_added_from_outside_can_be_used(tmp_path: Path) -> None:
    agent = Agent("lab:small", name="lab", instructions="Be brief.")
    at = ("--workspace", "default", "--db", str(tmp_path / "data"))
    added = ("providers", "create", "lab", "--family", "openai_chat", "--base-url", "http://127.0.0.1:1")
    async with Engine(tmp_path / "data", agents=[agent]) as engine:
        with pytest.raises(InvalidRequest):
            await engine.start(agent, "Hi.")
        done = await weftline_beside(*added, "--model", "small", *at)
        assert done.code == 0, done
        run = await engine.start(agent, "Hi.")
        await run.cancel()
