"""Logs and stores that each format of the log has left behind: today's code folds, lists and continues them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec import NODEFAULT, Struct, inspect, json, structs
from msgspec.structs import asdict

from weftline.events.frames import payload_of
from weftline.kernel import bodies, entries, notes
from weftline.kernel.entries import FACTS, decode_fact
from weftline.kernel.notes import PROVIDER_CALL, TOOL_NOTE, TOOL_PROGRESS
from weftline.plan import decode_plan, limits_of
from weftline.runtime.recovery import load_run
from weftline.store.rows import Item

from .fixtures import (
    LOGS,
    STATES,
    Log,
    States,
    expected_path,
    folder,
    log_of,
    opened,
    read_expected,
    read_logs,
    rows_of,
    snapshot_of,
    states_today,
    unpack,
)
from .folded import differences
from .record import record
from .scenarios import CONTINUED, PATIENCE_S, SCENARIOS, Stage, client_tools_over_http

FILES = sorted(LOGS.glob("*/*.jsonl"))
STORES = sorted(LOGS.glob("*/store.tar.xz"))
OBSERVATIONS = [
    value
    for module in (entries, notes)
    for value in vars(module).values()
    if isinstance(value, str) and value.startswith(("delta.", "note."))
]
NEW = "nothing of it is recorded: see 'Recorded logs' in docs/development.md"

DECODERS: dict[str, Any] = {
    "run.created": bodies.decode_created,
    "instructions.rendered": bodies.decode_rendered,
    "state.changed": bodies.decode_state_changed,
    "attempt.started": bodies.decode_offered,
    "attempt.failed": bodies.decode_failed,
    "turn.completed": bodies.decode_turn,
    "output.rejected": bodies.decode_text,
    "seat.taken": bodies.decode_spoken,
    "seat.closing": bodies.decode_text,
    "seat.asked_on": bodies.decode_text,
    "call.asked": bodies.decode_asked,
    "call.gated": bodies.decode_gated,
    "await.opened": bodies.decode_await,
    "await.closed": bodies.decode_answer,
    "call.opened": bodies.decode_opened,
    "call.unclaimed": bodies.decode_opened,
    "call.closed": bodies.decode_closed,
    "child.ended": bodies.decode_ended,
    "results.over_budget": bodies.decode_text,
    "loop.detected": bodies.decode_text,
    "final.forced": bodies.decode_text,
    "messages.edited": bodies.decode_edited,
    "message.queued": bodies.decode_queued,
    "messages.taken": bodies.decode_taken,
    "run.paused": bodies.decode_control,
    "run.resumed": bodies.decode_control,
    "compaction.failed": bodies.decode_failed,
    "context.compacted": bodies.decode_summary,
    "policy.decided": bodies.decode_policy,
    "deploy.adopted": bodies.decode_rendered,
    "run.ended": bodies.decode_ended,
    PROVIDER_CALL: bodies.decode_note,
    TOOL_PROGRESS: bodies.decode_progress,
    TOOL_NOTE: bodies.decode_tool_note,
    notes.RUN_NOTE: notes.decode_run_note,
    notes.PROMPT_NOTE: notes.decode_prompt_note,
    notes.CHILD_NOTE: notes.decode_child_note,
    notes.ARGS_DELTA: notes.decode_args_delta,
}
"""By kind: what its body is decoded with. Other kinds have none, or plain text."""


def structs_in(value: object) -> Iterator[Struct]:
    """All structs in a decoded value."""
    if isinstance(value, Struct):
        yield value
        for one in asdict(value).values():
            yield from structs_in(one)
    elif isinstance(value, list | tuple):
        for one in cast("list[object]", value):
            yield from structs_in(one)
    elif isinstance(value, dict):
        for one in cast("dict[str, object]", value).values():
            yield from structs_in(one)


def decoded(item: Item) -> Iterator[object]:
    """The head of an entry, its bodies, and the plan in them."""
    if item.head:
        yield decode_fact.decode(item.head)
    if item.body and item.kind in DECODERS:
        for body in [item.body] if item.head else item.body.split(b"\n"):
            yield (found := DECODERS[item.kind](body))
            if isinstance(found, bodies.CreatedBody):
                yield decode_plan(found.plan, limits_of(item.head))


def all_entries() -> list[Item]:
    """Everything that is recorded in the present format."""
    files = sorted(folder().glob("*.jsonl"))
    return [item for file in files for log in read_logs(file).values() for item in log.entries]


def name_of(path: Path) -> str:
    return f"{path.parent.name}-{path.name.partition('.')[0]}"


@pytest.mark.requirement("run.log.versions")
def test_every_scenario_is_recorded_in_the_present_format() -> None:
    found = {file.stem for file in folder().glob("*.jsonl")}
    assert found == {scenario.__name__ for scenario in SCENARIOS}, NEW


@pytest.mark.requirement("run.log.versions")
@pytest.mark.parametrize("kind", [*FACTS, *OBSERVATIONS])
def test_every_kind_of_entry_is_in_log_of_present_format(kind: str) -> None:
    """If this fails for a new kind: add a scenario in which it occurs, and record the format."""
    assert kind in {item.kind for item in all_entries()}, NEW


def test_every_type_of_body_is_in_log_of_present_format() -> None:
    """If this fails for a new type: add a scenario in which it occurs, and record the format."""
    declared = {cls for module in (bodies, notes) for cls in _structs_of(module)}
    found = {type(one) for item in all_entries() for value in decoded(item) for one in structs_in(value)}
    assert declared - found == set(), NEW


UNRECORDED = {
    "System.content": "as in any conversation: somebody may put a system message into a thread",
    "BudgetRefused.model": "such a run is refused when it is created, unless its model has lost its price since",
    "EndedBody.full": "only servers that are configured with texts for their errors write it",
}
"""Fields that no log of the present format has, and why."""


@pytest.mark.requirement("run.log.versions")
def test_every_field_of_the_vocabulary_is_in_a_recorded_log() -> None:
    """If this fails for a new field: add a scenario in which it occurs, and record the format."""
    declared = {f"{cls.__name__}.{field.name}" for cls in written_structs() for field in structs.fields(cls)}
    recorded = {name for item in all_entries() for value in decoded(item) for name in fields_in(value)}
    assert declared - recorded == UNRECORDED.keys(), NEW


def written_structs() -> set[type[Struct]]:
    """Every struct in a head or a body, however deep."""
    found: set[type[Struct]] = set()

    def collect(kind: inspect.Type) -> None:
        match kind:
            case inspect.StructType(cls=cls, fields=fields):
                if cls not in found:
                    found.add(cls)
                    for field in fields:
                        collect(field.type)
            case inspect.UnionType(types=types) | inspect.TupleType(item_types=types):
                for one in types:
                    collect(one)
            case inspect.VarTupleType(item_type=one) | inspect.DictType(value_type=one):
                collect(one)
            case _:
                pass

    for root in (*FACTS.values(), *_structs_of(bodies), *_structs_of(notes)):
        collect(inspect.type_info(root))
    return found


def fields_in(value: object) -> Iterator[str]:
    """The fields of all structs in a decoded value, without those that are left out because they have their default."""
    for one in structs_in(value):
        kind = type(one)
        for field in structs.fields(kind):
            default = field.default if field.default_factory is NODEFAULT else field.default_factory()
            if not kind.__struct_config__.omit_defaults or getattr(one, field.name) != default:
                yield f"{kind.__name__}.{field.name}"


def _structs_of(module: object) -> set[type[Struct]]:
    named = cast("dict[str, object]", vars(module)).values()
    structs = [cls for cls in named if isinstance(cls, type) and issubclass(cls, Struct)]
    return {cls for cls in structs if cls.__module__ == bodies.__name__ or cls.__module__ == notes.__name__}


@pytest.mark.requirement("run.log.versions")
@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_recorded_log_folds_to_what_was_recorded_with_it(path: Path) -> None:
    """Its status, counts, results and the conversation of each model call."""
    logs, expected = read_logs(path), read_expected(path).runs
    assert logs.keys() == expected.keys() and logs
    for run_id, log in logs.items():
        assert _folded(expected[run_id].folded, log) > 9


def _folded(recorded: bytes, log: Log) -> int:
    """Compares what the log folds to with what was recorded. Returns how many values were compared."""
    was: dict[str, Any] = json.decode(recorded)
    assert differences(was, json.decode(json.encode(log.fold()))) == []
    return len(was)


@pytest.mark.requirement("run.log.versions")
@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_clients_get_the_recorded_events_of_a_log(path: Path) -> None:
    expected = read_expected(path).runs
    for run_id, log in read_logs(path).items():
        recorded: list[Any] = json.decode(expected[run_id].events)
        assert recorded and differences(recorded, json.decode(log.events(run_id))) == []


def test_a_fold_that_makes_other_states_has_another_number() -> None:
    """If this fails, `evolve` or `State` was changed: raise `FOLD`, or stored states are misread; then record them."""
    assert json.decode(STATES.read_bytes(), type=States) == states_today()


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_every_entry_of_a_recorded_log_can_be_shown(path: Path) -> None:
    for run_id, log in read_logs(path).items():
        for item in log.entries:
            assert [*decoded(item)] or item.kind in OBSERVATIONS
            if item.head:
                payload_of(decode_fact.decode(item.head), item.body, run_id=run_id)


@pytest.mark.requirement("run.deploy.upgrade")
@pytest.mark.parametrize("packed", STORES, ids=name_of)
async def test_recorded_store_has_runs_that_were_recorded_in_it(packed: Path, tmp_path: Path) -> None:
    """They are listed, their logs fold as they did, by way of the stored state too, and clients get the same."""
    store, compared = opened(unpack(packed, tmp_path)), 0
    try:
        recorded = [read_expected(file) for file in sorted(packed.parent.glob("*.jsonl"))]
        runs = {run_id: expected for scenario in recorded for run_id, expected in scenario.runs.items()}
        listed = await rows_of(store)
        assert runs.keys() == listed.keys()
        for run_id, expected in runs.items():
            log = await log_of(store, listed[run_id])
            compared += _folded(expected.folded, log)
            snapshot = json.decode(await snapshot_of(store, listed[run_id]))
            assert differences(json.decode(expected.snapshot), snapshot) == []
            key = listed[run_id].key
            loaded = await load_run(store.log, key)
            assert loaded is not None and loaded[0].state == log.state()
            store.log.release(key, loaded[0].log.epoch)
    finally:
        await store.close()
    assert compared > 9 * len(SCENARIOS)


@pytest.mark.requirement("run.deploy.upgrade")
@pytest.mark.parametrize("packed", STORES, ids=name_of)
async def test_open_runs_of_recorded_store_are_continued_to_their_end(packed: Path, tmp_path: Path) -> None:
    stage = Stage(unpack(packed, tmp_path))
    continued = 0
    await stage.open()
    try:
        for file in sorted(packed.parent.glob("*.jsonl")):
            if file.stem in CONTINUED:
                go_on, text = CONTINUED[file.stem]
                scenario = read_expected(file)
                stage.tokens |= scenario.tokens
                runs = [stage.engine.attach(run_id) for run_id in scenario.runs]
                async with asyncio.timeout(PATIENCE_S):
                    assert await go_on(stage, *runs) == text
                continued += 1
        async with asyncio.timeout(PATIENCE_S):
            said = await (await stage.start("talk", "Three.", thread="talk")).result()
        assert said.text == "You said: One. | Two. | Three."
    finally:
        await stage.close()
    assert continued >= 6


@pytest.mark.requirement("run.deploy.upgrade")
@pytest.mark.parametrize("packed", STORES, ids=name_of)
async def test_recorded_client_run_replays_without_a_difference(packed: Path, tmp_path: Path) -> None:
    """What its tools add to an offer is in the log in the words of its format."""
    stage = Stage(unpack(packed, tmp_path))
    await stage.open()
    try:
        (run_id,) = read_expected(packed.parent / f"{client_tools_over_http.__name__}.jsonl").runs
        async with asyncio.timeout(PATIENCE_S):
            assert (await stage.engine.replay(run_id)).divergence is None
    finally:
        await stage.close()


def test_every_recorded_log_has_something_to_be_compared_with() -> None:
    assert FILES and STORES and {path.parent for path in STORES} == {path.parent for path in FILES}
    assert {expected_path(path) for path in FILES} == set(LOGS.glob("*/*.expected.json"))


def test_the_recorder_still_works_and_writes_over_nothing(tmp_path: Path) -> None:
    record(tmp_path / "format")
    assert {file.stem for file in (tmp_path / "format").glob("*.jsonl")} == {one.__name__ for one in SCENARIOS}
    with pytest.raises(FileExistsError):
        record(tmp_path / "format")
