"""Writes the logs that a release leaves behind as fixtures.

Once for each release, from the folder `tests`: `python -m kernel.record`, which takes the version of the package. What
is there is never written again: it stands for logs in the stores of users.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from weftline._version import __version__
from weftline.kernel.entries import Limits, decode_fact
from weftline.kernel.state import FOLD, State

from .world import SECOND, Ask, Entry, Fault, Reply, World, call, text

FIXTURES = Path(__file__).parent / "fixtures"


class Line(msgspec.Struct):
    """One entry, as a log that people can read."""

    seq: int
    at: int
    head: msgspec.Raw
    body: str


class Snapshot(msgspec.Struct):
    """The state after a log, and the number of the fold that made it."""

    fold: int
    state: msgspec.Raw


def plain_answer() -> World:
    return World().play(text())


def many_kinds_of_calls() -> World:
    world = World(Limits(tool_budgets={"pay": 1, "nowhere": 3}))
    world.reply(call("look", "pay", Ask("pay", {"x": 1}), "nowhere", Ask("save", {"bad": 1}), "local"))
    world.steer("m1")
    world.play()
    world.answer(5)
    return world.play(text())


def loop_to_the_final_turn() -> World:
    return World(Limits(loop_soft=2, loop_hard=4)).play(*[call("look", "scan")] * 4, text())


def crashes_and_a_doubt() -> World:
    world = World()
    world.crash()
    world.reply(call("save", "move", "pay"))
    world.crash()
    world.finish(world.tool_calls[0])
    world.crash()
    world.reconciled(world.reconciles[0], "will_not_happen")
    world.finish(world.tool_calls[0])
    world.crash()
    return world.play(call("pay"), text())


def waiting_for_a_client() -> World:
    world = World(Limits(local_timeout_us=90 * SECOND, on_local_timeout="report")).play(call("local", "local_read"))
    world.answer(1, "found")
    world.wait_until(world.clock + 30 * SECOND)
    return world


def paused_in_a_batch() -> World:
    world = World()
    world.follow_up("m1")
    world.reply(call("look", "save", "pay"))
    world.pause()
    world.finish(world.tool_calls[0])
    return world


def waiting_to_try_again() -> World:
    world = World(Limits(max_retries=5)).play(Fault("server", retryable=True))
    world.reply(Fault("rate_limit", retryable=True, retry_after_us=600 * SECOND))
    return world


def more_calls_than_may_run_at_once() -> World:
    world = World(Limits(max_concurrent_calls=2))
    world.reply(call(*[Ask("scan", {"page": page}) for page in range(4)], "local_read"))
    world.finish(world.tool_calls[1])
    return world


def asked_again_and_steered() -> World:
    world = World(Limits(fallbacks=1))
    world.reply(Fault("auth"))
    world.steer("m1")
    world.reply(Reply("Not JSON", output_invalid=True))
    world.play(Reply("{}"))
    return world.play(text("{}"))


def cancelled_in_a_batch() -> World:
    world = World()
    world.steer("m1")
    world.reply(call("send", "scan"))
    world.cancel()
    return world


SCENARIOS: tuple[Callable[[], World], ...] = (
    plain_answer,
    many_kinds_of_calls,
    loop_to_the_final_turn,
    crashes_and_a_doubt,
    waiting_for_a_client,
    paused_in_a_batch,
    waiting_to_try_again,
    cancelled_in_a_batch,
    more_calls_than_may_run_at_once,
    asked_again_and_steered,
)


def write_log(path: Path, log: list[Entry]) -> None:
    lines = [
        Line(seq, entry.at, msgspec.Raw(msgspec.json.encode(entry.head)), entry.body.decode())
        for seq, entry in enumerate(log, 1)
    ]
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))


def read_log(path: Path) -> list[Entry]:
    lines = [msgspec.json.decode(line, type=Line) for line in path.read_bytes().splitlines()]
    return [Entry(line.at, decode_fact.decode(line.head), line.body.encode()) for line in lines]


def state_path(log: Path) -> Path:
    return log.with_suffix(".state.json")


def write_state(path: Path, state: State) -> None:
    snapshot = Snapshot(FOLD, msgspec.Raw(msgspec.json.encode(state)))
    path.write_bytes(msgspec.json.format(msgspec.json.encode(snapshot), indent=1) + b"\n")


def read_state(path: Path) -> dict[str, Any]:
    """The state as it was recorded, in JSON: another fold may have made it."""
    snapshot = msgspec.json.decode(path.read_bytes(), type=Snapshot)
    return msgspec.json.decode(snapshot.state)


def main(folder: Path) -> None:
    folder.mkdir(parents=True)
    for scenario in SCENARIOS:
        world = scenario()
        path = folder / f"{scenario.__name__}.jsonl"
        write_log(path, world.entries)
        write_state(state_path(path), world.state)


if __name__ == "__main__":
    main(FIXTURES / f"v{__version__}")
