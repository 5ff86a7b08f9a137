"""The responses about sessions, as types and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

from msgspec import UNSET, Raw, Struct, UnsetType

from weftline.kernel.entries import ModelRef
from weftline.messages import Assistant, Message, System, Text, Usage, User, UserPart
from weftline.text.redaction import redact_url
from weftline.wire.limits import DEFAULT_RUN_NAME
from weftline.wire.responses import JsonObject, Time, Warnings, Words, encode, iso, iso_or_none
from weftline.wire.run_responses import Call, Tokens, usage_triple

SessionStatus: TypeAlias = Literal["active", "ended"]


class CreatedSession(Struct, frozen=True, rename="camel"):
    session_id: str
    name: str
    created_at: Time
    warnings: Warnings = UNSET


def created_session(session_id: str, *, name: str, created_us: int, warnings: Warnings = UNSET) -> bytes:
    return encode(CreatedSession(session_id, name, iso(created_us), warnings))


class SessionUsage(Struct, frozen=True):
    """Usage of the ended runs of a session."""

    runs: int = 0
    turns: int = 0
    tokens: Usage = Usage()
    cost_nusd: int | None = 0
    attempts: int = 0
    estimated: bool = False


class SessionView(Struct, frozen=True):
    id: str
    created_us: int
    last_used_us: int
    spec: bytes
    name: str = DEFAULT_RUN_NAME
    ended_us: int | None = None
    metadata: dict[str, str] = {}
    usage: SessionUsage = SessionUsage()


class AttachmentInfo(Struct, rename="camel", omit_defaults=True):
    """An attachment without its content."""

    media_type: str
    name: str | UnsetType = UNSET
    url: str | UnsetType = UNSET
    sha256: str | UnsetType = UNSET
    size_bytes: int | UnsetType = UNSET


class ChatMessage(Struct, rename="camel"):
    role: Literal["user", "assistant", "system"]
    content: str
    attachments: list[AttachmentInfo] | UnsetType = UNSET
    id: str | UnsetType = UNSET
    """The same whenever the session is read."""
    run_id: str | UnsetType = UNSET
    """The run that it was sent to, or that has answered with it."""
    created_at: Time | UnsetType = UNSET
    """When that run was created; for its answers, when it ended."""
    calls: list[Call] | UnsetType = UNSET
    """With a run's last answer, the calls of the run, if they were asked for."""


class Origin(Struct, frozen=True):
    """Where a message of a thread comes from."""

    id: str
    run_id: str
    created_us: int
    ended_us: int
    calls: list[Call] | UnsetType = UNSET


ThreadMessage: TypeAlias = tuple[Message, Origin | None]


class UsedBySession(Struct, rename="camel"):
    runs: int
    turns: int
    attempts: int
    tokens: Tokens
    cost_usd: float | None
    usage_estimated: bool


class Session(Struct, rename="camel"):
    id: str
    name: str
    status: SessionStatus
    created_at: Time
    last_used_at: Time
    ended_at: Time | None
    agent_spec: JsonObject
    messages: list[ChatMessage]
    metadata: dict[str, str]
    usage: UsedBySession


class SessionEvent(Struct, rename="camel"):
    """A message of a session in the form of an event of a run. `seq` counts them within the session."""

    seq: int
    type: Literal["user_message", "assistant_message"]
    text: str
    attachments: list[AttachmentInfo] | UnsetType = UNSET
    id: str | UnsetType = UNSET
    run_id: str | UnsetType = UNSET
    created_at: Time | UnsetType = UNSET


class SessionEvents(Struct, rename="camel"):
    session_id: str
    total: int
    events: list[SessionEvent]
    next_before_seq: int | None
    """For the page before this one; null if there is none."""
    truncated: bool
    """Whether there are earlier ones."""


