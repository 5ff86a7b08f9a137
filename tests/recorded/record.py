"""Records the logs that this version leaves behind, for later versions to fold and continue:

    python tests/recorded/record.py           the present format: writes its folder in tests/fixtures/logs
    python tests/recorded/record.py states    what all recorded logs fold to, after `FOLD` was raised

What belongs to a released version is never written again: it stands for logs in the stores of users. As long as its
format is not released, a folder may be deleted and recorded anew.

The scenarios are played by a process that kills itself at the end, so the store is what `kill -9` leaves.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from msgspec import Raw, Struct, json
from msgspec.structs import replace

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from recorded.fixtures import (
    STATES,
    Expected,
    Log,
    Scenario,
    States,
    folder,
    log_of,
    opened,
    pack,
    rows_of,
    snapshot_of,
    states_today,
    unpack,
    write_expected,
    write_logs,
)
from recorded.folded import Request
from recorded.scenarios import Stage, play
from weftline.messages import Message, Text, User


class Played(Struct):
    """What the process that played the scenarios tells of them before it dies."""

    runs: dict[str, list[str]]
    tokens: dict[str, str]
    requests: list[Request]
    """What the models were asked."""


async def play_and_die(where: Path) -> None:
    stage = Stage(where / "store")
    runs = await play(stage)
    asked = [Request(request.model, _lasting(request.messages)) for request in stage.requests]
    (where / "played.json").write_bytes(json.encode(Played(runs, stage.tokens, asked)))
    os.kill(os.getpid(), signal.SIGKILL)


def _lasting(messages: Sequence[Message]) -> list[Message]:
    """Without a reminder, which is for one request and not part of the conversation, and without blobs' content."""
    last = messages[-1]
    reminds = isinstance(last, User) and last.injected and last.text.startswith("<system-reminder>")
    return [_without_content(message) for message in (messages[:-1] if reminds else messages)]


def _without_content(message: Message) -> Message:
    if not isinstance(message, User):
        return message
    parts = [
        part if isinstance(part, Text) or part.blob is None else replace(part, data=None) for part in message.parts
    ]
    return replace(message, parts=tuple(parts))


def record(to: Path) -> None:
    """Writes the recordings to a new folder."""
    to.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as temporary:
        here = Path(temporary)
        command = [sys.executable, str(Path(__file__)), "play", str(here)]
        died = subprocess.run(command, check=False)
        assert died.returncode == -signal.SIGKILL, died.returncode
        played = json.decode((here / "played.json").read_bytes(), type=Played)
        pack(here / "store", to / "store.tar.xz")
        shutil.rmtree(here / "store")
        requests = asyncio.run(_read(unpack(to / "store.tar.xz", here), played, to))
    require_same(requests, [one for one in played.requests if not one.model.startswith("summary")])


async def _read(store_folder: Path, played: Played, to: Path) -> list[Request]:
    """Writes the logs in the store, and what they fold to. Returns the requests that they say were made."""
    requests: list[Request] = []
    store = opened(store_folder)
    try:
        rows = await rows_of(store)
        for name, runs in played.runs.items():
            logs = {run: await log_of(store, rows[run]) for run in runs}
            path = to / f"{name}.jsonl"
            write_logs(path, logs)
            tokens = {run: token for run, token in played.tokens.items() if run in runs}
            expected = {run: _expected(run, log, await snapshot_of(store, rows[run])) for run, log in logs.items()}
            write_expected(path, Scenario(expected, tokens))
            requests += [request for log in logs.values() for request in log.fold().requests]
    finally:
        await store.close()
    return requests


def _expected(run_id: str, log: Log, snapshot: bytes) -> Expected:
    return Expected(Raw(json.encode(log.fold())), Raw(snapshot), Raw(log.events(run_id)))


def require_same(folded: Sequence[Request], made: Sequence[Request]) -> None:
    """The conversations that the logs fold to are those that the models were sent."""
    derived = sorted(json.encode(request).decode() for request in folded)
    sent = sorted(json.encode(request).decode() for request in made)
    assert derived == sent, set(derived) ^ set(sent)


def write_states() -> None:
    """Writes what all recorded logs fold to. A fold that has not got a new number must fold them as it did."""
    today = states_today()
    if STATES.exists():
        was = json.decode(STATES.read_bytes(), type=States)
        changed = [name for name, digest in today.digests.items() if was.digests.get(name, digest) != digest]
        assert not changed or was.fold != today.fold, f"raise FOLD: the states of {changed} have changed"
    STATES.write_bytes(json.format(json.encode(today), indent=1) + b"\n")


def main(arguments: Sequence[str]) -> None:
    match arguments:
        case ["play", where]:
            asyncio.run(play_and_die(Path(where)))
        case []:
            record(folder())
            write_states()
        case ["states"]:
            write_states()
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
