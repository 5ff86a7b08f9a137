"""The fields of a run: everything that it can be asked to do, once, with its JSON name, its limits and how it merges.

An agent, a session and a message to it, a run, a schedule and the changes of a fork are all made of these fields. To
add an option, add a line here, with its documentation below it, and one to `PlanContent` or `Limits`, which is what the
log stores: what may be asked has limits that change, what is stored has none and a version.

None means that nothing was said, in every layer; defaults are filled in when the plan is made. What means something,
such as `false`, `{}` or 0, is never None.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Final, Literal, Optional, TypeAlias, cast

from msgspec import Meta, Raw, ValidationError, convert, json

from weftline.engine_options import (
    MAX_INTERVAL_S,
    MAX_TASK_QUEUE_CHARS,
    attributes_problem,
    memo_problem,
    typed,
)
from weftline.kernel.control import OnDeploy, OnLost
from weftline.labels import MAX_CHARS, PATTERN, WANTED, is_possible
from weftline.spec.declare import (
    FIXED,
    INPUT,
    Group,
    Part,
    Where,
    both,
    check,
    fields_of,
    layer,
    opt,
    own_only,
    says,
    upper,
    whole,
)
from weftline.spec.groups import Awaits, Budget, Policy, policy_problem, policy_within, strictest_word, within
from weftline.spec.tools import TOO_DEEP, Tools, by_name, object_problem, schema_problem, unless_empty
from weftline.wire.json_text import encode, is_deep
from weftline.wire.limits import (
    ID_PATTERN,
    MAX_ATTACHMENT_NAME_CHARS,
    MAX_ATTACHMENTS,
    MAX_BUDGET_CALLS,
    MAX_BUDGET_NAME_CHARS,
    MAX_LOCAL_TIMEOUT_MS,
    MAX_LOOP_THRESHOLD,
    MAX_MESSAGES,
    MAX_METADATA_BYTES,
    MAX_METADATA_ENTRIES,
    MAX_METADATA_VALUE_CHARS,
    MAX_MODEL_FALLBACKS,
    MAX_MODEL_ID_CHARS,
    MAX_OUTPUT_SCHEMA_BYTES,
    MAX_OUTPUT_TOKENS,
    MAX_REASONING_LEVEL,
    MAX_RUN_NAME_CHARS,
    MAX_STOP_SEQUENCE_CHARS,
    MAX_STOP_SEQUENCES,
    MAX_TEMPERATURE,
    MAX_TOOL_BUDGETS,
    MAX_TURN_ID_CHARS,
    METADATA_KEY_PATTERN,
    MIN_LOOP_HARD,
    MIN_LOOP_SOFT,
    REASONING_LEVELS,
    SCHEMA_NAME_PATTERN,
)

# Values with checks of their own

TIME: Final = "datetime"
_ATTRIBUTE_KINDS: Final = (
    'a string, a number, true, false, an array of strings, or {"datetime": "2026-01-31T12:00:00Z"}'
)


def _size_problem(most: int, value: object) -> str:
    return f"has more than {most} bytes as JSON" if len(encode(value)) > most else ""


words_problem = partial(_size_problem, MAX_METADATA_BYTES)


def _reasoning_problem(level: object) -> str:
    if isinstance(level, str) and level in REASONING_LEVELS:
        return ""
    number = level if isinstance(level, int | float) and not isinstance(level, bool) else -1
    if 0 <= number <= MAX_REASONING_LEVEL and float(number).is_integer():
        return ""
    return f"must be one of {', '.join(REASONING_LEVELS)} or an integer 0 to {MAX_REASONING_LEVEL}"


def _loop_problem(loop: object) -> str:
    if loop is False:
        return ""
    if not isinstance(loop, dict):
        return "must be false or an object with thresholds"
    given = cast("dict[str, int | None]", loop)
    soft, hard = given.get("consecutiveThreshold"), given.get("hardCutoffThreshold")
    if soft is not None and hard is not None and hard <= soft:
        return "hardCutoffThreshold must be greater than consecutiveThreshold"
    return ""


def _leases_problem(budgets: Mapping[str, Any]) -> str:
    lost, fallbacks = budgets.get("onLeaseLost"), budgets.get("leaseFallbacks")
    if lost == "fallback" and not fallbacks:
        return "onLeaseLost is `fallback`, and leaseFallbacks names no tool"
    if lost in ("reoffer", "error") and fallbacks:
        return "leaseFallbacks needs onLeaseLost `fallback`"
    return ""


_DRY_RUN = "asks for a dry run (`planOnly`), which is not supported: the agent would really run"
_NAMES_OF_DRY_RUNS = ("planOnly", "plan_only")


def _plan_problem(plan: object) -> str:
    options = cast("dict[str, Any]", plan) if isinstance(plan, dict) else {}
    asked = plan in _NAMES_OF_DRY_RUNS or any(options.get(name) not in (None, False) for name in _NAMES_OF_DRY_RUNS)
    return _DRY_RUN if asked else TOO_DEEP if is_deep(encode(plan), cast("object", plan)) else ""


def _dry_run_problem(asked: object) -> str:
    return "" if asked is False else _DRY_RUN


def asks_for_checklist(plan: object) -> bool:
    """Returns True if a valid `plan` asks for a checklist of steps beside the run, which is not made."""
    if isinstance(plan, dict):
        options = cast("dict[str, Any]", plan)
        return options.get("mode") != "off" and any(options[name] for name in options if name not in _NAMES_OF_DRY_RUNS)
    return plan not in (None, False, "off")


def plain_value(value: object) -> object:
    """Decodes a search attribute. JSON has no times, so `{"datetime": "2026-01-31T12:00:00Z"}` represents one."""
    given = cast("dict[str, object]", value) if isinstance(value, dict) else {}
    if given.keys() != {TIME}:
        return cast("object", value)
    try:
        return convert(given[TIME], datetime)
    except ValidationError:
        return given


def _attribute_problem(value: object) -> str:
    found = typed(plain_value(value), kinds=_ATTRIBUTE_KINDS)
    return found if isinstance(found, str) else ""


def _memo_problem(memo: dict[str, Any]) -> str:
    return object_problem(memo) or memo_problem(memo)


def _object_schema_problem(schema: object) -> str:
    return schema_problem(cast("object", schema)) if isinstance(schema, dict) else "must be a JSON object"


def _run_id_problem(id: str) -> str:
    return "" if is_possible(id) else WANTED


_decode_words = json.Decoder(dict[str, str]).decode


@both
def union(own: Raw, above: Raw) -> Raw:
    """Both, with the request's values over those of the session."""
    merged = {**_decode_words(above), **_decode_words(own)}
    encoded = encode(merged)
    if len(merged) > MAX_METADATA_ENTRIES:
        raise ValueError(
            f"has {len(merged)} entries together with the session's; at most {MAX_METADATA_ENTRIES} are kept"
        )
    if len(encoded) > MAX_METADATA_BYTES:
        raise ValueError(f"has more than {MAX_METADATA_BYTES} bytes as JSON together with the session's")
    return Raw(encoded)


