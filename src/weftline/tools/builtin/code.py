"""The tool `code`: the model writes code that calls the agent's own tools as functions.

    agent = Agent("sonnet", tools=[search, book, code(languages=["typescript", "python"])])

Each call that the code makes is a call of the run: it passes the gates, counts against limits, may need approval and is
logged. Ten of them cost one turn of the model.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec import Raw, Struct

from weftline import prompts
from weftline.kernel.bodies import Peer
from weftline.kernel.entries import Effect
from weftline.providers.base import ToolSpec
from weftline.sandbox import CodeExecution, Language, Sandbox
from weftline.sandbox.base import DEFAULT_MEMORY_LIMIT_BYTES, LANGUAGES, MIN_MEMORY_LIMIT_BYTES
from weftline.text.suggestions import did_you_mean
from weftline.tools.arguments import InvalidArguments, described, object_args
from weftline.tools.base import (
    ClientKind,
    Diverged,
    FurtherCalls,
    Reconciled,
    Tool,
    ToolContext,
    ToolFailed,
    ToolOutput,
    Traits,
    Unknown,
)
from weftline.tools.builtin.code_functions import (
    CodeFunction,
    function_name,
    function_of,
    python,
    typescript,
    value_of,
    written_args,
)
from weftline.tools.builtin.code_running import new_sandbox, start, to_tool_output
from weftline.tools.schema import ArgsValidator

CODE = "code"
TIMEOUT_S = 30.0
_MAX_ARGS_CHARS = 200
_MAX_PROBLEM_CHARS = 500
_FIRST_CALLS, _LAST_CALLS = 20, 20
"""How many of the calls that failed code made are listed for the model: the first ones and the last ones."""
_DROP_S = 1.0


class ToolError(Exception):
    """Raised in the code for a failed call, with the text of its result."""


class _Request(Struct):
    code: str
    language: Language | None = None


class _CallRecord(Struct, eq=False):
    """A call that the code made, and its outcome."""

    function: CodeFunction
    args: str
    outcome: str = prompts.code.CALL_OPEN
    problem: str = ""
    """Why it failed."""


class Code:
    """The toolset that consists of the tool `code`. It has a sandbox while it is open."""

    def __init__(
        self, *, languages: tuple[Language, ...], only: frozenset[str] | None, timeout_s: float, memory_limit_bytes: int
    ) -> None:
        self._languages = languages
        self._only = only
        self._timeout_s = timeout_s
        self._memory_limit_bytes = memory_limit_bytes
        self._sandbox: Sandbox | None = None

    async def open(self) -> Sequence[Tool]:
        self._sandbox = new_sandbox(self._memory_limit_bytes)
        tool = CodeTool(self._sandbox, languages=self._languages, only=self._only, timeout_s=self._timeout_s)
        return (tool,)

    async def close(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await sandbox.close()


def code(
    *,
    languages: Iterable[Language] = ("typescript",),
    tools: Iterable[str | Tool[Any] | Callable[..., Any]] | None = None,
    timeout_s: float = TIMEOUT_S,
    memory_limit_bytes: int = DEFAULT_MEMORY_LIMIT_BYTES,
) -> Code:
    """The tool `code`: the model writes code, which can call the agent's tools. It needs the extra `sandbox`.

    Args:
        languages: The languages that the model may use: `typescript`, `javascript`, `python`.
        tools: Which of the agent's tools the code may call, by name or the tools themselves; all of them if not given.
        timeout_s: How long the code may run, not counting the calls that it waits for.
        memory_limit_bytes: How much memory it may use.
    """
    chosen = tuple(dict.fromkeys(languages))
    for one in chosen:
        if one not in LANGUAGES:
            hint = did_you_mean(one, LANGUAGES)
            raise ValueError(f"{one!r} is not a language for code; use one of {', '.join(LANGUAGES)}.{hint}")
    if not chosen:
        raise ValueError(f"code needs at least one language of {', '.join(LANGUAGES)}.")
    if not 0 < timeout_s < float("inf"):
        raise ValueError(f"timeout_s must be a positive number of seconds, not {timeout_s!r}")
    if memory_limit_bytes < MIN_MEMORY_LIMIT_BYTES:
        raise ValueError(f"memory_limit_bytes must be at least {MIN_MEMORY_LIMIT_BYTES:,}, not {memory_limit_bytes:,}")
    only = None if tools is None else frozenset([_name(one) for one in tools])
    return Code(languages=chosen, only=only, timeout_s=timeout_s, memory_limit_bytes=memory_limit_bytes)


def _name(one: object) -> str:
    if isinstance(one, str):
        return one
    spec = getattr(one, "spec", None)
    name: object = spec.name if spec is not None else getattr(one, "__name__", None)
    if not isinstance(name, str):
        raise TypeError(f"{one!r} is neither the name of a tool nor a tool")
    return name


class CodeTool:
    """The tool `code`. `of` returns it for one run, with the run's tools as functions."""

    effect: Effect = "read"
    """The effect of the code itself. The calls that it makes have their own."""
    concurrent = False
    client: ClientKind | None = None
    peer: Peer | None = None
    traits = Traits(host=True)

    def __init__(
        self,
        sandbox: Sandbox,
        *,
        languages: tuple[Language, ...],
        only: frozenset[str] | None,
        timeout_s: float,
        functions: Sequence[CodeFunction] = (),
    ) -> None:
        self._sandbox = sandbox
        self._languages = languages
        self.only = only
        self.timeout_s: float | None = timeout_s
        self._functions = functions
        self.spec = ToolSpec(CODE, _description(languages, functions), Raw(_parameters(languages)))
        self._validator = ArgsValidator.of(self.spec.parameters)

    def of(
        self, tools: Mapping[str, Tool], *, display_names: Mapping[str, str], hidden: Iterable[str] = ()
    ) -> CodeTool:
        """Returns the tool for a run with these tools.

        `display_names` has the model's names for some of them; `hidden` tools are not offered. Raises `ValueError` for
        a name in `tools=[…]` that the agent does not have.
        """
        missing = sorted((self.only or frozenset()) - tools.keys())
        if missing:
            raise ValueError(f"code: the agent has no tool {missing[0]!r}.{did_you_mean(missing[0], tools)}")
        left_out = set(hidden)
        functions: dict[str, CodeFunction] = {}
        for name, tool in tools.items():
            chosen = name not in left_out if self.only is None else name in self.only
            if not chosen or isinstance(tool, CodeTool) or tool.traits.hidden or tool.traits.terminal:
                continue
            spec = tool.spec
            own = function_name(display_names.get(name, name), functions)
            functions[own] = function_of(
                name, name=own, description=spec.description, parameters=bytes(spec.parameters)
            )
        assert self.timeout_s is not None
        return CodeTool(
            self._sandbox,
            languages=self._languages,
            only=self.only,
            timeout_s=self.timeout_s,
            functions=tuple(functions.values()),
        )

    async def prepare(self, args: str) -> bytes:
        _, written = object_args(args)
        issues = self._validator.validate(written)
        if issues:
            raise InvalidArguments(described(CODE, issues), issues)
        return written

    async def invoke(self, args: bytes, context: ToolContext) -> ToolOutput:
        asked = msgspec.json.decode(args, type=_Request)
        further = context.further
        assert further is not None
        calls = _Calls(self._functions, further)
        try:
            execution = start(
                self._sandbox,
                asked.code,
                language=asked.language or self._languages[0],
                functions=calls.functions,
                clock_ms=further.clock_ms,
                seed=context.idempotency_key,
                owner=context.workspace,
            )
        except ToolFailed as error:
            return ToolOutput.of(str(error), is_error=True)
        limit_s = cast(float, self.timeout_s)
        calls.execution = execution
        further.hold()
        execution.when_started(lambda: further.limit(lambda: execution.terminate(prompts.code.out_of_time(limit_s))))
        try:
            result = await execution
            unread = await calls.settled(result.open_calls) if result.error is None else []
        finally:
            execution.terminate()
            await execution.wait()
            await calls.drop()
        if calls.diverged and result.error is None:
            return ToolOutput.of(calls.diverged, is_error=True)
        return to_tool_output(result, unread if result.error is None else calls.summaries())

    async def reconcile(self, args: bytes, context: ToolContext) -> Reconciled:
        return Unknown()


