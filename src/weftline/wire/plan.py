"""Makes the plan of a run from what a client sent. The bytes were checked on arrival and are trusted here."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal, TypeAlias

from msgspec import UNSET, Raw, Struct, UnsetType, json
from msgspec.structs import replace

from weftline.kernel.control import LeaseRule, OnDeploy, OnLost
from weftline.kernel.entries import Limits
from weftline.messages import Assistant, Message, OutputSchema, Sampling, System, Text, User
from weftline.plan import (
    A2ALocalRef,
    A2ARef,
    Asked,
    LocalRef,
    McpLocalEntry,
    McpLocalRef,
    McpRef,
    RunPlan,
    ServerRef,
    StoredRef,
    ToolRef,
)
from weftline.wire.attachments import StoredAttachment
from weftline.wire.awaiting import WireAwaits, with_awaits
from weftline.wire.budget import WireBudget
from weftline.wire.engine_options import WireRetryPolicy, options_of
from weftline.wire.limits import (
    DEFAULT_LOCAL_TIMEOUT_MS,
    DEFAULT_LOOP_HARD,
    DEFAULT_LOOP_SOFT,
    DEFAULT_RUN_NAME,
    DEFAULT_SCHEMA_NAME,
    DEFAULT_TOOL_BUDGETS,
    MAX_TOOL_TURNS,
    REASONING_LEVELS,
)
from weftline.wire.policy import WirePolicy

NULL = Raw(b"null")


def present(raw: Raw | UnsetType) -> Raw | UnsetType:
    """Treats `null` as an absent field."""
    return UNSET if raw is UNSET or raw == NULL else raw


class _Root(Struct):
    type: Any = None
    properties: Raw | UnsetType = UNSET


_decode_root = json.Decoder(_Root).decode


def _is_object(raw: Raw | UnsetType) -> bool:
    return raw is not UNSET and memoryview(raw)[0] == ord("{")


def _object_schema(raw: Raw | UnsetType, *, with_properties: bool) -> Raw | UnsetType:
    """Returns the schema if its root is an object schema; anything else counts as absent."""
    if raw is UNSET or not _is_object(raw):
        return UNSET
    root = _decode_root(raw)
    fits = root.type == "object" and (not with_properties or _is_object(root.properties))
    return raw if fits else UNSET


class _Wire(Struct, tag_field="kind", rename="camel"):
    """A tool ref as the client sent it."""


class _Stored(_Wire, tag="stored"):
    id: str

    def ref(self) -> ToolRef:
        return StoredRef(self.id)


class _ForeignStored(_Stored, tag="mantyx"):
    """The protocol's own name for it."""


class _Server(_Wire, tag="server"):
    name: str

    def ref(self) -> ToolRef:
        return ServerRef(self.name)


class _ForeignServer(_Server, tag="mantyx_plugin"):
    """The protocol's own name for it."""


class _Local(_Wire, tag="local"):
    name: str
    description: str | None = None
    parameters: Raw | UnsetType = UNSET
    output_schema: Raw | UnsetType = UNSET
    long_running: bool | None = None
    tags: tuple[str, ...] | None = None
    effect: Literal["read", "idempotent", "once"] | None = None

    def ref(self) -> ToolRef:
        return LocalRef(
            self.name,
            self.description or "",
            _object_schema(self.parameters, with_properties=True),
            _object_schema(self.output_schema, with_properties=False),
            bool(self.long_running),
            self.tags or (),
            self.effect,
        )


class _A2A(_Wire, tag="a2a"):
    name: str
    agent_card_url: str
    description: str | None = None
    context_id: str | None = None

    def ref(self) -> ToolRef:
        return A2ARef(self.name, self.agent_card_url, self.description, self.context_id)


class _A2ALocal(_Wire, tag="a2a_local"):
    name: str
    agent_card: Raw
    description: str | None = None

    def ref(self) -> ToolRef:
        return A2ALocalRef(self.name, self.agent_card, self.description)


class _Mcp(_Wire, tag="mcp"):
    name: str
    url: str
    tool_filter: tuple[str, ...] | None = None
    elicitation: str | None = None

    def ref(self) -> ToolRef:
        return McpRef(self.name, self.url, self.tool_filter, self.elicitation == "ask")


class _NamedTool(Struct):
    name: str


_decode_named = json.Decoder(_NamedTool).decode


class _McpLocal(_Wire, tag="mcp_local"):
    name: str
    tools: tuple[Raw, ...]
    server_info: Raw | UnsetType = UNSET

    def ref(self) -> ToolRef:
        entries = tuple(McpLocalEntry(_decode_named(raw).name, raw) for raw in self.tools)
        return McpLocalRef(self.name, entries, present(self.server_info))


_AnyWire: TypeAlias = _Stored | _ForeignStored | _Server | _ForeignServer | _Local | _A2A | _A2ALocal | _Mcp | _McpLocal

