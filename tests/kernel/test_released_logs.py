"""Logs written by released versions: today's code folds them to the state that was recorded with them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from weftline.kernel.decide import decide
from weftline.kernel.entries import RULES, Limits, RunCreated
from weftline.kernel.evolve import fold
from weftline.kernel.state import State

from . import laws
from .histories import bring_to_its_end
from .record import FIXTURES, SCENARIOS, read_log, read_state, state_path
from .world import World

LOGS = sorted(FIXTURES.glob("*/*.jsonl"))


def test_the_first_release_left_a_log_of_every_scenario() -> None:
    assert {path.stem for path in LOGS if path.parent.name == "v0.1.0"} >= {one.__name__ for one in SCENARIOS}


@pytest.mark.parametrize("path", LOGS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_released_log_folds_to_the_state_recorded_with_it(path: Path) -> None:
    """K20"""
    log = read_log(path)
    laws.hold(log)
    assert fold(State(), log) == read_state(state_path(path))


@pytest.mark.parametrize("path", LOGS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_released_log_of_an_open_run_can_be_carried_to_its_end(path: Path) -> None:
    """K20"""
    world = World()
    world.running.clear()
    world.entries = read_log(path)
    world.state = fold(State(), world.entries)
    world.clock = world.entries[-1].at
    was_open = not world.state.ended
    if was_open:
        world.crash()
        bring_to_its_end(world)
    assert not world.state.broken
    laws.hold(world.entries)
    assert not decide(world.state).start


def test_every_threshold_of_a_run_stands_in_its_first_entry() -> None:
    """K20: a default that changes in a later release does not reach a run that was created before."""
    created = msgspec.to_builtins(RunCreated(RULES, Limits()))
    assert set(created["limits"]) == set(Limits.__struct_fields__)
