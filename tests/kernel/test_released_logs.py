"""Logs written by released versions: today's code folds them, and decides in them as it did then."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from recorded.folded import differences
from weftline.events.frames import payload_of
from weftline.kernel import bodies
from weftline.kernel.decide import decide
from weftline.kernel.entries import RULES, AttemptStarted, Fact, Limits, ModelRef, RunCreated, TurnCompleted
from weftline.kernel.evolve import fold
from weftline.kernel.state import State
from weftline.text.canonical import digest

from . import laws
from .histories import bring_to_its_end
from .record import FIXTURES, SCENARIOS, main, read_log, read_state, state_path
from .world import World, facts_of

LOGS = sorted(FIXTURES.glob("*/*.jsonl"))
REPLACED: set[str] = set()
"""Fields of older states that later folds keep in another form."""


def test_this_version_has_left_a_log_of_every_scenario() -> None:
    assert {path.stem for path in LOGS if path.parent.name == "v0.2.0"} == {one.__name__ for one in SCENARIOS}


@pytest.mark.parametrize("path", LOGS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_released_log_folds_to_the_state_recorded_with_it(path: Path) -> None:
    """K20. A later fold may add to the state. What it has replaced stands in `REPLACED`."""
    log = read_log(path)
    laws.hold(log)
    state, recorded = fold(State(), facts_of(log)), read_state(state_path(path))
    assert not state.broken
    assert recorded["version"] == len(log) == state.version, "there is something to compare"
    found = differences(recorded, msgspec.json.decode(msgspec.json.encode(state)))
    assert [one for one in found if one.partition(":")[0] not in REPLACED] == []


@pytest.mark.parametrize("path", LOGS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_decisions_in_a_released_log_would_be_made_again(path: Path) -> None:
    """K20. If this fails, a rule has changed its meaning: it needs a new number beside the old one."""
    state, left = State(), read_log(path)
    while left:
        decided = [new.head for new in decide(state).append]
        taken, left = left[: len(decided) or 1], left[len(decided) or 1 :]
        if decided:
            assert [_as_decided(entry.head) for entry in taken] == decided
        state = fold(state, facts_of(taken))


def _as_decided(head: Fact) -> Fact:
    """Without what the driver fills in."""
    return replace(head, model=ModelRef(), estimate=0) if isinstance(head, AttemptStarted) else head


@pytest.mark.parametrize("path", LOGS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_content_of_a_released_log_can_be_read(path: Path) -> None:
    for entry in read_log(path):
        payload_of(entry.head, entry.body, run_id="run_1")
        if isinstance(entry.head, TurnCompleted):
            args = bodies.turn_args(bodies.decode_turn(entry.body))
            assert [digest(each) for each in args] == [call.digest for call in entry.head.calls]


@pytest.mark.parametrize("path", LOGS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_released_log_of_an_open_run_reaches_its_end(path: Path) -> None:
    """K20"""
    world = World()
    world.running.clear()
    world.entries = read_log(path)
    world.state = fold(State(), world.facts)
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


def test_the_recorder_still_works_and_writes_over_nothing(tmp_path: Path) -> None:
    main(tmp_path / "next")
    assert {path.stem for path in (tmp_path / "next").glob("*.jsonl")} == {one.__name__ for one in SCENARIOS}
    with pytest.raises(FileExistsError):
        main(tmp_path / "next")
