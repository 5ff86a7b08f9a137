"""What somebody sees whose first agent does not work yet."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import weftline
from weftline import Agent, Engine, RunContext, RunFailed, RunResult, events, tool
from weftline.agent.options import RunOptions
from weftline.errors import FULL_TRACEBACKS, InvalidRequest
from weftline.runs import AgentFailed
from weftline.testing import ScriptedModel
from weftline.text import public_pages, suggestions

HERE = Path(__file__).name


def files(error: BaseException) -> set[str]:
    return {Path(frame.filename).name for frame in traceback.extract_tb(error.__traceback__)}


async def in_async_code() -> None:
    await Agent("nowhere:small").run("Hi.")


async def in_an_engine() -> None:
    async with Engine() as engine:
        await engine.start(Agent("nowhere:small"), "Hi.")


async def in_a_stream() -> None:
    async with Agent("nowhere:small").stream("Hi."):
        pass


async def with_an_unknown_option() -> None:
    options: Any = {"labelz": 1}
    await Agent(ScriptedModel(["Hi."])).run("Hi.", **options)


@pytest.mark.parametrize("work", [in_async_code, in_an_engine, in_a_stream, with_an_unknown_option])
async def test_a_traceback_ends_at_the_users_line(work: Any) -> None:
    with pytest.raises((InvalidRequest, TypeError)) as caught:
        await work()
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (Path(last.filename).name, last.name) in ((HERE, work.__name__), ("contextlib.py", "__aenter__"))
    assert files(caught.value) <= {HERE, "contextlib.py"}


def test_a_blocking_run_shows_only_the_users_line() -> None:
    with pytest.raises(InvalidRequest) as caught:
        Agent("nowhere:small").run_sync("Hi.")
    assert files(caught.value) == {HERE}


def test_an_error_of_the_users_code_has_its_own_frames() -> None:
    def instructions(_: RunContext[object]) -> str:
        return str(1 / 0)

    with pytest.raises(AgentFailed) as caught:
        Agent(ScriptedModel(["Hi."]), instructions=instructions).run_sync("Hi.")
    assert files(caught.value) == {HERE}
    cause = caught.value.__cause__
    assert isinstance(cause, ZeroDivisionError)
    assert [frame.name for frame in traceback.extract_tb(cause.__traceback__)] == ["instructions"]


def test_an_error_inside_us_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    broken: Any = type("Broken", (str,), {"strip": lambda self: self.nothing})("billing")  # pyright: ignore
    with pytest.raises(AttributeError, match="nothing") as caught:
        Agent(ScriptedModel(["Hi."]), name="a").run_sync("Hi.", thread=broken)
    assert "engine.py" in files(caught.value)


def test_all_frames_are_there_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FULL_TRACEBACKS, "1")
    with pytest.raises(InvalidRequest) as caught:
        Agent("nowhere:small").run_sync("Hi.")
    assert {HERE, "agent.py", "engine.py"} < files(caught.value)


def test_a_script_prints_its_own_line_and_the_sentence(tmp_path: Path) -> None:
    script = tmp_path / "ask.py"
    script.write_text("from weftline import Agent\n\nagent = Agent('nowhere:small')\nagent.run_sync('Hi.')\n")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=240, check=False)
    assert done.stderr.count("File ") == 1, done.stderr
    assert f'File "{script}", line 4' in done.stderr
    assert "There is no model 'nowhere:small'" in done.stderr.splitlines()[-1]


def agent_with(**options: Any) -> Any:
    return Agent(ScriptedModel(["Hi."]), **options)


def tool_with(**options: Any) -> Any:
    return tool(**options)


def result_of() -> Any:
    return agent_with().run_sync("Hi.")


@pytest.mark.parametrize(
    ("write", "ours"),
    [
        (lambda: agent_with(system_prompt="Be brief."), "an Agent has no option 'system_prompt': here it is `instr"),
        (lambda: agent_with(result_type=int), "here it is `output`"),
        (lambda: agent_with(max_turns=3), "here it is `limits=Limits(max_turns=10)`"),
        (lambda: agent_with().run_stream("Hi."), r"here it is `agent.stream(…)`"),
        (
            lambda: agent_with().run_sync("Hi.", message_history=[]),
            "here it is `m",
        ),
        (lambda: result_of().final_output, "here it is `result.output`"),
        (lambda: tool_with(requires_approval=True), "here it is `confirm='Pay {amount}?'`"),
        (lambda: exec("from weftline.events import CallStarted"), "here it is `CallOpened`"),
        (lambda: getattr(events, "CallStarted"), "here it is `CallOpened`"),  # noqa: B009
        (lambda: exec("from weftline.events import CallOpend"), "Did you mean 'CallOpened'"),
        (lambda: exec("from weftline import function_tool"), "here it is `tool`"),
        (lambda: exec("from weftline import TextDelta"), "`from weftline.events import TextDelta`"),
        (lambda: exec("from weftline import CallStarted"), "here it is `CallOpened`"),
        (lambda: exec("from weftline import User"), "`from weftline.messages import User`"),
        (lambda: exec("from weftline import Image, Usage"), "`from weftline.messages import Image`"),
        (lambda: exec("from weftline import OpenAIChat"), "`from weftline.providers.openai.chat import OpenAIChat`"),
        (lambda: exec("from weftline.providers import Catalog"), "`from weftline.providers.catalog import Catalog`"),
        (lambda: exec("from weftline import Sandbox"), "`from weftline.sandbox import Sandbox`"),
        (lambda: exec("from weftline import verify_webhook"), "`from weftline.client import verify_webhook`"),
        (lambda: exec("from weftline import Enginee"), "Did you mean 'Engine'?"),
        (lambda: exec("from weftline.hooks import BeforModel"), "Did you mean 'BeforeModel'?"),
        (lambda: exec("from weftline.tools import Agent"), "`from weftline import Agent`"),
        (lambda: exec("from weftline.runs import ProviderFailled"), "Did you mean 'ProviderFailed'?"),
        (lambda: exec("from weftline.policies import Polices"), "Did you mean 'Policy'"),
        (lambda: exec("from weftline.client import AsyncClients"), "Did you mean 'AsyncClient'"),
        (lambda: exec("from weftline.policies import TextDeltas"), "Did you mean 'TextDelta', in weftline.events?"),
    ],
)
def test_a_name_of_another_library_is_answered_with_ours(write: Any, ours: str) -> None:
    with pytest.raises((TypeError, AttributeError, ImportError), match=re.escape(ours)) as caught:
        write()
    assert ".." not in str(caught.value)


def ours(of: str) -> set[str]:
    """What can be written in this place here."""
    match of:
        case "Agent":
            return set(inspect.signature(Agent).parameters)
        case "run":
            return set(RunOptions.__annotations__)
        case "tool":
            return set(inspect.signature(tool).parameters)
        case "weftline.events":
            return set(vars(events))
        case "weftline":
            return set(weftline.__all__)
        case _:
            return set(dir({"agent": Agent, "result": RunResult, "context": RunContext}[of]))


@pytest.mark.parametrize("of", suggestions.ELSEWHERE)
def test_only_names_that_we_do_not_have_are_explained(of: str) -> None:
    assert suggestions.ELSEWHERE[of].keys() & ours(of) == set()
    for answer in suggestions.ELSEWHERE[of].values():
        plain = [name for name in re.findall(r"`(\w+)`", answer) if of in ("Agent", "run", "tool", "weftline.events")]
        assert set(plain) <= ours(of) | set(RunOptions.__annotations__) | ours("Agent") | {"ToolContext", "status"}


def test_a_name_that_nobody_knows_is_an_attribute_error() -> None:
    assert not hasattr(weftline, "zzz_nothing_near") and not hasattr(weftline, "__wrapped__")


def test_the_models_of_the_documentation_are_where_it_says() -> None:
    for name, home in public_pages.MODELS.items():
        assert hasattr(import_module(home), name)


def test_a_failed_run_ends_at_the_users_line_too() -> None:
    with pytest.raises(RunFailed) as caught:
        Agent(ScriptedModel([{"error": {"class": "auth", "message": "The key is wrong."}}])).run_sync("Hi.")
    assert files(caught.value) == {HERE}


def test_a_printed_result_is_its_text_and_one_line() -> None:
    result = Agent(ScriptedModel(["Sunny."])).run_sync("How is the weather?" * 1000)
    text, facts = str(result).split("\n\n")
    assert text == "Sunny."
    assert re.fullmatch(rf"\[{result.run_id} succeeded, 1 turn, \d+ tokens, (\$\S+, )?\d+\.\d s\]", facts), facts
    assert repr(result) == f"<RunResult {facts[1:-1]}>"


async def test_a_printed_failure_is_its_error_and_one_line() -> None:
    async with Agent(ScriptedModel([{"error": {"class": "auth", "message": "The key is wrong."}}])).stream(
        "Hi."
    ) as run:
        with pytest.raises(RunFailed) as caught:
            await run.result()
    text, facts = str(caught.value.result).split("\n\n")
    assert "The key is wrong." in text and f"{run.id} failed (auth)" in facts