class ListedSession(Struct, rename="camel"):
    id: str
    session_id: str
    name: str
    status: SessionStatus
    agent_id: str | None
    metadata: Words
    created_at: Time
    last_used_at: Time
    ended_at: Time | None
    creation_date: Time
    """`createdAt`, as newer clients call it."""
    last_interaction_date: Time
    """`lastUsedAt`, as newer clients call it."""
    error_code: str | UnsetType = UNSET
    """`log_damaged` if the session's stored data is unreadable; left out otherwise."""


class SessionPage(Struct, rename="camel"):
    sessions: list[ListedSession]
    next_cursor: str | None
    limit: int
    offset: int
    total: int | UnsetType = UNSET
    """How many sessions match, on all pages; left out of pages that begin at a cursor."""


def session_info(session: SessionView, messages: Iterable[ThreadMessage]) -> bytes:
    """Returns the session. `messages` are the thread's, of which only those of people and the model are shown."""
    return encode(
        Session(
            id=session.id,
            name=session.name,
            status="active" if session.ended_us is None else "ended",
            created_at=iso(session.created_us),
            last_used_at=iso(session.last_used_us),
            ended_at=iso_or_none(session.ended_us),
            agent_spec=Raw(session.spec),
            messages=list(_chats(messages)),
            metadata=session.metadata,
            usage=_session_usage(session.usage),
        )
    )


def session_events(
    session_id: str, messages: Iterable[ThreadMessage], *, last: int | None = None, before: int | None = None
) -> bytes:
    """Returns what people and the model said: all of it, or the `last` messages, of those `before` a number."""
    chats = [chat for chat in _chats(messages) if chat.role != "system"]
    end = len(chats) if before is None else max(0, min(len(chats), before - 1))
    start = 0 if last is None else max(0, end - last)
    events = [
        SessionEvent(
            seq,
            "user_message" if chat.role == "user" else "assistant_message",
            chat.content,
            chat.attachments,
            chat.id,
            chat.run_id,
            chat.created_at,
        )
        for seq, chat in enumerate(chats[start:end], start + 1)
    ]
    return encode(SessionEvents(session_id, len(chats), events, start + 1 if start else None, start > 0))


def _session_usage(usage: SessionUsage) -> UsedBySession:
    triple = usage_triple(usage.tokens, usage.turns, ModelRef(), attempts=usage.attempts)
    cost = None if usage.cost_nusd is None else usage.cost_nusd / 1_000_000_000
    return UsedBySession(usage.runs, triple.turns, triple.attempts, triple.tokens, cost, usage.estimated)


def _chats(messages: Iterable[ThreadMessage]) -> Sequence[ChatMessage]:
    """Returns what is shown of a thread's messages."""
    chats: list[ChatMessage] = []
    answers: dict[str, tuple[ChatMessage, Origin]] = {}
    for message, origin in messages:
        chat = _chat(message)
        if chat is None:
            continue
        chats.append(chat)
        if origin is not None:
            answer = chat.role == "assistant"
            chat.id, chat.run_id = origin.id, origin.run_id
            chat.created_at = iso(origin.ended_us if answer else origin.created_us)
            if answer:
                answers[origin.run_id] = chat, origin
    for chat, origin in answers.values():
        chat.calls = origin.calls
    return chats


def _chat(message: Message) -> ChatMessage | None:
    match message:
        case System(content):
            return ChatMessage("system", content)
        case User(injected=False):
            return ChatMessage("user", message.text, attachment_infos(message.parts))
        case Assistant():
            silent = message.calls and not message.text  # a turn of a library's thread that only called tools
            return None if silent else ChatMessage("assistant", message.text)
        case _:
            return None


def attachment_infos(parts: Sequence[UserPart]) -> list[AttachmentInfo] | UnsetType:
    """Returns the images and files among the parts; unset if there are none."""
    return [
        AttachmentInfo(
            part.media_type,
            part.name or UNSET,
            redact_url(part.url) if part.url else UNSET,
            part.blob or UNSET,
            part.size or UNSET,
        )
        for part in parts
        if not isinstance(part, Text)
    ] or UNSET
