"""What a run should do, in our own words and with a version. It is stored in the run's first entry.

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

from weftline.engine_options import EngineOptions
from weftline.kernel.deploys import Digests
from weftline.kernel.entries import Limits
from weftline.kernel.policy import PolicyRule
from weftline.messages import Message, OutputSchema, Sampling
from weftline.reminders import Reminder
from weftline.trace_context import Trace

PLAN_VERSION = 7


class _Ref(Struct, frozen=True, tag_field="kind", omit_defaults=True, forbid_unknown_fields=True):
    """A tool that the run may use. JSON that is passed on (schemas, cards) keeps its bytes."""


class LocalRef(_Ref, frozen=True, tag="local"):
    """A tool that the client carries out."""

    name: str
    description: str = ""
    parameters: Raw | UnsetType = UNSET
    output_schema: Raw | UnsetType = UNSET
    long_running: bool = False
    tags: tuple[str, ...] = ()
    effect: Literal["read", "idempotent", "once"] | None = None
    """What carrying out a call twice would mean. A `once` call whose client is gone is in doubt, not offered again."""


class A2ALocalRef(_Ref, frozen=True, tag="a2a_local"):
    """An A2A peer that the client talks to. `card` is the whole agent card, as sent."""

    name: str
    card: Raw
    description: str | None = None


class McpLocalEntry(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    raw: Raw
    """The entry of `tools[]` as sent."""


class McpLocalRef(_Ref, frozen=True, tag="mcp_local"):
    """The tools of an MCP server that the client talks to."""

    server: str
    tools: tuple[McpLocalEntry, ...]
    info: Raw | UnsetType = UNSET


class A2ARef(_Ref, frozen=True, tag="a2a"):
    """An A2A peer that the server dials. Secret headers are kept apart from the plan, by tool name."""

    name: str
    card_url: str
    description: str | None = None
    context_id: str | None = None


class McpRef(_Ref, frozen=True, tag="mcp"):
    """An MCP server that the server dials. Secret headers are kept apart from the plan, by tool name."""

    name: str
    url: str
    tool_filter: tuple[str, ...] | None = None
    asks_people: bool = False
    """Whether the server's questions are put to the people of the run."""


class StoredRef(_Ref, frozen=True, tag="stored"):
    """A tool stored in the workspace."""

    id: str


class ServerRef(_Ref, frozen=True, tag="server"):
    """A tool of the server itself, by name: installed as a package or loaded from a file."""

    name: str


ToolRef: TypeAlias = LocalRef | A2ALocalRef | McpLocalRef | A2ARef | McpRef | StoredRef | ServerRef
_CLIENT_SIDE = frozenset(str(ref.__struct_config__.tag) for ref in (LocalRef, A2ALocalRef, McpLocalRef))


class ParentCall(Struct, frozen=True, forbid_unknown_fields=True):
    """The call that a child run executes: its parent, and the arguments."""

    agent: str | None
    id: str
    tool: str
    args: Raw


