"""Makes the plan of a run, as the log stores it, from its spec. The spec was checked on arrival and is trusted here."""

from __future__ import annotations

from functools import cache
from operator import attrgetter
from typing import Any, Final

from msgspec import UNSET, Raw, Struct, UnsetType, json
from msgspec.structs import replace

from weftline.engine_options import EngineOptions, RetryPolicy, engine_options
from weftline.kernel.control import LeaseRule
from weftline.kernel.entries import Limits
from weftline.messages import Assistant, Message, OutputSchema, Sampling, System, Text, User
from weftline.plan import (
    A2ALocalRef,
    A2ARef,
    LocalRef,
    McpLocalEntry,
    McpLocalRef,
    McpRef,
    PlanContent,
    RunPlan,
    ServerRef,
    StoredRef,
    ToolRef,
)
from weftline.spec import fields, tools
from weftline.spec.declare import microseconds, stored, trust_seconds
from weftline.spec.fields import Awaits, Loop, RunBudgets, RunSpec, ToolBudget, plain_value
from weftline.wire.attachments import StoredAttachment
from weftline.wire.json_text import NULL
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

CONVERTED_LIMITS: Final = frozenset(
    {"model_fallbacks", "loop_detection", "tool_budgets", "budgets", "policy", "budget", "awaits"}
)
"""Fields that are stored in `Limits`, under other names or in another form. `limits_asked` has a line for each."""
CONVERTED: Final = CONVERTED_LIMITS | {
    *("prompt", "messages", "attachments", "name", "agent_id", "model_id", "system_prompt", "reasoning_level"),
    *("temperature", "top_p", "stop_sequences", "max_output_tokens", "tools", "output_schema", "metadata"),
    *("memo", "search_attributes", "task_queue", "retry_policy"),
}
"""Fields with another name or form in the plan. `to_plan` reads each of them, or what it calls does."""
NOT_STORED: Final = frozenset({"fallback_model_id", "plan", "plan_only", "run_id"})
"""A spelling of `model_fallbacks`, what is refused, and the id that the run's row has."""


def _in(stored: type[Struct]) -> tuple[str, ...]:
    names = [name for name in RunSpec.__struct_fields__ if name not in CONVERTED]
    return tuple([name for name in names if name in stored.__struct_fields__])


COPIED: Final = _in(PlanContent)
"""Fields that the plan has as they were sent: all others, except for the next ones."""
COPIED_LIMITS: Final = _in(Limits)
"""Fields that the plan's limits have as they were sent."""
IN_LIMITS: Final = (*sorted(CONVERTED_LIMITS), *COPIED_LIMITS)
"""All that `limits_asked` reads."""


@cache
def _decoder() -> json.Decoder[RunSpec]:
    others = {fields.Attachment: StoredAttachment, tools.McpLocalEntry: Raw}
    return json.Decoder(stored(RunSpec, others), dec_hook=trust_seconds)


def read_spec(spec: bytes) -> RunSpec:
    """Decodes a stored spec."""
    return _decoder().decode(spec)


def plan_from_spec(spec: bytes, *, requested_by: str = "") -> RunPlan:
    """Returns the plan for a stored spec."""
    return to_plan(read_spec(spec), requested_by=requested_by)


def to_plan(sent: RunSpec, *, requested_by: str = "") -> RunPlan:
    """Returns the plan for a spec, with defaults. A spec without input, such as a session's, has no messages."""
    refs = tuple([ref_of(tool) for tool in sent.tools]) if sent.tools else ()
    schema = sent.output_schema
    plan = RunPlan(  # with more than 15 keyword arguments, all of them would be put into a dictionary first
        messages=_messages(sent),
        name=sent.name or DEFAULT_RUN_NAME,
        agent_id=sent.agent_id,
        model=sent.model_id,
        fallbacks=sent.model_fallbacks or (),
        system=sent.system_prompt or None,
        reasoning=level_of(sent.reasoning_level),
        sampling=Sampling(sent.temperature, sent.top_p, sent.stop_sequences or (), sent.max_output_tokens),
        tools=refs,
        output_schema=None if schema is None else OutputSchema(schema.name or DEFAULT_SCHEMA_NAME, schema.schema),
        limits=_limits(sent, refs),
        metadata=sent.metadata or {},
        requested_by=requested_by,
    )
    rare = copied(sent)
    if (engine := engine_options_of(sent)) is not None:
        rare["engine"] = engine
    return replace(plan, **rare) if rare else plan


