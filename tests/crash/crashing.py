"""A server that dies where it is told to, and a client that does what a good client does: it tries again."""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from msgspec import Struct

from weftline.kernel.entries import CallClosed, decode_fact
from weftline.kernel.evolve import fold
from weftline.kernel.state import Question, State
from weftline.store.base import LogReader
from weftline.testing import ServerProcess

from .log import RunLog, check_carried_on, check_whole, read_logs, reading
from .scripts import SCRIPTS, TOOLS

PATIENCE_S = 90.0
"""For one step, on a busy machine too. A stream without an event for that long is that of a run that stands still."""
ALTOGETHER_S = 240.0
"""For one run or request over all its processes."""
TERMINAL = frozenset({"result", "error", "cancelled"})
LOST = (ConnectionError, http.client.HTTPException, TimeoutError)


class Event(Struct, frozen=True):
    seq: int
    type: str
    data: dict[str, Any]
    raw: bytes


def parse(line: bytes) -> Event:
    data = json.loads(line.removeprefix(b"data: "))
    return Event(data["seq"], data["type"], data["data"], line)


class Note(Struct, frozen=True):
    """One line that a tool wrote when it ran."""

    kind: str
    tool: str
    run: str
    call: str
    turn: int
    key: str
    args: dict[str, Any]


class Answer(Struct, frozen=True):
    status: int
    body: dict[str, Any]
    tries: int
    """How often the request was sent: more than once when the server died before it answered."""


class Death(Struct, frozen=True):
    """What was there when the process was gone."""

    logs: dict[int, RunLog]
    notes: list[Note]


