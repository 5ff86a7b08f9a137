"""What tools, hooks, effects and endpoints of a folder are given: the thread that they work for.

`ThreadState` is for `async` functions. Plain functions annotate `SyncThreadState`, which has the same names and blocks
their worker thread. In JSON a message has the spelling of its fields, everything else is in camelCase.
"""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypedDict, cast

import msgspec
from msgspec import Struct, field

from weftline.threads.definitions.base import EnvType

if TYPE_CHECKING:
    import asyncio
    from typing import Unpack

    from weftline.threads.definitions.agents import AgentDefinition
    from weftline.threads.definitions.models import ModelDefinition
    from weftline.threads.definitions.prompts import PromptDefinition

Order: TypeAlias = Literal["asc", "desc"]
Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
Side: TypeAlias = Literal["a", "b"]
EffectStatus: TypeAlias = Literal["pending", "running", "executed", "canceled", "failed"]


class AttachmentRef(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A file of the thread that a message or a result names."""

    path: str
    name: str = ""
    mime_type: str = ""
    width: int | None = None
    height: int | None = None


class ToolAttachment(Struct, frozen=True, kw_only=True, rename="camel"):
    """New content that a tool returns; it is written below `/attachments/` of the thread."""

    name: str
    data: bytes
    mime_type: str = "application/octet-stream"


class ToolResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a call returned: text in `result`, or in `error` if it failed."""

    status: Literal["success", "error"] = "success"
    result: str = ""
    error: str = ""
    stack: str = ""
    attachments: tuple[AttachmentRef | Any, ...] = ()
    """Files of the thread, or `ToolAttachment`s, which become some."""

    @classmethod
    def is_form(cls, value: Mapping[Any, Any]) -> bool:
        """Returns True if a mapping is a result, in the present form or in the old one."""
        if value.get("status") in ("success", "error"):
            return value.keys() <= set(cls.__struct_fields__)
        return set(value) == {"content"} and isinstance(value["content"], list)

    @classmethod
    def of(cls, value: object) -> ToolResult:
        """Returns what a tool's function has returned as a result: text as it is, anything else as JSON.

        A mapping with `status` is a result; `{"content": [{"type": "text", "text": …}]}` is its old form.

        Raises:
            TypeError: if it has no JSON.
        """
        if isinstance(value, ToolResult):
            return value
        given: Mapping[str, object] = cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}
        if "status" in given and cls.is_form(given):
            fields = dict(given)
            files = cast("Sequence[object]", fields.pop("attachments", ()))
            result = msgspec.convert(fields, cls)
            return msgspec.structs.replace(result, attachments=tuple([as_attachment(one) for one in files]))
        if cls.is_form(given):
            warnings.warn("results with content are deprecated: return the text", DeprecationWarning, stacklevel=2)
            parts = cast("list[Mapping[str, object]]", given["content"])
            return cls(result="\n".join([str(one.get("text", "")) for one in parts]))
        return cls(
            result=value if isinstance(value, str) else "" if value is None else msgspec.json.encode(value).decode()
        )


def as_attachment(value: object) -> AttachmentRef | ToolAttachment:
    """Reads an attachment of a result: a path, or the fields of either form."""
    if isinstance(value, AttachmentRef | ToolAttachment):
        return value
    if isinstance(value, str):
        return AttachmentRef(path=value)
    is_new = isinstance(value, Mapping) and "data" in value
    return msgspec.convert(value, ToolAttachment if is_new else AttachmentRef)


class FunctionCall(Struct, frozen=True, kw_only=True):
    """The tool that was called; `arguments` are JSON text."""

    name: str
    arguments: str


class HookToolCall(Struct, frozen=True, kw_only=True):
    """A call, as hooks see it: `call.function.name`."""

    id: str
    function: FunctionCall