class _Calls:
    """The functions of one piece of code, and the calls that it made."""

    def __init__(self, functions: Sequence[CodeFunction], further: FurtherCalls) -> None:
        self._further = further
        self._made: list[_CallRecord] = []
        self._open: set[asyncio.Task[object]] = set()
        """The calls without a result. The sandbox must not cancel them."""
        self.diverged = ""
        self.execution: CodeExecution | None = None
        self.functions: dict[str, Callable[..., Awaitable[object]]] = {one.name: self._bound(one) for one in functions}

    def summaries(self) -> list[str]:
        return _listed(self._made)

    async def settled(self, open_calls: Sequence[int]) -> list[str]:
        """Waits for the calls that the code did not wait for. Returns a line for each of `open_calls` that failed."""
        while self._open:
            await asyncio.wait(self._open)
        left = [self._made[number - 1] for number in open_calls]
        failed = [one for one in left if one.outcome == prompts.code.CALL_FAILED]
        lines = [
            prompts.code.code_call(one.function.name, one.args, outcome=one.problem) for one in failed[:_FIRST_CALLS]
        ]
        if len(failed) > _FIRST_CALLS:
            lines.append(prompts.code.calls_left_out({prompts.code.CALL_FAILED: len(failed) - _FIRST_CALLS}))
        return lines

    async def drop(self) -> None:
        """Cancels the calls that are still open, because the code failed or was interrupted."""
        left = list(self._open)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=_DROP_S)

    def _bound(self, function: CodeFunction) -> Callable[..., Awaitable[object]]:
        async def call(*given: object) -> object:
            return await self._call(function, given)

        return call

    async def _call(self, function: CodeFunction, given: Sequence[object]) -> object:
        made = _CallRecord(function, "")
        self._made.append(made)
        try:
            written = written_args(function, given)
        except ToolFailed as error:
            raise _failed(made, str(error)) from None
        made.args = _cut(written, _MAX_ARGS_CHARS)
        # The code may end without awaiting it, and the call is made nevertheless.
        task = asyncio.create_task(self._ask(made, written), name="a call that code made")
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        value = await asyncio.shield(task)
        if isinstance(value, ToolError):
            raise value
        return value

    async def _ask(self, record: _CallRecord, written: str) -> object:
        """Returns the value of a call, or the `ToolError` for the code, which may no longer be there to catch it."""
        try:
            output = await self._further.ask(record.function.tool, written)
        except Diverged as error:
            self.diverged = str(error)
            if self.execution is not None:
                self.execution.terminate(str(error))
            return ToolError(str(error))
        except ToolFailed as error:
            return _failed(record, str(error))
        value = value_of(output)
        if output.is_error:
            return _failed(record, value if isinstance(value, str) else written_value(value))
        record.outcome = prompts.code.CALL_OK
        return value


