"""Agents as tools of other agents: each call is a run of its own, a child of the run that made it.

    agent = Agent("openai:gpt-5", tools=[researcher.as_tool("Researches a question."), spawn()])

A child starts from its task alone; its conversation is its own, and the parent's model reads its answer.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, cast

from msgspec.json import decode

from weftline import prompts
from weftline.agent.definition import Definition
from weftline.agent.output import OutputType
from weftline.failure import Failure, Hint
from weftline.kernel.bodies import FinalResult, Peer
from weftline.kernel.entries import Effect
from weftline.messages import joined_text
from weftline.providers.base import ToolSpec
from weftline.runtime.agent_code.code import ChildEnd
from weftline.runtime.tool_calls.children import as_result, final_output
from weftline.tools.asking import checked_template, fields_of, rendered, require_arguments
from weftline.tools.base import Reconciled, ToolContext, ToolFailed, ToolOutput, Traits, Unknown
from weftline.tools.function import FunctionTool
from weftline.tools.results import output_of, reason_of
from weftline.work.outcomes import attempt

if TYPE_CHECKING:
    from pydantic import BaseModel


class Briefing:
    """The arguments that a subagent's tool takes, and how they become its prompt.

    `check` takes the arguments that it names and returns what is wrong with them, or None.
    """

    def __init__(
        self,
        name: str,
        description: str,
        *,
        args: type[BaseModel] | None = None,
        prompt_id: str | None = None,
        template: str | None = None,
        text: str | None = None,
        prompt: Callable[..., str] | None = None,
        check: Callable[..., str | None] | None = None,
    ) -> None:
        if template is not None and text is not None:
            raise ValueError(f"tool {name!r}: give a template or a text, not both")
        if text is not None and not text.strip():
            raise ValueError(f"tool {name!r}: text is empty")
        for what, function in (("prompt", prompt), ("check", check)):
            if function is not None and not callable(function):
                raise TypeError(f"tool {name!r}: {what} must be a function, not {type(function).__name__}")
        if template is not None:
            checked_template(template, tool=name, what="template")
        self._prompt_id = prompt_id
        self._template, self._text, self._prompt, self._check = template, text, prompt, check
        self._by_task = all(one is None for one in (args, prompt_id, template, text, prompt))
        form = _form(args=args, template=template, text=text, prompt=prompt)
        self.form: FunctionTool[..., Any, Any] = FunctionTool(
            form, name=name, description=description, effect="idempotent"
        )
        if template is not None:
            require_arguments(template, inspect.signature(form).parameters, tool=name, what="template")

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        return tuple([one for one in (self._prompt, self._check) if one is not None])

    def message(self, args: bytes, *, render: Callable[..., str]) -> str:
        """Returns the subagent's prompt; `render` fills in a prompt of the calling agent.

        Raises `ToolFailed`, with a hint, if no prompt can be made from these arguments.
        """
        if self._check is not None and (problem := self._called(self._check, args)):
            raise self._refusal(str(problem), args)
        if self._by_task:
            return decode(args, type=dict[str, Any])["task"]
        if self._prompt_id is not None:
            try:
                return render(self._prompt_id, **decode(args, type=dict[str, Any]))
            except ValueError as error:
                raise self._refusal(reason_of(error), args) from error
        if self._template is not None:
            return self._rendered(self._template, args)
        if self._text is not None:
            return self._text
        if self._prompt is None:
            return args.decode()
        text = self._called(self._prompt, args)
        if not isinstance(text, str) or not text.strip():
            raise self._refusal(prompts.failure.EMPTY_BRIEFING, args)
        return text

    def _rendered(self, template: str, args: bytes) -> str:
        given = decode(args, type=dict[str, Any])
        missing = [name for name in fields_of(template) if given.get(name) is None]
        if missing:
            raise self._refusal(prompts.failure.left_out(missing), args, missing=tuple(missing))
        try:
            return rendered(template, args)
        except (LookupError, ValueError) as error:
            raise self._refusal(reason_of(error), args) from error

    def _called(self, function: Callable[..., object], args: bytes) -> object:
        taken = inspect.signature(function).parameters
        named = {name: value for name, value in self.form.parameters.keywords(args).items() if name in taken}
        with attempt() as calling:
            return function(**named)
        assert calling.error is not None
        raise self._refusal(reason_of(calling.error), args) from calling.error

    def _refusal(self, problem: str, args: bytes, *, missing: tuple[str, ...] = ()) -> ToolFailed:
        hint = Hint(
            "missing_fields" if missing else "invalid_arguments",
            problem,
            self.form.name,
            restrict_to_tool=True,
            missing_fields=missing,
            prior_input=decode(args, type=dict[str, Any]),
        )
        return ToolFailed(problem, kind="invalid_call", hint=hint)


def _form(
    *, args: type[BaseModel] | None, template: str | None, text: str | None, prompt: Callable[..., str] | None
) -> Callable[..., Any]:
    """Returns a function that has the tool's parameters."""
    if args is not None:
        return _with_parameters(_fields(args))
    if template is not None:
        return _with_parameters(dict.fromkeys(fields_of(template), (str, inspect.Parameter.empty)))
    if text is not None:
        return _with_parameters({})
    if prompt is not None:
        return prompt

    def ask(task: str) -> str:
        """Asks an agent.

        Args:
            task: What it should do, with everything that it needs to know: it cannot see this conversation.
        """
        raise NotImplementedError

    return ask


