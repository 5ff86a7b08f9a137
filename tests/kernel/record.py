"""Writes the logs that a release leaves behind as fixtures.

Once for each release, from the folder `tests`: `python -m kernel.record v0.2.0`. What is there is never written again:
it stands for logs in the stores of users.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from weftline.kernel.entries import Entry, Limits, decode_fact
from weftline.kernel.state import State

from .world import SECOND, Ask, Fault, World, call, text

FIXTURES = Path(__file__).parent / "fixtures"


class Line(msgspec.Struct):
    """One entry, as a log that people can read."""

    seq: int
    at: int
    head: msgspec.Raw
    body: str


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
)


def write_log(path: Path, log: list[Entry]) -> None:
    lines = [
        Line(entry.seq, entry.at, msgspec.Raw(msgspec.json.encode(entry.head)), entry.body.decode()) for entry in log
    ]
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))


def read_log(path: Path) -> list[Entry]:
    decoded = (msgspec.json.decode(line, type=Line) for line in path.read_bytes().splitlines())
    return [Entry(line.seq, line.at, decode_fact.decode(line.head), line.body.encode()) for line in decoded]


def state_path(log: Path) -> Path:
    return log.with_suffix(".state.json")


def write_state(path: Path, state: State) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(msgspec.to_builtins(state)), indent=1) + b"\n")


def read_state(path: Path) -> State:
    return msgspec.convert(msgspec.json.decode(path.read_bytes()), State)


def main(version: str) -> None:
    folder = FIXTURES / version
    folder.mkdir(parents=True)
    for scenario in SCENARIOS:
        world = scenario()
        path = folder / f"{scenario.__name__}.jsonl"
        write_log(path, world.entries)
        write_state(state_path(path), world.state)


if __name__ == "__main__":
    main(sys.argv[1])