def _failed(made: _CallRecord, problem: str) -> ToolError:
    made.outcome, made.problem = prompts.code.CALL_FAILED, _cut(problem, _MAX_PROBLEM_CHARS)
    return ToolError(problem)


def _cut(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else text[:max_chars] + "…"


def _listed(made: Sequence[_CallRecord]) -> list[str]:
    """Returns a line for each call: the first ones and, where the code ended, the last ones."""
    lines = [prompts.code.code_call(one.function.name, one.args, outcome=one.outcome) for one in made]
    left_out = made[_FIRST_CALLS:-_LAST_CALLS]
    if not left_out:
        return lines
    counted = Counter([one.outcome for one in left_out])
    return [*lines[:_FIRST_CALLS], prompts.code.calls_left_out(counted), *lines[-_LAST_CALLS:]]


def written_value(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _description(languages: Sequence[Language], functions: Sequence[CodeFunction]) -> str:
    signatures: dict[str, list[str]] = {}
    if any(one != "python" for one in languages):
        signatures["typescript"] = [typescript(one) for one in functions]
    if "python" in languages:
        signatures["python"] = [python(one) for one in functions]
    return prompts.code.code_tool(list(languages), signatures)


def _parameters(languages: Sequence[Language]) -> bytes:
    properties: dict[str, Any] = {"code": {"type": "string", "description": prompts.code.CODE_PARAMETER}}
    required = ["code"]
    if len(languages) > 1:
        properties["language"] = {
            "type": "string",
            "enum": list(languages),
            "description": prompts.code.LANGUAGE_PARAMETER,
        }
        required.append("language")
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return msgspec.json.encode(schema)
