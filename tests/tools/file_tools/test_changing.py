from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.file_tools.kit import file_kit
from weftline.tools.base import Happened, Unknown, WillNotHappen
from weftline.tools.builtin.editing import Edit, EditRefused, all_applied, replaced
from weftline.tools.builtin.files import WriteFile
from weftline.tools.builtin.reading import fingerprint

CODE = "def f():\n    return 1\n\ndef g():\n    return 1\n"


@pytest.mark.requirement("tool.write_file.verdict")
async def test_a_write_tells_what_it_did(tmp_path: Path) -> None:
    kit = file_kit(tmp_path)
    assert await kit.ok("write_file", path="a/b/c.txt", content="é\n") == "Created a/b/c.txt (1 line, 3 bytes)."
    written = tmp_path / "a" / "b" / "c.txt"
    os.utime(written, (1, 1))
    assert (await kit.ok("write_file", path="a/b/c.txt", content="é\n")).startswith("No change needed: ")
    assert written.stat().st_mtime == 1
    written.chmod(0o750)
    assert await kit.ok("write_file", path="a/b/c.txt", content="") == "Updated a/b/c.txt (0 lines, 0 bytes)."
    assert (written.read_bytes(), written.stat().st_mode & 0o777) == (b"", 0o750)
    assert "directory" in await kit.refused("write_file", path="a/b", content="")
    assert os.listdir(written.parent) == ["c.txt"]


