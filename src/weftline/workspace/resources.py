"""Resources that access tokens can be for (RFC 8707): the MCP server of one workspace, by its path."""

from __future__ import annotations

from weftline.workspace.workspaces import is_slug

_MCP = "/api/mcp/"


def mcp_path(slug: str) -> str:
    return f"{_MCP}{slug}"


def slug_of(resource: str) -> str | None:
    """The workspace that a resource belongs to; None if there can be no such resource."""
    slug = resource.removeprefix(_MCP)
    return slug if resource.startswith(_MCP) and is_slug(slug) else None
