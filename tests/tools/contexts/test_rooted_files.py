"""Ways out of a directory, all of which must be closed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weftline.tools.contexts.base import FileError, FileErrorKind
from weftline.tools.contexts.rooted_files import RootedFiles


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory with a file, next to others that must not be reached."""
    inside = tmp_path / "root"
    inside.mkdir()
    (inside / "file").write_bytes(b"inside")
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "root-sibling").mkdir()
    (tmp_path / "root-sibling" / "secret").write_bytes(b"secret")
    return inside


def read_trouble(files: RootedFiles, path: str) -> FileErrorKind | None:
    try:
        files.read(path)
    except FileError as trouble:
        return trouble.kind
    return None


def write_trouble(files: RootedFiles, path: str) -> FileErrorKind | None:
    try:
        files.write(path, b"overwritten")
    except FileError as trouble:
        return trouble.kind
    return None


def everything(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.mark.requirement("tool.path.confined")
@pytest.mark.parametrize(
    "path",
    [
        *("../secret", "./../secret", "file/../../secret", "new/../../secret", "a/../b/../../secret", "..", "../.."),
        *("/etc/passwd", "/", "//etc/passwd", "/proc/self/environ", "{parent}/secret", "{root}/../secret"),
        *("{root}-sibling/secret", "../root-sibling/secret", "{root}-sibling"),
        *("up/secret", "up", "absolute", "link-to-link", "deep/../../secret", "dev/zero", "environ"),
    ],
)
def test_outside_file_is_neither_read_nor_written(root: Path, path: str) -> None:
    (root / "up").symlink_to("..")
    (root / "absolute").symlink_to(root.parent / "secret")
    (root / "link-to-link").symlink_to("absolute")
    (root / "deep").symlink_to("up/root")
    (root / "dev").symlink_to("/dev")
    (root / "environ").symlink_to("/proc/self/environ")
    before = everything(root.parent)
    path = path.format(root=root, parent=root.parent)
    files = RootedFiles(root)
    assert read_trouble(files, path) in ("outside", "missing", "not_directory")
    assert write_trouble(files, path) == "outside" or path.startswith("file/")
    assert everything(root.parent) == before


@pytest.mark.requirement("tool.path.confined")
def test_links_and_absolute_paths_that_stay_inside_are_followed(root: Path) -> None:
    (root / "folder").mkdir()
    (root / "folder" / "link").symlink_to("../file")
    (root / "home").symlink_to(root)
    files = RootedFiles(root)
    for path in (
        "folder/link",
        "home/folder/link",
        f"{root}/file",
        "folder/../file",
        "./folder/.././file",
        "folder//link",
    ):
        assert (files.read(path).path, files.read(path).data) == ("file", b"inside")
    assert files.write("folder/link", b"new") == "file"
    assert (root / "folder" / "link").is_symlink()
    assert (root / "file").read_bytes() == b"new"


def test_links_in_a_circle_end(root: Path) -> None:
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("a")
    (root / "self").symlink_to("self/x")
    files = RootedFiles(root)
    assert {read_trouble(files, path) for path in ("a", "b", "self", "a/x")} == {"failed"}


def test_pipes_sockets_and_devices_are_refused_at_once(root: Path) -> None:
    os.mkfifo(root / "pipe")
    files = RootedFiles(root)
    assert (read_trouble(files, "pipe"), write_trouble(files, "pipe")) == ("special", "special")
    assert (read_trouble(RootedFiles("/dev"), "zero"), write_trouble(RootedFiles("/dev"), "null")) == (
        "special",
        "special",
    )


def test_writing_to_a_hard_link_leaves_the_file_outside_alone(root: Path) -> None:
    os.link(root.parent / "secret", root / "linked")
    assert RootedFiles(root).read("linked").data == b"secret"
    strict = RootedFiles(root, hard_links=False)
    assert (read_trouble(strict, "linked"), write_trouble(strict, "linked")) == ("linked", "linked")
    RootedFiles(root).write("linked", b"mine")
    assert (root.parent / "secret").read_bytes() == b"secret"
    assert (root / "linked").read_bytes() == b"mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="everything is allowed to root")
def test_forbidden_access_is_reported(root: Path) -> None:
    (root / "file").chmod(0)
    assert read_trouble(RootedFiles(root), "file") == "denied"
    (root / "file").chmod(0o444)
    assert write_trouble(RootedFiles(root), "file") == "denied"
    assert (root / "file").read_bytes() == b"inside"


def test_names_of_any_bytes_can_be_used(root: Path) -> None:
    files = RootedFiles(root)
    name = os.fsdecode(b"\xff\xfe caf\xe9")
    assert files.write(name, b"x") == name
    assert files.read(name).data == b"x"
    assert name in [entry.path for entry in files.list(".").entries]
    assert read_trouble(files, "nul\0byte") == "missing"
    assert read_trouble(files, "x" * 5000) == "missing"
    assert read_trouble(files, "x" * 300) == "failed"
    assert read_trouble(files, "a/" * 2000) == "missing"


def test_a_deep_tree_and_a_full_directory_are_cut_off(root: Path) -> None:
    files = RootedFiles(root)
    place = root
    for _ in range(120):
        place = place / "d"
        place.mkdir()
    listing = files.list(".", recursive=True)
    assert not listing.complete
    assert len(listing.entries) == 102
    few = files.list(".", max_entries=1)
    assert (len(few.entries), few.complete) == (1, False)
    assert files.list(".", max_entries=2).complete


def test_a_failed_write_leaves_no_draft_behind(root: Path) -> None:
    (root / "folder").mkdir()
    assert write_trouble(RootedFiles(root), "folder") == "directory"
    assert write_trouble(RootedFiles(root), "x" * 300) == "failed"
    assert sorted(path.name for path in root.iterdir()) == ["file", "folder"]


SWAP = """
import os, sys
root, outside = sys.argv[1:]
print(flush=True)
while True:
    os.rename(root + "/d", root + "/e")
    os.symlink(outside, root + "/d")
    os.unlink(root + "/d")
    os.rename(root + "/e", root + "/d")
"""


@pytest.mark.requirement("tool.path.confined")
def test_a_directory_that_is_swapped_for_a_link_leads_nowhere(root: Path) -> None:
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"secret")
    (root / "d").mkdir()
    (root / "d" / "file").write_bytes(b"inside")
    files = RootedFiles(root)
    read: set[bytes] = set()
    with subprocess.Popen([sys.executable, "-IS", "-c", SWAP, root, outside], stdout=subprocess.PIPE) as swapper:
        assert swapper.stdout is not None
        swapper.stdout.readline()
        try:
            for turn in range(800):
                try:
                    read.add(files.read("d/file").data)
                    files.write("d/new", b"%d" % turn)
                    files.list("d")
                except FileError:
                    pass
        finally:
            swapper.kill()
    assert read <= {b"inside"}  # on a busy machine every single try may meet the link
    assert [path.name for path in outside.iterdir()] == ["file"]