@pytest.mark.requirement("tool.write_file.prior_content")
async def test_replaced_content_can_be_seen_before_a_write(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("before")
    (tmp_path / "binary").write_bytes(b"\0")
    kit = file_kit(tmp_path)
    write = kit.tools["write_file"]
    assert isinstance(write, WriteFile)
    seen = [
        await write.prior_content(await kit.final("write_file", {"path": path, "content": "after"}))
        for path in ("f", "none", "binary", "../x", ".")
    ]
    assert seen == ["before", None, None, None, None]


@pytest.mark.requirement("tool.edit.unique")
async def test_an_edit_needs_one_place_or_leave_to_change_all(tmp_path: Path) -> None:
    file = tmp_path / "f.py"
    file.write_text(CODE)
    kit = file_kit(tmp_path)
    assert "occurs 2 times" in await kit.refused("edit", path="f.py", old_string="return 1", new_string="x")
    assert file.read_text() == CODE
    assert await kit.ok("edit", path="f.py", old_string="def g", new_string="def h") == "Edited f.py: 1 replacement."
    args = {"path": "f.py", "old_string": "return 1", "new_string": "return 2", "replace_all": True}
    assert await kit.ok("edit", **args) == "Edited f.py: 2 replacements."
    assert file.read_text() == CODE.replace("g()", "h()").replace("1", "2")
    assert "the same" in await kit.refused("edit", path="f.py", old_string="f", new_string="f")
    assert "write_file" in await kit.refused("edit", path="f.py", old_string="", new_string="f")
    assert "no such file" in await kit.refused("edit", path="none", old_string="a", new_string="f")


async def test_bytes_that_are_not_text_survive_an_edit(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"\xff\xfe old \x80\r\n")
    await file_kit(tmp_path).ok("edit", path="f", old_string="old", new_string="new")
    assert file.read_bytes() == b"\xff\xfe new \x80\r\n"


@pytest.mark.requirement("tool.edit.line_prefix")
async def test_text_pasted_with_line_numbers_is_found_without_them(tmp_path: Path) -> None:
    file = tmp_path / "f.py"
    file.write_text(CODE)
    kit = file_kit(tmp_path)
    shown = (await kit.ok("read_file", path="f.py")).split("\n")
    new = "4\tdef g():\n    pass\n5\t    return 1"
    await kit.ok("edit", path="f.py", old_string="\n".join(shown[3:5]), new_string=new)
    assert file.read_text() == "def f():\n    return 1\n\ndef g():\n    pass\n    return 1\n"


@pytest.mark.requirement("tool.edit.line_prefix")
async def test_line_that_begins_with_a_number_is_found(tmp_path: Path) -> None:
    file = tmp_path / "f.tsv"
    file.write_text("12\tfoo\nfoo\n")
    await file_kit(tmp_path).ok("edit", path="f.tsv", old_string="12\tfoo", new_string="13\tbar")
    assert file.read_text() == "13\tbar\nfoo\n"
    await file_kit(tmp_path).ok("edit", path="f.tsv", old_string="1\t13\tbar", new_string="1\t14\tbar")
    assert file.read_text() == "14\tbar\nfoo\n"


@pytest.mark.requirement("tool.edit.nearest")
async def test_text_that_is_not_there_is_answered_with_nearest_place(tmp_path: Path) -> None:
    file = tmp_path / "f.py"
    file.write_text(CODE)
    kit = file_kit(tmp_path)
    refusal = await kit.refused("edit", path="f.py", old_string="def  g() :\n  return 1", new_string="x")
    assert refusal.startswith("f.py was not changed: old_string is not in the file.")
    assert refusal.endswith("The nearest place in it:\n4\tdef g():\n5\t    return 1")
    assert "nearest" not in await kit.refused("edit", path="f.py", old_string="§§§§§§", new_string="x")
    assert file.read_text() == CODE


async def test_line_breaks_of_file_are_not_models_business(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"one\r\ntwo\r\nthree\r\n")
    await file_kit(tmp_path).ok("edit", path="f", old_string="one\ntwo", new_string="1\n2\n2a")
    assert file.read_bytes() == b"1\r\n2\r\n2a\r\nthree\r\n"


@pytest.mark.requirement("loop.dedup.read_before_edit")
async def test_unread_or_changed_file_is_not_edited(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("a b")
    kit = file_kit(tmp_path, require_read_before_edit=True)
    args = {"path": "f", "old_string": "a", "new_string": "c"}
    edits = {"path": "f", "edits": [{"old_string": "a", "new_string": "c"}]}
    assert "read it with read_file before" in await kit.refused("edit", **args)
    assert "read it with read_file before" in await kit.refused("multi_edit", **edits)
    await kit.ok("read_file", path="f")
    file.write_text("a b!")
    assert "has changed since you last read it" in await kit.refused("edit", **args)
    await kit.ok("read_file", path="f")
    await kit.ok("edit", **args)
    await kit.ok("edit", path="f", old_string="b", new_string="d")
    await kit.ok("write_file", path="new", content="a")
    await kit.ok("edit", path="new", old_string="a", new_string="b")
    assert file.read_text() == "c d!"


@pytest.mark.requirement("tool.multi_edit.atomic")
async def test_several_edits_are_made_in_order_all_or_none(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("one two")
    kit = file_kit(tmp_path)
    good = [{"old_string": "one", "new_string": "1"}, {"old_string": "1 two", "new_string": "1 2 2"}]
    bad = [*good, {"old_string": "none", "new_string": "x"}]
    refusal = await kit.refused("multi_edit", path="f", edits=bad)
    assert refusal.startswith("f was not changed, because edit #3 cannot be applied: old_string is not in the file.")
    assert file.read_text() == "one two"
    assert await kit.refused("multi_edit", path="f", edits=[]) == "There are no edits. Give at least one."
    more = [*good, {"old_string": "2", "new_string": "3", "replace_all": True}]
    assert await kit.ok("multi_edit", path="f", edits=more) == "Edited f: applied 3 edits (4 replacements)."
    assert file.read_text() == "1 3 3"


TEXTS = st.text("ab\n", max_size=6)
EDITS = st.lists(st.builds(Edit, st.text("ab\n", min_size=1, max_size=2), TEXTS, st.booleans()), min_size=1, max_size=3)


@pytest.mark.requirement("tool.effect.declared")
@given(text=TEXTS, edits=EDITS, crlf=st.booleans(), known=st.booleans())
def test_no_edit_is_taken_for_made_or_made_twice(text: str, edits: list[Edit], crlf: bool, known: bool) -> None:
    before = text.replace("\n", "\r\n" if crlf else "\n").encode()
    try:
        after, _ = all_applied(before, edits)
    except EditRefused:
        return
    if after == before:
        return
    fingerprint_known = fingerprint(before) if known else None
    assert not replaced(before, edits, fingerprint_known)
    told = replaced(after, edits, fingerprint_known)
    assert told is None or told > 0


ADD = {"path": "f", "old_string": "a = 1", "new_string": "a = 1\nb = 2"}
"""After it, what it replaced is still there."""


@pytest.mark.requirement("tool.effect.declared")
async def test_edit_that_was_cut_off_is_told_from_file(tmp_path: Path) -> None:
    file = tmp_path / "f"
    kit = file_kit(tmp_path)
    change = {"path": "f", "old_string": "one", "new_string": "two"}
    file.write_text("x one y")
    assert await kit.reconcile("edit", **change) == WillNotHappen()
    file.write_text("x two y")
    assert await kit.reconcile("edit", **change) == Happened("Edited f: 1 replacement.")
    everywhere = {"path": "f", "old_string": "a", "new_string": "b", "replace_all": True}
    file.write_text("b b")
    assert await kit.reconcile("edit", **everywhere) == Happened("Edited f: 2 replacements.")
    file.write_text("neither")
    assert await kit.reconcile("edit", **change) == WillNotHappen()
    file.write_text("one two")  # had it been made, there would have been two places before
    assert await kit.reconcile("edit", **change) == WillNotHappen()
    file.write_text("a = 1\nb = 2\n")  # before it, or after it: nobody can tell
    assert await kit.reconcile("edit", **ADD) == Unknown()
    file.unlink()
    assert await kit.reconcile("edit", **change) == WillNotHappen()


@pytest.mark.requirement("tool.effect.declared")
async def test_earlier_read_tells_whether_an_edit_took_place(tmp_path: Path) -> None:
    file = tmp_path / "f"
    for text in ("a = 1\n", "a = 1\nb = 2\n"):
        file.write_text(text)
        kit = file_kit(tmp_path)
        await kit.ok("read_file", path="f")
        assert await kit.reconcile("edit", **ADD) == WillNotHappen()
        remembered = dict(kit.state)
        await kit.ok("edit", **ADD)
        kit.state = remembered  # as after a crash: the result was never stored
        assert isinstance(await kit.reconcile("edit", **ADD), Happened)
    remove = {"path": "f", "old_string": "a = 1\n", "new_string": ""}
    file.write_text("a = 1\nc = 3\n")
    kit = file_kit(tmp_path)
    await kit.ok("read_file", path="f")
    assert await kit.reconcile("edit", **remove) == WillNotHappen()
    file.write_text("c = 3\n")
    assert await kit.reconcile("edit", **remove) == Unknown()


@pytest.mark.requirement("tool.effect.declared")
async def test_several_edits_that_were_cut_off_are_told_from_file(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("one two three")
    kit = file_kit(tmp_path)
    edits = [{"old_string": "one", "new_string": "1"}, {"old_string": "1 two", "new_string": "1 2"}]
    assert await kit.reconcile("multi_edit", path="f", edits=edits) == WillNotHappen()
    await kit.ok("multi_edit", path="f", edits=edits)
    kit.state.clear()
    happened = await kit.reconcile("multi_edit", path="f", edits=edits)
    assert happened == Happened("Edited f: applied 2 edits (2 replacements).")
