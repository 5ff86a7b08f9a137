"""Runs that are exported and imported: the same bytes, the same stream, or a refusal that names the line."""

from __future__ import annotations

import json
import os
from base64 import b64encode
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from weftline import Agent, Engine, ask_user, tool
from weftline.errors import Conflict, InvalidRequest, NotFound, WeftlineError
from weftline.messages import Image
from weftline.replay.format import VERSION
from weftline.replay.importing import Imported
from weftline.runtime import ids
from weftline.runtime.reads.calls import entries
from weftline.testing import ScriptedModel, calls

PNG = Image("image/png", data="aGVsbG8=")


@tool(effect="read")
def look(place: str) -> str:
    """Looks."""
    return f"{place}: nothing"


def family() -> Agent[Any, Any]:
    helper = Agent(ScriptedModel([calls("look", place="shed"), "No."]), name="helper", tools=[look])
    model = ScriptedModel([calls("ask_helper", task="Is it there?"), "It is not there."])
    return Agent(model, name="searcher", tools=[helper.as_tool("Helps.", name="ask_helper")])


@asynccontextmanager
async def engine_with_run() -> AsyncGenerator[tuple[Engine, str]]:
    async with Engine() as engine:
        run = await engine.start(family(), "Where?", files=[PNG], metadata={"team": "blue"})
        await run.result()
        yield engine, run.id


async def logs_of(engine: Engine) -> dict[str, list[Any]]:
    """Everything that is stored of each run, by id."""
    log = engine.store.log
    found: dict[str, list[Any]] = {}
    for key in range(1, await log.last_key() + 1):
        row = await log.run(key)
        if row is not None:
            shown = (row.name, row.agent, row.metadata, row.status, row.created_at, row.started_at, row.ended_at)
            found[ids.run_id(key, row.salt)] = [*shown, row.format, [item async for item in entries(log, key)]]
    return found


async def exported(path: Path) -> Path:
    async with engine_with_run() as (engine, run_id):
        return await engine.export(run_id, path / "run.jsonl")


@pytest.mark.requirement("run.replay.export")
async def test_run_is_exported_with_children_and_contents_reproducibly(tmp_path: Path) -> None:
    async with engine_with_run() as (engine, run_id):
        first = await engine.export(run_id, tmp_path / "a.jsonl")
        again = await engine.export(run_id, tmp_path / "b.jsonl")
        assert first.read_bytes() == again.read_bytes()
        lines = [json.loads(line) for line in first.read_text().splitlines()]
        stored = await logs_of(engine)
        with pytest.raises(Conflict):
            await engine.export(run_id, first)
    header, end = lines[0], lines[-1]
    [child] = header["children"]
    assert (header["line"], header["version"], header["run"]) == ("header", VERSION, run_id)
    assert [run["id"] for run in header["runs"]] == [run_id, child] and header["runs"][1]["parent"] == run_id
    assert all(len(run["sha256"]) == len(run["plan_sha256"]) == 64 for run in header["runs"])
    for run in (run_id, child):
        written = [line["seq"] for line in lines if line["line"] == "entry" and line["run"] == run]
        assert written == sorted(written) == [item.seq for item in stored[run][-1]]
    assert [line["data"] for line in lines if line["line"] == "blob"] == ["aGVsbG8="]
    assert end["lines"] == len(lines) - 1


@pytest.mark.parametrize("durable", [False, True], ids=["memory", "sqlite"])
@pytest.mark.requirement("run.replay.import")
async def test_imported_run_is_unchanged_and_repeatable(durable: bool, tmp_path: Path) -> None:
    async with engine_with_run() as (engine, run_id):
        file = await engine.export(run_id, tmp_path / "run.jsonl")
        original, events = await logs_of(engine), [event async for event in engine.attach(run_id).events()]
    async with Engine(tmp_path / "data" if durable else None) as other:
        done = await other.import_runs(file)
        assert done.created == tuple(original) and done.present == ()
        assert await logs_of(other) == original
        assert [event async for event in other.attach(run_id).events()] == events
        again = await other.import_runs(file)
        assert again.created == () and again.present == tuple(original)
        assert await logs_of(other) == original and await other.store.log.unfinished() == 0
        copy = await other.export(run_id, tmp_path / "copy.jsonl")
        assert copy.read_bytes() == file.read_bytes()


