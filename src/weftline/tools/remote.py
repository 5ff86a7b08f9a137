"""What all tools have in common that the server carries out by asking somebody else."""

from __future__ import annotations

from abc import ABC, abstractmethod

from msgspec import Raw

from weftline.kernel.entries import Effect
from weftline.providers.base import ToolSpec
from weftline.tools.arguments import InvalidArguments, described, object_args
from weftline.tools.base import ClientKind, Reconciled, ToolContext, ToolOutput, Unknown
from weftline.tools.checking import issues_of
from weftline.tools.schema import EMPTY_OBJECT_SCHEMA

MAX_TEXT_CHARS = 200_000
"""What a model is shown of one result at most."""


class RemoteTool(ABC):
    """A server tool: arguments are checked against the schema, and what was cut off is not known to have happened."""

    effect: Effect = "once"
    concurrent = False
    timeout_s: float | None = None
    client: ClientKind | None = None
    echo: Raw | None = None

    def __init__(self, spec: ToolSpec) -> None:
        self.spec = spec

    @property
    def name(self) -> str:
        return self.spec.name

    async def prepare(self, args: str) -> bytes:
        _, data = object_args(args)
        issues = await issues_of(data, self.spec.parameters)
        if issues:
            raise InvalidArguments(described(self.name, issues), issues)
        return data

    @abstractmethod
    async def invoke(self, args: bytes, context: ToolContext) -> ToolOutput: ...

    async def reconcile(self, args: bytes, context: ToolContext) -> Reconciled:
        return Unknown()


class UnavailableTool(RemoteTool):
    """Stands for what could not be reached; its result says why."""

    effect: Effect = "read"
    concurrent = True

    def __init__(self, name: str, *, description: str, explanation: str) -> None:
        super().__init__(ToolSpec(name, description, EMPTY_OBJECT_SCHEMA))
        self._explanation = explanation

    async def prepare(self, args: str) -> bytes:
        # Whatever the model passes, it is to read the explanation.
        return object_args(args)[1]

    async def invoke(self, args: bytes, context: ToolContext) -> ToolOutput:
        return ToolOutput.of(self._explanation, is_error=True)


def clipped(text: str) -> str:
    """`text`, or as much of it as a model is shown, with a note."""
    if len(text) <= MAX_TEXT_CHARS:
        return text
    return f"{text[:MAX_TEXT_CHARS]}\n[cut after {MAX_TEXT_CHARS} of {len(text)} characters]"