class ThreadMessage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message of a thread as it is stored. Times are microseconds; `depth` is 0 at the top."""

    id: str
    role: Role
    content: str = ""
    name: str = ""
    """The tool, for a result."""
    tool_calls: str = ""
    """The calls of an answer, as JSON text."""
    tool_call_id: str = ""
    created_at: int = 0
    parent_id: str | None = None
    depth: int = 0
    silent: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    status: Literal["pending", "completed", "failed"] = "completed"
    tool_status: Literal["success", "error"] | None = None
    attachments: tuple[AttachmentRef, ...] = ()
    log_id: str | None = None
    request_sent_at: int | None = None
    response_completed_at: int | None = None
    reasoning_content: str = ""
    subagent_id: str | None = None
    subagent_name: str | None = None
    subagent_title: str | None = None
    subagent_description: str | None = None
    subagent_status: str | None = None
    subagent_resumable: bool | None = None
    subagent_blocking: bool | None = None
    subagent_thread_name: str | None = None
    subagent_spawn_group_id: str | None = None


class MessagesResult(Struct, frozen=True, kw_only=True):
    """Some messages of a thread, and how many match in all."""

    messages: tuple[ThreadMessage, ...]
    total: int


class NewMessage(TypedDict, total=False):
    """What may be said of a new message besides its text."""

    role: Role
    silent: bool
    metadata: Mapping[str, Any]
    attachments: Sequence[AttachmentRef | str]


class MessageUpdates(TypedDict, total=False):
    """What may be changed of a message; `metadata` is merged, the others replace."""

    content: str
    silent: bool
    metadata: Mapping[str, Any]
    attachments: Sequence[AttachmentRef | str]


class ThreadLog(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A row of a thread's log; `created_at` in microseconds."""

    id: str
    type: str
    data: Any
    created_at: int
    parent_id: str | None = None


class ScheduledEffect(Struct, frozen=True, kw_only=True, rename="camel"):
    """An effect that was scheduled. Times are microseconds."""

    id: str
    name: str
    args: Mapping[str, Any]
    scheduled_at: int
    created_at: int
    status: EffectStatus = "pending"