async def test_new_run_gets_id_that_no_imported_one_has(tmp_path: Path) -> None:
    file = await exported(tmp_path)
    async with Engine() as other:
        imported = await other.import_runs(file)
        run = await other.start(Agent(ScriptedModel(["Hi."])), "Hello")
        assert (await run.result()).text == "Hi." and run.id not in imported.created
        assert len(await logs_of(other)) == 3


def edited(line: bytes, **fields: Any) -> bytes:
    return json.dumps({**json.loads(line), **fields}).encode() + b"\n"


@pytest.mark.requirement("run.replay.import")
async def test_damaged_cut_or_newer_file_is_refused_with_its_line(tmp_path: Path) -> None:
    file = await exported(tmp_path)
    lines = file.read_bytes().splitlines(keepends=True)
    broken = {
        "another format": ([b'{"a": 1}\n', *lines[1:]], 1),
        "nested": ([b'{"line":"header","version":1,"a":' + b"[" * 5_000 + b"\n", *lines[1:]], 1),
        "newer": ([edited(lines[0], version=VERSION + 1), *lines[1:]], 1),
        "not JSON": ([*lines[:3], b"{\n", *lines[4:]], 4),
        "an entry is missing": ([*lines[:2], *lines[3:]], 3),
        "a time was changed": ([*lines[:2], lines[2].replace(b'"at":1', b'"at":2'), *lines[3:]], len(lines)),
        "cut": (lines[:-1], len(lines)),
        "cut in a line": ([*lines[:-1], lines[-1][:20]], len(lines)),
        "something after the end": ([*lines, lines[-1]], len(lines) + 1),
    }
    async with Engine() as other:
        for what, (content, line) in broken.items():
            file.write_bytes(b"".join(content))
            with pytest.raises(InvalidRequest) as refused:
                await other.import_runs(file)
            assert refused.value.code == "bad_export" and f"line {line}:" in refused.value.message, what
        assert await logs_of(other) == {}


def sealed(lines: list[bytes]) -> bytes:
    """With an end that fits: what somebody writes who has read how files are made."""
    digest = sha256(b"".join(lines)).hexdigest()
    return b"".join([*lines, edited(b'{"line": "end"}', lines=len(lines), sha256=digest)])


@pytest.mark.requirement("run.replay.import")
async def test_contents_with_wrong_digests_or_ids_are_refused(
    tmp_path: Path,
) -> None:
    file = await exported(tmp_path)
    lines = file.read_bytes().splitlines(keepends=True)[:-1]
    [blob] = [at for at, line in enumerate(lines) if json.loads(line)["line"] == "blob"]
    stray = {"line": "blob", "id": sha256(b"stray").hexdigest(), "data": b64encode(b"stray").decode()}
    run_id = json.loads(lines[0])["run"]
    forged = {
        "another content": ([*lines[:blob], edited(lines[blob], data="QUJD"), *lines[blob + 1 :]], blob + 1),
        "twice": ([*lines, lines[blob]], len(lines) + 1),
        "nobody's": ([*lines, json.dumps(stray).encode() + b"\n"], len(lines) + 1),
        "an id with a newline": ([line.replace(run_id.encode(), run_id.encode() + rb"\n") for line in lines], 1),
        "an id with more": ([line.replace(run_id.encode(), b"run_1/../../../x.y") for line in lines], 1),
    }
    async with Engine() as other:
        for what, (content, line) in forged.items():
            file.write_bytes(sealed(content))
            with pytest.raises(InvalidRequest) as refused:
                await other.import_runs(file)
            assert refused.value.code == "bad_export" and f"line {line}:" in refused.value.message, what
        file.write_bytes(sealed(lines))
        assert run_id in (await other.import_runs(file)).created


