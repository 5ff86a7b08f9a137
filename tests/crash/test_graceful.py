"""Being asked to stop is no crash: what is under way is finished, streams end between frames, nothing is in doubt."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from weftline.kernel.entries import AttemptFailed, AttemptStarted, CallClosed, RunAdopted

from .conftest import Template
from .crashing import PATIENCE_S, CrashingServer, Event, parse
from .scripts import spec

CLOSING = ("store.closed:before", "store.closed:after")


def read_to_the_end(
    server: CrashingServer, run: str, *, until: Callable[[bytes], bool], then: Callable[[], None]
) -> bytes:
    """Everything that one connection brings; `then` is called once, when `until` holds for what has come so far."""
    connection = server.connect()
    try:
        connection.request("GET", f"/api/v1/workspaces/acme/agent-runs/{run}/stream", headers=server.headers)
        response = connection.getresponse()
        data, told = b"", False
        while piece := response.read1(65536):  # raises IncompleteRead when it is cut inside a chunk
            data += piece
            if not told and until(data):
                told = True
                then()
        return data
    finally:
        connection.close()


@pytest.mark.requirement("wire.sse.shutdown", "run.crash.graceful")
def test_stop_in_a_stream_ends_it_between_frames(template: Template, tmp_path: Path) -> None:
    with CrashingServer(tmp_path / "server", template=template.store, key=template.key) as server:
        run = server.create(spec("stream"))

        def stop() -> None:
            os.kill(server.process.pid, signal.SIGTERM)

        data = read_to_the_end(server, run, until=lambda data: data.count(b"assistant_delta") > 4, then=stop)
        assert server.process.wait(PATIENCE_S) == 0
        assert data.endswith(b"\n\n"), "the stream was cut inside a frame"
        seen = server.views[run] = [parse(line) for line in data.splitlines() if line.startswith(b"data: ")]
        assert seen[-1].type == "assistant_message", "the turn under way was not finished, or another one was begun"
        server.start()
        server.follow(run)
        (log,) = server.check().values()
        assert not log.of(RunAdopted) and not log.of(AttemptFailed), "something was in doubt"
        assert len(log.of(AttemptStarted)) == 2 == seen[-1].data["attempts"]


@pytest.mark.requirement("run.crash.graceful")
def test_stop_lets_call_under_way_finish_and_begins_no_other(template: Template, tmp_path: Path) -> None:
    with CrashingServer(tmp_path / "server", template=template.store, key=template.key) as server:
        run = server.create(spec("slow_tool"))
        server.await_notes(1)
        os.kill(server.process.pid, signal.SIGTERM)
        server.await_not_ready()
        server.let_the_slow_call_finish()
        assert server.process.wait(PATIENCE_S) == 0
        assert [(note.kind, note.tool) for note in server.notes()] == [("ran", "pay_slowly"), ("done", "pay_slowly")]
        (left,) = server.logs().values()
        assert [fact.how for fact in left.of(CallClosed)] == ["returned"]
        server.start()
        assert server.follow(run)[-1].data["text"] == "paid 9 || looked at later"
        (log,) = server.check().values()
        assert not log.of(RunAdopted)
        assert [note.tool for note in server.notes() if note.kind == "ran"] == ["pay_slowly", "look"]


@pytest.mark.requirement("run.crash.graceful", "run.effect.once")
@pytest.mark.parametrize("how", ["a second signal", "the drain time is over"])
def test_work_that_stop_cuts_is_treated_as_after_crash(how: str, template: Template, tmp_path: Path) -> None:
    drain_s = 0.0 if how == "the drain time is over" else 30.0
    with CrashingServer(tmp_path / "server", template=template.store, key=template.key, drain_s=drain_s) as server:
        run = server.create(spec("slow_tool"))
        server.await_notes(1)
        os.kill(server.process.pid, signal.SIGTERM)
        if how == "a second signal":
            server.await_not_ready()
            os.kill(server.process.pid, signal.SIGTERM)
        assert server.process.wait(PATIENCE_S) == 0
        server.start()
        end = server.follow(run)[-1]
        (log,) = server.check().values()
        assert [fact.how for fact in log.of(CallClosed)] == ["in_doubt", "returned"], end
        assert [note.tool for note in server.notes() if note.kind == "ran"] == ["pay_slowly", "look"]


@pytest.mark.requirement("run.crash.ends", "run.crash.graceful")
@pytest.mark.parametrize("point", CLOSING)
def test_a_kill_while_the_store_is_being_closed_loses_nothing(point: str, template: Template, tmp_path: Path) -> None:
    with CrashingServer(tmp_path / "server", template=template.store, key=template.key, plan=[point]) as server:
        run = server.create(spec("slow_tool"))
        server.await_notes(1)
        os.kill(server.process.pid, signal.SIGTERM)
        server.let_the_slow_call_finish()
        server.revive()
        assert server.follow(run)[-1].data["text"] == "paid 9 || looked at later"
        server.check()


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_run_waiting_for_its_client_is_unchanged_by_a_restart(how: str, template: Template, tmp_path: Path) -> None:
    with CrashingServer(tmp_path / "server", template=template.store, key=template.key) as server:
        run = server.create(spec("ask"))
        offer = next(event for event in server.stream(run) if event.type == "local_tool_call")
        if how == "killed":
            server.process.kill()
        else:
            assert server.process.terminate() == 0
        before, deadlines = server.logs(), server.pending()
        server.start()
        assert server.logs() == before and server.pending() == deadlines
        offers: list[Event] = []

        def answer(again: Event) -> None:
            offers.append(again)
            server.answer(run, again)

        assert server.follow(run, on_offer=answer)[-1].data["text"] == "yes"
        assert offers == [offer]
        (log,) = server.check().values()
        assert not log.of(RunAdopted) and len(log.of(AttemptStarted)) == 2
