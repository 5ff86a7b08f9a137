"""Merges specs: a request over its agent, a message over its session, and a fork's changes over its origin.

What each field does when both have it, or only one of them, is declared with the field. A value that one of the two has
keeps its bytes; only what is computed from both is encoded again. Null is absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from msgspec import Raw, Struct

from weftline.errors import Issue, invalid
from weftline.messages import OutputSchema
from weftline.spec.declare import Where, encode_spec, override, own_only
from weftline.spec.fields import OPTS, RunSpec
from weftline.spec.groups import policy_over
from weftline.spec.plan import copied, read_spec
from weftline.spec.tools import by_name, dialled_tools
from weftline.text.redaction import REDACTED
from weftline.wire.json_text import NULL, decode_fields, encode

Fields: TypeAlias = dict[str, Raw]


def over(own: Fields, above: Fields, layer: Where) -> Fields:
    """Returns the fields of a request under those of the layer above it: an agent, a session, or (for a fork) a run."""
    # What is above comes first, unless it only fills in what the request leaves open.
    names = {**own, **above} if layer is Where.AGENT else {**above, **own}
    unknown = own_only if layer is Where.AGENT else override
    merged: Fields = {}
    for name in names:
        rule = OPTS[name].rule(layer) if name in OPTS else unknown
        try:
            value = rule(own.get(name), above.get(name))
        except ValueError as error:
            raise invalid([Issue(name, str(error))]) from None
        if value is not None:
            merged[name] = value
    return merged


def given(spec: bytes) -> Fields:
    """Returns the fields of a spec that are not null."""
    return {name: value for name, value in decode_fields(spec).items() if value != NULL}


def with_agent(
    agent_spec: bytes, spec: bytes, *, id: str | None = None, name: str | None = None, replaces: bool = False
) -> bytes:
    """Returns the spec to store for a run of `spec` with the agent defined by `agent_spec`.

    `id` is the agent's, for a request that names it by its slug, and `name` its own, for a run without a name.
    `replaces` means that the caller may change the agent too, and so replace its policy, value by value, for this run.
    """
    own, agent = given(spec), given(agent_spec)
    if name is not None:
        agent.setdefault("name", Raw(encode(name)))
    if id is not None and "agentId" in own:
        own["agentId"] = Raw(encode(id))
    merged = over(own, agent, Where.AGENT)
    policy = policy_over(own.get("policy"), agent.get("policy")) if replaces else None
    return encode(merged if policy is None else {**merged, "policy": policy})


def with_session(session_spec: bytes, message: bytes) -> bytes:
    """Returns the spec to store for the run of a message. Raises `InvalidRequest` if metadata of both is too much."""
    return encode(over(given(message), given(session_spec), Where.SESSION))


def forked(origin: bytes, changes: bytes, *, in_session: bool) -> bytes:
    """Returns the spec of a fork, without an input.

    What an agent or a session fixes for its runs stays: the prompt, and an agent's tools, except those replaced by a
    tool with the same name. Raises `InvalidRequest` for invalid changes, and for tools whose secrets are not stored and
    were not sent again.
    """
    own, above = given(changes), given(origin)
    of_agent = "agentId" in above
    if "systemPrompt" in own and (of_agent or in_session):
        whose = "agent" if of_agent else "session"
        raise invalid([Issue("systemPrompt", f"cannot be changed: it comes from the run's {whose}")])
    merged = over(own, above, Where.RUN)
    tools = by_name(own.get("tools"), above.get("tools")) if of_agent else None
    spec = encode(merged if tools is None else {**merged, "tools": tools})
    _require_secrets(spec)
    return spec


def _require_secrets(spec: bytes) -> None:
    """Raises for tools without their secrets: a stored spec has a mark in their place, which must not be sent."""
    if lost := [name for name, raw in dialled_tools(spec).items() if REDACTED.encode() in raw]:
        names = ", ".join(lost)
        raise invalid(
            [Issue("tools", f"give {names} again: secrets in their headers or URL are deleted when a run ends")]
        )


def copies_within(asked: RunSpec, above: Struct, names: tuple[str, ...]) -> dict[str, Any]:
    """Returns what a request has of these fields, merged with what an agent in code has under the same names."""
    asked_for = copied(asked, names)
    if not asked_for:
        return {}
    agent = {name: getattr(above, name) for name in asked_for}
    own_spec, agent_spec = (encode_spec(RunSpec(**values)) for values in (asked_for, agent))
    merged = read_spec(encode(over(given(own_spec), given(agent_spec), Where.AGENT)))
    return copied(merged, tuple(asked_for))


def agent_spec(*, model: str | None, instructions: str | None, output: OutputSchema | None) -> bytes:
    """Returns the spec that clients see of an agent that is defined in code."""
    fields: Mapping[str, object] = {"modelId": model, "systemPrompt": instructions, "outputSchema": output}
    return encode({name: value for name, value in fields.items() if value is not None})
