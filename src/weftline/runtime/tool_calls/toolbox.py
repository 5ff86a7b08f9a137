"""The tools of one run: its plan's references resolved to tools, by the name that the model uses."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple, Protocol

from msgspec import UNSET
from msgspec.json import encode

from weftline.errors import invalid_field
from weftline.framing import one_line
from weftline.kernel.control import Digests
from weftline.kernel.entries import Parent
from weftline.kernel.policy import PolicyRule
from weftline.plan import A2ALocalRef, A2ARef, LocalRef, McpLocalRef, McpRef, RunPlan, ServerRef, StoredRef, ToolRef
from weftline.providers.base import ToolSpec
from weftline.runtime.agent_code.code import RunCode
from weftline.text.suggestions import did_you_mean
from weftline.tools.base import Tool
from weftline.tools.client_side import A2ALocalTool, LocalTool, McpLocalTool
from weftline.tools.digests import declared, digest, written
from weftline.tools.function import labels_needed

_BOXES = 512
_NO_PROMPT = digest("text", "")
_NO_SETS: dict[str, str] = {}


class Toolbox:
    def __init__(
        self,
        tools: Mapping[str, Tool],
        *,
        code: RunCode | None = None,
        excluded: frozenset[str] = frozenset(),
        toolsets: Mapping[str, str] = _NO_SETS,
    ) -> None:
        self.tools = dict(tools)
        self.get = self.tools.get
        """Returns the tool of a name; None if there is none."""
        self.toolsets = toolsets
        """The name of each tool's toolset, if it has one."""
        self.code = code
        """The other code of the run's agent."""
        self.excluded = excluded
        """The names of tools that the run's policy does not allow: they are neither offered nor called."""
        self.specs: tuple[ToolSpec, ...] = tuple(
            [tool.spec for name, tool in tools.items() if name not in excluded and not tool.traits.hidden]
        )
        self.size = sum([_size(spec) for spec in self.specs])
        """Roughly the bytes of their descriptions that a model reads."""
        self.reminds = any(tool.traits.reminder for tool in self.tools.values())
        """Whether some of them add a reminder to their results."""

    @cached_property
    def declared(self) -> bytes:
        """The declarations that models get, as one text. A toolbox without code serves many runs.

        Without line breaks, which a schema loses when its run is exported.
        """
        texts: list[bytes] = []
        for spec in self.specs:
            about = spec.description.encode(errors="replace")
            for text in (spec.name.encode(), about, one_line(bytes(spec.parameters))):
                texts += (b"%d " % len(text), text)
        return b"".join(texts)

    def toolset_of(self, name: str) -> str:
        """The name of a tool's toolset, or "" if it has none."""
        tool = self.tools.get(name)
        shaping = None if tool is None else tool.traits.shaping
        return self.toolsets.get(name, "") if shaping is None else shaping.toolset

    def under(self, rule: PolicyRule | None) -> Toolbox:
        """The same tools, of which only those that a run's policy allows are offered."""
        if rule is None or not rule.filters:
            return self
        offered = [(name, tool) for name, tool in self.tools.items() if not tool.traits.hidden]
        excluded = [name for name, tool in offered if not rule.allows(name, tool.traits.tags)]
        if not excluded:
            return self
        return Toolbox(self.tools, code=self.code, excluded=frozenset(excluded), toolsets=self.toolsets)


def _size(spec: ToolSpec) -> int:
    return len(spec.name) + len(spec.description) + memoryview(spec.parameters).nbytes


EMPTY = Toolbox({})


class RunName(NamedTuple):
    """Which run a toolbox is for."""

    key: int
    id: str
    workspace: int
    workspace_slug: str = ""
    session_id: str | None = None
    parent: Parent | None = None


class ToolSource(Protocol):
    """Where the tools of runs come from."""

    def knows(self, plan: RunPlan) -> bool:
        """Returns True if the plan's agent is here, if the run needs its code. Otherwise the run waits."""
        ...

    def use_version(self, version: str | None) -> None:
        """Sets the version that identifies the code of the tools, in place of a digest of its source."""
        ...

    def digests(self, plan: RunPlan) -> Digests | None:
        """Returns the digests of a run with this plan in this process; None if it needs no code, or they are
        unknown.
        """
        ...

    def required_labels(self, plan: RunPlan) -> frozenset[str]:
        """The labels that a run with this plan needs for its tools, as far as is known before it is opened."""
        ...

    async def check(self, plan: RunPlan, *, workspace: int) -> None:
        """Rejects a plan whose tools do not exist, before there is a run. Asks nothing but the store."""
        ...

    async def check_thread(self, plan: RunPlan, *, workspace: int) -> None:
        """Rejects a plan whose run would need a thread with variables, which a new one does not have."""
        ...

    async def open(self, plan: RunPlan, *, run: RunName, secrets: bytes | None = None) -> Toolbox:
        """The tools of a run that is about to be driven. A server that cannot be reached becomes a tool that reports
        this.

        `secrets` are the encrypted header values of the tools that the server calls.
        """
        ...

    def ended_unopened(self, plan: RunPlan, *, run: RunName) -> None:
        """Called when a run has ended that was not opened in this process, for example because it was cancelled while
        queued.
        """
        ...


