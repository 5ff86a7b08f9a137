"""The catalog and the three tools, with real files and real processes."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from weftline.agent.skills.content import Ran
from weftline.agent.skills.format import Skill
from weftline.agent.skills.toolset import SkillsCatalog, SkillsResolved, skills
from weftline.tools.arguments import InvalidArguments

from .house import SkillRun, write_skill


class RecordingRuns:
    """Runs nothing: says what it was asked, and answers as told."""

    def __init__(self, *outcomes: Ran | OSError) -> None:
        self.asked: list[tuple[str | Sequence[str], str | None, float]] = []
        self._outcomes = list(outcomes)

    async def exec(self, command: str | Sequence[str], *, cwd: str | None, timeout_s: float) -> Ran:
        self.asked.append((command, cwd, timeout_s))
        outcome = self._outcomes.pop(0) if self._outcomes else Ran(b"out\n", b"", 0)
        if isinstance(outcome, OSError):
            raise outcome
        return outcome


async def active(place: Path, name: str = "pdf", **options: Any) -> SkillRun:
    """A run in which the skill of this name is active."""
    run = await SkillRun.of(skills(place, **options))
    await run.text("skills_use", name=name)
    return run


@pytest.mark.requirement("skill.catalog.prompt")
async def test_catalog_lists_names_and_descriptions_escaped_in_stable_order(tmp_path: Path) -> None:
    write_skill(tmp_path / "z", "beta", description="'</skill> & \"more\"'", body="SECRET BODY")
    write_skill(tmp_path / "a", "gamma", description="|\n  Two\n  lines")
    write_skill(tmp_path / "b", "alpha", description="x" * 2000)
    write_skill(tmp_path, "off")
    found = skills(tmp_path, disabled=["off"])
    await found.open()
    text = found.instructions
    assert re.findall(r"<name>(.*)</name>", text) == ["alpha", "beta", "gamma"]
    assert "<description>&lt;/skill&gt; &amp; &quot;more&quot;</description>" in text
    assert "<description>Two lines</description>" in text
    assert f"<description>{'x' * 1023}…</description>" in text
    assert "SECRET BODY" not in text and "off" not in found.catalog.names
    again = skills(tmp_path, disabled=["off"])
    await again.open()
    assert again.instructions == text


@pytest.mark.requirement("skill.catalog.tools")
async def test_the_tools_are_offered_with_the_names_of_the_catalog(tmp_path: Path) -> None:
    write_skill(tmp_path, "pdf")
    run = await SkillRun.of(skills(tmp_path))
    assert list(run.tools) == ["skills_use", "skills_read", "skills_run_script"]
    schema = msgspec.json.decode(run.tools["skills_use"].spec.parameters, type=dict[str, Any])
    assert schema["properties"]["name"]["enum"] == ["pdf"] and "const" not in schema["properties"]["name"]
    assert schema["required"] == ["name"]
    with pytest.raises(InvalidArguments):
        await run.tools["skills_use"].prepare('{"name": "docx"}')
    effects = {name: (tool.effect, tool.concurrent) for name, tool in run.tools.items()}
    assert effects == {
        "skills_use": ("idempotent", False),
        "skills_read": ("read", True),
        "skills_run_script": ("once", False),
    }


@pytest.mark.requirement("skill.catalog.tools")
async def test_without_skills_there_is_neither_catalog_nor_tool(tmp_path: Path) -> None:
    write_skill(tmp_path, "pdf")
    for found in (skills(tmp_path / "pdf" / "nothing"), skills(tmp_path, disabled=["pdf"])):
        assert await found.open() == ()
        assert found.instructions == ""


@pytest.mark.requirement("skill.catalog.hooks")
async def test_search_is_told_once_and_handlers_decide_what_is_listed(tmp_path: Path) -> None:
    write_skill(tmp_path, "pdf")
    write_skill(tmp_path, "docx")
    found = skills(tmp_path)
    told: list[str] = []

    async def resolved(event: SkillsResolved) -> None:
        told.append(f"resolve {[skill.name for skill in event.skills]}")

    def catalog(event: SkillsCatalog) -> None:
        told.append("catalog")
        event.skills = [skill for skill in event.skills if skill.name == "pdf"]

    def broken(event: SkillsCatalog) -> None:
        event.skills.clear()
        raise RuntimeError("no")

    found.on_resolve.append(resolved)
    found.on_catalog += [broken, catalog, broken]
    await asyncio.gather(found.open(), found.activate("pdf"), found.begin_run({}))
    assert told == ["resolve ['docx', 'pdf']", "catalog"]
    assert found.catalog.names == ("pdf",) and "docx" not in found.instructions
    found.on_resolve.append(lambda _: told.append("late"))
    await found.open()
    assert len(told) == 2


@pytest.mark.requirement("skill.use.content")
async def test_using_a_skill_answers_its_body_directory_and_files(tmp_path: Path) -> None:
    directory = write_skill(
        tmp_path,
        body="# Title\n\nSteps.",
        fields="compatibility: Needs poppler\nallowed-tools: Read Bash(git:*)",
        files={"scripts/fill.py": "", "notes.md": "", ".git/config": "", "scripts/__pycache__/x.pyc": ""},
    )
    text = await (await SkillRun.of(skills(tmp_path))).text("skills_use", name="pdf")
    assert text.startswith('<skill_content name="pdf">\n# Title\n\nSteps.\n') and text.endswith("\n</skill_content>")
    assert "Reads PDF files." not in text
    assert f"Directory of this skill: {directory}\n" in text
    assert "Compatibility: Needs poppler\n" in text and "Allowed tools: Read Bash(git:*)\n" in text
    assert re.findall(r"<file>(.*)</file>", text) == ["notes.md", "scripts/fill.py"]


@pytest.mark.requirement("skill.use.content")
async def test_a_skill_without_more_has_nothing_more_to_say() -> None:
    plain = Skill(name="plain", description="d", body="Just this.")
    run = await SkillRun.of(skills(plain))
    text = await run.text("skills_use", name="plain")
    assert text == '<skill_content name="plain">\nJust this.\n\n</skill_content>'
    assert "has no files" in await run.error("skills_read", name="plain", path="x")
    assert "has no files" in await run.error("skills_run_script", name="plain", script="x")


async def test_neither_body_nor_output_nor_file_names_end_the_content(tmp_path: Path) -> None:
    write_skill(tmp_path, body="a </skill_content> b </Skill_Content > !`echo '</skill_content>'`", files={"<x>": ""})
    text = await (await SkillRun.of(skills(tmp_path))).text("skills_use", name="pdf")
    assert text.lower().count("</skill_content") == 1 and "<file>&lt;x&gt;</file>" in text


@pytest.mark.requirement("skill.use.resources")
async def test_list_of_files_is_cut_with_note_and_opens_none(tmp_path: Path) -> None:
    directory = write_skill(tmp_path, files={f"data/{number:03}": "" for number in range(70)})
    (directory / "near-the-top").write_text("")
    os.mkfifo(directory / "fifo")
    (directory / "out").symlink_to("/etc/passwd")
    (directory / "in").symlink_to("data/000")
    (directory / "folder").symlink_to("data")
    (directory / "secret").write_text("x")
    (directory / "secret").chmod(0)
    text = await (await SkillRun.of(skills(tmp_path))).text("skills_use", name="pdf")
    files = re.findall(r"<file>(.*)</file>", text)
    assert files[:3] == ["in", "near-the-top", "secret"] and len(files) == 50
    assert "(23 more files of this skill are not listed)" in text
    assert "fifo" not in text and "out" not in files and "folder" not in files


@pytest.mark.requirement("skill.use.repeated")
async def test_using_active_skill_again_answers_note_and_runs_nothing(tmp_path: Path) -> None:
    write_skill(tmp_path, body="!`date`")
    runs = RecordingRuns()
    run = await active(tmp_path, context=runs)
    again = await run.text("skills_use", name="pdf")
    assert again == "The skill pdf is already active; its instructions are above. Continue with them."
    assert len(runs.asked) == 1 and run.events == [("activate", "pdf", "model")]


@pytest.mark.requirement("skill.use.interpolation")
async def test_commands_in_a_body_are_replaced_at_each_activation(tmp_path: Path) -> None:
    counter = tmp_path / "count"
    write_skill(
        tmp_path / "skills",
        body=f"First: !`echo x >> {counter}; wc -l < {counter} | tr -d ' '`.\n(!`printf '!\\140date\\140'`) end",
    )
    found = skills(tmp_path / "skills")
    for number in (1, 2):
        run = await SkillRun.of(found)
        text = await run.text("skills_use", name="pdf")
        assert f"First: {number}.\n(!`date`) end" in text


@pytest.mark.requirement("skill.use.interpolation")
async def test_command_that_fails_leaves_note_and_skill_is_active(tmp_path: Path) -> None:
    write_skill(tmp_path, body="A !`one` B !`two` C !`three` D !`four` E")
    runs = RecordingRuns(
        Ran(b"", b"boom\n", 3), Ran(b"", b"", 137, timed_out=True), OSError("no shell"), Ran(b"fine\n", b"noise", 0)
    )
    run = await SkillRun.of(skills(tmp_path, context=runs))
    text = await run.text("skills_use", name="pdf")
    assert (
        "A [The command `one` failed with exit code 3: boom] "
        "B [The command `two` did not finish within 30 seconds and was stopped] "
        "C [The command `three` could not be started: no shell] D fine E"
    ) in text
    assert [cwd for _, cwd, _ in runs.asked] == [None] * 4
    assert [skill.name for skill in run.skills.active(run.state)] == ["pdf"]


@pytest.mark.requirement("skill.use.interpolation")
@pytest.mark.parametrize(
    "body",
    [
        "`assert_eq!` over `assert!`",
        "``!`date` ``",
        "word!`date`",
        "`if !` and `then`",
        "\\!`date`",
        "! `date`",
        "!`date\nls`",
        "!``",
        "![image](x) `date`",
    ],
)
async def test_text_that_looks_like_a_command_is_unchanged(tmp_path: Path, body: str) -> None:
    write_skill(tmp_path, body=body)
    runs = RecordingRuns()
    run = await SkillRun.of(skills(tmp_path, context=runs))
    assert body in await run.text("skills_use", name="pdf") and runs.asked == []


async def test_commands_are_bounded_in_number_and_output(tmp_path: Path) -> None:
    write_skill(tmp_path, body=" ".join(["!`x`"] * 40))
    runs = RecordingRuns(Ran("é".encode() * 20_000, b"", 0, dropped_stdout=7))
    text = await (await SkillRun.of(skills(tmp_path, context=runs))).text("skills_use", name="pdf")
    assert len(runs.asked) == 32 and text.count("was not run") == 8
    assert "bytes truncated from head" in text and "\ufffd" not in text and len(text) < 20_000


@pytest.mark.requirement("skill.files.read")
async def test_a_file_of_an_active_skill_is_read(tmp_path: Path) -> None:
    write_skill(tmp_path, files={"references/a b.md": "one\ntwo\n\nfour\n", "empty": ""})
    run = await active(tmp_path)
    assert await run.text("skills_read", name="pdf", path="references/a b.md") == "one\ntwo\n\nfour"
    assert await run.text("skills_read", name="pdf", path="references/a b.md", offset=2, limit=1) == (
        "two\n[More lines follow; read on with offset=3]"
    )
    assert "has only 4 lines" in await run.text("skills_read", name="pdf", path="references/a b.md", offset=9)
    assert "is empty" in await run.text("skills_read", name="pdf", path="empty")


@pytest.mark.requirement("skill.files.read")
async def test_files_are_read_under_the_caps_of_read_file(tmp_path: Path) -> None:
    directory = write_skill(tmp_path)
    (directory / "long").write_text("".join(f"{number}\n" for number in range(5000)))
    (directory / "wide").write_text("é" * 200_000 + "\nend\n")
    (directory / "image.png").write_bytes(b"\x89PNG\r\n\0\0" * 100)
    (directory / "latin1").write_bytes(b"caf\xe9 and more text than that")
    run = await active(tmp_path)
    text = await run.text("skills_read", name="pdf", path="long")
    assert text.endswith("1999\n[More lines follow; read on with offset=2001]")
    whole = await run.text("skills_read", name="pdf", path="long", limit=0)
    assert whole.endswith("\n4999")
    wide = await run.text("skills_read", name="pdf", path="wide")
    assert len(wide.encode()) < 263_000 and "\ufffd" not in wide and "offset=2]" in wide
    assert await run.text("skills_read", name="pdf", path="wide", offset=2) == "end"
    assert await run.text("skills_read", name="pdf", path="image.png") == (
        "[image.png is a binary file (800 bytes), which cannot be shown as text]"
    )
    assert "caf\ufffd and more" in await run.text("skills_read", name="pdf", path="latin1")


@pytest.mark.requirement("skill.files.read")
@pytest.mark.parametrize("tool", ["skills_read", "skills_run_script"])
async def test_inactive_skill_or_outside_file_is_refused(tmp_path: Path, tool: str) -> None:
    directory = write_skill(tmp_path / "skills", files={"a.sh": "echo ran > ran"})
    write_skill(tmp_path / "skills", "docx", files={"a.sh": "echo ran"})
    (tmp_path / "outside.sh").write_text("echo ran")
    (directory / "link.sh").symlink_to("../../outside.sh")
    (directory / "sub").symlink_to("..")
    argument = "path" if tool == "skills_read" else "script"
    run = await SkillRun.of(skills(tmp_path / "skills"))
    assert "not active" in await run.error(tool, name="pdf", **{argument: "a.sh"})
    await run.text("skills_use", name="pdf")
    for path in ("../docx/a.sh", "../../outside.sh", "link.sh", "sub/docx/a.sh", str(directory / "a.sh"), "."):
        assert "cannot be read" in await run.error(tool, name="pdf", **{argument: path})
    assert "There is no file" in await run.error(tool, name="pdf", **{argument: "nothing"})
    assert "not active" in await run.error(tool, name="docx", **{argument: "a.sh"})
    assert "not active" in await run.error(tool, name="ghost", **{argument: "a.sh"})


@pytest.mark.requirement("skill.files.run")
async def test_script_runs_in_its_skills_directory_with_its_arguments_untouched(tmp_path: Path) -> None:
    script = 'import os, sys\nprint(os.getcwd())\nprint(sys.argv[1:])\nprint("oops", file=sys.stderr)\nsys.exit(3)\n'
    directory = write_skill(tmp_path, files={"scripts/show.py": script})
    run = await active(tmp_path)
    args = ["a b", "$HOME", "; touch x", "*", "", "'", "-c", "é\n"]
    text = await run.text("skills_run_script", name="pdf", script="scripts/show.py", args=args)
    assert re.fullmatch(re.escape(f"{directory}\n{args!r}\nstderr:\noops\n") + r"\(exit 3, \d+ms\)", text)
    assert sorted(path.name for path in directory.iterdir()) == ["SKILL.md", "scripts"]


@pytest.mark.requirement("skill.files.run")
@pytest.mark.parametrize(
    ("name", "content", "mode", "output"),
    [
        ("a", "#!/bin/sh\necho $0", 0o755, "{}/a"),
        ("b", "#!/bin/sh -u\necho ${X:-unset}", 0o644, "unset"),
        ("c.sh", "echo plain", 0o644, "plain"),
        ("d.py", "print('py')", 0o755, "py"),
        ("e", "#!/usr/bin/env sh\r\necho crlf #\r\n", 0o755, "crlf"),
        ("-c", "#!/bin/sh\necho dash", 0o755, "dash"),
    ],
)
async def test_scripts_start_as_they_say(tmp_path: Path, name: str, content: str, mode: int, output: str) -> None:
    directory = write_skill(tmp_path)
    (directory / name).write_bytes(content.encode())
    (directory / name).chmod(mode)
    text = await (await active(tmp_path)).text("skills_run_script", name="pdf", script=name)
    assert text.splitlines()[0].rstrip() == output.format(directory)


@pytest.mark.requirement("skill.files.run")
async def test_a_script_that_cannot_run_says_why(tmp_path: Path) -> None:
    directory = write_skill(tmp_path, files={"data.csv": "a,b", "no": "#!/no/such/interpreter\n", "bad": "#!'\n"})
    (directory / "no").chmod(0o755)
    run = await active(tmp_path)
    assert "cannot be run" in await run.error("skills_run_script", name="pdf", script="data.csv")
    assert "cannot be run" in await run.error("skills_run_script", name="pdf", script="bad")
    assert "could not be started" in await run.error("skills_run_script", name="pdf", script="no")
    assert "could not be started" in await run.error("skills_run_script", name="pdf", script="no", args=["\0"])


@pytest.mark.requirement("skill.files.run")
async def test_the_output_of_a_script_is_cut_at_its_head(tmp_path: Path) -> None:
    write_skill(tmp_path, files={"a.py": "import sys\nsys.stdout.write('é' * 50000 + 'END')"})
    text = await (await active(tmp_path)).text("skills_run_script", name="pdf", script="a.py")
    kept = len(text.partition("…\n")[2].partition("END")[0].encode())
    assert text.startswith(f"…({100_000 - kept} bytes truncated from head)…\né")
    assert 32_700 < kept <= 32_768 and "\ufffd" not in text


@pytest.mark.requirement("skill.files.run")
async def test_slow_script_is_stopped_and_its_timeout_capped(tmp_path: Path) -> None:
    write_skill(tmp_path, files={"a.sh": ""})
    runs = RecordingRuns(Ran(b"so far", b"", 137, timed_out=True))
    run = await active(tmp_path, context=runs)
    text = await run.error("skills_run_script", name="pdf", script="a.sh", timeout=2)
    assert text.startswith("so far\n(exit 137") and "did not finish within 2 seconds" in text
    await run.text("skills_run_script", name="pdf", script="a.sh", timeout=10_000)
    await run.text("skills_run_script", name="pdf", script="a.sh")
    assert [timeout_s for _, _, timeout_s in runs.asked] == [2, 600, 60]
