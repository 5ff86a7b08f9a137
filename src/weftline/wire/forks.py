"""The spec of a fork: its origin's, with the client's changes."""

from __future__ import annotations

from msgspec import Raw

from weftline.errors import Issue, invalid
from weftline.text.redaction import REDACTED
from weftline.wire.agents import dialled_tools, merged_tools
from weftline.wire.json_text import decode_fields, decode_items, encode
from weftline.wire.plan import NULL
from weftline.wire.sessions import INPUT
from weftline.wire.tightening import WITHIN, tightened


def fork_spec(origin: bytes, changes: bytes, *, in_session: bool) -> bytes:
    """Returns the spec of a fork, without an input.

    The origin's policy, and the other fields in `WITHIN`, can only be tightened. What an agent or a session fixes for
    its runs stays: the prompt, and an agent's tools, except those replaced by a tool with the same name. Raises
    `InvalidRequest` for invalid changes, and for tools whose secrets are not stored and were not sent again.
    """
    merged = {name: value for name, value in decode_fields(origin).items() if name not in INPUT}
    own = {name: value for name, value in decode_fields(changes).items() if value != NULL}
    of_agent = merged.get("agentId", NULL) != NULL
    if "systemPrompt" in own and (of_agent or in_session):
        whose = "agent" if of_agent else "session"
        raise invalid([Issue("systemPrompt", f"cannot be changed: it comes from the run's {whose}")])
    above, tools = merged, merged.get("tools", NULL)
    merged = above | own
    for name in WITHIN.keys() & own.keys():
        merged[name] = tightened(name, own[name], above.get(name, NULL))
    if of_agent and "tools" in own and tools != NULL:
        merged["tools"] = Raw(encode(merged_tools(decode_items(tools), decode_items(own["tools"]))))
    spec = encode(merged)
    _require_secrets(spec)
    return spec


def _require_secrets(spec: bytes) -> None:
    """Raises for tools without their secrets: a stored spec has a mark in their place, which must not be sent."""
    if lost := [name for name, raw in dialled_tools(spec).items() if REDACTED.encode() in raw]:
        names = ", ".join(lost)
        raise invalid(
            [Issue("tools", f"give {names} again: secrets in their headers or URL are deleted when a run ends")]
        )
