"""A server's own tools: built in, installed by packages, and from a tools file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from weftline.net.dial import Dialer
from weftline.tools.base import Tool
from weftline.tools.builtin import builtin_tools
from weftline.tools.builtin.fetch import fetch_tool
from weftline.tools.loader import installed_tools, load_tools, short_name


def server_tools(
    path: str | Path | None,
    *,
    pages: Dialer,
    app: str | Path | None = None,
    app_tools: Mapping[str, Tool] | None = None,
) -> dict[str, Tool]:
    """Returns the tools that runs may name: built in, installed by packages, and those at `path`, which win.

    So do `app_tools`, those of the code at `app`, which also has agents.

    Each also has a qualified name, which is the only form that some clients can send: `@weftline/tool`,
    `@package/tool`, and for code `@name-of-the-file/tool`; see `weftline.tools.loader.short_name`.
    """
    tools: dict[str, Tool] = {}
    for name, tool in {**builtin_tools(), "fetch": fetch_tool(pages)}.items():
        tools[name] = tools[f"@weftline/{name}"] = tool
    tools |= installed_tools()
    if path is not None:
        for name, tool in load_tools(path).items():
            tools[name] = tools[f"@{short_name(path)}/{name}"] = tool
    if app is not None:
        for name, tool in (app_tools or {}).items():
            tools[name] = tools[f"@{short_name(app)}/{name}"] = tool
    return tools


class LoadedTool(Struct):
    """A tool of the server, as a run names it: `{"kind": "server", "name": …}`."""

    kind: str
    name: str
    names: list[str]
    """All names that work, `name` first."""
    effect: str
    description: str


def loaded_tools(tools: Mapping[str, Tool]) -> list[LoadedTool]:
    """Returns each tool once, by name."""
    return [
        LoadedTool("server", names[0], names, tools[names[0]].effect, tools[names[0]].spec.description)
        for names in tool_names(tools)
    ]


def tool_names(tools: Mapping[str, Tool]) -> list[list[str]]:
    """Returns the names of each tool, unqualified ones first, sorted."""
    found: dict[int, list[str]] = {}
    for name, tool in tools.items():
        found.setdefault(id(tool), []).append(name)
    each = [sorted(names, key=lambda name: (name.startswith("@"), name)) for names in found.values()]
    return sorted(each, key=lambda names: names[0].lstrip("@"))
