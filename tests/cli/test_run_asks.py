"""`weftline run` while the run asks a person: at a terminal, and where nobody can type."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from commands import weftline
from forked import python
from weftline.store import open_store
from weftline.testing import ServerProcess

from .conftest import SCRIPTS, Terminal

Env = dict[str, str | None]
APP = '''
from weftline import Agent, tool
from weftline.testing import ScriptedModel, calls


@tool(confirm="Pay {amount}\\x1b[2J?")
def pay(amount: int) -> str:
    """Pays."""
    return f"paid {amount}"


payer = Agent(ScriptedModel([calls("pay", amount=5), "{{tool_results.0}}."]), name="payer", tools=[pay])
helper = payer.as_tool("Pays.", name="helper")
boss = Agent(ScriptedModel([calls("helper", task="Pay."), "{{tool_results.0}}"]), name="boss", tools=[helper])
'''
TOOLS = '''
import weftline


@weftline.tool(confirm="Pay {amount}?")
def pay(amount: int) -> str:
    """Pays."""
    return f"paid {amount}"
'''
LOCAL: Env = {"WEFTLINE_BASE_URL": None, "WEFTLINE_DB": None, "WEFTLINE_API_KEY": None}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Env]:
    """The environment of somebody who uses a server with these agents."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "app.py").write_text(APP)
    with ServerProcess(folder, scripts=SCRIPTS, arguments=(str(folder / "app.py"),)) as server:
        yield {"WEFTLINE_API_KEY": server.create_key("acme"), "WEFTLINE_BASE_URL": server.url, "WEFTLINE_DB": None}


@pytest.fixture
def here(tmp_path: Path, scripts: str) -> tuple[str, ...]:
    """A command for a run in this process."""
    (tmp_path / "pay.py").write_text(TOOLS)
    return ("run", "Go.", "--model", "scripted:pay", "--tools", str(tmp_path / "pay.py"), "--scripts", scripts)


def test_a_call_is_shown_before_its_question(here: tuple[str, ...]) -> None:
    with Terminal(*here, env=LOCAL) as terminal:
        asked = terminal.until("[y/n, or why not] ")
        assert asked.index('· pay {"amount": 5}') < asked.index("Pay 5?")
        terminal.type("y\n")
        assert terminal.end() == 0
    assert terminal.text.count('pay {"amount": 5}') == 1 and "paid 5." in terminal.text


def test_typed_text_of_a_person_is_the_reason(here: tuple[str, ...]) -> None:
    with Terminal(*here, env=LOCAL) as terminal:
        terminal.until("[y/n, or why not] ")
        terminal.type("Too much.\n")
        assert terminal.end() == 0 and "Too much." in terminal.text.split("why not] Too much.")[1]


def test_interrupting_a_question_cancels_the_run(here: tuple[str, ...]) -> None:
    with Terminal(*here, env=LOCAL) as terminal:
        terminal.until("[y/n, or why not] ")
        terminal.interrupt()
        terminal.until("Press Ctrl-C again to cancel it.")
        terminal.interrupt()
        assert terminal.end() == 130 and "Traceback" not in terminal.text


def test_without_a_terminal_a_question_is_refused_at_once(here: tuple[str, ...]) -> None:
    done = weftline(*here, env=LOCAL)
    assert (done.code, done.out) == (3, "")
    call, question, way_out, failed = done.err.splitlines()
    assert call == '· pay {"amount": 5}' and question.endswith("Pay 5?")
    assert "in a terminal" in way_out and "--url" in way_out and "nobody to answer" in failed


@pytest.fixture
def here_for_a_server(tmp_path: Path) -> tuple[str, ...]:
    """A command for a run on a server, whose tool this process executes."""
    (tmp_path / "pay.py").write_text(TOOLS + f"    open({str(tmp_path / 'paid')!r}, 'w').close()\n")
    return ("run", "Go.", "--model", "scripted:pay", "--tools", str(tmp_path / "pay.py"))


@pytest.mark.parametrize(("typed", "answer"), [("y\n", "paid 5."), ("\nToo much.\n", "did not allow this call: Too")])
def test_a_tool_here_asks_here_for_a_run_elsewhere(
    served: Env, here_for_a_server: tuple[str, ...], typed: str, answer: str
) -> None:
    with Terminal(*here_for_a_server, env=served) as terminal:
        asked = terminal.until("[y/n, or why not] ")
        assert asked.index('· pay {"amount": 5}') < asked.index("Pay 5?")
        terminal.type(typed)
        assert terminal.end() == 0 and answer in terminal.text


def test_a_question_here_ends_with_its_run(served: Env, here_for_a_server: tuple[str, ...]) -> None:
    with Terminal(*here_for_a_server, "--run-id", "ended", env=served) as terminal:
        terminal.until("[y/n, or why not] ")
        assert weftline("runs", "cancel", "ended", env=served).code == 0
        assert terminal.end() == 4