class SubagentRegistryEntry(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A child thread, as its parent sees it. `status` is `running`, `idle`, `terminated` or the child's own words."""

    reference: str
    name: str
    status: str
    title: str = ""
    description: str = ""
    resumable: bool = False
    blocking: bool = True
    thread_name: str = ""
    spawn_group_id: str = ""
    created_at: int = 0
    parent_communication: Literal["implicit", "explicit"] = "implicit"


class FileRecord(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A file or directory of a thread; `size` in bytes, `created_at` in microseconds."""

    path: str
    name: str
    mime_type: str = ""
    storage: str = "local"
    size: int = 0
    is_directory: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    width: int | None = None
    height: int | None = None
    created_at: int | None = None
    location: str = ""
    """Where its content is read from, if `storage` is `url`; without credentials and query."""


class FileChunk(Struct, frozen=True, kw_only=True, rename="camel"):
    """A piece of a file that is read as a stream; `is_last` only on its last piece."""

    data: bytes
    index: int
    is_last: bool = False


class FileStats(Struct, frozen=True, kw_only=True, rename="camel"):
    """How many files a thread has, and their size in bytes."""

    file_count: int
    total_size: int


class GrepLine(Struct, frozen=True):
    line: int
    text: str


class GrepResult(Struct, frozen=True, kw_only=True):
    """The lines of one file that match."""

    path: str
    matches: tuple[GrepLine, ...]


class FindResult(Struct, frozen=True, kw_only=True):
    """The paths that match a pattern, and how many there are in all."""

    paths: tuple[str, ...]
    total: int


class WriteFileOptions(TypedDict, total=False):
    """What may be said of a file besides its content."""

    width: int
    height: int
    metadata: Mapping[str, Any]
    thumbnail: bytes
    location: str
    """The address of its content, which is then not given: the data is empty."""
    size: int
    """Of what is at the location."""


class CodeOptions(TypedDict, total=False):
    """Options of `run_code`; see docs/sandbox.md."""

    execute: Mapping[str, Any]
    imports: Mapping[str, Mapping[str, Any]]
    modules: Mapping[str, str]
    globals: Mapping[str, Any]
    language: Literal["typescript", "javascript", "python"]
    memory_limit_bytes: int
    filename: str
    report: Any


class ExecutionState(Protocol):
    """The run that a thread is in. Counts are of this run; `turn_count` is the number of side turns taken."""

    @property
    def flow_id(self) -> str: ...
    @property
    def current_side(self) -> Side: ...
    @property
    def step_count(self) -> int: ...
    @property
    def side_a_step_count(self) -> int: ...
    @property
    def side_b_step_count(self) -> int: ...
    @property
    def turn_count(self) -> int: ...
    @property
    def stopped(self) -> bool: ...
    @property
    def stopped_by(self) -> str: ...
    @property
    def message_history(self) -> Sequence[ThreadMessage]: ...
    @property
    def prompt_path(self) -> tuple[str, ...]:
        """The names of the prompts from the root to the one that is running."""
        ...

    @property
    def abort_signal(self) -> asyncio.Event: ...
    def stop(self) -> None:
        """Ends the run after the calls of this turn, without another request to a model."""
        ...

    def force_turn(self, side: Side) -> None:
        """Gives the next side turn to `side`."""
        ...


class _Identity(Protocol):
    """What a thread is; all of it read-only."""

    @property
    def thread_id(self) -> str: ...
    @property
    def agent_id(self) -> str: ...
    @property
    def user_id(self) -> str | None: ...
    @property
    def created_at(self) -> int:
        """In microseconds, as all times here."""
        ...

    @property
    def terminated(self) -> int | None:
        """When it was terminated; None while it lives."""
        ...

    @property
    def children(self) -> Sequence[SubagentRegistryEntry]: ...
    @property
    def context(self) -> dict[str, Any]:
        """Any Python objects that the tools and hooks of one run share.

        Empty at the start of a run, and again after the run was out of memory (a restart, a long wait for a person):
        what must last is a value, see `set_value`.
        """
        ...

    @property
    def execution(self) -> ExecutionState | None:
        """The run in progress; None in endpoints, effects and `after_thread_created`."""
        ...

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt at this call, effect or request."""
        ...

    @property
    def host(self) -> Any:
        """What the operator supplies. A tool that uses it cannot be packed."""
        ...

    def get_model_names(self) -> list[str]: ...
    def get_prompt_names(self) -> list[str]: ...
    def get_agent_names(self) -> list[str]: ...
    def queue_tool(self, name: str, args: Mapping[str, Any] | None = None) -> None:
        """Queues a call that the model will see as its own. Checked now, durable when the function that asks returns.

        Raises:
            InvalidRequest: for an unknown tool, or arguments that do not fit it.
        """
        ...

    def emit(self, event: str, data: Any) -> None:
        """Sends an event to the clients that are connected now. It is not stored."""
        ...


class ThreadState(_Identity, Protocol):
    """A thread, for `async` code. What a method changes is durable when its await returns."""

    async def get_messages(
        self,
        *,
        limit: int = 50,
        offset: int = 0,
        order: Order = "asc",
        include_silent: bool = True,
        max_depth: int | None = None,
    ) -> MessagesResult: ...
    async def get_message(self, id: str, /) -> ThreadMessage | None: ...
    async def inject_message(self, content: str, /, **fields: Unpack[NewMessage]) -> ThreadMessage:
        """Stores a message, which starts no run."""
        ...

    async def queue_message(self, content: str, /, **fields: Unpack[NewMessage]) -> None:
        """Queues a message for the next turn; an idle thread is woken."""
        ...

    async def update_message(self, id: str, /, **updates: Unpack[MessageUpdates]) -> ThreadMessage:
        """Raises `NotFound`, or `Conflict` (`message_in_use`) while a request depends on it."""
        ...

    async def delete_message(self, id: str, /) -> bool: ...
    async def get_logs(self, *, limit: int = 50, offset: int = 0, order: Order = "desc") -> list[ThreadLog]: ...
    async def load_model(self, name: str, /) -> ModelDefinition: ...
    async def load_prompt(self, name: str, /) -> PromptDefinition: ...
    async def load_agent(self, name: str, /) -> AgentDefinition: ...
    async def get_child_thread(self, reference: str, /) -> ThreadState | None: ...
    async def get_parent_thread(self) -> ThreadState | None: ...
    async def env(self, name: str, /) -> str:
        """Returns the value of a variable. Raises an error that names it if there is none."""
        ...

    async def env_type(self, name: str, /) -> EnvType: ...
    async def set_env(self, name: str, value: str, /, *, type: EnvType | None = None) -> None: ...
    async def notify_parent(self, content: str, /) -> None: ...
    async def set_status(self, status: str, /) -> None: ...
    async def invoke_tool(self, name: str, args: Mapping[str, Any] | None = None, /) -> ToolResult:
        """Calls a tool now. Only the caller sees the result."""
        ...

    async def schedule_effect(self, name: str, args: Mapping[str, Any] | None = None, /, delay_ms: int = 0) -> str: ...
    async def get_scheduled_effects(self, name: str | None = None, /) -> list[ScheduledEffect]: ...
    async def remove_scheduled_effect(self, id: str, /) -> bool: ...
    async def get_value(self, key: str, /) -> Any: ...
    async def set_value(self, key: str, value: Any, /) -> None:
        """Keeps a JSON value; None deletes it. Raises `TypeError` for anything else, naming the path."""
        ...

    async def write_file(
        self,
        path: str,
        data: bytes | str | AsyncIterable[bytes],
        mime_type: str | None = None,
        /,
        **about: Unpack[WriteFileOptions],
    ) -> FileRecord: ...
    async def read_file(self, path: str, /) -> bytes | None: ...
    async def read_file_stream(self, path: str, /) -> AsyncIterator[FileChunk] | None: ...
    async def stat_file(self, path: str, /) -> FileRecord | None: ...
    async def readdir_file(self, path: str, /) -> list[FileRecord]: ...
    async def unlink_file(self, path: str, /) -> bool: ...
    async def mkdir_file(self, path: str, /) -> FileRecord: ...
    async def rmdir_file(self, path: str, /) -> bool: ...
    async def get_file_stats(self) -> FileStats: ...
    async def grep_files(self, pattern: str, /) -> list[GrepResult]: ...
    async def find_files(self, pattern: str, /) -> FindResult: ...
    async def get_file_thumbnail(self, path: str, /) -> bytes | None: ...
    async def terminate(self) -> None: ...
    def run_code(self, source: str, /, **options: Unpack[CodeOptions]) -> Any:
        """Starts code in a sandbox and returns its handle at once; see docs/sandbox.md."""
        ...


class SyncThreadState(_Identity, Protocol):
    """A thread, for plain functions, which run in a thread of their own: each method returns when it is done."""

    def get_messages(
        self,
        *,
        limit: int = 50,
        offset: int = 0,
        order: Order = "asc",
        include_silent: bool = True,
        max_depth: int | None = None,
    ) -> MessagesResult: ...
    def get_message(self, id: str, /) -> ThreadMessage | None: ...
    def inject_message(self, content: str, /, **fields: Unpack[NewMessage]) -> ThreadMessage: ...
    def queue_message(self, content: str, /, **fields: Unpack[NewMessage]) -> None: ...
    def update_message(self, id: str, /, **updates: Unpack[MessageUpdates]) -> ThreadMessage: ...
    def delete_message(self, id: str, /) -> bool: ...
    def get_logs(self, *, limit: int = 50, offset: int = 0, order: Order = "desc") -> list[ThreadLog]: ...
    def load_model(self, name: str, /) -> ModelDefinition: ...
    def load_prompt(self, name: str, /) -> PromptDefinition: ...
    def load_agent(self, name: str, /) -> AgentDefinition: ...
    def get_child_thread(self, reference: str, /) -> SyncThreadState | None: ...
    def get_parent_thread(self) -> SyncThreadState | None: ...
    def env(self, name: str, /) -> str: ...
    def env_type(self, name: str, /) -> EnvType: ...
    def set_env(self, name: str, value: str, /, *, type: EnvType | None = None) -> None: ...
    def notify_parent(self, content: str, /) -> None: ...
    def set_status(self, status: str, /) -> None: ...
    def invoke_tool(self, name: str, args: Mapping[str, Any] | None = None, /) -> ToolResult: ...
    def schedule_effect(self, name: str, args: Mapping[str, Any] | None = None, /, delay_ms: int = 0) -> str: ...
    def get_scheduled_effects(self, name: str | None = None, /) -> list[ScheduledEffect]: ...
    def remove_scheduled_effect(self, id: str, /) -> bool: ...
    def get_value(self, key: str, /) -> Any: ...
    def set_value(self, key: str, value: Any, /) -> None: ...
    def write_file(
        self, path: str, data: bytes | str, mime_type: str | None = None, /, **about: Unpack[WriteFileOptions]
    ) -> FileRecord: ...
    def read_file(self, path: str, /) -> bytes | None: ...
    def read_file_stream(self, path: str, /) -> Iterator[FileChunk] | None: ...
    def stat_file(self, path: str, /) -> FileRecord | None: ...
    def readdir_file(self, path: str, /) -> list[FileRecord]: ...
    def unlink_file(self, path: str, /) -> bool: ...
    def mkdir_file(self, path: str, /) -> FileRecord: ...
    def rmdir_file(self, path: str, /) -> bool: ...
    def get_file_stats(self) -> FileStats: ...
    def grep_files(self, pattern: str, /) -> list[GrepResult]: ...
    def find_files(self, pattern: str, /) -> FindResult: ...
    def get_file_thumbnail(self, path: str, /) -> bytes | None: ...
    def terminate(self) -> None: ...
    def run_code(self, source: str, /, **options: Unpack[CodeOptions]) -> Any: ...
