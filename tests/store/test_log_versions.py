"""Logs outlive the code that wrote them: what is stored says what it is, folds as it did, and is passed on whole."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pytest
from msgspec import json, msgpack

from recorded.folded import differences
from weftline import Agent, Engine
from weftline.kernel.entries import FACTS, FORMAT, KIND, KNOWN_RULES, decode_fact
from weftline.kernel.evolve import fold
from weftline.kernel.state import State, encode_state
from weftline.runtime import ids
from weftline.runtime.reads.calls import entries
from weftline.store import open_store
from weftline.store.base import LogReader
from weftline.store.memory import MemoryStore
from weftline.store.rows import RunFilter
from weftline.testing import ScriptedModel

STORES = Path(__file__).parents[1] / "fixtures" / "stores"


async def check_names(log: LogReader, key: int) -> int:
    """Each entry has its kind, which is also that of its head, and the row has the number of their vocabulary."""
    row, found = await log.run(key), 0
    assert row is not None and row.rules in KNOWN_RULES and 0 <= row.format <= FORMAT
    async for item in entries(log, key):
        found += 1
        if item.head:
            assert json.decode(item.head)["type"] == item.kind == KIND[type(decode_fact.decode(item.head))]
        else:
            assert item.kind and item.kind not in FACTS
    return found


@pytest.mark.requirement("run.log.versions")
@pytest.mark.parametrize("packed", sorted(STORES.glob("v*.tar.xz")), ids=lambda path: path.name)
async def test_released_logs_fold_to_their_recorded_state(packed: Path, tmp_path: Path) -> None:
    with tarfile.open(packed) as archive:
        archive.extractall(tmp_path, filter="data")
    (tmp_path / "store").chmod(0o700)
    store, compared = open_store(tmp_path / "store"), 0
    try:
        rows = await store.log.runs(RunFilter())
        assert {row.status for row in rows} >= {"running", "succeeded"}
        for row in rows:
            assert await check_names(store.log, row.key) >= 4
            if not row.state:  # a short run has none
                continue
            compared += 1
            facts = [fact for fact in await store.log.facts(row.key) if fact.seq <= row.state_seq]
            today = fold(State(), [(fact.at, decode_fact.decode(fact.head)) for fact in facts])
            assert differences(msgpack.decode(row.state), msgpack.decode(encode_state(today))) == []
    finally:
        await store.close()
    assert compared


@pytest.mark.requirement("run.log.versions")
async def test_unknown_fields_survive_reading_export_and_import(tmp_path: Path) -> None:
    async with Engine() as engine:
        run = await engine.start(Agent(ScriptedModel(["Hi."])), "Hello")
        await run.result()
        assert isinstance(engine.store, MemoryStore)
        log: Any = engine.store.log
        items = log._disk.runs[ids.key_of(run.id)].items
        await check_names(log, ids.key_of(run.id))
        for place, item in enumerate(items):  # as another version, of which this one can read the log, would write it
            if item.body and item.head:
                news = b'{"news":{"b":1,  "a":[1.0]},' + item.body[1:]
                items[place] = type(item)(item.at, item.kind, item.head, news, item.count, item.seq)
        file = await engine.export(run.id, tmp_path / "run.jsonl")
        read = await run.entries()
    told = [entry.body["news"] for entry in read.entries if entry.head is not None and entry.body is not None]
    assert len(told) >= 3 and all(news == {"b": 1, "a": [1.0]} for news in told)
    async with Engine(tmp_path / "data") as other:
        await other.import_runs(file)
        assert await other.attach(run.id).entries() == read
        assert (await (other.attach(run.id)).result()).text == "Hi."
        again = await other.export(run.id, tmp_path / "again.jsonl")
    assert again.read_bytes() == file.read_bytes() and b'{"b":1,  "a":[1.0]}' in file.read_bytes()