async def test_numbers_times_and_entries_that_no_log_has_are_refused(tmp_path: Path) -> None:
    file = await exported(tmp_path)
    lines = file.read_bytes().splitlines(keepends=True)[:-1]
    header = json.loads(lines[0])
    run_id = header["run"]
    mine = [at for at, line in enumerate(lines) if json.loads(line).get("run") == run_id and at]
    entries: dict[int, Any] = {at: json.loads(lines[at]) for at in mine if json.loads(lines[at])["line"] == "entry"}
    turn = next(at for at, one in entries.items() if one.get("kind") == "turn.completed")
    created = next(at for at, one in entries.items() if one.get("kind") == "run.created")
    delta = next(at for at, one in entries.items() if one.get("kind") == "delta.text")
    always = ("run.created", "turn.completed", "call.opened", "call.closed", "child.ended", "run.ended")
    with_body = [at for at, one in entries.items() if one.get("kind") in always]
    assert {entries[at]["kind"] for at in with_body} == set(always)
    limits = {**entries[created]["head"]["limits"], "max_retries": 2**64}

    def forged(entry: int | None, row: dict[str, Any], **fields: Any) -> list[bytes]:
        """The file with another entry, and with a header that fits."""
        changed = list(lines)
        if entry is not None:
            whole = {name: value for name, value in {**entries[entry], **fields}.items() if value is not None}
            changed[entry] = json.dumps(whole, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
        digest = sha256(b"".join([changed[n] for n in entries])).hexdigest()
        every: list[dict[str, Any]] = header["runs"]
        runs = [{**one, **row, "sha256": digest} if one["id"] == run_id else one for one in every]
        changed[0] = json.dumps({**header, "runs": runs}, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
        return changed

    bad = {
        "a number of 65 bits": forged(created, {}, head={**entries[created]["head"], "limits": limits}),
        "a time of 65 bits": forged(turn, {}, at=2**64),
        "a time before all times": forged(None, {"created_at": -(2**63)}),
        "an entry under another name": forged(turn, {}, kind="call.closed"),
        "a body that is none of its kind": forged(turn, {}, body=[1]),
        **{f"no body of {entries[at]['kind']}": forged(at, {}, body=None) for at in with_body},
        "a delta of no turn": forged(delta, {}, bodies=[{**one, "turn": "x"} for one in entries[delta]["bodies"]]),
        "more made of calls than there are": forged(turn, {}, body={**entries[turn]["body"], "calls": [{}, {}]}),
        "a name that fills a page": forged(None, {"name": "x" * 5_000_000}),
        "such a name of an agent": forged(None, {"agent": "x" * 5_000_000}),
        "such metadata": forged(None, {"metadata": {"x": "x" * 5_000_000}}),
    }
    async with Engine() as other:
        for what, content in bad.items():
            file.write_bytes(sealed(content))
            with pytest.raises(InvalidRequest) as refused:
                await other.import_runs(file)
            assert refused.value.code == "bad_export", what
        assert await logs_of(other) == {}
        file.write_bytes(sealed(forged(None, {})))
        assert run_id in (await other.import_runs(file)).created


@pytest.mark.requirement("run.replay.import")
async def test_another_content_under_id_that_is_there_is_conflict(tmp_path: Path) -> None:
    file = await exported(tmp_path)
    async with engine_with_run() as (other, _):
        before = await logs_of(other)
        with pytest.raises(Conflict) as refused:
            await other.import_runs(file)
        assert refused.value.code == "import_conflict"
        assert await logs_of(other) == before


async def test_run_of_another_workspace_is_a_conflict_that_says_so(tmp_path: Path) -> None:
    async with Engine(tmp_path / "data", workspace="acme") as engine:
        run = await engine.start(Agent(ScriptedModel(["Four."]), name="sums"), "x")
        await run.result()
        file = await engine.export(run.id, tmp_path / "run.jsonl")
    async with Engine(tmp_path / "data", workspace="other") as engine:
        with pytest.raises(Conflict, match="in another workspace") as refused:
            await engine.import_runs(file)
        assert refused.value.code == "import_conflict"


async def test_unfinished_or_unknown_run_is_not_exported(tmp_path: Path) -> None:
    async with Engine() as engine:
        run = await engine.start(Agent(ScriptedModel([{"deltas": ["a", "b"], "delay_ms": 600_000}])), "x")
        for run_id, code in ((run.id, "run_unfinished"), ("run_1abc", "unknown_run")):
            with pytest.raises(WeftlineError) as refused:
                await engine.export(run_id, tmp_path / "run.jsonl")
            assert refused.value.code == code
        await run.cancel()
    assert os.listdir(tmp_path) == []


# Threads


async def led_thread(engine: Engine, name: str = "customer-42") -> list[str]:
    """A thread of two runs, one with children and an image; their ids."""
    first = await engine.start(family(), "Where?", files=[PNG], thread=name)
    await first.result()
    second = await engine.start(Agent(ScriptedModel(["In the attic."])), "Where else?", thread=name)
    await second.result()
    return [first.id, second.id]


async def test_thread_is_moved_elsewhere_and_continued(tmp_path: Path) -> None:
    file = tmp_path / "thread.jsonl"
    async with Engine() as engine:
        runs = await led_thread(engine)
        assert await engine.export_thread("customer-42", file) == file
        again = await engine.export_thread("customer-42", tmp_path / "again.jsonl")
        assert again.read_bytes() == file.read_bytes()
        said = await engine.thread("customer-42").messages()
        before = await logs_of(engine)
        with pytest.raises(NotFound, match="nobody"):
            await engine.export_thread("nobody", tmp_path / "none.jsonl")
    kinds = [json.loads(line)["line"] for line in file.read_bytes().splitlines()]
    assert kinds[:2] == ["header", "thread"] and kinds.count("thread_message") == len(said) and "message" not in kinds
    model = ScriptedModel(["As I said."])
    async with Engine() as other:
        imported = await other.import_runs(file)
        assert set(runs) < set(imported.created) and imported.thread is not None
        assert await other.import_runs(file) == Imported((), imported.created, imported.thread), "and again: nothing"
        assert await logs_of(other) == before
        assert await other.thread("customer-42").messages() == said
        await (await other.start(Agent(model), "Really?", thread="customer-42")).result()
        with pytest.raises(Conflict, match="a different conversation") as refused:
            await other.import_runs(file)
        assert refused.value.code == "import_conflict"
        onward = await other.export_thread("customer-42", tmp_path / "onward.jsonl")
        said = await other.thread("customer-42").messages()
    exported = [row["id"] for row in json.loads(onward.read_bytes().splitlines()[0])["runs"]]
    assert [run for run in exported if run in runs] == runs, "in the order in which they began"
    async with Engine() as third:
        assert len((await third.import_runs(onward)).created) == len(imported.created) + 1
        assert await third.thread("customer-42").messages() == said
    (request,) = model.requests
    assert len(request.messages) == len(said) - 1


async def test_long_message_of_thread_on_disk_is_exported_whole(tmp_path: Path) -> None:
    """There it is stored in pieces, which the log joins."""
    long, agent = "word " * 20_000, Agent(ScriptedModel(["Long."] * 2), name="reader")
    async with Engine(tmp_path / "data", agents=[agent]) as engine:
        for asked in (long, "And?"):
            await (await engine.start(agent, asked, thread="t")).result()
        file = await engine.export_thread("t", tmp_path / "thread.jsonl")
        said = await engine.thread("t").messages()
        lines = [json.loads(line) for line in file.read_bytes().splitlines()]
        by_run = [line["run"] for line in lines if line["line"] == "thread_message"]
        assert long in str(said) and len(by_run) == len(said) == 4 and by_run == sorted(by_run)
        assert (await engine.import_runs(file)).created == (), "it is compared with what is there"
    async with Engine() as other:
        await other.import_runs(file)
        assert await other.thread("t").messages() == said


@pytest.mark.parametrize("durable", [False, True], ids=["memory", "sqlite"])
async def test_imported_thread_keeps_attachments_after_trimming(durable: bool, tmp_path: Path) -> None:
    async with Engine() as engine:
        await led_thread(engine)
        file = await engine.export_thread("customer-42", tmp_path / "thread.jsonl")
        lone = await engine.start(family(), "Where?", files=[Image("image/png", data="bG9uZQ==")])
        await lone.result()
        other_file = await engine.export(lone.id, tmp_path / "run.jsonl")
    kept, gone = sha256(b"hello").hexdigest(), sha256(b"lone").hexdigest()
    goes_on = Agent(ScriptedModel(["As I said."]), name="goes_on")
    async with Engine(tmp_path / "data" if durable else None, agents=[goes_on]) as other:
        for one in (file, other_file):
            await other.import_runs(one)
        log, space = other.store.log, 1
        assert await log.blob(space, kept) == b"hello" and await log.blob(space, gone) == b"lone"
        _, trimmed = await log.trim(before=2**60, after=0, workspace=None)
        assert trimmed == 5
        assert await log.blob(space, kept) == b"hello" and await log.blob(space, gone) is None
        run = await other.start(goes_on, "Really?", thread="customer-42")
        assert (await run.result()).text == "As I said."


async def test_empty_thread_can_be_exported_but_not_an_unfinished_run(tmp_path: Path) -> None:
    asking = Agent(ScriptedModel([calls("ask_user", question="?")]), tools=[ask_user])
    async with Engine() as engine:
        await engine.thread("empty").messages()
        file = await engine.export_thread("empty", tmp_path / "empty.jsonl")
        begun = await engine.start(asking, "Go.", thread="t")
        with pytest.raises(Conflict) as refused:
            await engine.export_thread("t", tmp_path / "t.jsonl")
        assert refused.value.code == "run_unfinished"
        await begun.cancel()
    async with Engine() as other:
        assert (await other.import_runs(file)).created == ()
        assert await other.thread("empty").messages() == []


@pytest.mark.parametrize(
    ("number", "old", "new", "fault"),
    [
        (1, b'"thread":"ses_', b'"thread":"xxx_', "does not name the thread"),
        (2, b'"line":"thread"', b'"line":"header"', "cannot be read"),
        (2, b'"spec":{}', b'"spec":[]', "is not an object"),
        (3, b'"run":"run_', b'"run":"run_f', "does not name"),
        (3, b'"type":"text"', b'"type":"tune"', "messages of ses_"),
    ],
)
async def test_the_file_of_a_thread_that_was_changed_is_refused(
    number: int, old: bytes, new: bytes, fault: str, tmp_path: Path
) -> None:
    async with Engine() as engine:
        await led_thread(engine)
        file = await engine.export_thread("customer-42", tmp_path / "thread.jsonl")
    lines = file.read_bytes().splitlines(keepends=True)
    assert old in lines[number - 1]
    lines[number - 1] = lines[number - 1].replace(old, new, 1)
    body = b"".join(lines[:-1])
    end = {"line": "end", "lines": len(lines) - 1, "sha256": sha256(body).hexdigest()}
    file.write_bytes(body + json.dumps(end, separators=(",", ":")).encode() + b"\n")
    async with Engine() as other:
        with pytest.raises(InvalidRequest, match=fault):
            await other.import_runs(file)
        assert await other.store.log.last_key() == 0