class RunPlan(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """Stored in full, defaults included: a default that changes later must not affect an existing run."""

    v: int = PLAN_VERSION
    messages: tuple[Message, ...]
    """The messages of this run only; the thread's history precedes them."""
    name: str = "ephemeral"
    agent_id: str | None = None
    model: str | None = None
    """The model as the client named it; None asks for the default."""
    fallbacks: tuple[str, ...] = ()
    """Models to try, in order, when the previous one has used up its retries."""
    system: str | None = None
    reasoning: int | None = None
    """0–100; None if nothing was requested."""
    sampling: Sampling = Sampling()
    tools: tuple[ToolRef, ...] = ()
    output_schema: OutputSchema | None = None
    limits: Limits = Limits()
    metadata: dict[str, Any] = {}
    """Over HTTP its values are texts."""
    given: int = 0
    """How many of the messages were given along with the prompt, as an earlier conversation."""
    behavior: dict[str, Any] = {}
    """What was asked of this run in place of its agent's own behavior: the knobs that were set."""
    code: str | None = None
    """The agent, by name, whose code carries the run: its tools and hooks are those of the process that drives it."""
    path: tuple[str, ...] = ()
    """For a child run: the tools, by name, that lead from that agent to the one that carries this run."""
    only: tuple[str, ...] | None = None
    """The tools of that agent that the run has, by name; None for all. `docs_*` stands for each `docs_…`."""
    requested_by: str = ""
    """Who asked for the run, by the name that they were authenticated with; "" if nobody said."""
    digests: Digests | None = None
    """What it rests on besides this plan: code of the process that began it; None if there is none."""
    labels: dict[str, str] = {}
    """Whoever began the run has given it these: for hooks, policies and tools, and for the runs below it."""
    reminders: tuple[Reminder, ...] = ()
    """What the model is reminded of from the first turn on."""
    stream_arguments: bool = False
    """Whether the log has the arguments of calls piece by piece, as the model writes them."""
    turn_id: str = ""
    """What whoever began the run calls the exchange that it is a part of; "" if nobody said."""
    asked_by: ParentCall | None = None
    """For a child run."""
    model_result_limit_bytes: int | None = None
    """The largest result that the model reads whole; None if it reads all of them."""
    trace: Trace | None = None
    """That its spans belong to; None if nobody traces it."""
    own_policy: PolicyRule | None = None
    """The policy that the run was started with, without its agent's. Subagents may take it over."""
    engine: EngineOptions | None = None
    """What its engine is told about it; None for nothing."""

    @property
    def thread_keeps_all(self) -> bool:
        """Whether its thread takes every message of the run, with calls and results.

        A thread of code does. A client's session has what was asked and what was answered, whoever carries the run.
        """
        return self.code is not None and self.agent_id is None


class _Kind(Struct, frozen=True):
    kind: str = ""


class PlanOutline(Struct, frozen=True):
    """What can be told about a stored plan without reading its messages."""

    tools: tuple[_Kind, ...] = ()
    output_schema: OutputSchema | None = None
    labels: dict[str, str] = {}

    @property
    def asks_client(self) -> bool:
        """Whether it has tools that the client carries out."""
        return any(tool.kind in _CLIENT_SIDE for tool in self.tools)


class _Version(Struct):
    v: int


class _Agent(Struct):
    name: str = ""
    agent_id: str | None = None
    code: str | None = None
    path: tuple[str, ...] = ()


_encode = Encoder().encode
_decode_agent = Decoder(_Agent).decode
_decode_version = Decoder(_Version).decode
_decode_plan = Decoder(RunPlan).decode


decode_outline = Decoder(PlanOutline).decode
"""Reads a plan of any version; raises `msgspec.DecodeError` for what is not one."""


def may_name_agent(stored: bytes) -> bool:
    """Whether something that has a stored plan in it could have the plan of an agent. False proves that it has not."""
    # `code` follows an object or a number. That of the digests follows a text, and is nobody's name.
    return b'"agent_id":"' in stored or stored.count(b'"code":"') > stored.count(b'","code":"')


def agent_of(stored: bytes | Raw) -> str | None:
    """The name of the agent whose plan it is, if it has one."""
    plan = _decode_agent(stored)
    if plan.path:
        return plan.name
    if plan.agent_id is not None:
        return plan.code or plan.name
    return None if plan.code is None else code_agent(plan.code, plan.name)


def code_agent(code: str, name: str) -> str:
    """The name of the agent that a run's code is registered under; that of a run in memory has a number after it."""
    return name if code.removeprefix(f"{name} ").isdigit() else code


def encode_plan(plan: RunPlan) -> bytes:
    return _encode(plan)


def decode_plan(stored: bytes | Raw) -> RunPlan:
    """The plan that `encode_plan` wrote, by this code or by older code. Raises `msgspec.DecodeError` for anything else.

    Plans of newer code are not found out here: they are in runs of a newer `FORMAT`.
    """
    version = _decode_version(stored).v
    if not 1 <= version <= PLAN_VERSION:
        raise ValidationError(f"The plan has version {version}; this version of Weftline reads up to {PLAN_VERSION}")
    return _decode_plan(stored)