NO_NUL: Final = r"\A[^\x00]*\Z"


def _text(most: int, least: int = 0) -> Any:
    return says("must not contain a NUL character", pattern=NO_NUL, min_length=least or None, max_length=most)


Words: TypeAlias = Annotated[
    dict[
        Annotated[str, Meta(pattern=whole(METADATA_KEY_PATTERN))],
        Annotated[str, _text(MAX_METADATA_VALUE_CHARS)],
    ],
    Meta(max_length=MAX_METADATA_ENTRIES),
    check(words_problem),
]
_Name: TypeAlias = Annotated[str, _text(MAX_RUN_NAME_CHARS)]
_ModelId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_MODEL_ID_CHARS)]
_ToolName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_BUDGET_NAME_CHARS)]
_StopSequence: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_SEQUENCE_CHARS)]

_REASONING = check(_reasoning_problem, schema={"minimum": 0, "maximum": MAX_REASONING_LEVEL})
_SCHEMA_SIZE = check(partial(_size_problem, MAX_OUTPUT_SCHEMA_BYTES))
_LOOP = check(_loop_problem, schema={"not": {"const": True}})
_RUN_ID = check(_run_id_problem, schema={"pattern": PATTERN, "maxLength": MAX_CHARS})

# Objects inside a spec


class Attachment(Part, frozen=True, kw_only=True):
    """An attachment: `data` (base64) or `url`.

    `mediaType` is optional if it can be determined from the content or the URL.
    """

    media_type: Annotated[str, Meta(max_length=255)] | None = None
    data: str | None = None
    url: str | None = None
    name: Annotated[str, Meta(max_length=MAX_ATTACHMENT_NAME_CHARS)] | None = None
    type: str | None = None
    """Sent by some clients; redundant with the media type."""
    mime_type: Annotated[str, Meta(max_length=255)] | None = None
    """An alias of `mediaType`, as `filename` is of `name`."""
    filename: Annotated[str, Meta(max_length=MAX_ATTACHMENT_NAME_CHARS)] | None = None


