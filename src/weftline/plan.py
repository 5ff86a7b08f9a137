"""The plan of a run, in our own words and with a version. It is stored in the run's first entry.

The limits are in the entry's head, because the kernel decides by them; the body has the rest of the plan.

The names here are data: every log ever written contains them. A change comes with a new `PLAN_VERSION`, and so with a
new `kernel.entries.FORMAT`; `decode_plan` reads every version up to this one.

Both numbers are needed. `FORMAT` is in the run's row: it says, before anything is decoded, whether this code can read
the log, and it rises when newer code appends to an old run. The plan stays as it was written, so its own number says
how to read it.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import UNSET, Raw, Struct, UnsetType, ValidationError
from msgspec.json import Decoder, Encoder
from msgspec.structs import replace

from weftline.engine_options import EngineOptions
from weftline.kernel.control import Digests
from weftline.kernel.entries import Limits
from weftline.kernel.policy import PolicyRule
from weftline.messages import Message, OutputSchema, Sampling
from weftline.reminders import Reminder
from weftline.trace_context import Trace

PLAN_VERSION = 9


class _Ref(Struct, frozen=True, tag_field="kind", omit_defaults=True, forbid_unknown_fields=True):
    """A tool that the run may use. JSON that is passed on (schemas, cards) keeps its bytes."""


class LocalRef(_Ref, frozen=True, tag="local"):
    """A tool that the client executes."""

    name: str
    description: str = ""
    parameters: Raw | UnsetType = UNSET
    output_schema: Raw | UnsetType = UNSET
    long_running: bool = False
    tags: tuple[str, ...] = ()
    effect: Literal["read", "idempotent", "once"] | None = None
    """What executing a call twice would mean. A `once` call whose client is gone is in doubt, and not offered again."""


class A2ALocalRef(_Ref, frozen=True, tag="a2a_local"):
    """An A2A peer that the client talks to. `card` is the whole agent card, as sent."""

    name: str
    card: Raw
    description: str | None = None


class McpLocalEntry(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    raw: Raw
    """The entry of `tools[]` as it was sent."""


class McpLocalRef(_Ref, frozen=True, tag="mcp_local"):
    """The tools of an MCP server that the client talks to."""

    server: str
    tools: tuple[McpLocalEntry, ...]
    info: Raw | UnsetType = UNSET


class A2ARef(_Ref, frozen=True, tag="a2a"):
    """An A2A peer that the server connects to. Secret headers are stored separately from the plan, by tool name."""

    name: str
    card_url: str
    description: str | None = None
    context_id: str | None = None


class McpRef(_Ref, frozen=True, tag="mcp"):
    """An MCP server that the server connects to. Secret headers are stored separately from the plan, by tool name."""

    name: str
    url: str
    tool_filter: tuple[str, ...] | None = None
    asks_people: bool = False
    """Whether people answer the server's questions."""


class StoredRef(_Ref, frozen=True, tag="stored"):
    """A tool stored in the workspace."""

    id: str


class ServerRef(_Ref, frozen=True, tag="server"):
    """A tool of the server itself, by name: installed as a package or loaded from a file."""

    name: str


ToolRef: TypeAlias = LocalRef | A2ALocalRef | McpLocalRef | A2ARef | McpRef | StoredRef | ServerRef
DEFINED_BY_PLAN = (LocalRef, A2ALocalRef, McpLocalRef)
"""References with all that a model is told about the tools. Clients execute these."""
_CLIENT_SIDE = frozenset(str(ref.__struct_config__.tag) for ref in DEFINED_BY_PLAN)


class ParentCall(Struct, frozen=True, forbid_unknown_fields=True):
    """The call that a child run executes: its parent, and the arguments."""

    agent: str | None
    id: str
    tool: str
    args: Raw


