"""Files of a skill's directory and nothing beyond it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from weftline.agent.skills import confined
from weftline.agent.skills.confined import Refused, open_inside, read_inside


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory with files and links, next to one with a secret."""
    root = tmp_path / "skill"
    (root / "a/b").mkdir(parents=True)
    (root / "a/file").write_text("inside")
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "skill-2").mkdir()
    (tmp_path / "skill-2/file").write_text("secret")
    (root / "out").symlink_to("../secret")
    (root / "out-dir").symlink_to("..")
    (root / "absolute").symlink_to(tmp_path / "secret")
    (root / "to-file").symlink_to("a/b/../file")
    (root / "to-dir").symlink_to("a")
    (root / "chain").symlink_to("to-dir/file")
    (root / "chain-out").symlink_to("to-dir/../out")
    (root / "loop").symlink_to("loop")
    (root / "a/b/up").symlink_to("../..")
    return root


def content(root: Path, path: str) -> str:
    return read_inside(root, path, max_bytes=1000).content.decode()


@pytest.mark.requirement("skill.files.read")
@pytest.mark.parametrize(
    "path",
    [
        "a/file",
        "a/file/",
        "./a//file",
        "a/b/../file",
        "to-file",
        "to-dir/file",
        "chain",
        "a/b/up/a/file",
        "to-dir/b/../file",
    ],
)
def test_file_inside_is_read(root: Path, path: str) -> None:
    assert content(root, path) == "inside"
    with open_inside(root, path) as opened:
        assert opened.path == "a/file"


@pytest.mark.requirement("skill.files.read")
@pytest.mark.parametrize(
    "path",
    [
        "../secret",
        "a/../../secret",
        "a/b/../../../secret",
        "../skill-2/file",
        "../skill/a/file",
        "/etc/passwd",
        "out",
        "out-dir/secret",
        "out-dir/skill/a/file",
        "absolute",
        "chain-out",
        "loop",
        "a/b/up/../secret",
        "to-dir/../../secret",
        "a/file\0",
        "a",
        "",
        ".",
        "x/" * 300,
        "./" * 300 + "a/file",
    ],
)
def test_escaping_path_or_special_file_is_refused(root: Path, path: str) -> None:
    with pytest.raises((Refused, FileNotFoundError)) as refused:
        content(root, path)
    assert path.startswith("x/") or isinstance(refused.value, Refused)


@pytest.mark.parametrize("path", ["nothing", "a/file/x", "a/file/..", "a/nothing/../file", "~", "A/FILE"])
def test_missing_file_is_reported_as_missing(root: Path, path: str) -> None:
    with pytest.raises(FileNotFoundError):
        content(root, path)


@pytest.mark.requirement("skill.files.read")
def test_fifos_sockets_and_devices_are_refused_at_once(root: Path) -> None:
    os.mkfifo(root / "fifo")
    with pytest.raises(Refused):
        content(root, "fifo")


def test_the_root_itself_may_not_become_a_link(root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root)
    with pytest.raises(OSError):
        content(tmp_path / "link", "a/file")


def test_no_descriptor_is_left_open(root: Path) -> None:
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for path in ("a/file", "out", "chain-out", "nothing", "a", "a/b/up/a/file"):
        try:
            content(root, path)
        except (Refused, OSError):
            pass
    assert not before or len(os.listdir("/proc/self/fd")) == before


@pytest.mark.requirement("skill.files.read")
@pytest.mark.parametrize("step", ["swap", "file"])
@pytest.mark.parametrize("absolute", [True, False])
def test_swapped_link_does_not_lead_out(root: Path, monkeypatch: pytest.MonkeyPatch, step: str, absolute: bool) -> None:
    inside, evil = root / "swap", root.parent / "evil"
    for place, text in ((inside, "inside"), (evil, "secret")):
        place.mkdir()
        (place / "file").write_text(text)
    victim, target = (inside, evil) if step == "swap" else (inside / "file", evil / "file")
    look = confined._link  # pyright: ignore[reportPrivateUsage]

    def look_and_swap(name: str, directory: int) -> str | None:
        answer = look(name, directory)
        if name == step:
            victim.rename(root / "aside")
            victim.symlink_to(target if absolute else os.path.relpath(target, victim.parent))
            assert (inside / "file").read_text() == "secret"
        return answer

    monkeypatch.setattr(confined, "_link", look_and_swap)
    with pytest.raises(OSError):
        content(root, "swap/file")
    assert (root / "aside").exists()


@given(
    st.lists(st.sampled_from(["a", "b", "..", ".", "file", "up", "out", "out-dir", "to-dir", "skill", ""]), max_size=8)
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_no_path_reads_what_the_system_finds_outside(root: Path, steps: list[str]) -> None:
    path = "/".join(steps)
    real = os.path.realpath(root / path) if path else str(root)
    try:
        text = content(root, path)
    except (Refused, OSError):
        return
    assert text == "inside" and real == str(root / "a/file")


def test_fetch_says_how_much_is_left(root: Path) -> None:
    (root / "big").write_bytes(b"x" * 1000)
    assert read_inside(root, "big", max_bytes=1000) == (b"x" * 1000, 0)
    assert read_inside(root, "big", max_bytes=10) == (b"x" * 10, 990)