Attachments: TypeAlias = Annotated[tuple[Attachment, ...], Meta(max_length=MAX_ATTACHMENTS)]


class Chat(Part, frozen=True):
    """A message of the conversation that the model is to continue."""

    role: Literal["user", "assistant", "system"]
    content: str
    attachments: Attachments | None = None


class SentSchema(Part, frozen=True):
    """The JSON Schema of the answer."""

    schema: Annotated[Raw, check(_object_schema_problem, schema={"type": "object"})]
    name: Annotated[str, Meta(pattern=whole(SCHEMA_NAME_PATTERN))] | None = None


class Loop(Part, frozen=True, kw_only=True):
    """When a model that repeats itself is told so, and when it has to answer."""

    consecutive_threshold: Annotated[int, Meta(ge=MIN_LOOP_SOFT, le=MAX_LOOP_THRESHOLD)] | None = None
    hard_cutoff_threshold: Annotated[int, Meta(ge=MIN_LOOP_HARD, le=MAX_LOOP_THRESHOLD)] | None = None


class ToolBudget(Part, frozen=True):
    """The most calls of a tool."""

    max_calls: Annotated[int, Meta(ge=0, le=MAX_BUDGET_CALLS)]


class RunBudgets(Part, frozen=True, kw_only=True):
    """Limits on turns with calls, and on calls that the client answers."""

    max_tool_turns: Annotated[int, Meta(ge=0)] | None = None
    max_tool_turns_exceeded: Literal["error", "finalize"] | None = None
    local_tool_timeout_ms: Annotated[int, Meta(ge=1, le=MAX_LOCAL_TIMEOUT_MS)] | None = None
    on_local_tool_timeout: Literal["end", "report"] | None = None
    in_doubt: Literal["report", "ask"] | None = None
    on_lease_lost: OnLost | None = None
    lease_fallbacks: Annotated[dict[_ToolName, _ToolName], Meta(max_length=MAX_TOOL_BUDGETS)] | None = None


class Retry(Group, frozen=True, kw_only=True):
    """The attempts of the engine to hand the run to a worker; 0 means the engine's default."""

    max_attempts: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    initial_interval_ms: Annotated[int, Meta(ge=0, le=MAX_INTERVAL_S * 1000)] | None = None
    backoff_coefficient: Annotated[float, Meta(ge=0, le=100)] | None = None