def copied(sent: RunSpec, names: tuple[str, ...] = COPIED) -> dict[str, Any]:
    """Returns what the plan has as it was sent, or what its limits have."""
    return {name: value for name in names if (value := getattr(sent, name)) is not None}


def level_of(level: str | float | None) -> int | None:
    if level is None:
        return None
    return REASONING_LEVELS[level] if isinstance(level, str) else int(level)


def _messages(sent: RunSpec) -> tuple[Message, ...]:
    if sent.prompt is not None:
        return (_user(sent.prompt, sent.attachments),)
    return tuple([_message(chat) for chat in sent.messages]) if sent.messages else ()


def _user(text: str, attachments: Any) -> User:
    """Returns the user's message, with attachments first, as every vendor advises."""
    if not attachments:
        return User.of(text)
    files = [attachment.part() for attachment in attachments]
    return User((*files, Text(text)) if text else tuple(files))


def _message(chat: fields.Chat) -> Message:
    match chat.role:
        case "user":
            return _user(chat.content, chat.attachments)
        case "assistant":
            return Assistant((Text(chat.content),))
        case "system":
            return System(chat.content)


def engine_options_of(sent: RunSpec) -> EngineOptions | None:
    retry = sent.retry_policy
    if sent.memo is sent.search_attributes is sent.task_queue is retry is None:
        return None
    policy = None
    if retry is not None:
        policy = RetryPolicy(
            max_attempts=retry.max_attempts or 0,
            initial_interval_s=(retry.initial_interval_ms or 0) / 1000,
            backoff_coefficient=retry.backoff_coefficient or 0.0,
        )
    values = {name: plain_value(value) for name, value in (sent.search_attributes or {}).items()}
    return engine_options(memo=sent.memo, search_attributes=values, task_queue=sent.task_queue, retry_policy=policy)


# Tools


def ref_of(tool: tools.Tool) -> ToolRef:
    """Returns a tool as the plan has it."""
    match tool:
        case tools.ServerTool():
            return ServerRef(tool.name)
        case tools.LocalTool():
            return LocalRef(
                tool.name,
                tool.description or "",
                _object_schema(tool.parameters, with_properties=True),
                _object_schema(tool.output_schema, with_properties=False),
                bool(tool.long_running),
                tuple(tool.tags or ()),
                tool.effect,
            )
        case tools.StoredTool():
            return StoredRef(tool.id)
        case tools.A2ATool():
            return A2ARef(tool.name, tool.agent_card_url, tool.description, tool.context_id)
        case tools.A2ALocalTool():
            return A2ALocalRef(tool.name, tool.agent_card, tool.description)
        case tools.McpTool():
            names = None if tool.tool_filter is None else tuple(tool.tool_filter)
            return McpRef(tool.name, tool.url, names, tool.elicitation == "ask")
        case tools.McpLocalTool():
            raws: tuple[Any, ...] = tool.tools
            entries = tuple([McpLocalEntry(_decode_named(raw).name, raw) for raw in raws])
            return McpLocalRef(tool.name, entries, present(tool.server_info))


class _Named(Struct):
    name: str


class _Root(Struct):
    type: Any = None
    properties: Raw | UnsetType = UNSET


_decode_named = json.Decoder(_Named).decode
_decode_root = json.Decoder(_Root).decode


def present(raw: Raw | UnsetType) -> Raw | UnsetType:
    """Treats `null` as an absent field."""
    return UNSET if raw is UNSET or raw == NULL else raw


def _is_object(raw: Raw | UnsetType) -> bool:
    return raw is not UNSET and memoryview(raw)[0] == ord("{")


def _object_schema(raw: Raw | UnsetType, *, with_properties: bool) -> Raw | UnsetType:
    """Returns the schema if its root is an object schema; anything else counts as absent."""
    if raw is UNSET or not _is_object(raw):
        return UNSET
    root = _decode_root(raw)
    fits = root.type == "object" and (not with_properties or _is_object(root.properties))
    return raw if fits else UNSET


# Limits


_rare = attrgetter(*[name for name in IN_LIMITS if name not in ("loop_detection", "tool_budgets")])
_NOTHING = _rare(RunSpec())