class CrashingServer:
    """A server whose first processes die at the points of `plan`, one after another; the one after them lives."""

    def __init__(
        self, folder: Path, *, template: Path, key: str, plan: Sequence[str] = (), drain_s: float = 30
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copytree(template, folder / "store")
        self.notes_file = folder / "notes"
        self.deaths: list[Death] = []
        self.views: dict[str, list[Event]] = {}
        self._plan = list(plan)
        self._to_die = len(self._plan)
        self.headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        self.process = ServerProcess(
            folder,
            scripts=SCRIPTS,
            tools=TOOLS,
            env={"CRASH_NOTES": str(self.notes_file)},
            arguments=("--drain", str(drain_s), "--log-level", "warning"),
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.process.__exit__(kind, error, tb)

    def start(self) -> None:
        """Starts the next process of the plan; one that dies before it is ready is followed at once."""
        while self._plan:
            point = self._plan.pop(0)
            try:
                self.process.start(env={"WEFTLINE_CRASH": point})
                return
            except RuntimeError:
                self._note_death()
        self.process.start(env={"WEFTLINE_CRASH": ""})

    def revive(self) -> None:
        """After a lost connection: the process must be gone as by SIGKILL; starts the next one."""
        self._note_death()
        self.start()

    def _note_death(self) -> None:
        code = self.process.wait(PATIENCE_S)
        assert code == -signal.SIGKILL, f"the server ended with {code}: {''.join(self.process.log)}"
        self.deaths.append(Death(read_logs(self.process.db), self.notes()))

    def notes(self) -> list[Note]:
        if not self.notes_file.exists():
            return []
        return [Note(**json.loads(line)) for line in self.notes_file.read_text().splitlines()]

    def await_notes(self, count: int) -> None:
        """Returns when tools have written that many lines."""
        _until(lambda: len(self.notes()) >= count, f"{count} notes")

    def let_the_slow_call_finish(self) -> None:
        self.notes_file.with_name(f"{self.notes_file.name}.go").touch()

    def await_not_ready(self) -> None:
        """Returns when the server, still alive, says that it takes no more work."""
        _until(lambda: self._ready_status() == 503, "not ready")

    def _ready_status(self) -> int:
        connection = self.connect()
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status
        finally:
            connection.close()

    def pending(self) -> list[dict[str, Question]]:
        """The calls that wait for their clients, with their deadlines."""

        async def read(log: LogReader) -> list[dict[str, Question]]:
            logs = [await log.facts(key) for key in range(1, await log.last_key() + 1)]
            states = [fold(State(), [(fact.at, decode_fact.decode(fact.head)) for fact in facts]) for facts in logs]
            return [state.questions.open for state in states]

        return reading(self.process.db, read)

    def logs(self) -> dict[int, RunLog]:
        return read_logs(self.process.db)

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        idempotency_key: str = "",
        workspace: str = "acme",
        key: str = "",
    ) -> Answer:
        """Sends a request until it is answered."""
        headers = self.headers | ({"idempotency-key": idempotency_key} if idempotency_key else {})
        if key:
            headers["authorization"] = f"Bearer {key}"
        payload = None if body is None else json.dumps(body)
        deadline = time.monotonic() + ALTOGETHER_S
        tries = 0
        while time.monotonic() < deadline:
            tries += 1
            connection = self.connect()
            try:
                connection.request(method, f"/api/v1/workspaces/{workspace}{path}", body=payload, headers=headers)
                response = connection.getresponse()
                return Answer(response.status, json.loads(response.read()), tries)
            except LOST:
                self.revive()
            finally:
                connection.close()
        raise AssertionError(f"{method} {path} was not answered in time")

    def create(self, spec: dict[str, Any]) -> str:
        """Creates a run; the key makes sure that asking again after a crash creates no second one."""
        answer = self.request("POST", "/agent-runs", spec, idempotency_key="the run")
        assert answer.status == 202, answer
        return answer.body["runId"]

    def follow(self, run: str, *, on_offer: Callable[[Event], object] | None = None) -> list[Event]:
        """Follows a run to its end, over as many connections and processes as that takes."""
        seen = self.views.setdefault(run, [])
        deadline = time.monotonic() + ALTOGETHER_S
        while time.monotonic() < deadline:
            pid = self.process.pid
            for event in self.stream(run, after=seen[-1].seq if seen else 0):
                seen.append(event)
                if event.type in TERMINAL:
                    return seen
                if event.type == "local_tool_call" and on_offer is not None:
                    on_offer(event)
            if self.process.pid == pid:
                self.revive()
        raise AssertionError(f"run {run} did not end in time; the last events: {seen[-3:]}")

    def stream(self, run: str, *, after: int = 0) -> Iterator[Event]:
        """The events of one connection, until it ends in whatever way."""
        connection = self.connect()
        try:
            headers = self.headers | {"last-event-id": str(after)}
            connection.request("GET", f"/api/v1/workspaces/acme/agent-runs/{run}/stream", headers=headers)
            response = connection.getresponse()
            assert response.status == 200, response.read()
            still_until = time.monotonic() + PATIENCE_S
            for line in response:
                if line.startswith(b"data: "):
                    yield parse(line.rstrip(b"\n"))
                    still_until = time.monotonic() + PATIENCE_S
                # The server keeps a silent stream open with comments, so that reading from it never times out.
                assert time.monotonic() < still_until, f"run {run} stands still: no event for {PATIENCE_S} s"
        except TimeoutError:
            raise AssertionError(f"run {run}: nothing came from the server for {PATIENCE_S} s") from None
        except LOST:
            return
        finally:
            connection.close()

    def answer(self, run: str, offer: Event, result: str = "yes") -> Answer:
        body = {"toolUseId": offer.data["toolUseId"], "result": result}
        answer = self.request("POST", f"/agent-runs/{run}/tool-results", body)
        # Sent again after a crash, the answer may have been taken the first time; it is then the call's one result.
        assert answer.status == 200 or (answer.tries > 1 and answer.status in (404, 409)), answer
        return answer

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.process.port, timeout=PATIENCE_S)

    def check(self) -> dict[int, RunLog]:
        """What holds for every run whatever happened, once all of them have ended."""
        assert len(self.deaths) == self._to_die, f"died {len(self.deaths)} times of {self._to_die}"
        logs = self.logs()
        notes = self.notes()
        for log in logs.values():
            check_whole(log)
        for death in self.deaths:
            for key, before in death.logs.items():
                check_carried_on(before, logs[key])
                self._check_executions(before, logs[key], death.notes, notes)
        for run, seen in self.views.items():
            replay = list(self.stream(run))
            assert [event.raw for event in seen] == [event.raw for event in replay], (
                f"run {run}: gap or rewritten event"
            )
        once = [(note.run, note.call) for note in notes if note.kind == "ran" and note.tool in ("pay", "pay_slowly")]
        assert len(set(once)) == len(once), f"a once tool ran twice: {once}"
        keys = {(note.run, note.call, note.key, json.dumps(note.args)) for note in notes}
        assert len(keys) == len({(note.run, note.call) for note in notes}), "a call changed its key or arguments"
        return logs

    def _check_executions(self, before: RunLog, after: RunLog, then: list[Note], now: list[Note]) -> None:
        finished = {fact.id for fact in before.of(CallClosed)}
        again = [n for n in now[len(then) :] if n.kind == "ran" and n.run == after.run and n.call in finished]
        assert not again, f"run {after.run}: a finished tool ran again: {again}"


def _until(holds: Callable[[], bool], what: str) -> None:
    """Waits for something outside of this process that has no way to tell."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.005)
