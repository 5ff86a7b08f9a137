"""Messages of threads, as they are listed: what a stored message says, field by field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from msgspec import Struct, convert, field
from msgspec.json import decode, encode

from weftline.errors import StoreError
from weftline.kernel.bodies import decode_message
from weftline.kernel.damage import UNREADABLE
from weftline.messages import Assistant, File, Image, Message, System, Text, Thinking, ToolResults, User, UserPart
from weftline.store.records.thread_messages import MessageRow

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
MAX_MESSAGE_BYTES = 1024 * 1024


class MessageFile(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A file that a message names."""

    path: str
    name: str = ""
    mime_type: str = ""
    width: int | None = None
    height: int | None = None


class Said(Struct, frozen=True, kw_only=True):
    """What a stored message says. Times are microseconds."""

    id: str
    role: Role
    content: str = ""
    name: str = ""
    tool_calls: str = ""
    tool_call_id: str = ""
    created_at: int = 0
    parent_id: str | None = None
    depth: int = 0
    silent: bool = False
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    status: Literal["pending", "completed", "failed"] = "completed"
    tool_status: Literal["success", "error"] | None = None
    attachments: tuple[MessageFile, ...] = ()
    log_id: str | None = None
    request_sent_at: int | None = None
    response_completed_at: int | None = None
    reasoning_content: str = ""

    @property
    def fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__struct_fields__}


def said(row: MessageRow, *, log_id: str | None = None, created_at: int = 0) -> Said:
    """What a message says. `created_at` is for one that was stored without its time; `log_id` names its run.

    Raises:
        StoreError: if it is damaged.
    """
    try:
        message: Message = decode_message(row.message)
        metadata = decode(row.metadata, type=dict[str, Any])
    except UNREADABLE:
        raise StoreError(f"The message {row.name} is damaged.", code="log_damaged") from None
    base: dict[str, Any] = {
        "id": row.name,
        "created_at": created_at if row.created_at is None else row.created_at,
        "parent_id": row.parent,
        "depth": row.depth,
        "silent": row.silent or (isinstance(message, User) and message.injected),
        "metadata": metadata,
        "status": row.status,
        "log_id": log_id,
    }
    match message:
        case System(content):
            return Said(**base, role="system", content=content)
        case User():
            return Said(**base, role="user", content=message.text, attachments=_attachments(message.parts))
        case Assistant():
            return Said(
                **base,
                role="assistant",
                content=message.text,
                tool_calls=_calls(message),
                request_sent_at=row.sent_at,
                response_completed_at=None if row.sent_at is None or row.status == "pending" else row.created_at,
                reasoning_content="".join([part.text for part in message.parts if isinstance(part, Thinking)]),
            )
        case ToolResults(results):
            failed = any(one.is_error for one in results)
            files = convert(metadata.pop("attachments", []), tuple[MessageFile, ...])
            return Said(
                **base,
                role="tool",
                content="\n".join([one.text for one in results]),
                name=results[0].name if results else "",
                tool_call_id=results[0].id if results else "",
                tool_status="error" if failed else "success",
                attachments=(*files, *[file for one in results for file in _attachments(one.parts)]),
            )


def _calls(message: Assistant) -> str:
    calls = [
        {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": one.args}}
        for one in message.calls
    ]
    return encode(calls).decode() if calls else ""


def _attachments(parts: Sequence[UserPart]) -> tuple[MessageFile, ...]:
    files = [part for part in parts if not isinstance(part, Text)]
    return tuple([_attachment(part) for part in files])


def _attachment(part: Image | File) -> MessageFile:
    path = part.url or (f"blob:{part.blob}" if part.blob else "")
    return MessageFile(path=path, name=part.name or "", mime_type=part.media_type)
