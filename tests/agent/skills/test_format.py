"""A SKILL.md, read leniently and checked strictly."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weftline.agent.skills.discovery import Place, discover
from weftline.agent.skills.format import Skill, Unreadable, faults, parse, split_entries, validate

from .house import write_skill

WHOLE = """---
name: pdf-forms
description: Fills forms. Use for PDF files.
license: Apache-2.0
compatibility: Needs poppler
metadata:
  author: somebody
  version: 1.10
allowed-tools: Read Bash(git add:*)
---

# Forms

Fill them.
"""


def fault_paths(text: str, *, directory_name: str = "pdf") -> list[str]:
    return [fault.path for fault in faults(text, directory_name=directory_name)]


def with_fields(*lines: str) -> str:
    return "\n".join(["---", *lines, "---", "Body"])


@pytest.mark.requirement("skill.format.parse")
def test_a_skill_has_its_fields_and_a_body_without_them() -> None:
    skill, warnings = parse(WHOLE, directory_name="pdf-forms")
    assert skill == Skill(
        name="pdf-forms",
        description="Fills forms. Use for PDF files.",
        license="Apache-2.0",
        compatibility="Needs poppler",
        metadata={"author": "somebody", "version": "1.10"},
        allowed_tools=("Read", "Bash(git add:*)"),
        body="# Forms\n\nFill them.",
    )
    assert warnings == ()


@pytest.mark.requirement("skill.format.parse")
@pytest.mark.parametrize("file", ["SKILL.md", "skill.md"])
def test_a_directory_with_either_file_is_a_skill(tmp_path: Path, file: str) -> None:
    (tmp_path / "pdf-forms").mkdir()
    (tmp_path / "pdf-forms" / file).write_text(WHOLE)
    found = discover([Place(tmp_path, "inline")])
    assert [skill.name for skill in found.skills] == ["pdf-forms"] and found.diagnostics == ()
    assert found.skills[0].directory == str(tmp_path / "pdf-forms")
    assert validate(tmp_path / "pdf-forms") == []


def test_a_file_written_on_windows_is_the_same() -> None:
    text = "\ufeff" + WHOLE.replace("\n", "\r\n")
    assert parse(text, directory_name="pdf-forms") == parse(WHOLE, directory_name="pdf-forms")


def test_line_of_dashes_in_body_belongs_to_body() -> None:
    assert parse(WHOLE + "\n---\nMore", directory_name="pdf-forms").skill.body.endswith("\n---\nMore")


@pytest.mark.requirement("skill.format.validate")
def test_every_fault_is_reported_at_once() -> None:
    text = with_fields(
        "name: -My--Skill-",
        "description: ''",
        f"compatibility: {'x' * 501}",
        "metadata: [a]",
        "license: {a: b}",
        "allowed-tools: [Read]",
        "colour: blue",
        "version: 1",
    )
    assert fault_paths(text) == [
        *["name"] * 3,
        *["description", "compatibility", "license", "allowed-tools", "metadata", "colour", "version"],
    ]


@pytest.mark.requirement("skill.format.validate")
@pytest.mark.parametrize(
    ("name", "directory", "good"),
    [
        ("pdf", "pdf", True),
        ("pdf2-forms", "pdf2-forms", True),
        ("größe", "größe", True),
        ("gro\u0308ße", "größe", True),
        ("数据", "数据", True),
        ("x" * 64, "x" * 64, True),
        ("x" * 65, "x" * 65, False),
        ("Pdf", "Pdf", False),
        ("ÜBER", "ÜBER", False),
        ("pdf_forms", "pdf_forms", False),
        ("pdf forms", "pdf forms", False),
        ("-pdf", "-pdf", False),
        ("pdf-", "pdf-", False),
        ("pdf--forms", "pdf--forms", False),
        ("pdf", "docx", False),
        ("''", "pdf", False),
    ],
)
def test_names(name: str, directory: str, good: bool) -> None:
    assert (fault_paths(with_fields(f"name: {name}", "description: d"), directory_name=directory) == []) == good


@pytest.mark.requirement("skill.format.validate")
@pytest.mark.parametrize(
    ("fields", "paths"),
    [
        (("name: pdf",), ["description"]),
        (("description: d",), ["name"]),
        (("name: pdf", f"description: {'x' * 1024}"), []),
        (("name: pdf", f"description: {'x' * 1025}"), ["description"]),
        (("name: pdf", "description: d", "compatibility: ''"), ["compatibility"]),
        (("name: pdf", "description: d", f"compatibility: {'x' * 500}"), []),
        (("name: pdf", "description: d", "metadata: {a: b}"), []),
        (("name: pdf", "description: d", "metadata: {a: {b: c}}"), ["metadata.a"]),
        (("name: pdf", "name: pdf", "description: d"), ["name"]),
        (("name: pdf", "description: a: b"), [""]),
        (("just words",), [""]),
    ],
)
def test_fields(fields: tuple[str, ...], paths: list[str]) -> None:
    assert fault_paths(with_fields(*fields)) == paths


@pytest.mark.requirement("skill.format.validate")
def test_a_directory_without_a_readable_skill_has_one_fault(tmp_path: Path) -> None:
    assert len(validate(tmp_path)) == 1
    (tmp_path / "SKILL.md").write_bytes(b"\xff\xfe")
    assert len(validate(tmp_path)) == 1
    (tmp_path / "SKILL.md").write_text("x" * 300_000)
    assert len(validate(tmp_path)) == 1


@pytest.mark.requirement("skill.format.lenient")
@pytest.mark.parametrize(
    ("line", "description"),
    [
        ("description: Use when: the user asks", "Use when: the user asks"),
        ("description: Reads `a: b` and it's 'fine': yes", "Reads `a: b` and it's 'fine': yes"),
        ("description: [PDF] reader: fast", "[PDF] reader: fast"),
        ("description: *bold* words", "*bold* words"),
        ("description: `code` first", "`code` first"),
        ('description: "Say "hello" first"', 'Say "hello" first'),
        ("description: First line\n  and: the second", "First line and: the second"),
        ("description: |\n  Two: lines\n  of: text", "Two: lines\nof: text"),
        ("description: d\nargument-hint: [file] [page]", "d"),
        ("description: d\nmetadata:\n  when: a: b", "d"),
    ],
)
def test_values_that_yaml_wants_quoted_are_read_anyway(line: str, description: str) -> None:
    assert parse(with_fields("name: pdf", line), directory_name="pdf").skill.description == description


@pytest.mark.requirement("skill.format.lenient")
@pytest.mark.parametrize(
    ("fields", "name"),
    [
        (("name: other", "description: d"), "other"),
        (("name: " + "x" * 80, "description: d"), "x" * 80),
        (("name: " + "x" * 300, "description: d"), "pdf"),
        (("name: My Skill!", "description: d"), "My Skill!"),
        (("description: d",), "pdf"),
        (('name: "a\\nb"', "description: d"), "pdf"),
        (("name: pdf", "description: " + "d" * 2000), "pdf"),
        (("name: wrong", "name: pdf", "description: d"), "pdf"),
    ],
)
def test_slightly_wrong_skill_loads_with_a_warning(fields: tuple[str, ...], name: str) -> None:
    skill, warnings = parse(with_fields(*fields), directory_name="pdf")
    assert skill.name == name and len(warnings) == 1


@pytest.mark.requirement("skill.format.lenient")
@pytest.mark.parametrize(
    "text",
    [
        with_fields("name: pdf"),
        with_fields("name: pdf", "description: '  '"),
        with_fields("name: pdf", "description:"),
        with_fields("- a", "- b"),
        with_fields(),
        "# No frontmatter",
        "---\nname: pdf\ndescription: d\n",
        "",
        "---\nname: pdf\n\tdescription: d\n---",
        with_fields("name: pdf", "description: d", "\x07"),
    ],
)
def test_unreadable_item_is_omitted_and_hides_no_other(tmp_path: Path, text: str) -> None:
    (tmp_path / "pdf").mkdir()
    (tmp_path / "pdf" / "SKILL.md").write_text(text)
    write_skill(tmp_path, "good")
    found = discover([Place(tmp_path, "inline")])
    assert [skill.name for skill in found.skills] == ["good"]
    assert [one.kind for one in found.diagnostics] == ["left_out"]


@pytest.mark.parametrize(
    "frontmatter",
    [
        "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nd: [*c, *c]",
        "[" * 16_000,
        "{a: " * 4_000,
        "- " * 8_000,
        "? " * 8_000,
        "a: '" + "x" * 20_000 + "'",
        "? [a, b]\n: c",
        "a" + " " * 15_000 + "\nb: c: d\n\t",
        "a: x" + " " * 15_000 + "x: y\n\t",
    ],
)
def test_hostile_yaml_is_refused_without_much_work(frontmatter: str) -> None:
    with pytest.raises(Unreadable):
        parse(f"---\n{frontmatter}\n---\n", directory_name="pdf")


def test_yaml_tags_make_no_objects() -> None:
    skill = parse(with_fields("name: pdf", "description: !!python/object/apply:os.system [ls]"), directory_name="pdf")
    assert skill.skill.description == '["ls"]'


@given(st.text(max_size=200))
def test_no_text_breaks_the_parser(text: str) -> None:
    for whole in (text, f"---\n{text}\n---\n", f"---\nname: a\ndescription: {text}\n---\n"):
        faults(whole, directory_name="a")
        try:
            skill = parse(whole, directory_name="a").skill
        except Unreadable:
            continue
        assert skill.name.isprintable() and skill.description.strip()
        skill.description.encode()


@given(st.text(st.characters(min_codepoint=32, exclude_categories=["C", "Z"]), min_size=1).filter(str.strip))
def test_a_description_on_one_line_always_loads(words: str) -> None:
    skill = parse(f"---\nname: a\ndescription: Use when: {words}\n---\n", directory_name="a").skill
    assert skill.description.startswith("Use when:")


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("Read Write", ("Read", "Write")),
        ("Read, Write,Edit", ("Read", "Write", "Edit")),
        ("Bash(git add:*) Read", ("Bash(git add:*)", "Read")),
        ("Bash(git add:*, git commit:*)", ("Bash(git add:*, git commit:*)",)),
        ("Bash(git", ("Bash(git",)),
        ("  ", ()),
    ],
)
def test_the_entries_of_allowed_tools(text: str, entries: tuple[str, ...]) -> None:
    assert split_entries(text) == entries


@pytest.mark.parametrize(
    ("line", "entries"),
    [
        ("license: MIT", None),
        ("allowed-tools:", None),
        ("allowed-tools: []", ()),
        ("allowed-tools: {a: b}", ()),
        ("allowed-tools: [Read, Bash(git:*)]", ("Read", "Bash(git:*)")),
        ("allowed-tools:\n  - Read\n  - Write", ("Read", "Write")),
    ],
)
def test_declarations_of_allowed_tools_are_recognized(line: str, entries: tuple[str, ...] | None) -> None:
    skill = parse(with_fields("name: pdf", "description: d", line), directory_name="pdf").skill
    assert skill.allowed_tools == entries
