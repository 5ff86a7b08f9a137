from __future__ import annotations

import asyncio
import os
import re
import shutil
from pathlib import Path

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.file_tools.kit import file_kit
from weftline.tools.base import ToolFailed
from weftline.tools.builtin import searching
from weftline.tools.builtin.reading import display_path, parse_path
from weftline.tools.builtin.searching import BadGlob, Glob, Matcher, for_ripgrep
from weftline.work.processes import Workers

NEEDS_RIPGREP = pytest.mark.skipif(shutil.which("rg") is None, reason="needs the program rg (ripgrep)")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in {
        "a.py": "import os\nprint(1)\n",
        "a-b/x.py": "print(2)\r\nprint(3)\r\n",
        "a/deep/er/y.py": "print(4)\n",
        "a/z.txt": "print(5)",
        "node_modules/m.py": "print(6)\n",
        ".git/config": "print(7)\n",
        ".hidden.py": "print(8)\n",
        "latin.txt": "",
        "binary": "print(9)\0",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(text.encode())
    (tmp_path / "latin.txt").write_bytes(b"print(\xe9)\n")
    (tmp_path / "link").symlink_to("/etc")
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


FOUND = [
    ".hidden.py:1:print(8)",
    "a/deep/er/y.py:1:print(4)",
    "a/z.txt:1:print(5)",
    "a-b/x.py:1:print(2)",
    "a-b/x.py:2:print(3)",
    "a.py:2:print(1)",
    "latin.txt:1:print(\ufffd)",
]


@pytest.mark.requirement("tool.grep.search")
@pytest.mark.parametrize("ripgrep", [False, pytest.param(True, marks=NEEDS_RIPGREP)])
async def test_grep_finds_lines_in_the_order_of_paths(tree: Path, ripgrep: bool) -> None:
    kit = file_kit(tree, ripgrep=ripgrep)
    assert (await kit.ok("grep", pattern=r"print\(.\)$")).split("\n") == FOUND
    assert await kit.ok("grep", pattern="PRINT", ignore_case=True, path="a", glob="*.py") == "a/deep/er/y.py:1:print(4)"
    assert await kit.ok("grep", pattern="^import", path="a.py") == "a.py:1:import os"
    assert await kit.ok("grep", pattern="print", glob="a-b/**") == "\n".join(FOUND[3:5])
    assert await kit.ok("grep", pattern="print", path="node_modules") == "node_modules/m.py:1:print(6)"
    assert await kit.ok("grep", pattern="nowhere") == "Nothing matches nowhere."
    assert "outside" in await kit.refused("grep", pattern="root", path="link")
    assert "no such file" in await kit.refused("grep", pattern="root", path="none")


@pytest.mark.requirement("tool.grep.paging")
async def test_paging_through_matches_gives_each_once(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("".join(f"line {number}\n" for number in range(600)))
    kit = file_kit(tmp_path)
    first = (await kit.ok("grep", pattern="line")).split("\n")
    assert first[-1] == "[Matches 1 to 250; more remain. To continue, call again with offset=250.]"
    second = (await kit.ok("grep", pattern="line", offset=250)).split("\n")
    third = (await kit.ok("grep", pattern="line", offset=500)).split("\n")
    assert [*first[:-1], *second[:-1], *third] == [f"f:{number + 1}:line {number}" for number in range(600)]
    assert len((await kit.ok("grep", pattern="line", head_limit=0)).split("\n")) == 600
    assert len((await kit.ok("grep", pattern="line", head_limit=600)).split("\n")) == 600
    past = await kit.ok("grep", pattern="line", offset=600)
    assert past == "There is nothing at offset=600: the search found 600 matches."


async def test_long_lines_and_large_files_do_not_flood_the_answer(tmp_path: Path) -> None:
    (tmp_path / "long").write_text("x" * 100_000)
    (tmp_path / "large").write_bytes(b"x" * (9 << 20))
    found = await file_kit(tmp_path, ripgrep=False).ok("grep", pattern="x")
    assert found == "long:1:" + "x" * 500 + "…\n[Not everything was searched: 1 very large file left out.]"


@pytest.mark.parametrize("pattern", ["(", "[", "*", "a{2,1}", "(?P<n>a)(?P<n>b)", "(?u)(?a)x", "x" * 1001, "(" * 900])
async def test_a_pattern_that_is_none_is_refused(tmp_path: Path, pattern: str) -> None:
    assert "pattern" in await file_kit(tmp_path).refused("grep", pattern=pattern)


async def test_a_pattern_that_would_take_for_ever_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers(cpu_s=0.2, idle_s=0)
    monkeypatch.setattr(searching, "shared_workers", lambda: workers)
    (tmp_path / "f").write_text("a" * 60 + "!\n")
    kit = file_kit(tmp_path, ripgrep=False)
    assert "takes too long" in await kit.refused("grep", pattern=r"^(a|a)*\1?$")


@NEEDS_RIPGREP
async def test_ripgrep_needs_no_time_for_such_a_pattern(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("a" * 60 + "!\n")
    assert "Nothing" in await file_kit(tmp_path).ok("grep", pattern=r"^(a|a)*$")


PIECES = st.sampled_from(
    [
        *(
            "a",
            "B",
            "é",
            ".",
            "[a-c]",
            "[^a]",
            r"\d",
            r"\W",
            r"\s",
            r"\b",
            "^",
            "$",
            "|",
            "(?:ab|c)",
            "(x)?",
            "a*",
            "b+?",
        ),
        *(
            "k{1,2}",
            "[^\\d_]",
            r"[\w-]",
            r"\.",
            r"\x1c",
            "(?=a)",
            r"\B",
            "(?i:a)",
            "\\Z",
            "s",
            "[É-ë]",
            "{",
            "-",
            "#",
            " ",
        ),
    ]
)
PATTERNS = st.lists(PIECES, max_size=5).map("".join)
LINES = st.text(st.sampled_from("aAbBcké K\u212a\u017fsS.x_-1\x1c\t\u0661{#É\ufffd"), max_size=6)


@pytest.mark.requirement("tool.grep.search")
@given(pattern=PATTERNS, lines=st.lists(LINES, max_size=4), ignore_case=st.booleans())
def test_pattern_left_to_ripgrep_means_the_same_there(pattern: str, lines: list[str], ignore_case: bool) -> None:
    try:
        written = for_ripgrep(pattern, ignore_case=ignore_case)
    except ToolFailed:
        return
    if written is None:
        return
    expression, for_ascii_only = written
    if for_ascii_only:
        lines = [line for line in lines if line.isascii()]
    # The engine of ripgrep, which is also that of this validator.
    rust = jsonschema_rs.Draft202012Validator(
        {"pattern": expression}, pattern_options=jsonschema_rs.RegexOptions(size_limit=10_000_000)
    )
    python = re.compile(pattern, re.IGNORECASE if ignore_case else 0)
    assert [rust.is_valid(line) for line in lines] == [python.search(line) is not None for line in lines]


@NEEDS_RIPGREP
@pytest.mark.requirement("tool.grep.search")
async def test_ripgrep_finds_the_same_lines() -> None:
    text = "\n".join(
        ["print(1)", "", "é", "aé", "\u2028", "x\ry", "\x1c", "Kelvin \u212a", "tab\t", "[x]", "-e"] * 3
    ).encode()
    for pattern in (
        "",
        "^$",
        ".",
        "^.$",
        "é$",
        r"\s",
        r"\w\b",
        "k",
        "[^a-z]",
        r"\[x\]",
        "-e",
        "y$",
        "(a|é)+",
        "x{0,2}y",
    ):
        for ignore_case in (False, True):
            by_python = Matcher(pattern, ignore_case=ignore_case, ripgrep=None)
            by_ripgrep = Matcher(pattern, ignore_case=ignore_case, ripgrep=shutil.which("rg"))
            expected, found = await asyncio.gather(by_python.lines(text), by_ripgrep.lines(text))
            assert list(found) == list(expected), pattern


@pytest.mark.requirement("tool.files.list")
async def test_list_files_shows_one_directory(tree: Path) -> None:
    kit = file_kit(tree)
    listed = (await kit.ok("list_files")).split("\n")
    assert listed[:4] == [".git/", ".hidden.py", "a/", "a-b/"]
    assert listed[-3:] == ["link (link)", "node_modules/", "pipe (special)"]
    assert await kit.ok("list_files", path="a/deep/er") == "y.py"
    (tree / "empty").mkdir()
    assert await kit.ok("list_files", path="empty") == "(The directory is empty.)"
    assert "not a directory" in await kit.refused("list_files", path="a.py")
    assert "outside" in await kit.refused("list_files", path="link")


@pytest.mark.requirement("tool.files.list")
async def test_glob_finds_paths(tree: Path) -> None:
    kit = file_kit(tree)
    assert (await kit.ok("glob", pattern="**/*.py")).split("\n") == [".hidden.py", "a/deep/er/y.py", "a-b/x.py", "a.py"]
    assert await kit.ok("glob", pattern="*.{py,md}", path="a-b") == "a-b/x.py"
    assert (await kit.ok("glob", pattern="a/**")).split("\n") == ["a/deep/", "a/deep/er/", "a/deep/er/y.py", "a/z.txt"]
    assert await kit.ok("glob", pattern="*.rs") == "Nothing matches *.rs."
    assert "outside" in await kit.refused("glob", pattern="*", path="..")
    assert await kit.ok("glob", pattern="../*") == "Nothing matches ../*."
    assert "too complicated" in await kit.refused("glob", pattern="{a,b}" * 20)


async def test_long_lists_come_in_pages(tmp_path: Path) -> None:
    names = [f"{number:04}" for number in range(1100)]
    for name in names:
        (tmp_path / name).touch()
    kit = file_kit(tmp_path)
    for tool, args in (("list_files", {}), ("glob", {"pattern": "*"})):
        first = (await kit.ok(tool, **args)).split("\n")
        assert first[-1] == "[Entries 1 to 1000 of 1100. To continue, call again with offset=1000.]"
        assert [*first[:-1], *(await kit.ok(tool, **args, offset=1000)).split("\n")] == names


@pytest.mark.parametrize(
    ("pattern", "matches", "does_not"),
    [
        ("*.py", ["a.py", ".py"], ["a/b.py", "a.pyc"]),
        ("**/*.py", ["a.py", "a/b.py", "a/b/c.py"], ["a.txt"]),
        ("a/**/z", ["a/z", "a/b/z", "a/b/c/z"], ["a/b", "z"]),
        ("**", ["a", "a/b"], []),
        ("a/**", ["a/b", "a/b/c"], ["a", "b/c"]),
        ("[ab]?c", ["abc", "bxc"], ["cbc", "ac"]),
        ("{a,b/{c,d}}", ["a", "b/c", "b/d"], ["b", "c"]),
        ("./a//b/", ["a/b"], ["a"]),
        ("**/**/**/a", ["a", "x/y/a"], ["b"]),
    ],
)
def test_globs(pattern: str, matches: list[str], does_not: list[str]) -> None:
    glob = Glob(pattern)
    assert [path for path in (*matches, *does_not) if glob.matches(path)] == matches


def test_no_glob_takes_long() -> None:
    assert not Glob("*a" * 400 + "b").matches("a" * 250)
    assert not Glob("**/a/" * 150 + "b").matches("a/" * 200 + "c")
    with pytest.raises(BadGlob):
        Glob("a" * 1001)


@given(st.text() | st.binary().map(os.fsdecode))
def test_a_path_that_is_shown_is_understood(path: str) -> None:
    line = display_path(path)
    assert parse_path(line) == path
    assert len(line.splitlines()) <= 1
    line.encode()


@pytest.mark.requirement("tool.path.any_name")
@pytest.mark.parametrize("name", ["a b", "it's", '"q"', "-rf", "a\nb", "$(id)", "*", "\\x", "ü", os.fsdecode(b"\xff")])
async def test_files_of_any_name_can_be_worked_with(tmp_path: Path, name: str) -> None:
    kit = file_kit(tmp_path)
    path = display_path(name)
    await kit.ok("write_file", path=path, content="text\n")
    assert (tmp_path / name).read_text() == "text\n"
    assert await kit.ok("list_files") == path
    assert await kit.ok("glob", pattern="*") == path
    assert await kit.ok("grep", pattern="t$") == f"{path}:1:text"
    await kit.ok("edit", path=path, old_string="text", new_string="new")
    assert await kit.ok("read_file", path=path) == "1\tnew"
    assert "not changed" in await kit.ok("read_file", path=path)
