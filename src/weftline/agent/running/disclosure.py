"""Withheld tools: the instructions name them, and the model finds them with `tool_search`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from weftline import prompts
from weftline.agent.agent_tools import Aliases
from weftline.agent.behavior import ToolSearch
from weftline.providers.base import ToolSpec
from weftline.tools.base import Tool, ToolContext, ToolFailed
from weftline.tools.function import FunctionTool

SEARCH: Final = "tool_search"
_KEY: Final = "tool_search:"
"""One key of the run's state per tool, so that concurrent searches do not overwrite each other."""


class Withheld(NamedTuple):
    """A tool that is not offered at first. `wire` is the name by which the model knows it."""

    name: str
    wire: str
    description: str
    schema: str
    server: str = ""


class Disclosure:
    """Which tools of a run are withheld, and which of them have been found."""

    def __init__(self, withheld: Iterable[Withheld] = (), *, search: str = "") -> None:
        """Creates the disclosure of a run. `search` is the wire name of the search tool; empty if there is none."""
        self.withheld = {one.name: one for one in sorted(withheld, key=lambda one: one.wire)}
        self._search = search

    @property
    def catalog(self) -> str:
        """The list of withheld tools for the system prompt. It is the same for every run with these tools."""
        return prompts.behavior.withheld_tools([one.wire for one in self.withheld.values()], search=self._search)

    def offered(self, tools: Sequence[ToolSpec], memory: Mapping[str, Any]) -> Sequence[ToolSpec]:
        if not self.withheld:
            return tools
        return [tool for tool in tools if not self._is_locked(tool.name, memory)]

    def refusal(self, tool: str, memory: Mapping[str, Any]) -> str:
        """Returns why a call is not allowed yet; empty if it is allowed."""
        if not self._is_locked(tool, memory):
            return ""
        return prompts.behavior.withheld(self.withheld[tool].wire, search=self._search)

    def _is_locked(self, tool: str, memory: Mapping[str, Any]) -> bool:
        return tool in self.withheld and not memory.get(_KEY + tool)


class SearchTool(FunctionTool):
    """The tool that finds withheld tools. An agent may have its own, under another name: `tool_search(name="find")`.

    Its catalog is the run's: `of` returns the same tool with a catalog.
    """

    def __init__(
        self, catalog: Iterable[Withheld] = (), *, name: str = SEARCH, default_limit: int = 5, description: str = ""
    ) -> None:
        found = tuple(sorted(catalog, key=lambda one: one.wire))

        async def search(
            context: ToolContext,
            names: list[str] | None = None,
            query: str | None = None,
            server: str | None = None,
            limit: int | None = None,
        ) -> str:
            """Finds tools that your instructions name without their input schema; from then on they can be called.

            Args:
                names: Names of the tools, as your instructions list them.
                query: Words to look for in names and descriptions.
                server: Only tools of this server.
                limit: How many to return at most.
            """
            if names is None and not query and not server:
                raise ToolFailed(prompts.behavior.SEARCH_NEEDS_QUERY)
            if limit is not None and limit < 1:
                raise ToolFailed(prompts.behavior.SEARCH_LIMIT)
            matching = [one for one in found if _matches(one, names=names, query=query, server=server)]
            listed = matching[: limit or default_limit]
            for one in listed:
                context.state[_KEY + one.name] = True
            rows = [(one.wire, one.description, one.schema.replace("<", "\\u003c")) for one in listed]
            return prompts.behavior.found_tools(rows, left=len(matching) - len(listed))

        super().__init__(search, name=name, description=description or None, effect="read")
        self._default_limit = default_limit

    def of(self, catalog: Iterable[Withheld]) -> SearchTool:
        return SearchTool(catalog, name=self.name, default_limit=self._default_limit, description=self.description)


def tool_search(*, name: str = SEARCH, default_limit: int = 5, description: str = "") -> SearchTool:
    """Returns the tool that finds withheld tools, for an agent that needs another name or description for it."""
    return SearchTool(name=name, default_limit=default_limit, description=description)


def place_search(
    tools: dict[str, Tool], withheld: Sequence[Withheld], *, aliases: Aliases, settings: ToolSearch | None
) -> str:
    """Adds a search tool to `tools` if any are withheld. Returns its wire name; empty if there is none.

    A search tool of the agent's own is given the catalog. Another tool with that name is left alone; the withheld tools
    can then never be found.
    """
    settings = settings or ToolSearch()
    brought = [name for name, tool in tools.items() if isinstance(tool, SearchTool)]
    for name in brought:
        tool = tools[name]
        if not withheld:
            del tools[name]
        elif isinstance(tool, SearchTool):
            tools[name] = tool.of(withheld)
    if not withheld:
        return ""
    if brought:
        return aliases.wire(brought[0])
    taken = next((name for name in tools if SEARCH in (name, aliases.wire(name))), None)
    if taken is not None:
        return aliases.wire(taken)
    if not settings.tool:
        return ""
    tools[SEARCH] = SearchTool(withheld, default_limit=settings.default_limit)
    return aliases.wire(SEARCH)


def withheld_of(tool: Tool, *, aliases: Aliases, server: str) -> Withheld:
    spec = tool.spec
    schema = bytes(spec.parameters).decode()
    return Withheld(spec.name, aliases.wire(spec.name), spec.description, schema, server)


def _matches(one: Withheld, *, names: list[str] | None, query: str | None, server: str | None) -> bool:
    if names is not None and one.wire not in names:
        return False
    if server and one.server != server:
        return False
    text = f"{one.wire} {one.description}".casefold()
    return all(word in text for word in (query or "").casefold().split())
