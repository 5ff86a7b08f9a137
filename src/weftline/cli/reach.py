"""Where a command finds runs and resources: at the server in `--url`, or in a store on this machine.

In both cases the command sends HTTP. A store that somebody has open answers on its own socket; of one that nobody has
open, the same application answers in this process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar, overload
from urllib.parse import quote, urlencode

import click
from msgspec.json import decode, encode

from weftline.errors import TABLE, NotFound, StoreError, WeftlineError

if TYPE_CHECKING:
    from asyncio import Runner
    from collections.abc import Coroutine

    from weftline.client import AsyncClient
    from weftline.store.base import ReadStore

T = TypeVar("T")
Send: TypeAlias = Callable[[str, str, bytes | None], bytes]
"""Sends a request with this method, target and body; returns the body of a success."""

_EVERY = "-"
"""Stands for the workspace where the path names something by its id, and for all workspaces in the list of runs."""
_API, _OPERATOR = "/api/v1/workspaces", "/api/v1/operator"
_PAGE = 200
_CONNECT_S, _READ_S = 2.0, 10.0
_TRIES, _PAUSE_S = 5, 0.2
"""How often the owner of a store is tried that does not listen yet."""


class Reached(ABC):
    """A server or a store, as every command can use it. Paths are below the workspace.

    Raises `WeftlineError` for a refusal; its `details` have the `answered` status.
    """

    same_version: ClassVar[bool]
    """Whether it is of this version. Another one may name runs differently, and may not find the beginnings of ids."""

    def __init__(self, workspace: str | None) -> None:
        self.workspace = workspace

    @abstractmethod
    def call(
        self, method: str, path: str, *, query: Mapping[str, str | int | None] | None = None, body: Any = None
    ) -> Any: ...

    @abstractmethod
    def post_once(self, path: str, body: Any) -> Any:
        """The same as `post` for what must not happen twice, although an answer may get lost on the way."""

    @abstractmethod
    def places(self) -> Iterable[Reached]:
        """Returns the workspaces that a command for all of them goes through."""

    def get(self, path: str, **query: str | int | None) -> Any:
        return self.call("GET", path, query=query)

    def post(self, path: str, body: Any = None) -> Any:
        return self.call("POST", path, body=body)

    def items(self, path: str, field: str, **query: str | int | None) -> Iterator[dict[str, Any]]:
        """Yields the items of a list, page by page, so that nobody need hold all of them at once."""
        cursor: str | None = None
        while True:
            page = self.get(path, limit=_PAGE, cursor=cursor, **query)
            yield from page[field]
            cursor = page["nextCursor"]
            if cursor is None:
                return

    def exists(self, path: str) -> bool:
        """Whether something is there. What may not be read may still be there."""
        try:
            self.get(path)
        except WeftlineError as error:
            if "answered" not in error.details:
                raise
            return error.details["answered"] != NotFound("").status
        return True


class AtStore(Reached):
    """The process that has the store open, or the store itself; the command is the operator's."""

    same_version = True

    def __init__(self, send: Send, workspace: str | None) -> None:
        super().__init__(workspace)
        self._send = send

    def call(
        self, method: str, path: str, *, query: Mapping[str, str | int | None] | None = None, body: Any = None
    ) -> Any:
        target = f"{_API}/{quote(self.workspace or _EVERY, safe='')}{path}{_query(query)}"
        return self._exchange(method, target, body)

    def post_once(self, path: str, body: Any) -> Any:
        return self.post(path, body)  # nobody repeats it: whether it took effect is for the person to find out

    def places(self) -> Iterable[Reached]:
        return [self] if self.workspace is not None else (AtStore(self._send, slug) for slug in self.slugs())

    def operate(
        self, method: str, path: str, *, query: Mapping[str, str | int | None] | None = None, body: Any = None
    ) -> Any:
        """Sends what only the operator can do."""
        return self._exchange(method, f"{_OPERATOR}/{path}{_query(query)}", body)

    def ensure(self) -> AtStore:
        """Creates the workspace if it is new."""
        self.operate("PUT", f"workspaces/{named(self.workspace or '')}")
        return self

    def slugs(self) -> list[str]:
        return [one["slug"] for one in self._exchange("GET", _API, None)["workspaces"]]

    def _exchange(self, method: str, target: str, body: Any) -> Any:
        sent = None if body is None else body if isinstance(body, bytes) else encode(body)
        return decode(self._send(method, target, sent))


