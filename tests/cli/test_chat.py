"""`weftline chat`, in a terminal."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from commands import weftline
from forked import python_in_terminal

WAIT_S = 120
APP = '''
import asyncio
from weftline import Agent, ask_user, tool
from weftline.testing import ScriptedModel, calls


@tool
def weather(city: str) -> str:
    """The weather."""
    return f"{city}:\\n sunny \\x1b[31m"


@tool
async def wait() -> str:
    """Waits."""
    print("WAITING", flush=True)
    await asyncio.Event().wait()
    return ""


@tool(confirm="Pay {amount}\\x1b[2J?")
def pay(amount: int) -> str:
    """Pays."""
    return f"paid {amount}"


payer = Agent(
    ScriptedModel([calls("pay", amount=5), calls("ask_user", question="Why?"), "{{all_tool_results}}."]),
    name="payer",
    tools=[pay, ask_user],
)
helper = payer.as_tool("Pays.", name="helper")
boss = Agent(ScriptedModel([calls("helper", task="Pay."), "{{tool_results.0}}"]), name="boss", tools=[helper])
echo = Agent(ScriptedModel(["{{user_messages}} / {{message_count}}"]))
busy = Agent(ScriptedModel([calls("weather", city="Lyon"), "Sunny\\x1b[2J."]), name="busy", tools=[weather])
stuck = Agent(ScriptedModel([calls("wait"), "Never."]), name="stuck", tools=[wait])
broken = Agent(ScriptedModel([{"error": {"class": "invalid_request", "message": "no such thing"}}]), name="broken")
'''


class Chat:
    def __init__(self, pid: int, terminal: int) -> None:
        self.pid = pid
        self._terminal = terminal
        self._seen = ""

    def say(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def until(self, text: str) -> str:
        """What was shown up to this text."""
        while text not in self._seen:
            assert select.select([self._terminal], [], [], WAIT_S)[0], self._seen
            try:
                self._seen += os.read(self._terminal, 65536).decode()
            except OSError:  # the other end is closed
                raise AssertionError(self._seen) from None
        shown, _, self._seen = self._seen.partition(text)
        return shown


@contextmanager
def chatting(folder: Path, agent: str) -> Generator[Chat]:
    """A conversation that ends well: the process has exited with 0."""
    (folder / "app.py").write_text(APP)
    command = ("-m", "weftline", "chat", str(folder / "app.py"), "--agent", agent)
    process, ours = python_in_terminal(*command, env={**os.environ, "TERM": "dumb", "COLUMNS": "60"})
    with process:
        try:
            chat = Chat(process.pid, ours)
            chat.until("> ")
            yield chat
            assert process.wait(WAIT_S) == 0
        finally:
            process.kill()
            os.close(ours)


def test_a_conversation_goes_on_until_somebody_quits(tmp_path: Path) -> None:
    with chatting(tmp_path, "echo") as chat:
        chat.say("one\n")
        assert "one / 1" in chat.until("> ")
        chat.say("\n")
        chat.until("> ")
        chat.say("two\n")
        assert "one | two / 3" in chat.until("> ")
        chat.say("/quit\n")


def test_a_call_is_one_line_and_nobody_steers_the_terminal(tmp_path: Path) -> None:
    with chatting(tmp_path, "busy") as chat:
        chat.say("Lyon?\n")
        shown = chat.until("Sunny")
        assert '[weather {"city": "Lyon"} -> Lyon: sunny [31m]' in shown
        assert "\x1b[2J" not in chat.until("> ")
        chat.say("\x04")


def test_ctrl_c_cancels_the_answer_and_not_the_conversation(tmp_path: Path) -> None:
    with chatting(tmp_path, "stuck") as chat:
        for _ in range(2):
            chat.say("Go.\n")
            chat.until("WAITING")
            os.kill(chat.pid, signal.SIGINT)
            assert "cancelled" in chat.until("> ")
        os.kill(chat.pid, signal.SIGINT)
        chat.say("\n")  # a signal that comes before readline waits is only noticed with the next line
        chat.until("> ")
        chat.say("/quit\n")


@pytest.mark.parametrize("agent", ["payer", "boss"])
def test_questions_of_runs_and_subagents_appear_in_the_terminal(tmp_path: Path, agent: str) -> None:
    with chatting(tmp_path, agent) as chat:
        chat.say("Go.\n")
        assert "\x1b[2J" not in chat.until("[y/n, or why not] ")
        chat.say("y\n")
        chat.until("Why?")
        chat.until("> ")
        chat.say("Because.\n")
        assert "Because." in chat.until("paid 5")
        chat.until("> ")
        chat.say("/quit\n")


def test_ctrl_c_at_a_question_cancels_the_answer(tmp_path: Path) -> None:
    with chatting(tmp_path, "payer") as chat:
        chat.say("Go.\n")
        chat.until("[y/n, or why not] ")
        os.kill(chat.pid, signal.SIGINT)
        chat.say("\n")  # as above
        assert "cancelled" in chat.until("> ")
        chat.say("/quit\n")


def test_a_failed_answer_is_told_and_the_conversation_goes_on(tmp_path: Path) -> None:
    with chatting(tmp_path, "broken") as chat:
        for _ in range(2):
            chat.say("Go.\n")
            assert "no such thing" in chat.until("> ")
        chat.say("/quit\n")


def test_an_agent_must_be_chosen_if_there_are_several(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    done = weftline("chat", str(tmp_path / "app.py"))
    assert done.code == 2 and "payer, boss, echo, busy, stuck, broken" in done.err
    done = weftline("chat", str(tmp_path / "app.py"), "--agent", "bussy")
    assert done.code == 1 and "busy" in done.err


def test_in_a_pipe_the_next_line_answers_no_question(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    done = weftline("chat", str(tmp_path / "app.py"), "--agent", "payer", stdin="Go.\ny\n")
    assert done.code == 0 and done.err.count("Pay 5") == 2 and "Nobody can answer it here" in done.err
    assert "paid" not in done.out