_decode_tool = json.Decoder(_AnyWire).decode


def tool_ref(raw: Raw) -> ToolRef:
    """Decodes one stored entry of `tools`."""
    return _decode_tool(raw).ref()


class _Loop(Struct, rename="camel"):
    consecutive_threshold: int | None = None
    hard_cutoff_threshold: int | None = None


class _ToolBudget(Struct, rename="camel"):
    max_calls: int


class _Budgets(Struct, rename="camel"):
    max_tool_turns: int | None = None
    max_tool_turns_exceeded: Literal["error", "finalize"] | None = None
    local_tool_timeout_ms: int | None = None
    on_local_tool_timeout: Literal["end", "report"] | None = None
    in_doubt: Literal["report", "ask"] | None = None
    on_lease_lost: OnLost | None = None
    lease_fallbacks: dict[str, str] | None = None


class _Chat(Struct):
    role: Literal["user", "assistant", "system"]
    content: str
    attachments: tuple[StoredAttachment, ...] | None = None


class _OutputSchema(Struct):
    schema: Raw
    name: str | None = None


class _Spec(Struct, rename="camel"):
    name: str | None = None
    agent_id: str | None = None
    model_id: str | None = None
    model_fallbacks: tuple[str, ...] | None = None
    system_prompt: str | None = None
    reasoning_level: str | int | float | None = None
    prompt: str | None = None
    messages: tuple[_Chat, ...] | None = None
    attachments: tuple[StoredAttachment, ...] | None = None
    tools: tuple[_AnyWire, ...] | None = None
    output_schema: _OutputSchema | None = None
    loop_detection: bool | _Loop | None = None
    tool_budgets: dict[str, _ToolBudget] | None = None
    budgets: _Budgets | None = None
    policy: WirePolicy | None = None
    budget: WireBudget | None = None
    awaits: WireAwaits | None = None
    on_deploy: OnDeploy | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop_sequences: tuple[str, ...] | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, str] | None = None
    labels: dict[str, str] | None = None
    stream_arguments: bool | None = None
    turn_id: str | None = None
    memo: dict[str, Any] | None = None
    search_attributes: dict[str, Any] | None = None
    task_queue: str | None = None
    retry_policy: WireRetryPolicy | None = None


_decode_spec = json.Decoder(_Spec).decode

_NO_BUDGETS = _Budgets()


def plan_from_spec(spec: bytes, *, requested_by: str = "") -> RunPlan:
    """Returns the plan for a spec, with defaults. A spec without input, such as a session's, has no messages."""
    sent = _decode_spec(spec)
    schema = sent.output_schema
    tools = tuple([tool.ref() for tool in sent.tools]) if sent.tools else ()
    engine = options_of(sent.memo, sent.search_attributes, sent.task_queue, sent.retry_policy)
    plan = RunPlan(  # with more than 15 keyword arguments, all of them would be put into a dictionary first
        messages=_messages(sent),
        name=sent.name or DEFAULT_RUN_NAME,
        agent_id=sent.agent_id,
        model=sent.model_id,
        fallbacks=sent.model_fallbacks or (),
        system=sent.system_prompt or None,
        reasoning=_reasoning(sent.reasoning_level),
        sampling=Sampling(sent.temperature, sent.top_p, sent.stop_sequences or (), sent.max_output_tokens),
        tools=tools,
        output_schema=None if schema is None else OutputSchema(schema.name or DEFAULT_SCHEMA_NAME, schema.schema),
        limits=with_awaits(_limits(sent, tools), sent.awaits, sent.on_deploy),
        metadata=sent.metadata or {},
        requested_by=requested_by,
        labels=sent.labels or {},
        stream_arguments=sent.stream_arguments or False,
    )
    return plan if engine is None and not sent.turn_id else replace(plan, turn_id=sent.turn_id or "", engine=engine)


class _Asked(Struct, rename="camel"):
    budgets: _Budgets | None = None
    budget: WireBudget | None = None
    awaits: WireAwaits | None = None


_decode_asked = json.Decoder(_Asked).decode


def asked_of(spec: bytes) -> Asked:
    """Returns what a spec sets itself, where `plan_from_spec` would put a default."""
    sent = _decode_asked(spec)
    timeout_ms = None if sent.budgets is None else sent.budgets.local_tool_timeout_ms
    ttl_ms = None if sent.awaits is None else sent.awaits.grant_ttl_ms
    return Asked(
        None if timeout_ms is None else timeout_ms * 1000,
        None if ttl_ms is None else ttl_ms * 1000,
        None if sent.budget is None else sent.budget.on_exceeded,
    )


