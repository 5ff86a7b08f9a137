"""Where skills are found, how far the search goes, and which skill of a name counts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from weftline.agent.skills import discovery
from weftline.agent.skills.discovery import Discovery, Place, discover, standard_places
from weftline.agent.skills.format import Skill
from weftline.agent.skills.toolset import UnknownSkill, skills

from .house import SkillRun, write_skill


def names(found: Discovery) -> list[str]:
    return [skill.name for skill in found.skills]


def kinds(found: Discovery) -> list[str]:
    return [one.kind for one in found.diagnostics]


def search(project: Path | None, home: Path | None, *, trust: bool | None = True, claude: bool = False) -> Discovery:
    return discover(standard_places(project=project, home=home, trust_project=trust, claude_dirs=claude))


@pytest.mark.requirement("skill.scan.places")
def test_skills_are_found_in_project_and_in_users_home(tmp_path: Path) -> None:
    project, home = tmp_path / "project", tmp_path / "home"
    write_skill(project / ".weftline/skills", "a")
    write_skill(project / ".agents/skills", "b")
    write_skill(home / ".weftline/skills", "c")
    write_skill(home / ".agents/skills/nested", "d")
    write_skill(project / ".claude/skills", "e")
    write_skill(home / ".claude/skills", "f")
    write_skill(project / "skills", "elsewhere")
    (project / ".agents/skills/no-skill").mkdir()
    (project / ".agents/skills/README.md").write_text("x")
    found = search(project, home)
    assert [(skill.name, skill.source) for skill in found.skills] == [
        ("a", "project"),
        ("b", "project"),
        ("c", "user"),
        ("d", "user"),
    ]
    assert names(search(project, home, claude=True)) == ["a", "b", "c", "d", "e", "f"]
    assert found.diagnostics == ()


@pytest.mark.requirement("skill.scan.places")
async def test_sources_are_project_user_inline_and_builtin(tmp_path: Path) -> None:
    write_skill(tmp_path, "shipped")
    written = Skill(name="written", description="d", body="b")
    found = discover([Place(tmp_path, "builtin")], inline=[written])
    assert {skill.name: skill.source for skill in found.skills} == {"shipped": "builtin", "written": "inline"}


async def test_without_paths_the_usual_places_are_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_skill(tmp_path / "here/.agents/skills", "of-project")
    write_skill(tmp_path / "me/.agents/skills", "of-user")
    write_skill(tmp_path / "here/mine", "named")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    for found, expected in (
        (skills(), ("of-project", "of-user")),
        (skills("mine"), ("named",)),
        (skills(["mine"], home="~"), ("named", "of-user")),
        (skills("mine/named"), ("named",)),
    ):
        await found.open()
        assert found.catalog.names == expected


async def test_a_path_that_does_not_exist_is_a_diagnostic(tmp_path: Path) -> None:
    found = skills(tmp_path / "nowhere")
    assert await found.open() == ()
    assert [one.kind for one in found.diagnostics] == ["missing"]


@pytest.mark.requirement("skill.scan.bounds")
def test_git_and_node_modules_are_skipped(tmp_path: Path) -> None:
    for place in (".git", "node_modules", "a/node_modules/b", "kept"):
        write_skill(tmp_path / place, f"in-{Path(place).parts[0].strip('.')}")
    assert names(discover([Place(tmp_path, "inline")])) == ["in-kept"]


@pytest.mark.requirement("skill.scan.bounds")
def test_the_search_ends_six_levels_deep_and_says_so(tmp_path: Path) -> None:
    write_skill(tmp_path / "1/2/3/4/5", "sixth")
    found = discover([Place(tmp_path, "inline")])
    assert names(found) == ["sixth"] and kinds(found) == []
    write_skill(tmp_path / "1/2/3/4/5/6", "seventh")
    found = discover([Place(tmp_path, "inline")])
    assert names(found) == ["sixth"] and kinds(found) == ["cut_short"]


@pytest.mark.requirement("skill.scan.bounds")
def test_the_search_ends_after_2000_directories_and_says_so(tmp_path: Path) -> None:
    assert discovery.MAX_DIRECTORIES == 2000
    for number in range(2001):
        (tmp_path / f"{number:04}").mkdir()
    write_skill(tmp_path, "0005")
    write_skill(tmp_path, "2000")
    found = discover([Place(tmp_path, "inline")])
    assert names(found) == ["0005"] and kinds(found) == ["cut_short"]


@pytest.mark.requirement("skill.scan.bounds")
def test_a_crowded_place_takes_nothing_from_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "MAX_DIRECTORIES", 5)
    for number in range(9):
        (tmp_path / "crowded" / str(number)).mkdir(parents=True)
    write_skill(tmp_path / "quiet", "found")
    found = discover([Place(tmp_path / "crowded", "project"), Place(tmp_path / "quiet", "user")])
    assert names(found) == ["found"] and kinds(found) == ["cut_short"]


@pytest.mark.requirement("skill.scan.bounds")
@pytest.mark.parametrize(("bound", "value"), [("MAX_ENTRIES", 10), ("MAX_TOTAL_BYTES", 100)])
def test_files_are_bounded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, value: int) -> None:
    monkeypatch.setattr(discovery, bound, value)
    for number in range(20):
        write_skill(tmp_path / "many", f"s{number}", body="x" * 50)
    assert kinds(discover([Place(tmp_path, "inline")])) == ["cut_short"]


@pytest.mark.requirement("skill.scan.bounds")
def test_links_in_a_circle_end(tmp_path: Path) -> None:
    write_skill(tmp_path / "a", "found")
    (tmp_path / "a/up").symlink_to(tmp_path)
    (tmp_path / "a/self").symlink_to("self")
    (tmp_path / "b").symlink_to("a")
    found = discover([Place(tmp_path, "inline")])
    assert names(found) == ["found"] and kinds(found) == []


def test_a_link_to_a_skill_is_that_skill(tmp_path: Path) -> None:
    real = write_skill(tmp_path / "elsewhere", "pdf")
    (tmp_path / "skills").mkdir()
    (tmp_path / "skills/pdf").symlink_to(real)
    found = discover([Place(tmp_path / "skills", "user")])
    assert found.skills[0].directory == str(real) and kinds(found) == []


def test_things_that_are_not_files_are_left_out(tmp_path: Path) -> None:
    for name in ("fifo", "directory", "dangling", "outside"):
        (tmp_path / name).mkdir()
    os.mkfifo(tmp_path / "fifo/SKILL.md")
    (tmp_path / "directory/SKILL.md").mkdir()
    (tmp_path / "dangling/SKILL.md").symlink_to("nothing")
    (tmp_path / "outside/SKILL.md").symlink_to(write_skill(tmp_path, "real") / "SKILL.md")
    found = discover([Place(tmp_path, "inline")])
    assert names(found) == ["real"] and kinds(found) == ["left_out"] * 4


def test_names_that_no_file_system_should_have_do_no_harm(tmp_path: Path) -> None:
    for name in (b"bad\xff", b"new\nline", b"tab\there"):
        directory = os.fsencode(tmp_path) + b"/" + name
        os.mkdir(directory)
        with open(directory + b"/SKILL.md", "w") as file:
            file.write("---\ndescription: d\n---\n")
    found = discover([Place(tmp_path, "inline")])
    assert names(found) == [] and kinds(found) == ["left_out"] * 3
    assert all(str(one).isprintable() for one in found.diagnostics)


def test_file_that_is_not_utf_8_throughout_loads_with_warning(tmp_path: Path) -> None:
    directory = write_skill(tmp_path, "pdf")
    with open(directory / "SKILL.md", "ab") as file:
        file.write(b"caf\xe9")
    found = discover([Place(tmp_path, "inline")])
    assert found.skills[0].body.endswith("caf\ufffd") and kinds(found) == ["warning"]


@pytest.mark.requirement("skill.scan.precedence")
def test_inline_wins_over_project_over_user_over_builtin(tmp_path: Path) -> None:
    places = [Place(tmp_path / name, name) for name in ("builtin", "user", "project")]
    for place in places:
        write_skill(place.path, "pdf", description=place.source)
    written = Skill(name="pdf", description="inline", body="b")
    found = discover(places, inline=[written])
    assert [skill.source for skill in found.skills] == ["inline"]
    assert kinds(found) == ["shadowed"] * 3
    assert sorted(Path(one.path).parent.name for one in found.diagnostics) == ["builtin", "project", "user"]
    assert [skill.description for skill in discover(places).skills] == ["project"]
    assert [skill.description for skill in discover(places[:2]).skills] == ["user"]


@pytest.mark.requirement("skill.scan.precedence")
def test_within_a_scope_the_first_in_scan_order_wins(tmp_path: Path) -> None:
    for place, description in (("z/deep/pdf", "deep"), ("b/pdf", "b"), ("B/pdf", "B"), ("a-z/pdf", "a")):
        write_skill((tmp_path / place).parent, "pdf", description=description)
    found = discover([Place(tmp_path, "inline")])
    assert [skill.description for skill in found.skills] == ["B"]
    project = tmp_path / "project"
    write_skill(project / ".agents/skills", "pdf", description="agents")
    write_skill(project / ".weftline/skills/below", "pdf", description="weftline")
    assert [skill.description for skill in search(project, None).skills] == ["weftline"]


@pytest.mark.requirement("skill.scan.trust")
async def test_untrusted_projects_skills_are_left_out_and_users_used_instead(tmp_path: Path) -> None:
    project, home = tmp_path / "project", tmp_path / "home"
    marker = tmp_path / "ran"
    write_skill(project / ".agents/skills", "pdf", description="evil", body=f"!`touch {marker}`")
    write_skill(project / ".agents/skills", "only", body=f"!`touch {marker}`")
    write_skill(home / ".agents/skills", "pdf", description="mine")
    found = skills(project=project, home=home, trust_project=False)
    run = await SkillRun.of(found)
    assert found.catalog.names == ("pdf",) and "mine" in found.instructions
    assert "evil" not in found.instructions + await run.text("skills_use", name="pdf")
    with pytest.raises(UnknownSkill):
        await found.activate("only")
    assert not marker.exists()


@pytest.mark.requirement("skill.scan.trust")
async def test_an_untrusted_projects_only_skill_brings_no_tools(tmp_path: Path) -> None:
    write_skill(tmp_path / ".agents/skills", "pdf")
    found = skills(project=tmp_path, trust_project=False)
    assert await found.open() == () and found.instructions == ""


async def test_unless_said_otherwise_a_projects_skills_run_nothing(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    script = f"#!/bin/sh\ntouch {marker}\n"
    write_skill(tmp_path / ".agents/skills", "pdf", body=f"!`touch {marker}` `x`", files={"run.sh": script})
    run = await SkillRun.of(skills(project=tmp_path))
    assert f"!`touch {marker}` `x`" in await run.text("skills_use", name="pdf")
    assert "not trusted" in await run.error("skills_run_script", name="pdf", script="run.sh")
    assert not marker.exists()
    trusting = await SkillRun.of(skills(project=tmp_path, trust_project=True))
    await trusting.text("skills_use", name="pdf")
    assert marker.exists()


def test_untrusted_project_cannot_lead_the_search_out(tmp_path: Path) -> None:
    project = tmp_path / "project"
    write_skill(tmp_path / "outside", "secret")
    inside = write_skill(project / "shared", "pdf")
    (project / ".agents/skills").mkdir(parents=True)
    (project / ".agents/skills/out").symlink_to(tmp_path / "outside")
    (project / ".agents/skills/pdf").symlink_to(inside)
    found = search(project, None, trust=None)
    assert names(found) == ["pdf"] and kinds(found) == ["untrusted"]
    assert names(search(project, None, trust=True)) == ["pdf", "secret"]


def test_who_works_at_home_still_owns_the_skills_there(tmp_path: Path) -> None:
    write_skill(tmp_path / ".agents/skills", "pdf")
    (found,) = search(tmp_path, tmp_path, trust=None).skills
    assert found.source == "user" and found.trusted


def test_disabled_names_hide_every_skill_of_that_name(tmp_path: Path) -> None:
    write_skill(tmp_path / "a", "pdf")
    write_skill(tmp_path / "b", "pdf")
    found = discover([Place(tmp_path / "a", "project"), Place(tmp_path / "b", "user")], disabled=["pdf", "ghost"])
    assert names(found) == [] and kinds(found) == ["shadowed", "missing"]