class ServerTools:
    """The tools of this process, and those that clients execute."""

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self.tools = tools
        self._boxes: OrderedDict[bytes, Toolbox] = OrderedDict()
        self._version: str | None = None
        self._digests: dict[tuple[str, ...], tuple[str, str]] = {}

    def knows(self, plan: RunPlan) -> bool:
        return plan.code is None

    def use_version(self, version: str | None) -> None:
        self._version = version
        self._digests.clear()

    def digests(self, plan: RunPlan) -> Digests | None:
        if not plan.tools or not self.knows(plan):
            return None
        names = tuple([ref.name for ref in plan.tools if isinstance(ref, ServerRef)])
        if not names:
            return None
        found = self._digests.get(names)
        if found is None:
            found = self._digests[names] = self._digests_of(names)
        return Digests(digest("text", plan.system) if plan.system else _NO_PROMPT, *found, given=True)

    def _digests_of(self, names: tuple[str, ...]) -> tuple[str, str]:
        if len(self._digests) >= _BOXES:
            self._digests.clear()
        tools = [tool for name in names if (tool := self._plugin(name)) is not None]
        code = [written(tool) for tool in tools] if self._version is None else ["version", self._version]
        return digest(*[declared(tool) for tool in tools]), digest(*code)

    def required_labels(self, plan: RunPlan) -> frozenset[str]:
        tools = [self._plugin(ref.name) for ref in plan.tools if isinstance(ref, ServerRef)]
        return frozenset[str]().union(*[labels_needed(tool) for tool in tools])

    async def check(self, plan: RunPlan, *, workspace: int) -> None:
        for index, ref in enumerate(plan.tools):
            if isinstance(ref, ServerRef):
                self.check_plugin(ref, index)
            if isinstance(ref, StoredRef | A2ARef | McpRef):
                raise invalid_field(f"tools[{index}].kind", "this engine was started without tools of this kind.")

    def check_plugin(self, ref: ServerRef, index: int) -> None:
        if self._plugin(ref.name) is None:
            near = did_you_mean(ref.name, self.tools)
            raise invalid_field(
                f"tools[{index}].name", f"this server does not have a tool {ref.name!r}.{near}", code="invalid_plugin"
            )

    async def check_thread(self, plan: RunPlan, *, workspace: int) -> None:
        pass

    async def open(self, plan: RunPlan, *, run: RunName, secrets: bytes | None = None) -> Toolbox:
        if not plan.tools:
            return EMPTY
        # Clients send the same tools with every run; schemas are compiled once.
        key = encode(plan.tools)
        cached = self._boxes.get(key)
        if cached is None:
            cached = Toolbox({tool.spec.name: tool for ref in plan.tools for tool in self.resolve(ref)})
            self._boxes[key] = cached
            if len(self._boxes) > _BOXES:
                self._boxes.popitem(last=False)
        return cached

    def ended_unopened(self, plan: RunPlan, *, run: RunName) -> None:
        """Does nothing: only agents are notified of their runs' ends."""

    def resolve(self, ref: ToolRef) -> list[Tool]:
        """The tools of a reference that can be resolved locally."""
        match ref:
            case ServerRef():
                tool = self._plugin(ref.name)
                return [tool] if tool is not None else []
            case LocalRef():
                return [
                    LocalTool(
                        ref.name,
                        description=ref.description,
                        parameters=None if ref.parameters is UNSET else ref.parameters,
                        output_schema=None if ref.output_schema is UNSET else ref.output_schema,
                        long_running=ref.long_running,
                        tags=ref.tags,
                        effect=ref.effect,
                    )
                ]
            case A2ALocalRef():
                return [A2ALocalTool(ref.name, card=ref.card, description=ref.description)]
            case McpLocalRef():
                info = None if ref.info is UNSET else ref.info
                return [
                    McpLocalTool(entry.name, entry=entry.raw, server=ref.server, server_info=info)
                    for entry in ref.tools
                ]
            case StoredRef() | A2ARef() | McpRef():
                return []

    def _plugin(self, name: str) -> Tool | None:
        """`@package/tool-name` may have hyphens where the tool's own name has underscores."""
        found = self.tools.get(name)
        if found is None and name.startswith("@") and "/" in name:
            package, _, tool = name.partition("/")
            found = self.tools.get(f"{package}/{tool.replace('-', '_')}")
        return found
