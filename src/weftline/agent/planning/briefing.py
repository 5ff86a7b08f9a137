"""How the arguments of a call become a subagent's prompt.

    researcher.as_tool("Researches.", template="Find out about {topic}, in {language}.")

The prompt comes from the first of these that is given: a prompt of the calling agent, a template, a text, a function.
Without any, it is the task that the model writes, or its arguments as JSON if the tool has its own arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, cast

from msgspec.json import decode

from weftline import prompts
from weftline.failure import Hint
from weftline.tools.asking import checked_template, fields_of, rendered, require_arguments
from weftline.tools.base import ToolFailed
from weftline.tools.function import FunctionTool
from weftline.tools.results import reason_of
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
