"""Agents as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace
from pydantic import Field, StringConstraints, ValidationError

from weftline.api.validation import refused
from weftline.errors import InvalidRequest, Issue, invalid
from weftline.spec.door import parse_session
from weftline.store.records.agents import AgentRow
from weftline.wire.errors import error_code
from weftline.wire.json_text import decode_fields, decode_object
from weftline.wire.limits import MAX_AGENT_SPEC_BYTES
from weftline.wire.models import NO_NUL, Metadata, Part
from weftline.wire.responses import JsonObject, Time, Warnings, Words, iso
from weftline.wire.unknown_fields import UnknownField, shape_of, unknown_fields
from weftline.workspace.agents import AgentDraft
from weftline.workspace.code_agents import is_code

_MAX_NAME_CHARS, _MAX_DESCRIPTION_CHARS = 128, 4096


class AgentModel(Part):
    """The body that creates or replaces an agent."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=_MAX_NAME_CHARS, pattern=NO_NUL)]
    slug: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?$")] | None = None
    description: Annotated[str, StringConstraints(max_length=_MAX_DESCRIPTION_CHARS, pattern=NO_NUL)] | None = None
    spec: Annotated[dict[str, Any], Field(description="A run's spec without prompt, messages and agentId.")]
    metadata: Metadata | None = None
    system: bool | None = None


_AGENT = shape_of(AgentModel)


class Agent(Struct, rename="camel"):
    id: str
    slug: str
    name: str
    description: str
    spec: JsonObject
    """As it was sent, with header values of its tools as `[redacted]`."""
    metadata: Words
    system: bool
    created_at: Time
    updated_at: Time
    warnings: Warnings = UNSET
    code: bool | UnsetType = UNSET
    """True for a code agent of the server, which cannot be changed here."""
    error_code: str | UnsetType = UNSET
    """`log_damaged` if its stored data is unreadable; left out otherwise."""


class Agents(Struct, rename="camel"):
    agents: list[Agent]
    next_cursor: str | None


def parse_agent(body: bytes) -> tuple[AgentDraft, Sequence[UnknownField]]:
    """Parses the definition in a body or a file; also returns its unknown fields. Raises `InvalidRequest`."""
    fields = decode_object(body)
    try:
        sent = AgentModel.model_validate(fields)
    except ValidationError as error:
        raise refused(error, AgentModel, fields) from None
    raw = bytes(decode_fields(body)["spec"])
    if len(raw) > MAX_AGENT_SPEC_BYTES:
        raise invalid([Issue("spec", f"has more than {MAX_AGENT_SPEC_BYTES:,} bytes of JSON")])
    try:
        spec = parse_session(raw)
    except InvalidRequest as error:
        raise InvalidRequest(f"spec: {error.message}", **error.details) from None
    if spec.agent_id is not None:
        raise InvalidRequest("spec.agentId: an agent cannot be based on another agent.")
    draft = AgentDraft(
        name=sent.name,
        slug=sent.slug or "",
        description=sent.description or "",
        spec=spec.spec,
        headers=spec.secrets,
        metadata=sent.metadata or {},
        system=bool(sent.system),
    )
    inside = [replace(field, path=f"spec.{field.path}") for field in spec.unknown]
    return draft, [*unknown_fields(fields, _AGENT), *inside]


def agent_json(row: AgentRow, warnings: Warnings = UNSET) -> Agent:
    return Agent(
        row.id,
        row.slug,
        row.name,
        row.description,
        Raw(row.spec),
        Raw(row.metadata.encode()),
        row.system,
        iso(row.created_at),
        iso(row.updated_at),
        warnings,
        True if is_code(row) else UNSET,
        error_code(row.damaged),
    )
