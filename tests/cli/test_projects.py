"""Agents and tools in a project: files, folders and modules, as commands take them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from commands import operate
from forked import python
from weftline import Engine, WeftlineError
from weftline.agent.loader import load_agents
from weftline.testing import ServerProcess
from weftline.tools.loader import load_tools

FILES = {
    "shop/__init__.py": "",
    "shop/prices.py": "LIST = {'loom': 5}\n",
    "shop/tools.py": '''
from weftline import tool

from .prices import LIST


@tool(effect="read")
def price(article: str) -> int:
    """What an article costs."""
    return LIST[article]


@tool
def order(article: str) -> str:
    """Orders an article."""
    return "ordered"
''',
    "shop/agents.py": """
from weftline import Agent
from weftline.testing import ScriptedModel, calls

from .tools import price

sells = ScriptedModel([calls("price", article="loom"), "{{tool_results.0}} euros."])
seller = Agent(sells, name="seller", tools=[price])
helper = Agent(ScriptedModel(["Hello."]), name="helper")
MOTTO = "Fair."
""",
    "apps/one.py": """
from weftline import Agent
from weftline.testing import ScriptedModel
one = Agent(ScriptedModel(["1"]))
""",
    "apps/two.py": """
from one import one
from weftline import Agent
from weftline.testing import ScriptedModel
two = Agent(ScriptedModel(["2"]))
""",
    "apps/test_one.py": "raise SystemExit('tests are not agents')\n",
    "loose/agents.py": "from .tools import price\n",
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


def weftline(project: Path, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    with python("-m", "weftline", *arguments, cwd=project) as child:
        out, err = child.communicate(stdin, timeout=120)
        return subprocess.CompletedProcess(arguments, child.returncode, out, err)


@pytest.mark.parametrize("given", ["shop.tools", "shop/tools.py", "shop", "shop.tools:price", "shop/tools.py:price"])
def test_tools_come_from_a_file_a_folder_or_a_module(project: Path, given: str) -> None:
    done = weftline(project, "tools", "list", "--tools", given, "--json")
    assert done.returncode == 0, done.stderr
    named = {one["name"] for one in json.loads(done.stdout)}
    assert "price" in named and ("order" in named) == (":" not in given)


@pytest.mark.parametrize("given", ["shop.agents:seller", "shop/agents.py:seller"])
def test_chat_talks_to_an_agent_of_a_package(project: Path, given: str) -> None:
    done = weftline(project, "chat", given, stdin="How much?\n")
    assert (done.returncode, "5 euros." in done.stdout) == (0, True), done


def test_chat_chooses_among_the_agents_of_a_folder(project: Path) -> None:
    done = weftline(project, "chat", "apps", "--agent", "two", stdin="Who?\n")
    assert (done.returncode, "2" in done.stdout) == (0, True), done


def test_run_takes_tools_of_a_module(project: Path) -> None:
    turns = [{"tool_calls": [{"name": "price", "args": {"article": "loom"}}]}, {"text": "It is {{tool_results.0}}."}]
    (project / "scripts.json").write_text(json.dumps({"ask": {"turns": turns}}))
    options = ("--model", "scripted:ask", "--scripts", "scripts.json", "--tools", "shop.tools")
    done = weftline(project, "run", "How much?", *options)
    assert (done.returncode, "It is 5." in done.stdout) == (0, True), done


async def test_replay_takes_the_agents_of_a_module(project: Path, tmp_path: Path) -> None:
    seller = load_agents(project / "shop" / "agents.py").agents["seller"]
    async with Engine(tmp_path / "data", agents=[seller]) as engine:
        run = await engine.start(seller, "How much?")
        assert (await run.result()).text == "5 euros."
    for given in ("shop.agents", "shop/agents.py", "shop"):
        done = weftline(project, "replay", run.id, "--agents", given, "--db", str(tmp_path / "data"))
        assert (done.returncode, done.stderr) == (0, ""), done
    done = weftline(project, "doctor", "shop.agents", "--db", str(tmp_path / "data"))
    assert done.returncode == 0, done


def test_serve_takes_a_module_and_names_its_tools(project: Path, tmp_path: Path) -> None:
    with ServerProcess(tmp_path, arguments=("shop.agents",), env={"PYTHONPATH": str(project)}) as server:
        assert "@agents/price" in json.dumps(operate(server.db, "GET", "tools"))


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("shop.agent", "There is no module shop.agent: shop has agents, prices, tools."),
        ("nowhere.agents", "There is no file, folder or module nowhere.agents, seen from"),
        ("shop/agents", "There is no file {project}/shop/agents. Did you mean agents.py?"),
        ("shop.prices", "shop/prices.py has no agents: assign a weftline.Agent to a public global name."),
        ("shop.agents:selle", "shop/agents.py has no name 'selle'. Did you mean 'seller' or"),
        ("shop.agents:MOTTO", "'MOTTO' in {project}/shop/agents.py is of the type str, not one of the agents."),
        ("loose/agents.py", "loose/agents.py has a relative import, but {project}/loose is not a package"),
        ("loose", "loose/agents.py has a relative import"),
    ],
)
def test_an_error_names_the_file_and_what_it_has(project: Path, given: str, problem: str) -> None:
    done = weftline(project, "chat", given)
    assert done.returncode == 1
    assert problem.format(project=project.resolve()) in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and done.stderr.count("\n") == 1


def test_an_error_in_a_module_names_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_shop").mkdir()
    (tmp_path / "broken_shop" / "__init__.py").write_text("")
    (tmp_path / "broken_shop" / "agents.py").write_text("\nfrom . import nothing_here\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(WeftlineError, match=r"failed to import in .*broken_shop/agents\.py:2: ImportError") as caught:
        load_agents("broken_shop.agents")
    assert caught.value.code == "bad_tools_file"
    with pytest.raises(WeftlineError, match=r"agents\.py failed to import on line 2: ImportError"):
        load_tools(tmp_path / "broken_shop" / "agents.py")
