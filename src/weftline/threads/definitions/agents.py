"""Agents: one prompt that talks to a person, or two that talk to each other.

agent = define_agent(name="triage", side_a=SideConfig(prompt="triage"), hooks=["welcome"])
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias, cast

import msgspec
from msgspec import Struct

from weftline.threads.definitions.base import Checks, PackedMetadata
from weftline.threads.definitions.models import as_dict, as_tuple
from weftline.threads.definitions.prompts import VariableDefinition, check_variables

AgentType: TypeAlias = Literal["ai_human", "dual_ai"]
MAX_SESSION_TURNS = 250
"""The side turns of both sides together, whatever an agent says."""


class SessionToolBinding(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A tool that ends or reports a session, and which of its arguments the parent reads."""

    name: str
    message_property: str | None = None
    attachments_property: str | None = None


class SideConfig(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """One side of an agent: its prompt, and what ends its turns and the session.

    A text answer without calls ends the side's turn, unless `stop_on_response` is False; a call of `stop_tool` does so
    too. After `max_steps` requests in one turn it is asked once more, without tools. `session_stop` and `session_fail`
    end the session, `session_status` only reports. `end_session_tool`, `fail_session_tool` and `status_tool` are their
    old names.
    """

    prompt: str
    label: str = ""
    stop_on_response: bool = True
    stop_tool: str | None = None
    stop_tool_response_property: str | None = None
    max_steps: int | None = None
    session_stop: SessionToolBinding | str | None = None
    session_fail: SessionToolBinding | str | None = None
    session_status: SessionToolBinding | str | None = None
    end_session_tool: SessionToolBinding | str | None = None
    fail_session_tool: SessionToolBinding | str | None = None
    status_tool: SessionToolBinding | str | None = None

    def __post_init__(self) -> None:
        for old, new in _OLD.items():
            value = getattr(self, old)
            if value is None:
                continue
            warnings.warn(f"{old} is deprecated: write {new}", DeprecationWarning, stacklevel=2)
            msgspec.structs.force_setattr(self, old, None)
            if getattr(self, new) is None:
                msgspec.structs.force_setattr(self, new, value)

    @property
    def bindings(self) -> dict[str, SessionToolBinding]:
        """The session's tools, by field, for those that are bound."""
        found: dict[str, SessionToolBinding] = {}
        for field in ("session_stop", "session_fail", "session_status"):
            value = cast("SessionToolBinding | str | None", getattr(self, field))
            if value is not None:
                found[field] = SessionToolBinding(value) if isinstance(value, str) else value
        return found


_OLD = {"end_session_tool": "session_stop", "fail_session_tool": "session_fail", "status_tool": "session_status"}


class AgentDefinition(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """An agent of a folder."""

    name: str
    side_a: SideConfig
    side_b: SideConfig | None = None
    type: AgentType = "ai_human"
    max_session_turns: int | None = None
    title: str = ""
    description: str = ""
    icon: str = ""
    """A URL, or a path of this server."""
    expose_as_tool: bool = False
    tool_description: str = ""
    variables: tuple[VariableDefinition, ...] = ()
    env: dict[str, str] = {}
    hooks: tuple[str, ...] = ()
    """Ids of hooks, for prompts that name none."""
    package_name: str = ""
    version: str = ""
    author: str = ""
    license: str = ""
    packed: PackedMetadata | None = None
    """The package that it is from; None for one of the folder itself."""

    def __post_init__(self) -> None:
        checks = Checks("agent", self.name, self.packed)
        checks.callable_name(self.name)
        checks.choice(self.type, "type", ("ai_human", "dual_ai"))
        _check_side(self.side_a, "side_a", checks)
        if self.type == "dual_ai" and self.side_b is None:
            checks.problem("side_b", "is missing: an agent of the type dual_ai has two sides")
        elif self.type == "ai_human" and self.side_b is not None:
            checks.problem("side_b", 'is for agents of the type "dual_ai"; this one is "ai_human"')
        if self.side_b is not None:
            _check_side(self.side_b, "side_b", checks)
        if self.max_session_turns is not None:
            checks.whole(self.max_session_turns, "max_session_turns", least=1)
        checks.flag(self.expose_as_tool, "expose_as_tool")
        if self.expose_as_tool and not self.tool_description.strip():
            checks.problem("tool_description", "is missing: expose_as_tool needs it")
        checks.env(self.env)
        checks.names(self.hooks, "hooks")
        check_variables(self.variables, checks)
        checks.done()

    @property
    def sides(self) -> dict[str, SideConfig]:
        """Its sides, by field."""
        both = {"side_a": self.side_a}
        return both if self.side_b is None else {**both, "side_b": self.side_b}

    @property
    def turns_at_most(self) -> int:
        """The side turns of both sides together that a session may have."""
        return min(self.max_session_turns or MAX_SESSION_TURNS, MAX_SESSION_TURNS)


def define_agent(
    *,
    name: str,
    side_a: SideConfig,
    side_b: SideConfig | None = None,
    type: AgentType = "ai_human",
    max_session_turns: int | None = None,
    title: str = "",
    description: str = "",
    icon: str = "",
    expose_as_tool: bool = False,
    tool_description: str = "",
    variables: Iterable[VariableDefinition] = (),
    env: Mapping[str, str] | None = None,
    hooks: Iterable[str] = (),
    package_name: str = "",
    version: str = "",
    author: str = "",
    license: str = "",
) -> AgentDefinition:
    """Returns an agent of a folder.

    Raises:
        DefinitionError: if a field is wrong; all of them are named.
    """
    return AgentDefinition(
        name=name,
        side_a=side_a,
        side_b=side_b,
        type=type,
        max_session_turns=max_session_turns,
        title=title,
        description=description,
        icon=icon,
        expose_as_tool=expose_as_tool,
        tool_description=tool_description,
        variables=as_tuple(variables),
        env=as_dict(env),
        hooks=as_tuple(hooks),
        package_name=package_name,
        version=version,
        author=author,
        license=license,
    )


def _check_side(side: Any, path: str, checks: Checks) -> None:
    if not isinstance(side, SideConfig):
        checks.problem(path, f"must be a SideConfig(prompt=…), not {side!r}")
        return
    checks.name(side.prompt, f"{path}.prompt")
    checks.flag(side.stop_on_response, f"{path}.stop_on_response")
    if side.max_steps is not None:
        checks.whole(side.max_steps, f"{path}.max_steps", least=1)
    if side.stop_tool is not None:
        checks.name(side.stop_tool, f"{path}.stop_tool")
    if side.stop_tool_response_property is not None and side.stop_tool is None:
        checks.problem(f"{path}.stop_tool_response_property", "needs a stop_tool")
    for field in ("session_stop", "session_fail", "session_status"):
        value: object = getattr(side, field)
        if value is not None and not isinstance(value, SessionToolBinding | str):
            checks.problem(f"{path}.{field}", f"must be the name of a tool or a SessionToolBinding, not {value!r}")