def test_a_tool_here_does_nothing_if_nobody_can_be_asked(
    served: Env, here_for_a_server: tuple[str, ...], tmp_path: Path
) -> None:
    done = weftline(*here_for_a_server, env=served)
    assert '· pay {"amount": 5}' in done.err and "Pay 5?" in done.err and "Nobody can answer it here" in done.err
    assert "pay needs a person's approval" in done.out and not (tmp_path / "paid").exists()


def test_ctrl_d_leaves_a_question_to_others(served: Env) -> None:
    with Terminal("run", "Go.", "--agent", "payer", env=served) as terminal:
        terminal.until("[y/n, or why not] ")
        terminal.type("\x04")
        told = terminal.until(" REASON")
        assert "stays open" in told
        (ref,) = [ref for ref in weftline("awaits", "-q", env=served).out.split() if ref.startswith("run_")]
        assert weftline("approve", ref, env=served).out == "approved\n"
        assert terminal.end() == 0 and "paid 5" in terminal.text


def test_enter_alone_or_ctrl_d_approves_nothing(here: tuple[str, ...]) -> None:
    with Terminal(*here, env=LOCAL) as terminal:
        terminal.until("[y/n, or why not] ")
        terminal.text = ""
        terminal.type("\n")
        terminal.until("[y/n, or why not] ")
        terminal.type("\x04")
        assert terminal.end() == 0 and "did not allow this call" in terminal.text


@pytest.mark.parametrize("agent", ["payer", "boss"])
def test_a_server_run_or_its_subagent_asks_at_the_terminal(served: Env, agent: str) -> None:
    with Terminal("run", "Go.", "--agent", agent, env=served) as terminal:
        asked = terminal.until("[y/n, or why not] ")
        assert '· pay {"amount": 5}' in asked and "\x1b[2J" not in asked
        terminal.type("y\n")
        assert terminal.end() == 0 and "paid 5" in terminal.text


def test_a_question_that_somebody_else_answers_is_withdrawn(served: Env) -> None:
    with Terminal("run", "Go.", "--agent", "payer", env=served) as terminal:
        terminal.until("[y/n, or why not] ")
        (ref,) = [ref for ref in weftline("awaits", "-q", env=served).out.split() if ref.startswith("run_")]
        assert weftline("deny", ref, "No.", env=served).out == "denied\n"
        assert terminal.end() == 0 and "denied by key:" in terminal.text


@pytest.mark.parametrize("agent", ["payer", "boss"])
def test_a_pipe_is_told_how_to_answer_elsewhere(served: Env, agent: str) -> None:
    env = {**os.environ, **{name: value for name, value in served.items() if value is not None}}
    with python("-m", "weftline", "run", "Go.", "--agent", agent, env=env) as command:
        command.stdin.close()
        told = ""
        while (found := re.search(r"To answer: (weftline approve .*)\n", told)) is None:
            line = command.stderr.readline()
            assert line, told
            told += line
        assert '· pay {"amount": 5}' in told and "Pay 5" in told
        _, *arguments = shlex.split(found[1])
        assert weftline(*arguments, env=_only_key(served)).out == "approved\n"
        assert command.wait(240) == 0 and "paid 5" in command.stdout.read()


def test_following_a_run_tells_what_it_asks(served: Env) -> None:
    env = {**os.environ, **{name: value for name, value in served.items() if value is not None}}
    with python("-m", "weftline", "run", "Go.", "--agent", "payer", "--run-id", "followed", env=env) as command:
        command.stdin.close()
        while "or: weftline deny followed/" not in command.stderr.readline():
            pass
        with python("-m", "weftline", "runs", "follow", "followed", env=env) as follower:
            follower.stdin.close()
            told = [follower.stderr.readline() for _ in range(3)]
            assert told[0] == '· pay {"amount": 5}\n' and "Pay 5" in told[1] and "weftline approve followed/" in told[2]
            assert weftline("approve", "followed", env=served).out == "approved\n"
            assert follower.wait(240) == 0 == command.wait(240)


def _only_key(env: Mapping[str, str | None]) -> Env:
    return {"WEFTLINE_API_KEY": env["WEFTLINE_API_KEY"], "WEFTLINE_BASE_URL": None, "WEFTLINE_DB": None}


def test_a_run_in_a_store_is_answered_through_its_process(here: tuple[str, ...], tmp_path: Path) -> None:
    db = str(tmp_path / "store")
    asyncio.run(open_store(db).close())
    env = {name: value for name, value in os.environ.items() if name not in LOCAL}
    with python("-m", "weftline", *here, "--db", db, env=env) as command:
        command.stdin.close()
        assert command.stderr.readline().startswith("· pay")
        assert command.stderr.readline().endswith("Pay 5?\n")
        _, *arguments = shlex.split(command.stderr.readline().removeprefix("To answer: "))
        assert weftline(*arguments, env=LOCAL).out == "approved\n"
        assert command.wait(240) == 0 and command.stdout.read() == "paid 5.\n"
