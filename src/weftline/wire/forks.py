"""The spec of a fork: that of its origin, with the client's changes laid over it."""

from __future__ import annotations

from msgspec import Raw

from weftline.errors import Issue, invalid
from weftline.redaction import REDACTED
from weftline.wire.agents import dialled_tools, merged_tools
from weftline.wire.json_text import decode_fields, decode_items, encode
from weftline.wire.plan import NULL
from weftline.wire.sessions import INPUT
from weftline.wire.tightening import WITHIN, tightened


def fork_spec(origin: bytes, changes: bytes, *, in_session: bool) -> bytes:
    """The spec of a fork, without an input.

    The origin's policy, and whatever else is in `WITHIN`, can only be made tighter. What an agent or a session fixes
    for its runs stays: the prompt, and an agent's tools, which give way only to those that share their name. Raises
    `InvalidRequest` for changes that cannot be, and for tools whose secrets are not kept and that are not given again.
    """
    merged = {name: value for name, value in decode_fields(origin).items() if name not in INPUT}
    own = decode_fields(changes)
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
    """The spec of a run has no secrets: sent again as it is, a tool would be dialled with the mark in their place."""
    if lost := [name for name, raw in dialled_tools(spec).items() if REDACTED.encode() in raw]:
        names = ", ".join(lost)
        raise invalid(
            [Issue("tools", f"give {names} again: secrets in their headers or URL are deleted when a run ends")]
        )