class AtServer(Reached):
    """The server in `--url`, whose workspace is that of the key unless one is named."""

    same_version = False

    def __init__(self, client: AsyncClient, runner: Runner, workspace: str | None) -> None:
        super().__init__(workspace)
        self.client = client
        self._runner = runner

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs `work` on the client's loop."""
        from weftline.cli.target import as_command_error
        from weftline.client import ClientError

        try:
            return self._runner.run(work)
        except ClientError as error:
            raise as_command_error(error) from None

    def call(
        self, method: str, path: str, *, query: Mapping[str, str | int | None] | None = None, body: Any = None
    ) -> Any:
        return self._ask(method, path, query=query, body=body)

    def post_once(self, path: str, body: Any) -> Any:
        from secrets import token_urlsafe

        return self._ask("POST", path, body=body, key=token_urlsafe(18))

    def places(self) -> Iterable[Reached]:
        return [self]

    def _ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int | None] | None = None,
        body: Any = None,
        key: str | None = None,
    ) -> Any:
        """With an idempotency `key`, the client asks again if the answer gets lost."""
        pairs = [(name, str(value)) for name, value in (query or {}).items() if value is not None]
        sent = None if body is None else encode(body)
        return decode(self.run(self.client.http.call(method, path, query=pairs, body=sent, idempotency_key=key)))


@overload
def reach(db: Path, *, workspace: str | None = None, writes: bool = False) -> AbstractContextManager[AtStore]: ...
@overload
def reach(
    db: Path, *, url: str | None, workspace: str | None = None, writes: bool = False
) -> AbstractContextManager[Reached]: ...
def reach(
    db: Path, *, url: str | None = None, workspace: str | None = None, writes: bool = False
) -> AbstractContextManager[Reached]:
    """Reaches the server at `url`, or else whoever has the store open, or else the store.

    A missing store is never created, so that a mistyped path is noticed; only `weftline serve` creates one.
    """
    return _at_store(db, workspace, writes=writes) if url is None else _at_server(url, workspace)


@contextmanager
def reach_if_running(db: Path) -> Generator[AtStore | None]:
    """Reaches whoever has the store open; None if nobody answers."""
    try:
        connection = _connected(db)
    except StoreError:
        connection = None
    if connection is None:
        yield None
        return
    with connection:
        yield AtStore(connection.send_request, None)


@contextmanager
def _at_server(url: str, workspace: str | None) -> Generator[AtServer]:
    import asyncio
    from contextlib import AsyncExitStack

    from weftline.cli.target import connected

    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        client = runner.run(stack.enter_async_context(connected(url, workspace)))
        try:
            yield AtServer(client, runner, workspace)
        finally:
            runner.run(stack.aclose())


@contextmanager
def _at_store(db: Path, workspace: str | None, *, writes: bool) -> Generator[AtStore]:
    with _local(db, writes=writes) as send:
        yield AtStore(send, workspace)


@contextmanager
def _local(db: Path, *, writes: bool) -> Generator[Send]:
    from weftline.store import open_for_reading, open_store

    connection = _connected(db)
    with ExitStack() as stack:
        if connection is not None:
            stack.enter_context(connection)
            yield connection.send_request if writes else _Reading(db, connection, stack).send
        elif not writes:
            yield stack.enter_context(_in_process(open_for_reading(db)))
        else:
            try:
                store = open_store(db, create=False)
            except StoreError as error:
                if error.code != "store_in_use":
                    raise
                yield stack.enter_context(_starting(db, error)).send_request
                return
            yield stack.enter_context(_in_process(store))


