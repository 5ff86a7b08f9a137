"""The spec of a run that names a stored agent: the agent's own, overridden by the request's."""

from __future__ import annotations

from msgspec import Raw, Struct, json

from weftline.messages import OutputSchema
from weftline.plan import A2ALocalRef, A2ARef, LocalRef, McpLocalRef, McpRef, StoredRef, ToolRef
from weftline.wire.json_text import decode_fields, decode_items, encode
from weftline.wire.plan import NULL, tool_ref
from weftline.wire.policy import policy_over
from weftline.wire.tightening import WITHIN, tightened

DEFAULTS = (
    "name",
    "modelId",
    "modelFallbacks",
    "reasoningLevel",
    "outputSchema",
    "loopDetection",
    "toolBudgets",
    "budgets",
    "temperature",
    "topP",
    "stopSequences",
    "maxOutputTokens",
)
"""What a request may override; otherwise the agent's value applies."""


class _AgentName(Struct):
    name: str | None = None


_decode_named = json.Decoder(_AgentName).decode


def agent_spec(*, model: str | None, instructions: str | None, output: OutputSchema | None) -> bytes:
    """Returns the spec that clients see of an agent that is defined in code."""
    fields: dict[str, object] = {"modelId": model, "systemPrompt": instructions, "outputSchema": output}
    return encode({name: value for name, value in fields.items() if value is not None})


def agent_spec_merge(
    agent_spec: bytes, spec: bytes, *, id: str | None = None, name: str | None = None, replaces: bool = False
) -> bytes:
    """Returns the spec to store for a run of `spec` with the agent defined by `agent_spec`.

    The agent's prompt is always used, and fields in `WITHIN` can only be tightened. Its tools come first, except those
    with the name of one of the request's tools. Metadata is the request's alone. `id` is the agent's, for a request
    that names it by its slug, and `name` its own, for a run without a name. `replaces` means that the caller may change
    the agent too, and so replace its policy for this run.
    """
    agent = decode_fields(agent_spec)
    if name is not None and agent.get("name", NULL) == NULL:
        agent["name"] = Raw(encode(name))
    merged = decode_fields(spec)
    merged.pop("systemPrompt", None)
    if id is not None and "agentId" in merged:
        merged["agentId"] = Raw(encode(id))
    if agent.get("systemPrompt", NULL) != NULL:
        merged["systemPrompt"] = agent["systemPrompt"]
    for key in DEFAULTS:
        if merged.get(key, NULL) == NULL and agent.get(key, NULL) != NULL:
            merged[key] = agent[key]
    for key in WITHIN:
        own, above = merged.get(key, NULL), agent.get(key, NULL)
        if replaces and key == "policy" and NULL not in (own, above):
            merged[key] = policy_over(own, above)
        elif above != NULL:
            merged[key] = tightened(key, own, above)
    tools = merged_tools(_items(agent), _items(merged))
    if tools:
        merged["tools"] = Raw(encode(tools))
    return encode(merged)


def names_of_tools(spec: bytes) -> set[str]:
    """Returns the names of a spec's tools."""
    return {name for raw in _items(decode_fields(spec)) if (name := _decode_named(raw).name) is not None}


def dialled_urls(spec: bytes) -> dict[str, str]:
    """Returns the addresses of the tools that the server connects to, by tool name."""
    refs = (tool_ref(raw) for raw in _items(decode_fields(spec)))
    return {
        ref.name: ref.url if isinstance(ref, McpRef) else ref.card_url
        for ref in refs
        if isinstance(ref, McpRef | A2ARef)
    }


def dialled_tools(spec: bytes) -> dict[str, bytes]:
    """Returns the tools that the server connects to, as they were sent, by tool name."""
    refs = [(tool_ref(raw), raw) for raw in _items(decode_fields(spec))]
    return {ref.name: bytes(raw) for ref, raw in refs if isinstance(ref, McpRef | A2ARef)}


def client_side_tools(spec: bytes) -> list[str]:
    """Returns the names of the tools that the client executes."""
    refs = (tool_ref(raw) for raw in _items(decode_fields(spec)))
    return [name for ref in refs if isinstance(ref, LocalRef | A2ALocalRef | McpLocalRef) for name in model_names(ref)]


def merged_tools(base: list[Raw], over: list[Raw]) -> list[Raw]:
    """Returns both lists, without those of `base` whose name is also in `over`. Entries keep their bytes."""
    taken = {name for raw in over for name in model_names(tool_ref(raw))}
    kept = [left for raw in base if (left := _without(raw, taken)) is not None]
    return [*kept, *over]


def model_names(ref: ToolRef) -> tuple[str, ...]:
    """Returns the names under which a ref can clash with another."""
    if isinstance(ref, McpLocalRef):
        return tuple(entry.name for entry in ref.tools)
    return (f"id:{ref.id}",) if isinstance(ref, StoredRef) else (ref.name,)


def _without(raw: Raw, taken: set[str]) -> Raw | None:
    ref = tool_ref(raw)
    if taken.isdisjoint(model_names(ref)):
        return raw
    if not isinstance(ref, McpLocalRef):
        return None
    left = [entry.raw for entry in ref.tools if entry.name not in taken]
    if not left:
        return None
    fields = decode_fields(raw)
    fields["tools"] = Raw(encode(left))
    return Raw(encode(fields))


def _items(fields: dict[str, Raw]) -> list[Raw]:
    tools = fields.get("tools", NULL)
    return [] if tools == NULL else decode_items(tools)
