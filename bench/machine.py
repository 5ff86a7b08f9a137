"""What the measures share: a folder on the disk that is measured, a server with every workload, loads and floors."""

from __future__ import annotations

import http.client
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from types import TracebackType
from typing import Self

import msgspec

from bench import workloads
from bench.load import Job, Round
from bench.processes import Child, output_of
from weftline.testing import ServerProcess

_CALL_ID = b'"toolUseId":"'


class Server:
    """A real `weftline serve` with the scripts, tools and stand-in model of the bench, and a key for it."""

    def __init__(self, process: ServerProcess, key: str) -> None:
        self.process = process
        self.key = key

    @property
    def port(self) -> int:
        return self.process.port

    @property
    def pid(self) -> int:
        return self.process.pid


class Recorded(msgspec.Struct, frozen=True):
    """The bytes of one run: the answer to its creation, and its events."""

    created: bytes
    stream: bytes


class Machine:
    """`quick` halves the rounds. Everything that was started or written is gone when the context is left."""

    def __init__(self, root: Path, *, quick: bool) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self._root = root
        self._quick = quick
        self._stack = ExitStack()
        self._server: Server | None = None
        self._model: Child | None = None
        self._recorded: dict[str, Recorded] = {}

    def rounds(self, full: int) -> int:
        return max(1, (full + 1) // 2) if self._quick else full

    @contextmanager
    def folder(self) -> Generator[Path]:
        """An empty folder that is removed afterwards."""
        path = Path(mkdtemp(prefix="work-", dir=self._root))
        try:
            yield path
        finally:
            rmtree(path, ignore_errors=True)

    @contextmanager
    def fresh_server(self, *scripts: str) -> Generator[Server]:
        """A server of its own, with an empty store; with these scripts alone where its start is measured."""
        with self.folder() as folder:
            process = ServerProcess(
                folder,
                scripts={name: workloads.SCRIPTS[name] for name in scripts or workloads.SCRIPTS},
                tools=workloads.TOOLS,
                config=workloads.config(self.model.port),
                arguments=("--log-level", "warning"),
            )
            with process:
                yield Server(process, process.create_key(workloads.WORKSPACE))

    @property
    def server(self) -> Server:
        """The server that most measures share."""
        if self._server is None:
            self._server = self._stack.enter_context(self.fresh_server())
        return self._server

    @property
    def model(self) -> Child:
        """The stand-in for a model API."""
        if self._model is None:
            self._model = self._stack.enter_context(Child("bench.fake_model"))
        return self._model

    def recorded(self, body: str) -> Recorded:
        """One run of the shared server, as bytes."""
        if body not in self._recorded:
            self._recorded[body] = record(self.server, body)
        return self._recorded[body]

    @contextmanager
    def canned(self, recorded: Recorded, *, pace_ms: int = 0) -> Generator[Child]:
        """The floor: a bare ASGI server that answers with the recorded bytes."""
        with self.folder() as folder:
            (folder / "created").write_bytes(recorded.created)
            (folder / "stream").write_bytes(recorded.stream)
            arguments = (str(pace_ms),) if pace_ms else ()
            with Child("bench.canned", str(folder), *arguments) as child:
                yield child

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.close()


def load(job: Job) -> list[Round]:
    """Has a load generator do the job. Raises when anything failed: a rate with errors in it means nothing."""
    rounds = msgspec.json.decode(output_of("bench.load", data=msgspec.json.encode(job)), type=list[Round])
    for one in rounds:
        if one.failed or not one.done:
            raise RuntimeError(f"{one.failed} of {one.failed + one.done} failed: {one.problem}")
    return rounds


def post(server: Server, path: str, body: str) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    headers = {"Authorization": f"Bearer {server.key}", "Content-Type": "application/json"}
    connection.request("POST", path, body.encode(), headers)
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    if answer.status >= 300:
        raise RuntimeError(f"POST {path}: {answer.status} {data!r}")
    return data


def get(server: Server, path: str, *, key: str) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", path, headers={"Authorization": f"Bearer {key}"})
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    if answer.status != 200:
        raise RuntimeError(f"GET {path}: {answer.status} {data!r}")
    return data


def create(server: Server, body: str) -> tuple[bytes, str]:
    """Creates a run; returns the answer and the path of the run."""
    base = f"/api/v1/workspaces/{workloads.WORKSPACE}/agent-runs"
    created = post(server, base, body)
    return created, f"{base}/{msgspec.json.decode(created)['runId']}"


def follow(server: Server, path: str) -> bytes:
    """All events of a run, to its end."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", f"{path}/stream", headers={"Authorization": f"Bearer {server.key}"})
    stream = connection.getresponse().read()
    connection.close()
    if b"event: result\n" not in stream:
        raise RuntimeError(f"the run has no result: {stream[-500:]!r}")
    return stream


def record(server: Server, body: str) -> Recorded:
    """Follows one run to its end and answers its calls on the way."""
    created, path = create(server, body)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", f"{path}/stream", headers={"Authorization": f"Bearer {server.key}"})
    answer = connection.getresponse()
    lines: list[bytes] = []
    offered = False
    while line := answer.readline():
        lines.append(line)
        if line.startswith(b"event: "):
            offered = line == b"event: local_tool_call\n"
        elif offered and line.startswith(b"data: "):
            call = line.partition(_CALL_ID)[2].partition(b'"')[0].decode()
            post(server, f"{path}/tool-results", msgspec.json.encode({"toolUseId": call, "result": "5"}).decode())
    connection.close()
    stream = b"".join(lines)
    if b"event: result\n" not in stream:
        raise RuntimeError(f"the run has no result: {stream[-500:]!r}")
    return Recorded(created, stream)
