"""Differences between the versions of A2A: method names, and the spelling of requests, results and errors."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, ClassVar, Protocol

from msgspec import Struct

from weftline.server.a2a.parts import Content
from weftline.server.a2a.rpc import RpcError, RpcFault
from weftline.server.a2a.tasks import Task

MAX_HISTORY = 1000
"""The most history messages in one response, however many were requested."""
USUAL_HISTORY = 100
"""The default number of history messages."""


class Operation(Enum):
    SEND = auto()
    STREAM = auto()
    GET = auto()
    LIST = auto()
    CANCEL = auto()
    SUBSCRIBE = auto()
    PUSH = auto()
    EXTENDED_CARD = auto()


class SentMessage(Struct, frozen=True):
    """A message that a caller sent."""

    id: str
    content: Content
    context_id: str | None
    task_id: str | None
    blocking: bool
    history: int

    @property
    def text(self) -> str:
        return self.content.text


class TaskQuery(Struct, frozen=True):
    id: str
    history: int = USUAL_HISTORY


class ListQuery(Struct, frozen=True):
    """A list request. `page` and `since` are as the caller sent them."""

    context_id: str = ""
    state: str = ""
    limit: int = 50
    page: str = ""
    history: int = 0
    since: str = ""
    artifacts: bool = False


class Dialect(Protocol):
    """One version of A2A. `message`, `task_query` and `list_query` raise `RpcError` for invalid parameters."""

    version: str
    methods: ClassVar[Mapping[str, Operation]]
    extended_card_error: int
    follows_ended: bool
    """Whether subscribing to a task that has ended returns its outcome instead of an error."""
    includes_data: bool
    """Whether a JSON answer is sent as data."""
    nothing_to_follow: int
    """The HTTP status for a subscriber whose task does not exist."""

    def message(self, params: bytes) -> SentMessage: ...
    def task_query(self, params: bytes) -> TaskQuery: ...
    def list_query(self, params: bytes) -> ListQuery: ...

    def task(self, task: Task) -> Any:
        """Returns the task by itself, as the result of getting or cancelling it."""
        ...

    def sent(self, task: Task, *, waited: bool) -> Any:
        """Returns the response to a message. Raises `RpcError` if this version reports failures that way."""
        ...

    def listed(self, tasks: list[Task], *, query: ListQuery, total: int, next_page: str) -> Any: ...

    def first(self, task: Task) -> Any:
        """Returns the first event of a stream."""
        ...

    def chunk(self, task: Task, text: str, *, append: bool, last: bool = False) -> Any:
        """Returns an event with a piece of the answer; without `append`, the answer starts over."""
        ...

    def answer(self, task: Task) -> Any:
        """Returns an event with the task's whole answer, which replaces all pieces."""
        ...

    def status(self, task: Task, *, final: bool) -> Any:
        """Returns an event with the task's status; `final` if it is the stream's last."""
        ...

    def fault(self, error: RpcError) -> RpcFault: ...


def history_length(asked: int | None, *, path: str) -> int:
    """Returns how many history messages to include."""
    if asked is None:
        return USUAL_HISTORY
    if asked < 0:
        raise RpcError(-32602, "must be 0 or more.", path=path)
    return min(asked, MAX_HISTORY)
