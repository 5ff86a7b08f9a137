"""The spelling of A2A 1.0: the method and enum names of its protocol buffers, in their JSON mapping.

This mapping writes field names in camel case and also accepts those of the `.proto` file; null means absent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, cast

from msgspec import UNSET, DecodeError, Struct, UnsetType, ValidationError, convert, field
from msgspec.json import decode

from weftline.server.a2a.asking import TaskMessage
from weftline.server.a2a.dialect import ListQuery, Operation, SentMessage, TaskQuery, history_length
from weftline.server.a2a.parts import DataPart, FilePart, Part, TextPart, check_name, content_of
from weftline.server.a2a.rpc import (
    INVALID_PARAMS,
    PUSH_NOT_SUPPORTED,
    REASONS,
    UNSUPPORTED_OPERATION,
    RpcError,
    RpcFault,
    invalid,
)
from weftline.server.a2a.tasks import ANSWER, STATES, Task
from weftline.wire.responses import iso
from weftline.wire.validation import json_words

MAX_PAGE = 100
_PAGE = 50
_TYPES = "type.googleapis.com/google.rpc."
_SNAKE = re.compile(r"_([a-z])")
_STATE_NAMES = {state: f"TASK_STATE_{state.upper().replace('-', '_')}" for state in STATES.values()}
_STATES = {name: state for state, name in _STATE_NAMES.items()}
_OTHER_STATES = frozenset({"TASK_STATE_REJECTED", "TASK_STATE_AUTH_REQUIRED"})
"""States that our tasks never have."""
_CONTENTS = ("text", "raw", "url", "data")


class _Message(Struct, rename="camel"):
    parts: list[dict[str, Any]] = []
    message_id: Any = None
    role: Any = None
    context_id: str | None = None
    task_id: str | None = None


class _Configuration(Struct, rename="camel"):
    return_immediately: bool | None = None
    history_length: int | None = None
    task_push_notification_config: Any = None


class _TaskParams(Struct, rename="camel"):
    id: str
    history_length: int | None = None


class _ListParams(Struct, rename="camel"):
    context_id: str | None = None
    status: str | None = None
    page_size: int | None = None
    page_token: str | None = None
    history_length: int | None = None
    status_timestamp_after: str | None = None
    include_artifacts: bool | None = None


def _fields(value: object, path: str) -> dict[str, Any]:
    """Returns the fields of an object by their camel-case names, without nulls."""
    if not isinstance(value, dict):
        raise invalid(path, "must be an object.")
    given = cast("dict[str, Any]", value)
    return {_SNAKE.sub(lambda m: m[1].upper(), name): one for name, one in given.items() if one is not None}


def _decoded(params: bytes) -> dict[str, Any]:
    try:
        return _fields(decode(params), "params")
    except (DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise invalid("params", json_words(error)) from None


def _convert(fields: dict[str, Any], kind: Any, path: str) -> Any:
    try:
        return convert(fields, kind)
    except ValidationError as error:
        raise invalid(path, json_words(error)) from None


def _part(number: int, sent: dict[str, Any]) -> Part:
    path = f"message.parts[{number}]"
    given = _fields(sent, path)
    contents = [name for name in _CONTENTS if name in sent and (sent[name] is not None or name == "data")]
    if len(contents) != 1:
        raise invalid(path, f"must have exactly one of {', '.join(_CONTENTS)}.")
    content, kind, name = contents[0], given.get("mediaType", ""), given.get("filename", "")
    if content == "data":
        return DataPart(sent["data"])
    value = sent[content]
    if not isinstance(value, str) or not isinstance(kind, str) or not isinstance(name, str):
        raise invalid(path, f"{content}, mediaType and filename must be strings.")
    return TextPart(value) if content == "text" else FilePart(kind, name, value if content == "raw" else None)


# Responses. Required fields are always present; others are left out when empty.


class PartObject(Struct, rename="camel"):
    text: str | UnsetType = UNSET
    data: Any | UnsetType = UNSET
    media_type: str | UnsetType = UNSET


class Message(Struct, rename="camel"):
    message_id: str
    role: str
    parts: list[PartObject]
    context_id: str
    task_id: str


class _Status(Struct):
    state: str
    timestamp: str
    message: Message | UnsetType = UNSET


class Artifact(Struct, rename="camel"):
    artifact_id: str
    parts: list[PartObject]


class TaskObject(Struct, rename="camel"):
    id: str
    context_id: str
    status: _Status
    artifacts: list[Artifact] | UnsetType = UNSET
    history: list[Message] | UnsetType = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET


class SendMessageResponse(Struct):
    task: TaskObject


class ListTasksResponse(Struct, rename="camel"):
    tasks: list[TaskObject]
    next_page_token: str
    page_size: int
    total_size: int


class _ArtifactUpdate(Struct, rename="camel"):
    task_id: str
    context_id: str
    artifact: Artifact
    append: bool
    last_chunk: bool


class _StatusUpdate(Struct, rename="camel"):
    task_id: str
    context_id: str
    status: _Status
    metadata: dict[str, Any] | UnsetType = UNSET


class StreamResponse(Struct, rename="camel"):
    """Exactly one field is set."""

    task: TaskObject | UnsetType = UNSET
    status_update: _StatusUpdate | UnsetType = UNSET
    artifact_update: _ArtifactUpdate | UnsetType = UNSET


class _ErrorInfo(Struct):
    reason: str
    domain: str
    metadata: dict[str, str]
    type: str = field(name="@type", default=f"{_TYPES}ErrorInfo")


class V1:
    version = "1.0"
    extended_card_error = UNSUPPORTED_OPERATION
    follows_ended = False
    includes_data = True
    nothing_to_follow = 200
    methods: ClassVar[Mapping[str, Operation]] = {
        "SendMessage": Operation.SEND,
        "SendStreamingMessage": Operation.STREAM,
        "GetTask": Operation.GET,
        "ListTasks": Operation.LIST,
        "CancelTask": Operation.CANCEL,
        "SubscribeToTask": Operation.SUBSCRIBE,
        "CreateTaskPushNotificationConfig": Operation.PUSH,
        "GetTaskPushNotificationConfig": Operation.PUSH,
        "ListTaskPushNotificationConfigs": Operation.PUSH,
        "DeleteTaskPushNotificationConfig": Operation.PUSH,
        "GetExtendedAgentCard": Operation.EXTENDED_CARD,
    }

    def message(self, params: bytes) -> SentMessage:
        sent = _decoded(params)
        message: _Message = _convert(_fields(sent.get("message"), "message"), _Message, "message")
        settings = _fields(sent.get("configuration", {}), "configuration")
        configuration: _Configuration = _convert(settings, _Configuration, "configuration")
        content = content_of([_part(number, part) for number, part in enumerate(message.parts)])
        if message.role not in ("ROLE_USER", 1):
            raise invalid("message.role", "must be ROLE_USER.")
        if configuration.task_push_notification_config is not None:
            raise RpcError(PUSH_NOT_SUPPORTED, "Push notification is not supported.")
        return SentMessage(
            check_name(message.message_id, "message.messageId"),
            content,
            check_name(message.context_id, "message.contextId") if message.context_id else None,
            message.task_id or None,
            configuration.return_immediately is not True,
            history_length(configuration.history_length, path="configuration.historyLength"),
        )

    def task_query(self, params: bytes) -> TaskQuery:
        sent: _TaskParams = _convert(_decoded(params), _TaskParams, "params")
        return TaskQuery(sent.id, history_length(sent.history_length, path="historyLength"))

    def list_query(self, params: bytes) -> ListQuery:
        sent: _ListParams = _convert(_decoded(params), _ListParams, "params")
        size = _PAGE if sent.page_size is None else sent.page_size
        if not 1 <= size <= MAX_PAGE:
            raise invalid("pageSize", f"must be from 1 to {MAX_PAGE}.")
        status = sent.status or "TASK_STATE_UNSPECIFIED"
        if status not in _STATES and status not in _OTHER_STATES and status != "TASK_STATE_UNSPECIFIED":
            raise invalid("status", f"'{status[:40]}' is not a task state.")
        return ListQuery(
            context_id=sent.context_id or "",
            state="" if status == "TASK_STATE_UNSPECIFIED" else _STATES.get(status, "none"),
            limit=size,
            page=sent.page_token or "",
            history=history_length(sent.history_length or 0, path="historyLength"),
            since=sent.status_timestamp_after or "",
            artifacts=sent.include_artifacts is True,
        )

    def task(self, task: Task) -> TaskObject:
        return _task(task)

    def sent(self, task: Task, *, waited: bool) -> SendMessageResponse:
        return SendMessageResponse(_task(task))

    def listed(self, tasks: list[Task], *, query: ListQuery, total: int, next_page: str) -> ListTasksResponse:
        items = [_task(task, artifacts=query.artifacts) for task in tasks]
        return ListTasksResponse(items, next_page, query.limit, total)

    def first(self, task: Task) -> StreamResponse:
        return StreamResponse(task=_task(task))

    def chunk(self, task: Task, text: str, *, append: bool, last: bool = False) -> StreamResponse:
        return _piece(task, Artifact(ANSWER, [PartObject(text=text)]), append=append, last=last)

    def answer(self, task: Task) -> StreamResponse:
        return _piece(task, _answer(task), append=False, last=True)

    def status(self, task: Task, *, final: bool) -> StreamResponse:
        update = _StatusUpdate(task.id, task.context_id, _status(task), task.usage or UNSET)
        return StreamResponse(status_update=update)

    def fault(self, error: RpcError) -> RpcFault:
        details: list[Any] = []
        if error.code == INVALID_PARAMS and error.path:
            violation = {"field": error.path, "description": error.fault}
            details.append({"@type": f"{_TYPES}BadRequest", "fieldViolations": [violation]})
        about = {name: str(value) for name, value in error.about.items() if value is not None}
        if error.code in REASONS:
            details.append(_ErrorInfo(REASONS[error.code], "a2a-protocol.org", about))
        elif "code" in about:
            details.append(_ErrorInfo(about.pop("code").upper(), "weftline", about))
        return RpcFault(error.code, error.message, details or None)


def _answer(task: Task) -> Artifact:
    if task.data is not None:
        return Artifact(ANSWER, [PartObject(data=task.data, media_type="application/json")])
    return Artifact(ANSWER, [PartObject(text=task.result or "")])


def _piece(task: Task, artifact: Artifact, *, append: bool, last: bool) -> StreamResponse:
    return StreamResponse(artifact_update=_ArtifactUpdate(task.id, task.context_id, artifact, append, last))


def _task(task: Task, *, artifacts: bool = True) -> TaskObject:
    return TaskObject(
        task.id,
        task.context_id,
        _status(task),
        [_answer(task)] if artifacts and task.result is not None else UNSET,
        [_message(task, one) for one in task.history] or UNSET,
        task.usage or UNSET,
    )


def _status(task: Task) -> _Status:
    message = UNSET if task.message is None else _message(task, task.message)
    return _Status(_STATE_NAMES[task.state], iso(task.at_us), message)


def _message(task: Task, message: TaskMessage) -> Message:
    parts = [PartObject(text=message.text)]
    parts += [PartObject(data=one, media_type="application/json") for one in message.data]
    if message.note:
        parts.append(PartObject(text=message.note))
    return Message(message.id, f"ROLE_{message.role.upper()}", parts, task.context_id, task.id)
