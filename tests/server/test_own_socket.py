"""The store's own socket: an HTTP listener in the store's directory, for the user who runs the process."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from weftline import Engine
from weftline.server import local_serving, own_socket
from weftline.server.own_socket import NAME
from weftline.store import open_store, owner_of
from weftline.store.naming import short_path
from weftline.testing import ServerProcess

WORKSPACES = "/api/v1/workspaces"
FORKING = """
import asyncio, os, socket, sys, time
from weftline import Engine

async def main():
    async with Engine(sys.argv[1]):
        path = sys.argv[1] + "/server.sock"
        os.link(path, path + ".kept")
        forked, says = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(says, b"here")
            time.sleep(240)
            os._exit(0)
        os.read(forked, 4)
    with socket.socket(socket.AF_UNIX) as asking:
        try:
            asking.connect(path + ".kept")
        except ConnectionRefusedError:
            print("nobody")
    os.kill(child, 9)
    os.waitpid(child, 0)

asyncio.run(main())
"""


def get(path: Path, target: str = WORKSPACES, **headers: str) -> tuple[int, Any]:
    """What the socket answers."""
    connection = http.client.HTTPConnection("localhost", timeout=60)
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.sock.settimeout(60)
        with short_path(path) as name:
            connection.sock.connect(name)
        with suppress(BrokenPipeError):  # whoever is refused may be answered before everything is sent
            connection.request("GET", target, headers=headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


@asynccontextmanager
async def opened(path: Path) -> AsyncGenerator[Path]:
    """The socket of an engine on the store at `path`."""
    async with Engine(path):
        owner = owner_of(path)
        assert owner is not None
        yield path / owner.socket


async def asked(path: Path, **headers: str) -> tuple[int, Any]:
    return await asyncio.to_thread(get, path, **headers)


def test_server_answers_its_own_user_without_a_key(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "w") as server:
        socket_of = server.db / NAME
        assert get(socket_of) == (200, {"workspaces": []})
        server.create_key("acme")
        assert get(socket_of) == (200, {"workspaces": [{"slug": "acme"}]})
        status, body = get(socket_of, authorization="Bearer weft_nobody")
        assert (status, body["code"]) == (401, "unauthorized")
        server.kill()
        assert socket_of.exists()
        server.start()
        assert get(socket_of)[0] == 200
        assert server.terminate() == 0
        assert not socket_of.exists()


async def test_engine_in_a_script_answers_like_a_server(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as path:
        assert path == tmp_path / "data" / NAME
        assert await asked(path) == (200, {"workspaces": [{"slug": "default"}]})
    assert not path.exists()


async def test_path_of_the_store_may_be_long(tmp_path: Path) -> None:
    long = tmp_path / ("a" * 120) / "data"
    long.parent.mkdir()
    async with opened(long) as path:
        assert (await asked(path))[0] == 200


async def test_other_users_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stranger(connection: socket.socket) -> int:
        return os.geteuid() + 4711

    monkeypatch.setattr(local_serving, "_uid_of", stranger)
    async with opened(tmp_path / "data") as path:
        status, body = await asked(path)
    assert (status, body["code"]) == (403, "forbidden")


async def test_socket_is_in_a_private_folder_where_the_store_can_have_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listen = own_socket.OwnSocket._listen  # pyright: ignore[reportPrivateUsage]

    def refuse(self: own_socket.OwnSocket, folder: Path) -> None:
        if folder == tmp_path / "data":
            raise OSError("no sockets here")
        listen(self, folder)

    monkeypatch.setattr(own_socket.OwnSocket, "_listen", refuse)
    async with opened(tmp_path / "data") as path:
        assert path.is_absolute() and path.parent.stat().st_mode & 0o777 == 0o700
        assert path.parent != tmp_path / "data"
        assert (await asked(path))[0] == 200
    assert not path.parent.exists()


async def test_nothing_listens_where_nobody_can_say_who_connects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(own_socket, "_peers_are_known", lambda: False)
    async with Engine(tmp_path / "data"):
        assert not (tmp_path / "data" / NAME).exists()
    assert "cannot reach this process" in caplog.text


async def test_next_owners_socket_is_left_alone(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as path:
        path.unlink()
        with socket.socket(socket.AF_UNIX) as successor, short_path(path) as name:
            successor.bind(name)
    assert path.exists()


def test_forked_child_does_not_keep_the_socket_open(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORKING, str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout == "nobody\n", done.stderr


async def test_folder_with_a_socket_alone_is_a_new_store(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o755)
    with socket.socket(socket.AF_UNIX) as left, short_path(folder / NAME) as name:
        left.bind(name)
    await open_store(folder).close()
    with suppress(FileNotFoundError):
        (folder / NAME).unlink()


def test_only_the_sockets_of_dead_processes_are_cleared_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {"weftline-empty", "weftline-notes", "weftline-file", "weftline-link", "weftline-alive", "other-dead"}
    for name in ("weftline-empty", "weftline-notes", "weftline-alive", "other-dead", "weftline-dead"):
        (tmp_path / name).mkdir()
    (tmp_path / "weftline-notes" / NAME).write_text("not a socket")
    (tmp_path / "weftline-notes" / "notes.txt").write_text("mine")
    (tmp_path / "weftline-file").write_text("mine")
    (tmp_path / "weftline-link").symlink_to(tmp_path / "other-dead")
    monkeypatch.chdir(tmp_path)  # the path of a socket may not be long
    monkeypatch.setattr("tempfile.tempdir", ".")
    for name in ("other-dead", "weftline-dead"):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(f"{name}/{NAME}")
    with socket.socket(socket.AF_UNIX) as alive:
        alive.bind(f"weftline-alive/{NAME}")
        alive.listen()
        own_socket.remove_dead_folders()
    assert {path.name for path in tmp_path.iterdir()} == kept
