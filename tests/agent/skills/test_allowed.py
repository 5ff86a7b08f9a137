"""What the allowed-tools of active skills leave, and what they approve."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from weftline.agent.skills.allowed import (
    Call,
    ToolNames,
    faulty_entries,
    matches,
    parse_entry,
    preapproved,
    refusal,
    simple_command,
)
from weftline.agent.skills.format import Skill
from weftline.agent.skills.toolset import skills

from .house import SkillRun, write_skill

TOOLS = ToolNames(
    ["shell", "read_file", "edit", "tool_search", "pay", "look"], aliases={"pay": "Pay", "look": "Read", "shell": "Run"}
)


def skill(*entries: str, name: str = "s", trusted: bool = True, declares: bool = True) -> Skill:
    return Skill(
        name=name, description="d", body="", allowed_tools=tuple(entries) if declares else None, trusted=trusted
    )


def allows(entries: Sequence[str], tool: str, **args: object) -> bool:
    restricted = refusal(Call(tool, args), active=[skill(*entries)], names=TOOLS) == ""
    assert preapproved(Call(tool, args), active=[skill(*entries)], names=TOOLS) == (
        restricted and not tool.startswith("skills_")
    )
    return restricted


def runs(pattern: str, command: str) -> bool:
    return allows([f"Bash({pattern})"], "shell", command=command)


@pytest.mark.requirement("skill.allowed_tools.restrict")
def test_only_declared_lists_and_skills_tools_may_be_called() -> None:
    active = [skill("pay", name="a"), skill("edit", name="b"), skill(declares=False, name="c")]
    for tool in ("pay", "edit", "skills_use", "skills_read", "skills_run_script"):
        assert refusal(Call(tool, {}), active=active, names=TOOLS) == ""
    for tool in ("shell", "read_file", "tool_search", "ghost"):
        why = refusal(Call(tool, {}), active=active, names=TOOLS)
        assert why == (
            f"Blocked: {tool} may not be called this way now; the active skills a and b allow only pay, edit, "
            "besides the skills tools."
        )


@pytest.mark.requirement("skill.allowed_tools.restrict")
def test_missing_list_restricts_nothing_and_empty_leaves_nothing() -> None:
    for active in ([], [skill(declares=False)]):
        assert refusal(Call("shell", {"command": "ls"}), active=active, names=TOOLS) == ""
    assert "allows no tools" in refusal(Call("shell", {"command": "ls"}), active=[skill()], names=TOOLS)


@pytest.mark.requirement("skill.allowed_tools.restrict", "skill.allowed_tools.preapprove")
async def test_the_setting_says_what_a_list_means(tmp_path: Path) -> None:
    write_skill(tmp_path, fields="allowed-tools: pay")
    calls = [Call("pay", {}), Call("edit", {})]
    answers: dict[str, list[tuple[str, bool]]] = {}
    for setting in ("restrict", "preapprove"):
        run = await SkillRun.of(skills(tmp_path, allowed_tools=setting))
        for call in calls:
            assert run.skills.refusal(call, state=run.state, names=TOOLS) == ""
            assert not run.skills.preapproved(call, state=run.state, names=TOOLS)
        await run.text("skills_use", name="pdf")
        answers[setting] = [
            (
                run.skills.refusal(call, state=run.state, names=TOOLS)[:7],
                run.skills.preapproved(call, state=run.state, names=TOOLS),
            )
            for call in calls
        ]
        await run.skills.end_run(run.state)
        assert not run.skills.preapproved(calls[0], state=run.state, names=TOOLS)
    assert answers == {"restrict": [("", False), ("Blocked", False)], "preapprove": [("", True), ("", False)]}


@pytest.mark.requirement("skill.allowed_tools.preapprove")
def test_a_skill_that_is_not_trusted_approves_nothing_in_advance() -> None:
    evil = skill("shell", trusted=False)
    assert not preapproved(Call("shell", {"command": "rm x"}), active=[evil], names=TOOLS)
    assert preapproved(Call("shell", {"command": "rm x"}), active=[evil, skill("shell")], names=TOOLS)


@pytest.mark.requirement("skill.allowed_tools.names")
def test_allow_list_entries_name_tools_by_name_or_alias() -> None:
    assert allows(["pay"], "pay") and allows(["Pay"], "pay")
    assert allows(["Bash"], "shell", command="a; b") and allows(["Run"], "shell", command="a; b")
    assert allows(["Edit"], "edit")
    # An alias comes before what public skills mean by the word.
    assert allows(["Read"], "look") and not allows(["Read"], "read_file")


@pytest.mark.requirement("skill.allowed_tools.names")
async def test_entry_that_matches_no_tool_is_ignored_with_diagnostic(tmp_path: Path) -> None:
    one = skill("Ghost", "Bash(git", "pay(x)", "Write", "pay", "Bash(git:*)")
    assert len(faulty_entries(one, names=TOOLS)) == 4
    assert not allows(["Ghost"], "Ghost") and not allows(["Write"], "write_file") and not allows(["pay(x)"], "pay")
    assert not allows(["Bash(git"], "shell", command="git")
    write_skill(tmp_path, fields="allowed-tools: Ghost pay")
    found = skills(tmp_path)
    await found.open()
    assert [one.kind for one in found.check_tools(TOOLS)] == ["unknown_tool"]
    found.check_tools(TOOLS)
    assert [one.kind for one in found.diagnostics] == ["unknown_tool"]


@pytest.mark.requirement("skill.allowed_tools.patterns")
@pytest.mark.parametrize(
    ("pattern", "command"),
    [
        ("git:*", "git"),
        ("git:*", "git status"),
        ("git:*", "  git   status\t-s  "),
        ("git:*", "git commit -m 'a; b | c && $(d)'"),
        ("git:*", 'git commit -m "a; b | c && (d) > e"'),
        ("git:*", "git status\n"),
        ("git add:*", "git add ."),
        ("git  add:*", "git add ."),
        ("git status", "git status"),
        ("npm run *", "npm run test"),
        ("npm * --silent", "npm run test --silent"),
        ("*", "anything at all"),
        (":*", "anything at all"),
    ],
)
def test_commands_that_fit(pattern: str, command: str) -> None:
    assert runs(" ".join(pattern.split()), command)


@pytest.mark.requirement("skill.allowed_tools.patterns")
@pytest.mark.parametrize(
    "command",
    [
        "git status; rm x",
        "git status;rm x",
        "git status && rm x",
        "git status || rm x",
        "git status & rm x",
        "git status &",
        "git log | sh",
        "git log |& sh",
        "git $(rm x)",
        "git `rm x`",
        'git "$(rm x)"',
        'git "`rm x`"',
        "git ${x:-$(rm x)}",
        "git $'\\'; rm x'",
        "git <(rm x)",
        "git >(rm x)",
        "git diff > ~/.bashrc",
        "git diff >> x",
        "git apply < x",
        "git 2>&1",
        "git status\nrm x",
        "git status\rrm x",
        "git status \\\nrm x",
        "git \\'; rm x'",
        'git "\\"; rm x"',
        "git 'unterminated",
        'git "unterminated',
        "(git status)",
        "{ git status; }",
        "! git status",
        "X=1 git status",
        "env git status",
        "/tmp/git status",
        "./git status",
        "gitk",
        "git-evil",
        "git\u00a0status",
        "git\x0bstatus",
        "'git' status",
        "rm x # git",
        "",
        "   ",
        "git status\0",
    ],
)
def test_commands_that_do_more_or_other_things_do_not_fit(command: str) -> None:
    assert not runs("git:*", command)


@pytest.mark.requirement("skill.allowed_tools.patterns")
def test_pattern_covers_the_command_line_and_nothing_hidden() -> None:
    assert allows(["Bash(git:*)"], "shell", command="git status", timeout_s=5, description="x", env=None)
    for args in ({}, {"command": 3}, {"command": ["git"]}, {"command": "git", "env": {"PATH": "."}}, {"cmd": "git"}):
        assert not allows(["Bash(git:*)"], "shell", **args)
    assert not runs("git add:*", "git commit")
    assert not runs("git status", "git status -s")
    assert runs("git*", "gitk")


@pytest.mark.parametrize("text", ["", "(", "Bash(", "Bash)", "()", "a b", "Bash(x) y"])
def test_entries_that_cannot_be_read(text: str) -> None:
    assert parse_entry(text) is None


SH = shutil.which("sh") or "/bin/sh"
WORDS = ["a", "touch", "X", "true", "; touch X", "$(touch X)", "&& touch X", "{", "}"]
PIECES = st.sampled_from([*WORDS, *" '\";&|$()`\\\n<>#!*\t=~[]\r"])
LINES = st.lists(PIECES, max_size=8).map("".join)


@given(st.lists(LINES, min_size=8, max_size=8))
def test_harmless_pattern_permits_nothing_else(tails: list[str]) -> None:
    """A real shell with an empty PATH in which `:` is the one command that fits; anything else would be noticed."""
    fitting = [line for line in (f": {tail}" for tail in tails) if runs("::*", line)]
    for line in fitting:
        program = f"touch() {{ echo TOUCHED; }}; a() {{ echo TOUCHED; }}; X() {{ echo TOUCHED; }}\n{line}\necho END"
        done = subprocess.run(
            [SH, "-c", program], capture_output=True, text=True, check=False, env={"PATH": ""}, timeout=60
        )
        assert done.stdout == "END\n", (line, done)


@given(st.text(max_size=60))
@example("a'b'c")
def test_simple_command_has_nothing_that_shell_could_act_on(line: str) -> None:
    command = simple_command(line)
    if command is None:
        return
    outside = "".join(command.split("'")[::2]) if '"' not in command else ""
    assert not set(outside) & set(";&|<>()`$\\\n\r\0")
    assert simple_command(command) == command


@given(st.text("ab *", max_size=12), st.text("ab ", max_size=12))
def test_stars_stand_for_any_text(pattern: str, text: str) -> None:
    expected = re.fullmatch("".join(".*" if char == "*" else re.escape(char) for char in pattern.strip()), text)
    assert matches(pattern, text) == bool(expected)


@given(st.text("ab", min_size=1, max_size=4), st.text("ab -'", max_size=10))
def test_a_prefix_ends_where_a_word_ends(prefix: str, rest: str) -> None:
    assert matches(f"{prefix}:*", prefix + rest) == (not rest or rest.startswith(" "))


def test_many_stars_cost_no_time() -> None:
    assert not matches("*a" * 200 + "b", "a" * 100_000)