def _limits(sent: _Spec, tools: tuple[ToolRef, ...]) -> Limits:
    table, loop = _tool_budgets(sent.tool_budgets, tools), sent.loop_detection
    usual = sent.budgets is None and sent.policy is None and sent.budget is None and not sent.model_fallbacks
    if usual and not table and not isinstance(loop, _Loop):
        return _usual_limits(loop)
    return _new_limits(sent, table)


@cache
def _usual_limits(loop: bool | None) -> Limits:
    """Those of most runs, made once."""
    return _new_limits(_Spec(loop_detection=loop), {})


def _new_limits(sent: _Spec, table: dict[str, int]) -> Limits:
    soft, hard = _loop(sent.loop_detection)
    budgets = sent.budgets or _NO_BUDGETS
    turns = budgets.max_tool_turns
    timeout_ms = budgets.local_tool_timeout_ms
    return Limits(
        max_tool_turns=MAX_TOOL_TURNS if turns is None else min(turns, MAX_TOOL_TURNS),
        on_max_tool_turns=budgets.max_tool_turns_exceeded or "error",
        loop_soft=soft,
        loop_hard=hard,
        tool_budgets=table,
        local_timeout_us=(DEFAULT_LOCAL_TIMEOUT_MS if timeout_ms is None else timeout_ms) * 1000,
        on_local_timeout=budgets.on_local_tool_timeout or "end",
        fallbacks=len(sent.model_fallbacks or ()),
        policy=None if sent.policy is None else sent.policy.rule,
        interrupts_allowed=sent.policy is None or sent.policy.interrupts_allowed is not False,
        budget=None if sent.budget is None else sent.budget.rule,
        leases=_leases(budgets),
        in_doubt=budgets.in_doubt or "report",
    )


def _leases(budgets: _Budgets) -> LeaseRule | None:
    if budgets.on_lease_lost is None and not budgets.lease_fallbacks:
        return None
    fallbacks = budgets.lease_fallbacks or {}
    return LeaseRule(budgets.on_lease_lost or ("fallback" if fallbacks else "reoffer"), fallbacks)


def _loop(sent: bool | _Loop | None) -> tuple[int, int]:
    """Returns both thresholds; one that is not given adapts to the other."""
    if sent is False:
        return 0, DEFAULT_LOOP_HARD
    if not isinstance(sent, _Loop):
        return DEFAULT_LOOP_SOFT, DEFAULT_LOOP_HARD
    soft, hard = sent.consecutive_threshold, sent.hard_cutoff_threshold
    if hard is None:
        soft = DEFAULT_LOOP_SOFT if soft is None else soft
        return soft, max(DEFAULT_LOOP_HARD, soft + 1)
    return (min(DEFAULT_LOOP_SOFT, hard - 1) if soft is None else soft), hard


def _tool_budgets(sent: dict[str, _ToolBudget] | None, tools: tuple[ToolRef, ...]) -> dict[str, int]:
    """Returns the given budgets merged into the default table; an empty object means none at all."""
    if sent is None:
        return _default_budgets(tools)
    if not sent:
        return {}
    return {**_default_budgets(tools), **{name: budget.max_calls for name, budget in sent.items()}}


def _default_budgets(tools: tuple[ToolRef, ...]) -> dict[str, int]:
    """Returns the default table without the tools that the run does not have, as it is stored with every run."""
    if not tools:
        return {}
    names: set[str] = set()
    for ref in tools:
        match ref:
            case ServerRef():
                # The model knows `@package/tool-name` as `tool_name`.
                names.add(ref.name.rpartition("/")[2].replace("-", "_"))
            case LocalRef() | A2ALocalRef() | A2ARef():
                names.add(ref.name)
            case McpRef() | StoredRef():
                return dict(DEFAULT_TOOL_BUDGETS)  # their tools are not known yet
            case McpLocalRef():
                names.update([entry.name for entry in ref.tools])
    if names.isdisjoint(DEFAULT_TOOL_BUDGETS):
        return {}
    return {name: max_calls for name, max_calls in DEFAULT_TOOL_BUDGETS.items() if name in names}


def _reasoning(level: str | float | None) -> int | None:
    if level is None:
        return None
    return REASONING_LEVELS[level] if isinstance(level, str) else int(level)


def _messages(sent: _Spec) -> tuple[Message, ...]:
    if sent.prompt is not None:
        return (_user(sent.prompt, sent.attachments),)
    return tuple([_message(chat) for chat in sent.messages]) if sent.messages else ()


def _user(text: str, attachments: tuple[StoredAttachment, ...] | None) -> User:
    """Returns the user's message, with attachments first, as every vendor advises."""
    if not attachments:
        return User.of(text)
    files = [attachment.part() for attachment in attachments]
    return User((*files, Text(text)) if text else tuple(files))


def _message(chat: _Chat) -> Message:
    match chat.role:
        case "user":
            return _user(chat.content, chat.attachments)
        case "assistant":
            return Assistant((Text(chat.content),))
        case "system":
            return System(chat.content)
