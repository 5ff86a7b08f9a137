"""`weftline check` and `weftline info`, for folders of agents."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commands import weftline

TRIAGE = "---\ntools: find_order, fetsh\n---\nYou sort requests.\n"
TOOL = """
from weftline.threads import define_tool

@define_tool
def find_order(number: str) -> str:
    '''Finds.'''
"""


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    agents = tmp_path / "desk" / "agents"
    (agents / "tools").mkdir(parents=True)
    (agents / "triage.md").write_text(TRIAGE)
    (agents / "tools" / "find_order.py").write_text(TOOL)
    return tmp_path / "desk"


PROBLEM = 'prompt "triage": tools[1]: there is no tool, prompt or agent "fetsh". Did you mean "fetch"?'


@pytest.mark.requirement("thread.define.check")
def test_check_prints_every_problem_and_exits_with_one(desk: Path) -> None:
    done = weftline("check", str(desk))
    assert done.code == 1
    problem, warning = done.out.splitlines()
    assert problem == f"{desk}/agents/triage.md:2: {PROBLEM}"
    assert warning.endswith(" (warning)") and "declares no effect" in warning
    assert done.err == "1 problem and 1 warning.\n"


@pytest.mark.requirement("thread.define.check")
def test_check_prints_json_with_the_same(desk: Path) -> None:
    done = weftline("check", str(desk), "--json")
    shown = json.loads(done.out)
    assert done.code == 1
    assert [(one["line"], one["definition"], one["field"]) for one in shown["problems"]] == [
        (2, 'prompt "triage"', "tools[1]")
    ]
    assert len(shown["warnings"]) == 1


@pytest.mark.requirement("thread.define.check")
def test_check_exits_with_zero_if_there_are_only_warnings(desk: Path) -> None:
    (desk / "agents" / "triage.md").write_text(TRIAGE.replace("fetsh", "fetch"))
    done = weftline("check", str(desk))
    assert (done.code, done.err) == (0, "1 warning.\n")


def test_check_says_what_is_no_folder_of_agents(tmp_path: Path) -> None:
    done = weftline("check", str(tmp_path / "nowhere"))
    assert (done.code, done.out) == (1, f"{tmp_path}/nowhere:1: there is no such folder\n")


def test_info_lists_what_was_found_and_what_agents_reach(desk: Path) -> None:
    shown = json.loads(weftline("info", str(desk), "--json").out)
    assert [(one["kind"], one["name"]) for one in shown["found"]] == [
        ("agent", "triage"),
        ("prompt", "triage"),
        ("tool", "find_order"),
    ]
    (agent,) = shown["agents"]
    assert agent["reaches"] == {"prompts": ["triage"], "tools": ["fetsh", "find_order"]}
    assert "\nagent triage\n  prompts  triage\n  tools    fetsh, find_order\n" in weftline("info", str(desk)).out


def test_init_writes_a_folder_with_nothing_to_correct(tmp_path: Path) -> None:
    done = weftline("init", str(tmp_path / "desk"))
    assert done.code == 0
    assert sorted(done.out.splitlines()) == sorted(str(one) for one in (tmp_path / "desk").rglob("*") if one.is_file())
    checked = weftline("check", str(tmp_path / "desk"))
    assert (checked.code, checked.out, checked.err) == (0, "", "Nothing is wrong.\n")
    (agent,) = json.loads(weftline("info", str(tmp_path / "desk"), "--json").out)["agents"]
    assert agent["reaches"] == {"prompts": ["helper"], "models": ["offline"], "tools": ["find_order"]}


def test_init_leaves_a_folder_with_anything_in_it_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    done = weftline("init", str(tmp_path))
    assert done.code == 1 and "is not empty: name a new folder" in done.err
    assert [one.name for one in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.requirement("thread.define.references")
def test_server_does_not_start_on_a_folder_with_problems(desk: Path, tmp_path: Path) -> None:
    twice = "from weftline.threads import *\nagent = define_agent(name='triage', side_a=SideConfig(prompt='triaeg'))\n"
    (desk / "agents" / "agents").mkdir()
    (desk / "agents" / "agents" / "triage.py").write_text(twice)
    done = weftline("serve", str(desk), "--db", str(tmp_path / "store"), "--port", "0")
    assert done.code == 1 and "ready" not in done.out
    said = done.err.replace(f"{desk}/agents/", "")
    for problem in (
        f"triage.md:2: {PROBLEM}",
        'triage.md:1: agent "triage": is defined twice: agents/triage.py:2 defines it too',
        'agents/triage.py:2: agent "triage": side_a.prompt: there is no prompt "triaeg". Did you mean "triage"?',
    ):
        assert problem in said, said
    assert not (tmp_path / "store").exists()
