"""Runs, entries and states of newer code: left alone, never half understood."""

from __future__ import annotations

import msgspec
import pytest

from weftline.kernel.accept import accepts
from weftline.kernel.decide import decide
from weftline.kernel.entries import (
    FACTS,
    KIND,
    KNOWN_RULES,
    RULES,
    CancelRequested,
    Limits,
    MessageQueued,
    RunAdopted,
    RunCreated,
    TimerFired,
    decode_fact,
)
from weftline.kernel.evolve import FOLDS, evolve
from weftline.kernel.state import Decision, Room, State, decode_state, encode_state

from .histories import History, lived
from .world import AT0, World, call


def test_new_runs_follow_rules_that_are_known() -> None:
    assert RULES in KNOWN_RULES


def test_a_run_with_unknown_rules_is_neither_driven_nor_changed() -> None:
    state = evolve(State(), RunCreated(99, Limits()), AT0)
    assert (state.created, state.rules) == (True, 99)
    assert decide(state) == Decision()
    outside = (CancelRequested(), MessageQueued("m", "steer"), RunAdopted(5), TimerFired(AT0 + 1))
    assert not [head for head in outside if accepts(state, head)]
    assert decide(msgspec.structs.replace(state, broken="damaged")) == Decision()


def test_every_fact_has_its_fold() -> None:
    assert FOLDS.keys() == set(FACTS.values()) == KIND.keys()


@pytest.mark.parametrize("kind", sorted(FACTS))
def test_fact_with_field_that_is_not_known_is_not_decoded(kind: str) -> None:
    logs = [lived(History(seed, 400)).entries for seed in range(3)]
    known = [entry.head for log in logs for entry in log if KIND[type(entry.head)] == kind]
    for head in known[:3]:
        fields = msgspec.to_builtins(head)
        assert decode_fact.decode(msgspec.json.encode(fields)) == head
        with pytest.raises(msgspec.ValidationError):
            decode_fact.decode(msgspec.json.encode(fields | {"newer": 1}))


@pytest.mark.parametrize(
    "head",
    [
        b'{"type":"run.created","rules":1,"limits":{"max_tool_turns":3,"newer":1}}',
        b'{"type":"turn.completed","turn":0,"attempt":1,"usage":{"input":3,"newer":1}}',
        b'{"type":"turn.completed","turn":0,"attempt":1,"calls":[{"id":"c","name":"n","digest":"d","newer":1}]}',
        b'{"type":"attempt.started","turn":0,"attempt":1,"model":{"id":"m","newer":1}}',
        b'{"type":"call.closed","turn":0,"index":0,"id":"c","name":"n","how":"newer"}',
        b'{"type":"call.opened@2","turn":0,"index":0,"id":"c","name":"n","digest":"d"}',
    ],
)
def test_part_of_fact_that_is_not_known_makes_fact_unknown(head: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        decode_fact.decode(head)


def test_stored_state_with_an_unknown_field_is_not_decoded() -> None:
    world = World(Limits(tool_budgets={"look": 3}))
    world.reply(call("look", "local"))
    world.steer("m1")
    stored = msgspec.msgpack.decode(encode_state(world.state))
    rooms = [name for name, value in stored.items() if isinstance(value, dict)]
    assert {"attempt", "answer", "batch", "questions", "guards", "control", "totals"} <= set(rooms)
    for changed in (stored | {"newer": 1}, *({**stored, room: stored[room] | {"newer": 1}} for room in rooms)):
        with pytest.raises(msgspec.ValidationError):
            decode_state(msgspec.msgpack.encode(changed))


def test_every_room_refuses_what_it_does_not_know() -> None:
    rooms = Room.__subclasses__()
    assert len(rooms) > 10
    assert all(room.__struct_config__.forbid_unknown_fields for room in rooms)