class PlanContent(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A plan without its limits, as the body of the first entry has it.

    Stored with its defaults: a default that changes later must not affect an existing run.
    """

    v: int = PLAN_VERSION
    messages: tuple[Message, ...]
    """The messages of this run only; the thread's history precedes them."""
    name: str = "ephemeral"
    agent_id: str | None = None
    model: str | None = None
    """The model as the client named it; None means the default."""
    fallbacks: tuple[str, ...] = ()
    """Models to try, in order, when the previous one has used up its retries."""
    models: tuple[str | None, ...] = ()
    """For a run with seats: the models of all of them, each followed by its fallbacks, in place of the two above."""
    system: str | None = None
    reasoning: int | None = None
    """0–100; None if nothing was requested."""
    sampling: Sampling = Sampling()
    tools: tuple[ToolRef, ...] = ()
    output_schema: OutputSchema | None = None
    metadata: dict[str, Any] = {}
    """Over HTTP, its values are strings."""
    given: int = 0
    """How many of the messages are an earlier conversation, given along with the prompt."""
    behavior: dict[str, Any] = {}
    """The knobs set for this run, which override its agent's behavior."""
    code: str | None = None
    """The name of the agent whose code executes the run, with the tools and hooks of the process that drives it."""
    path: tuple[str, ...] = ()
    """For a child run: the tools, by name, that lead from that agent to the one that executes this run."""
    only: tuple[str, ...] | None = None
    """The tools of that agent that the run has, by name; None for all. `docs_*` means every `docs_…`."""
    requested_by: str = ""
    """Who requested the run, as authenticated; empty if unknown."""
    digests: Digests | None = None
    """Digests of the code that it depends on, in the process that created it; None if there is none."""
    labels: dict[str, str] = {}
    """Given at the start of the run, for hooks, policies and tools, and for the runs below it."""
    reminders: tuple[Reminder, ...] = ()
    """What the model is reminded of from the first turn on."""
    stream_arguments: bool = False
    """Whether the log has the arguments of calls in pieces, as the model writes them."""
    turn_id: str = ""
    """The caller's id for the exchange that the run is part of; empty if none was given."""
    asked_by: ParentCall | None = None
    """For a child run."""
    model_result_limit_bytes: int | None = None
    """The largest result that the model reads whole; None if it reads all of them."""
    trace: Trace | None = None
    """The trace that its spans belong to; None if it is not traced."""
    own_policy: PolicyRule | None = None
    """The policy that the run was started with, without its agent's. Subagents may inherit it."""
    engine: EngineOptions | None = None
    """Options for its engine; None for none."""
    on_thread: bool = False
    """Whether its agent comes from a folder, so that it gets a thread of its own if none is given, or its thread keeps
    everything.
    """

    @property
    def all_models(self) -> tuple[str | None, ...]:
        """The models that it may call, by the number of the choice."""
        return self.models or (self.model, *self.fallbacks)

    @property
    def thread_keeps_all(self) -> bool:
        """True if its thread keeps every message of the run, with calls and results.

        A thread that code created does, one that was created as a thread, and every thread of an agent of a folder.
        Other sessions of clients only have questions and answers, whatever executes the run.
        """
        return self.on_thread or (self.code is not None and self.agent_id is None)


class RunPlan(PlanContent, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The plan of a run."""

    limits: Limits = Limits()
    """In the body of the first entry up to version 7, as well as in its head."""


class _Kind(Struct, frozen=True):
    kind: str = ""


class PlanOutline(Struct, frozen=True):
    """The parts of a stored plan that can be known without reading its messages."""

    tools: tuple[_Kind, ...] = ()
    output_schema: OutputSchema | None = None
    labels: dict[str, str] = {}
    code: str | None = None

    @property
    def asks_client(self) -> bool:
        """True if it has tools that the client executes, or may have some: those of an agent in code are not listed."""
        return self.code is not None or any(tool.kind in _CLIENT_SIDE for tool in self.tools)


class _Version(Struct):
    v: int


class _Limits(Struct):
    limits: Limits


class _Agent(Struct):
    name: str = ""
    agent_id: str | None = None
    code: str | None = None
    path: tuple[str, ...] = ()


_encode = Encoder().encode
_decode_agent = Decoder(_Agent).decode
_decode_limits = Decoder(_Limits).decode
_decode_version = Decoder(_Version).decode
_decode_plan = Decoder(RunPlan).decode


decode_outline = Decoder(PlanOutline).decode
"""Decodes a plan of any version; raises `msgspec.DecodeError` for anything else."""


def may_name_agent(stored: bytes) -> bool:
    """Returns True if bytes that contain a stored plan could be those of an agent's plan. False means that they are
    not.
    """
    # `code` follows an object or a number. The digests' own `code` follows a text, and is not a name.
    return b'"agent_id":"' in stored or stored.count(b'"code":"') > stored.count(b'","code":"')


def agent_of(stored: bytes | Raw) -> str | None:
    """Returns the name of the agent of a stored plan, if it has one."""
    plan = _decode_agent(stored)
    if plan.path:
        return plan.name
    if plan.agent_id is not None:
        return plan.code or plan.name
    return None if plan.code is None else code_agent(plan.code, plan.name)


def code_agent(code: str, name: str) -> str | None:
    """Returns the name of the agent for a registered code name, which has a number appended for a run in memory.

    An agent without a name, which only a run in memory may have, has none here either.
    """
    if not name:
        return None
    return name if code.removeprefix(f"{name} ").isdigit() else code


def encode_plan(plan: RunPlan) -> bytes:
    """Encodes the content of a plan to store it in the body of the first entry."""
    return _encode(replace(plan, limits=UNSET))


def decode_content(stored: bytes | Raw) -> PlanContent:
    """Decodes what this or older code wrote with `encode_plan`. Raises `msgspec.DecodeError` for anything else.

    Plans of newer code are not detected here, but by the newer `FORMAT` of their runs.
    """
    return _decode(stored)


def decode_plan(stored: bytes | Raw, limits: Limits) -> RunPlan:
    """Like `decode_content`, with the limits from the head of the same entry."""
    return replace(_decode(stored), limits=limits)


def limits_of(head: bytes) -> Limits:
    """Decodes the limits of a run from the head of its first entry."""
    return _decode_limits(head).limits


def _decode(stored: bytes | Raw) -> RunPlan:
    version = _decode_version(stored).v
    if not 1 <= version <= PLAN_VERSION:
        raise ValidationError(f"The plan has version {version}; this version of Weftline reads up to {PLAN_VERSION}")
    return _decode_plan(stored)
