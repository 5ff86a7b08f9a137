from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.file_tools.kit import file_kit
from weftline.tools.base import ToolFailed
from weftline.tools.builtin.reading import Slice, is_binary, page, whole_characters, whole_tail

GO_ON = re.compile(r"re-read with offset=(\d+)\.\]$")


@pytest.mark.requirement("tool.read_file.paging", "tool.read_file.line_numbers")
@given(
    lines=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=8), min_size=1, max_size=30),
    limit=st.integers(0, 5),
    max_bytes=st.sampled_from([0, 40, 200]),
    newline=st.booleans(),
)
def test_following_the_footers_gives_every_line_once(
    lines: list[str], limit: int, max_bytes: int, newline: bool
) -> None:
    if not newline and lines[-1] == "":
        lines[-1] = "x"
    data = ("\n".join(lines) + ("\n" if newline else "")).encode()
    read: list[str] = []
    offset: int | None = 1
    while offset is not None:
        text = page(data, Slice(offset, limit, max_bytes), path="f", numbered=True).text
        found = GO_ON.search(text)
        body = text[: text.rindex("\n[")] if found else text
        numbered = body.split("\n")
        assert [line.split("\t", 1)[0] for line in numbered] == [str(offset + i) for i in range(len(numbered))]
        read += [line.split("\t", 1)[1] for line in numbered]
        assert not limit or len(numbered) <= limit
        offset = int(found[1]) if found else None
    assert read == lines


@pytest.mark.requirement("tool.read_file.paging", "tool.read_file.max_bytes")
async def test_a_long_file_comes_in_pages(tmp_path: Path) -> None:
    (tmp_path / "long").write_text("".join(f"line {number}\n" for number in range(1, 4501)))
    kit = file_kit(tmp_path)
    first = await kit.ok("read_file", path="long")
    assert first.startswith("1\tline 1\n2\tline 2\n")
    assert first.endswith("2000\tline 2000\n[Lines 1 to 2000 of 4500. To continue, re-read with offset=2001.]")
    last = await kit.ok("read_file", path="long", offset=4001)
    assert last.startswith("4001\tline 4001\n") and last.endswith("4500\tline 4500")
    assert len((await kit.ok("read_file", path="long", limit=0)).split("\n")) == 4500
    (tmp_path / "wide").write_text("x" * 1000 + "\n" + ("y" * 999 + "\n") * 400)
    assert "[Lines 1 to 262 of 401. To continue, re-read with offset=263.]" in await kit.ok("read_file", path="wide")
    assert len(await kit.ok("read_file", path="wide", max_bytes=0)) > 400_000


@pytest.mark.requirement("tool.read_file.max_bytes")
@given(text=st.text(st.characters(codec="utf-8", exclude_characters="\n"), min_size=20), max_bytes=st.integers(1, 19))
def test_a_line_that_is_too_long_is_cut_between_characters(text: str, max_bytes: int) -> None:
    shown = page(text.encode(), Slice(1, 0, max_bytes), path="f", numbered=False).text
    body, _, footer = shown.rpartition("\n[")
    assert text.startswith(body)
    assert len(body.encode()) <= max_bytes < len(body.encode()) + 4
    assert "re-read with offset=1, limit=1 and max_bytes=0" in footer


@given(text=st.text(), cut=st.integers(0, 40))
def test_no_cut_goes_through_a_character(text: str, cut: int) -> None:
    data = text.encode()
    assert data.startswith(whole_characters(data[:cut])) and text.startswith(whole_characters(data[:cut]).decode())
    assert text.endswith(whole_tail(data[cut:]).decode())


@pytest.mark.requirement("tool.read_file.binary")
async def test_binary_files_are_named_and_not_shown(tmp_path: Path) -> None:
    (tmp_path / "nul").write_bytes(b"text\0text")
    (tmp_path / "image").write_bytes(bytes(range(128, 256)) * 10)
    (tmp_path / "latin").write_bytes("Der Hahn kr\u00e4ht fr\u00fch am Morgen.".encode("latin-1"))
    kit = file_kit(tmp_path)
    assert await kit.ok("read_file", path="nul") == "[nul is a binary file (9 bytes), which cannot be shown as text.]"
    assert "binary" in await kit.ok("read_file", path="image")
    assert await kit.ok("read_file", path="latin") == "1\tDer Hahn kr\ufffdht fr\ufffdh am Morgen."
    assert not is_binary("\ufffd\ufffd\ufffd".encode())


@pytest.mark.requirement("tool.read_file.line_numbers")
async def test_without_line_numbers_the_text_is_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"a\r\n\tb\n")
    kit = file_kit(tmp_path, line_numbers=False)
    assert await kit.ok("read_file", path="f") == "a\r\n\tb\n"
    assert await kit.ok("read_file", path="f", offset=2) == "\tb\n"


@pytest.mark.requirement("tool.read_file.failures")
async def test_unreadable_file_is_an_error_that_says_why(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "d").mkdir()
    (tmp_path / "two").write_text("1\n2\n")
    kit = file_kit(tmp_path)
    assert await kit.refused("read_file", path="none") == "none: There is no such file or directory."
    assert await kit.refused("read_file", path="d") == "d: It is a directory, not a file."
    assert await kit.refused("read_file", path="two/x") == "two/x: A part of the path is a file, not a directory."
    assert await kit.refused("read_file", path="two", offset=3) == "two has 2 lines, so there is no line 3."
    assert "1 or more" in await kit.refused("read_file", path="two", offset=0)
    assert await kit.refused("read_file", path="two", limit=-1) == "limit must be 0 or more."
    assert await kit.ok("read_file", path="empty") == "(The file is empty.)"
    assert await kit.ok("read_file", path="empty") == "(The file is empty.)"


@pytest.mark.requirement("loop.dedup.reads")
async def test_reading_the_same_again_gives_a_note_until_something_changes(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("one\ntwo\n")
    (tmp_path / "link").symlink_to("f")
    kit = file_kit(tmp_path)
    whole = await kit.ok("read_file", path="f")
    assert (await kit.ok("read_file", path="./link")).startswith(
        "[./link has not changed since you last read lines 1 to 2"
    )
    assert await kit.ok("read_file", path="f", limit=1) != whole
    assert await kit.ok("read_file", path="f") == whole
    (tmp_path / "f").write_text("one\nthree\n")
    assert "three" in await kit.ok("read_file", path="f")
    await kit.ok("edit", path="f", old_string="three", new_string="four")
    assert "four" in await kit.ok("read_file", path="f")
    assert set(kit.state) == {"read:f"}
    eager = file_kit(tmp_path, dedup_reads=False)
    assert await eager.ok("read_file", path="f") == await eager.ok("read_file", path="f")


async def test_of_a_huge_file_only_the_beginning_is_read(tmp_path: Path) -> None:
    with (tmp_path / "huge").open("wb") as file:
        file.write(b"first line\n")
        file.truncate(1 << 40)
    kit = file_kit(tmp_path)
    assert "binary" in await kit.ok("read_file", path="huge")
    assert "too large" in await kit.refused("edit", path="huge", old_string="first", new_string="x")
    part = page(b"a\nb", Slice(), path="f", numbered=False, complete=False)
    assert part.text == "a\nb\n[The file is larger than 3 bytes; what follows cannot be read with this tool.]"


def test_a_page_past_the_end_is_refused() -> None:
    with pytest.raises(ToolFailed):
        page(b"a", Slice(2), path="f", numbered=False)