class RunSpec(Part, frozen=True, kw_only=True):
    """A run: `prompt` or `messages`, and how to run it."""

    prompt: Annotated[str | None, opt(INPUT, client=False)] = None
    messages: Annotated[Annotated[tuple[Chat, ...], Meta(min_length=1, max_length=MAX_MESSAGES)] | None, opt(INPUT)] = (
        None
    )
    attachments: Annotated[Attachments | None, opt(INPUT, client=False)] = None
    name: Annotated[_Name | None, opt(FIXED, session=upper)] = None
    agent_id: Annotated[
        Annotated[str, Meta(pattern=whole(ID_PATTERN))] | None, opt(FIXED, agent=own_only, session=upper)
    ] = None
    model_id: Annotated[_ModelId | None, opt(FIXED, session=upper)] = None
    model_fallbacks: Annotated[
        Annotated[tuple[_ModelId, ...], Meta(max_length=MAX_MODEL_FALLBACKS)] | None, opt(FIXED, session=upper)
    ] = None
    """Models to try, in order, when the model before has failed for good."""
    fallback_model_id: Annotated[_ModelId | None, opt(FIXED, agent=own_only, session=upper, client=False)] = None
    """Newer clients' word for a list of one."""
    system_prompt: Annotated[str | None, opt(FIXED, agent=upper, session=upper)] = None
    """The agent's is used even if it has none."""
    reasoning_level: Annotated[
        Annotated[Literal["off", "minimal", "low", "medium", "high", "xhigh"] | int | float, _REASONING] | None, opt()
    ] = None
    temperature: Annotated[Annotated[float, Meta(ge=0, le=MAX_TEMPERATURE)] | None, opt()] = None
    top_p: Annotated[Annotated[float, Meta(ge=0, le=1)] | None, opt()] = None
    stop_sequences: Annotated[
        Annotated[tuple[_StopSequence, ...], Meta(max_length=MAX_STOP_SEQUENCES)] | None, opt()
    ] = None
    max_output_tokens: Annotated[Annotated[int, Meta(ge=1, le=MAX_OUTPUT_TOKENS)] | None, opt()] = None
    tools: Annotated[Tools | None, opt(agent=by_name, session=unless_empty, client=False)] = None
    output_schema: Annotated[
        Annotated[SentSchema, check(partial(_size_problem, MAX_OUTPUT_SCHEMA_BYTES))] | None, opt()
    ] = None
    loop_detection: Annotated[Annotated[bool | Loop, _LOOP] | None, opt()] = None
    """False, or an object with thresholds."""
    tool_budgets: Annotated[Annotated[dict[_ToolName, ToolBudget], Meta(max_length=MAX_TOOL_BUDGETS)] | None, opt()] = (
        None
    )
    """`{}` means none at all; without it, the default table."""
    budgets: Annotated[Annotated[RunBudgets, check(_leases_problem)] | None, opt()] = None
    policy: Annotated[Annotated[Policy, check(policy_problem)] | None, opt(merge=policy_within)] = None
    budget: Annotated[Budget | None, opt(merge=within(Budget))] = None
    awaits: Annotated[Awaits | None, opt(merge=within(Awaits))] = None
    on_deploy: Annotated[OnDeploy | None, opt(merge=strictest_word("adopt", "ask", "pin"))] = None
    stream_arguments: Annotated[bool | None, opt(agent=own_only)] = None
    """True lets followers see the arguments of calls as the model writes them."""
    metadata: Annotated[Words | None, opt(agent=own_only, session=union)] = None
    labels: Annotated[Words | None, opt(agent=own_only, session=union)] = None
    """For hooks, policies and tools, also of child runs; no model reads them."""
    plan: Annotated[Annotated[Any, check(_plan_problem)], opt(agent=own_only, client=False)] = None
    """Newer clients' options for a plan of the run, none of which is supported."""
    plan_only: Annotated[Annotated[Any, check(_dry_run_problem)], opt(agent=own_only, client=False)] = None
    """A dry run, which is refused: only `false` is accepted."""
    turn_id: Annotated[Annotated[str, _text(MAX_TURN_ID_CHARS, 1)] | None, opt(INPUT)] = None
    """Your id for the exchange that the run belongs to; without one, the run's own id."""
    run_id: Annotated[Annotated[str, _RUN_ID] | None, opt(INPUT)] = None
    """The id of the run; generated by default."""
    memo: Annotated[Annotated[dict[str, Any], check(_memo_problem)] | None, opt(INPUT)] = None
    search_attributes: Annotated[
        Annotated[dict[str, Annotated[Any, check(_attribute_problem)]], check(attributes_problem)] | None, opt(INPUT)
    ] = None
    task_queue: Annotated[Annotated[str, Meta(max_length=MAX_TASK_QUEUE_CHARS)] | None, opt(INPUT)] = None
    retry_policy: Annotated[Retry | None, opt(INPUT)] = None


OPTS: Final = {one.wire: one.opt for one in fields_of(RunSpec)}
INPUT_FIELDS: Final = tuple([one.wire for one in fields_of(RunSpec) if one.opt.where is INPUT])

ENGINE_OPTIONS: Final = ("memo", "searchAttributes", "taskQueue", "retryPolicy")

RunModel = layer("RunModel", RunSpec, Where.RUN, "A run: `prompt` or `messages`, and how to run it.")
SessionModel = layer("SessionModel", RunSpec, Where.SESSION, "A session: everything that a run has except its input.")
MessageModel = layer(
    "MessageModel",
    RunSpec,
    Where.MESSAGE,
    "A message to a session: `prompt` or `messages`, and what it sets for this one run.",
)
ForkModel = layer(
    "ForkModel",
    RunSpec,
    Where.SESSION,
    "Where a fork begins, what the model reads there, and which fields of the spec change.",
    [("turn", Annotated[int, Meta(ge=0)]), ("message", Optional[Annotated[str, Meta(min_length=1)]], None)],  # noqa: UP045
)