def _connected(db: Path) -> _OwnSocket | None:
    """Returns a connection to the process that has the store open; None if nobody listens."""
    from weftline.store import owner_of

    owner = owner_of(db)
    if owner is None or not owner.socket:
        return None
    connection = _OwnSocket(db / owner.socket)
    try:
        connection.connect()
    except OSError:
        connection.close()
        return None
    return connection


def _starting(db: Path, in_use: WeftlineError) -> _OwnSocket:
    """Returns a connection to the owner of a store that does not listen yet; raises if that takes long."""
    from time import sleep

    for _ in range(_TRIES):
        if (connection := _connected(db)) is not None:
            return connection
        sleep(_PAUSE_S)
    raise StoreError(
        f"{in_use.message} It takes no commands at the moment: try again once it has started, or has ended.",
        code=in_use.code,
    )


class _OwnSocket(HTTPConnection):
    """HTTP on the store's own socket. Writes may take as long as they like."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost")
        self._path = path

    def __enter__(self) -> _OwnSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def connect(self) -> None:
        import socket

        from weftline.store.naming import short_path

        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_CONNECT_S)
        with short_path(self._path.absolute()) as path:
            self.sock.connect(path)

    def send_request(self, method: str, target: str, body: bytes | None) -> bytes:
        if self.sock is None:
            self.connect()
        assert self.sock is not None
        self.sock.settimeout(_READ_S if method == "GET" else None)
        try:
            self.request(method, target, body)
            answer = self.getresponse()
            return _accepted(answer.status, answer.read())
        except TimeoutError:
            raise
        except (OSError, HTTPException):
            raise WeftlineError(
                "The process that has the store open stopped before it answered; the command may or may not have taken"
                " effect.",
                code="unavailable",
            ) from None


class _Reading:
    """Reads through the owner of a store, or from the store itself once the owner has not answered in time."""

    def __init__(self, db: Path, connection: _OwnSocket, stack: ExitStack) -> None:
        self._db = db
        self._stack = stack
        self.send_now: Send = connection.send_request

    def send(self, method: str, target: str, body: bytes | None) -> bytes:
        from weftline.store import open_for_reading

        try:
            return self.send_now(method, target, body)
        except TimeoutError:
            click.echo("The process that has the store open does not answer: this is read from the store.", err=True)
            self.send_now = self._stack.enter_context(_in_process(open_for_reading(self._db)))
            return self.send_now(method, target, body)


@contextmanager
def _in_process(store: ReadStore) -> Generator[Send]:
    """Answers in this process, on a store that it has opened."""
    import asyncio
    from getpass import getuser

    with asyncio.Runner() as runner:
        try:
            from weftline.server.offline import OfflineApp

            async def made() -> OfflineApp:
                return OfflineApp(store)

            app = runner.run(made())

            def send(method: str, target: str, body: bytes | None) -> bytes:
                answer = runner.run(app.answer(method, target, body or b"", operator=getuser()))
                return _accepted(answer.status, answer.body)

            yield send
        finally:
            runner.run(store.close())


def _accepted(status: int, body: bytes) -> bytes:
    """Returns the body of a success; raises the error that another one describes."""
    if status < 300:
        return body
    refused = decode(body)
    message, code = refused["message"], refused["code"]
    if code == "internal_error":
        message = "The process that has the store open failed to do this; its log has the details."
    raise WeftlineError(message, code=code if code in TABLE else None, answered=status)


def _query(given: Mapping[str, str | int | None] | None) -> str:
    pairs = {name: value for name, value in (given or {}).items() if value is not None}
    return f"?{urlencode(pairs)}" if pairs else ""


def named(name: str) -> str:
    """Returns a name as a part of a path."""
    return quote(name, safe="")