def test_file_that_is_swapped_for_pipe_does_not_hold_us(root: Path) -> None:
    os.mkfifo(root / "pipe")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            os.link(root / "pipe", root / "p")
            os.replace(root / "p", root / "it")
            (root / "f").write_bytes(b"x")
            os.replace(root / "f", root / "it")

    (root / "it").write_bytes(b"x")
    files = RootedFiles(root)
    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        troubles = {read_trouble(files, "it") for _ in range(300)}
    finally:
        stop.set()
        swapper.join()
    assert troubles <= {None, "special", "missing"}


NAMES = st.sampled_from(["a", "b", "c", "..", ".", "out", ""])
PATHS = st.lists(NAMES, min_size=1, max_size=6).map("/".join)


@given(links=st.dictionaries(st.sampled_from(["b", "a/c", "a/b"]), PATHS, max_size=3), path=PATHS)
def test_read_path_is_always_inside(tmp_path_factory: pytest.TempPathFactory, links: dict[str, str], path: str) -> None:
    base = tmp_path_factory.mktemp("tree")
    root = base / "root"
    (root / "a").mkdir(parents=True)
    (base / "out").write_bytes(b"outside")
    (base / "c").write_bytes(b"outside")
    for name in ("c", "a/a"):
        (root / name).write_bytes(b"inside")
    for name, target in links.items():
        if target and not (root / name).is_symlink():
            (root / name).symlink_to(target)
    path = path.lstrip("/")
    files = RootedFiles(root)
    trouble = read_trouble(files, path)
    if trouble is None:
        assert files.read(path).data == b"inside"
    else:
        real = Path(os.path.realpath(root / path))
        # A path may leave and come back; that is refused.
        assert not (real.is_file() and real.is_relative_to(root)) or trouble in ("outside", "not_directory", "failed")
