"""The folders of control sockets: a killed server leaves one behind, and the next start removes it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from weftline.api.control import remove_dead_folders
from weftline.store import owner_of
from weftline.testing import ServerProcess


def folders(place: Path) -> set[str]:
    return {path.name for path in place.glob("weftline-*")}


def test_folder_of_killed_server_is_removed_at_next_start(tmp_path_factory: pytest.TempPathFactory) -> None:
    tmp_path = tmp_path_factory.mktemp("s")  # the path of a socket has a hundred characters at the most
    place = tmp_path / "tmp"
    place.mkdir()
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    environment = {"TMPDIR": str(place)}
    with (
        ServerProcess(tmp_path / "one", env=environment) as killed,
        ServerProcess(tmp_path / "two", env=environment) as living,
    ):
        before = folders(place)
        assert len(before) == 2
        killed.kill()
        killed.start()
        after = folders(place)
        assert len(after) == 2 and len(before & after) == 1
        owner = owner_of(living.db)
        assert owner is not None and Path(owner.admin_socket).parent.name in after
        assert killed.create_key("acme") and living.create_key("acme")
        assert killed.terminate() == living.terminate() == 0
    assert folders(place) == set()


def test_nothing_but_the_socket_of_a_dead_server_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    kept = {"weftline-empty", "weftline-notes", "weftline-file", "weftline-link", "weftline-alive", "other-dead"}
    for name in ("weftline-empty", "weftline-notes", "weftline-alive", "other-dead", "weftline-dead"):
        (tmp_path / name).mkdir()
    (tmp_path / "weftline-notes" / "control").write_text("not a socket")
    (tmp_path / "weftline-notes" / "notes.txt").write_text("mine")
    (tmp_path / "weftline-file").write_text("mine")
    (tmp_path / "weftline-link").symlink_to(tmp_path / "other-dead")
    here = os.getcwd()
    os.chdir(tmp_path)  # the path of a socket may not be long
    try:
        for name in ("other-dead", "weftline-dead"):
            with socket.socket(socket.AF_UNIX) as dead:
                dead.bind(f"{name}/control")
        with socket.socket(socket.AF_UNIX) as alive:
            alive.bind("weftline-alive/control")
            alive.listen()
            monkeypatch.setattr("tempfile.tempdir", ".")
            remove_dead_folders()
    finally:
        os.chdir(here)
    assert {path.name for path in tmp_path.iterdir()} == kept