def _limits(sent: RunSpec, refs: tuple[ToolRef, ...]) -> Limits:
    loop = sent.loop_detection
    if _rare(sent) == _NOTHING and not isinstance(loop, Loop) and not _tool_budgets(sent.tool_budgets, refs):
        return _usual_limits(loop)
    return replace(_DEFAULTS, **limits_asked(sent, refs))


@cache
def _usual_limits(loop: bool | None) -> Limits:
    """Those of most runs, made once."""
    return replace(_DEFAULTS, **limits_asked(RunSpec(loop_detection=loop), ()))


_NO_BUDGETS, _NO_AWAITS = RunBudgets(), Awaits()
_DEFAULTS = Limits(
    max_tool_turns=MAX_TOOL_TURNS,
    loop_soft=DEFAULT_LOOP_SOFT,
    loop_hard=DEFAULT_LOOP_HARD,
    local_timeout_us=DEFAULT_LOCAL_TIMEOUT_MS * 1000,
)


def limits_asked(sent: RunSpec, refs: tuple[ToolRef, ...]) -> dict[str, Any]:
    """Returns the limits that a spec asks for, by their names in the log. All others have their defaults."""
    soft, hard = _loop(sent.loop_detection)
    budgets, awaits = sent.budgets or _NO_BUDGETS, sent.awaits or _NO_AWAITS
    turns, timeout_ms = budgets.max_tool_turns, budgets.local_tool_timeout_ms
    policy, budget = sent.policy, sent.budget
    asked = {
        "max_tool_turns": None if turns is None else min(turns, MAX_TOOL_TURNS),
        "on_max_tool_turns": budgets.max_tool_turns_exceeded,
        "loop_soft": soft,
        "loop_hard": hard,
        "tool_budgets": _tool_budgets(sent.tool_budgets, refs) or None,
        "local_timeout_us": None if timeout_ms is None else timeout_ms * 1000,
        "on_local_timeout": budgets.on_local_tool_timeout,
        "fallbacks": len(sent.model_fallbacks or ()) or None,
        "policy": None if policy is None else policy.rule,
        "interrupts_allowed": None if policy is None else policy.interrupts_allowed,
        "budget": None if budget is None or not budget.limits else budget.rule,
        "leases": leases_of(budgets),
        "in_doubt": budgets.in_doubt,
        "await_timeout_us": microseconds(awaits.timeout_s),
        "on_await_expired": awaits.on_expired,
        "grant_ttl_us": microseconds(awaits.grant_ttl_s),
        "four_eyes": awaits.four_eyes,
        **copied(sent, COPIED_LIMITS),
    }
    return {name: value for name, value in asked.items() if value is not None}


def leases_of(budgets: RunBudgets) -> LeaseRule | None:
    if budgets.on_lease_lost is None and not budgets.lease_fallbacks:
        return None
    fallbacks = budgets.lease_fallbacks or {}
    return LeaseRule(budgets.on_lease_lost or ("fallback" if fallbacks else "reoffer"), fallbacks)


def _loop(sent: bool | Loop | None) -> tuple[int | None, int | None]:
    """Returns both thresholds; if one of them is given, the other one adapts to it."""
    if sent is False:
        return 0, None
    if not isinstance(sent, Loop):
        return None, None
    soft, hard = sent.consecutive_threshold, sent.hard_cutoff_threshold
    if hard is None:
        soft = DEFAULT_LOOP_SOFT if soft is None else soft
        return soft, max(DEFAULT_LOOP_HARD, soft + 1)
    return (min(DEFAULT_LOOP_SOFT, hard - 1) if soft is None else soft), hard


def _tool_budgets(sent: dict[str, ToolBudget] | None, refs: tuple[ToolRef, ...]) -> dict[str, int]:
    """Returns the given budgets merged into the default table; an empty object means none at all."""
    if sent is None:
        return _default_budgets(refs)
    if not sent:
        return {}
    return {**_default_budgets(refs), **{name: budget.max_calls for name, budget in sent.items()}}


def _default_budgets(refs: tuple[ToolRef, ...]) -> dict[str, int]:
    """Returns the default table without the tools that the run does not have, as it is stored with every run."""
    if not refs:
        return {}
    names: set[str] = set()
    for ref in refs:
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
