"""The spelling of A2A 0.3: `message/send`, `kind` in every object, states in kebab case."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from msgspec import UNSET, DecodeError, Struct, UnsetType, field
from msgspec.json import Decoder

from weftline.server.a2a.asking import TaskMessage
from weftline.server.a2a.dialect import ListQuery, Operation, SentMessage, TaskQuery, history_length
from weftline.server.a2a.parts import DataPart, FilePart, Part, TextPart, check_name, content_of
from weftline.server.a2a.rpc import (
    EXTENDED_CARD_NOT_CONFIGURED,
    INTERNAL_ERROR,
    METHOD_NOT_FOUND,
    PUSH_NOT_SUPPORTED,
    RpcError,
    RpcFault,
    invalid,
)
from weftline.server.a2a.tasks import ANSWER, Task
from weftline.wire.responses import iso
from weftline.wire.validation import json_words


class _File(Struct, rename="camel"):
    name: str | None = None
    mime_type: str | None = None
    bytes: str | None = None
    uri: str | None = None


class _Part(Struct):
    kind: str = ""
    type: str = ""
    """Older callers send this instead of `kind`."""
    text: str = ""
    data: Any | UnsetType = UNSET
    file: _File | None = None


class _Message(Struct, rename="camel"):
    parts: list[_Part]
    kind: str = "message"
    message_id: Any = None
    role: Any = None
    context_id: str | None = None
    task_id: str | None = None


class _Configuration(Struct, rename="camel"):
    blocking: bool | None = None
    history_length: int | None = None
    push_notification_config: Any = None


class _MessageParams(Struct):
    message: _Message
    configuration: _Configuration | None = None


class _TaskParams(Struct, rename="camel"):
    id: str
    history_length: int | None = None


_message_params = Decoder(_MessageParams)
_task_params = Decoder(_TaskParams)


def _decoded(decoder: Decoder[Any], params: bytes) -> Any:
    try:
        return decoder.decode(params)
    except (DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise invalid("params", json_words(error)) from None


def _part(number: int, part: _Part) -> Part:
    match part.kind or part.type:
        case "text":
            return TextPart(part.text)
        case "data" if part.data is not UNSET:
            return DataPart(part.data)
        case "data":
            raise invalid(f"message.parts[{number}].data", "is missing.")
        case "file":
            file = part.file or _File()
            return FilePart(file.mime_type or "", file.name or "", file.bytes)
        case other:
            raise invalid(f"message.parts[{number}].kind", f"'{other[:40]}' is not a kind of part.")


# Responses. Fixed words come from factories, since plain defaults are omitted.


class _Text(Struct):
    text: str
    kind: str = "text"


class _Data(Struct):
    data: Any
    kind: str = "data"


class Message(Struct, rename="camel", omit_defaults=True):
    message_id: str
    parts: list[_Text | _Data]
    context_id: str | None = None
    task_id: str | None = None
    metadata: dict[str, Any] | None = None
    kind: str = field(default_factory=lambda: "message")
    role: str = field(default_factory=lambda: "agent")


class _Status(Struct, omit_defaults=True):
    state: str
    timestamp: str
    message: Message | None = None


class Artifact(Struct, rename="camel"):
    artifact_id: str
    parts: list[_Text]


class TaskObject(Struct, rename="camel", omit_defaults=True):
    id: str
    context_id: str
    status: _Status
    artifacts: list[Artifact] | None = None
    history: list[Message] | UnsetType = UNSET
    metadata: dict[str, Any] | None = None
    kind: str = field(default_factory=lambda: "task")


class ArtifactUpdate(Struct, rename="camel"):
    task_id: str
    context_id: str
    artifact: Artifact
    append: bool
    last_chunk: bool
    kind: str = "artifact-update"


class StatusUpdate(Struct, rename="camel", omit_defaults=True):
    task_id: str
    context_id: str
    status: _Status
    final: bool = field(default_factory=lambda: False)
    metadata: dict[str, Any] | None = None
    kind: str = field(default_factory=lambda: "status-update")


class V03:
    version = "0.3"
    extended_card_error = EXTENDED_CARD_NOT_CONFIGURED
    follows_ended = True
    includes_data = False
    nothing_to_follow = 404
    methods: ClassVar[Mapping[str, Operation]] = {
        "message/send": Operation.SEND,
        "message/stream": Operation.STREAM,
        "tasks/get": Operation.GET,
        "tasks/cancel": Operation.CANCEL,
        "tasks/resubscribe": Operation.SUBSCRIBE,
        "tasks/pushNotificationConfig/set": Operation.PUSH,
        "tasks/pushNotificationConfig/get": Operation.PUSH,
        "tasks/pushNotificationConfig/list": Operation.PUSH,
        "tasks/pushNotificationConfig/delete": Operation.PUSH,
        "agent/getAuthenticatedExtendedCard": Operation.EXTENDED_CARD,
    }

    def message(self, params: bytes) -> SentMessage:
        sent: _MessageParams = _decoded(_message_params, params)
        message, configuration = sent.message, sent.configuration or _Configuration()
        content = content_of([_part(number, part) for number, part in enumerate(message.parts)])
        if message.kind != "message":
            raise invalid("message.kind", "must be 'message'.")
        if message.role != "user":
            raise invalid("message.role", "must be 'user'.")
        if configuration.push_notification_config is not None:
            raise RpcError(PUSH_NOT_SUPPORTED, "Push notification is not supported.")
        return SentMessage(
            check_name(message.message_id, "message.messageId"),
            content,
            None if message.context_id is None else check_name(message.context_id, "message.contextId"),
            message.task_id,
            configuration.blocking is not False,
            history_length(configuration.history_length, path="configuration.historyLength"),
        )

    def task_query(self, params: bytes) -> TaskQuery:
        sent: _TaskParams = _decoded(_task_params, params)
        return TaskQuery(sent.id, history_length(sent.history_length, path="historyLength"))

    def list_query(self, params: bytes) -> ListQuery:
        raise RpcError(METHOD_NOT_FOUND, "A2A 0.3 cannot list tasks over JSON-RPC.")

    def task(self, task: Task) -> TaskObject:
        return TaskObject(
            task.id,
            task.context_id,
            _status(task),
            artifacts=None if task.result is None else [Artifact(ANSWER, [_Text(task.result)])],
            history=[_message(task, one) for one in task.history] or UNSET,
            metadata=task.usage,
        )

    def sent(self, task: Task, *, waited: bool) -> Message | TaskObject:
        if not waited or task.waits:
            return self.task(task)
        if task.result is None:
            about = {
                "taskId": task.id,
                "contextId": task.context_id,
                "status": "cancelled" if task.state == "canceled" else task.state,
                "errorClass": task.error_class,
            }
            raise RpcError(INTERNAL_ERROR, task.error or f"The task was {task.state}.", about=about)
        return Message(f"msg_{task.id}", [_Text(task.result)], task.context_id, task.id, task.usage)

    def listed(self, tasks: list[Task], *, query: ListQuery, total: int, next_page: str) -> list[TaskObject]:
        return [self.task(task) for task in tasks]

    def first(self, task: Task) -> TaskObject:
        return self.task(task)

    def chunk(self, task: Task, text: str, *, append: bool, last: bool = False) -> ArtifactUpdate:
        return ArtifactUpdate(task.id, task.context_id, Artifact(ANSWER, [_Text(text)]), append, last)

    def answer(self, task: Task) -> ArtifactUpdate:
        return self.chunk(task, task.result or "", append=False, last=True)

    def status(self, task: Task, *, final: bool) -> StatusUpdate:
        return StatusUpdate(task.id, task.context_id, _status(task), final, task.usage)

    def fault(self, error: RpcError) -> RpcFault:
        return RpcFault(error.code, error.message, error.about or None)


def _status(task: Task) -> _Status:
    return _Status(task.state, iso(task.at_us), None if task.message is None else _message(task, task.message))


def _message(task: Task, message: TaskMessage) -> Message:
    parts: list[_Text | _Data] = [_Text(message.text)]
    parts += [_Data(one) for one in message.data]
    if message.note:
        parts.append(_Text(message.note))
    return Message(message.id, parts, task.context_id, task.id, role=message.role)