def _fields(model: type[BaseModel]) -> dict[str, tuple[Any, Any]]:
    from pydantic import Field

    found: dict[str, tuple[Any, Any]] = {}
    for name, field in model.model_fields.items():
        hint = field.rebuild_annotation()  # with its constraints
        if field.description:
            hint = cast("Any", Annotated)[hint, Field(description=field.description)]
        default = inspect.Parameter.empty if field.is_required() else field.get_default(call_default_factory=True)
        found[name] = hint, default
    return found


def _with_parameters(parameters: Mapping[str, tuple[Any, Any]]) -> Callable[..., Any]:
    def ask(**given: Any) -> str:
        raise NotImplementedError

    made = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
        for name, (hint, default) in parameters.items()
    ]
    ask.__signature__ = inspect.Signature(made, return_annotation=str)  # type: ignore[attr-defined]
    ask.__annotations__ = {**{name: hint for name, (hint, _) in parameters.items()}, "return": str}
    return ask


_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")


class Subagent:
    """A tool whose calls are child runs. Made by `Agent.as_tool` and `spawn`.

    `agent` executes the calls; None means the calling agent itself, with only the tools in `only`, or all of them.
    """

    effect: Effect = "idempotent"
    concurrent = True
    timeout_s: float | None = None
    client: None = None
    peer: Peer | None = None

    def __init__(
        self,
        form: FunctionTool,
        *,
        agent: Definition[Any, Any] | None,
        only: frozenset[str] | None = None,
        briefing: Briefing | None = None,
        instructions: str | None = None,
        inherit_policy: bool = False,
    ) -> None:
        self._form = form
        self._briefing = briefing
        self._instructions = instructions
        self.traits = Traits(is_agent=True, functions=() if briefing is None else briefing.functions)
        self.name = form.name
        self.agent = agent
        self.only = only
        self.inherit_policy = inherit_policy

    def __repr__(self) -> str:
        return f"<Subagent {self.name}>"

    @property
    def spec(self) -> ToolSpec:
        return self._form.spec

    async def prepare(self, args: str) -> bytes:
        return await self._form.prepare(args)

    async def invoke(self, args: bytes, context: ToolContext) -> ToolOutput:
        raise NotImplementedError("a subagent's calls are executed by their own runs")

    async def reconcile(self, args: bytes, context: ToolContext) -> Reconciled:
        return Unknown()

    def task(self, args: bytes, *, render: Callable[..., str]) -> tuple[str, str | None]:
        """Returns the child's task, and its instructions if the call or the tool has any.

        `render` is `RunContext.render` of the calling run. Raises `ToolFailed` if the arguments do not make a task.
        """
        if self._briefing is not None:
            return self._briefing.message(args, render=render), self._instructions
        given = decode(args, type=dict[str, Any])
        return given["task"], given.get("system") or None

    def result(self, end: ChildEnd) -> ToolOutput:
        """Returns what the model reads about the child's outcome."""
        if end.status != "succeeded":
            return as_result(self.name, end)
        if self.agent is None:
            tokens = end.usage.input + end.usage.output
            elapsed_ms = end.elapsed_us // 1000
            return ToolOutput.of(
                prompts.subagents.child_answer(end.text, turns=end.turns, elapsed_ms=elapsed_ms, tokens=tokens)
            )
        output = self.agent.output_type
        if end.final is not None:
            return self._final(end.final, output)
        if output is None:
            return ToolOutput.of(end.text)
        try:
            return output_of(output.parse(end.text), tool_name=self.name)
        except ValueError:  # written by another version of the agent
            return ToolOutput.of(end.text)

    def _final(self, final: FinalResult, output: OutputType[Any] | None) -> ToolOutput:
        """Returns what a terminal tool returned, which must match the agent's output type if it has one."""
        problem = "" if output is None or final.failure is not None else output.problem(joined_text(final.parts))
        if problem:
            text = prompts.subagents.child_answer_invalid(self.name, problem)
            return ToolOutput.of(text, is_error=True, failure=Failure(text, "malformed_result"))
        return final_output(self.name, final)


def as_tool(
    agent: Definition[Any, Any],
    description: str,
    *,
    name: str | None,
    args: type[BaseModel] | None = None,
    prompt_id: str | None = None,
    template: str | None = None,
    text: str | None = None,
    prompt: Callable[..., str] | None = None,
    check: Callable[..., str | None] | None = None,
    instructions: str | None = None,
    inherit_policy: bool = False,
) -> Subagent:
    called = _NOT_IN_NAMES.sub("_", name or agent.name or "")
    if not called:
        raise ValueError("an agent without a name needs one to be a tool: agent.as_tool(…, name='researcher')")
    briefing = Briefing(
        called,
        description,
        args=args,
        prompt_id=prompt_id,
        template=template,
        text=text,
        prompt=prompt,
        check=check,
    )
    return Subagent(
        briefing.form, agent=agent, briefing=briefing, instructions=instructions, inherit_policy=inherit_policy
    )


def spawn(*, tools: Sequence[str] | None = None, name: str = "spawn") -> Subagent:
    """A tool with which an agent delegates part of its work to a copy of itself.

    The copy has the agent's model, settings, instructions, hooks and tools, and `spawn` itself as far as the limits
    allow (`Limits.max_depth`, `Limits.max_children`).

    Args:
        tools: The names of the tools that the copy has; all by default.
        name: What the model calls it.
    """

    def spawn(task: str, system: str | None = None) -> str:
        """Gives a task to a subagent, which has the same tools, and returns its answer. Several can work at once.

        Args:
            task: What it should do, with everything that it needs to know: it cannot see this conversation.
            system: Instructions that it follows instead of yours.
        """
        raise NotImplementedError

    form = FunctionTool(spawn, name=name, effect="idempotent")
    return Subagent(form, agent=None, only=None if tools is None else frozenset(tools))
