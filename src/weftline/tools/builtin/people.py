"""The tools `ask_user` and `present_plan`: a person's answer is their result, and they are never executed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from msgspec import Struct
from msgspec.json import Decoder

from weftline.kernel.bodies import AskBody
from weftline.tools.asking import Ask
from weftline.tools.function import FunctionTool


@dataclass
class FollowUpQuestion:
    """Another question in the same call."""

    question: str
    options: list[str] | None = None
    multiple: bool = False


class _AskUserArgs(Struct):
    question: str
    options: list[str] | None = None
    multiple: bool = False
    further: list[FollowUpQuestion] | None = None


class _PresentPlanArgs(Struct):
    plan: str


_decode_asked = Decoder(_AskUserArgs).decode
_decode_presented = Decoder(_PresentPlanArgs).decode


class _PeopleTool(FunctionTool[..., str]):
    """A tool whose calls are put to people instead of being executed."""

    def __init__(self, fn: Callable[..., str], *, ask: Callable[[bytes], Ask]) -> None:
        super().__init__(fn, effect="read", blocking=False, name=fn.__name__.strip("_"))
        self._put = ask

    def asks_people(self, args: bytes) -> Ask | None:
        return self._put(args)


def _ask_user(
    question: str,
    options: list[str] | None = None,
    multiple: bool = False,
    further: list[FollowUpQuestion] | None = None,
) -> str:
    """Asks the user a question and waits for the answer. Ask only what you cannot find out yourself.

    Args:
        question: The question, complete: the user may not have followed what you did.
        options: The answers to choose from, if there are only a few. Without them the user writes a text.
        multiple: Whether the user may choose several of the options.
        further: More questions, to be answered along with the first. Ask everything that you need to know at once.
    """
    raise AssertionError("it is never executed")


def _present_plan(plan: str) -> str:
    """Shows the user your plan and waits until it is approved. Do not carry out any of it before that.

    Args:
        plan: The steps in their order, what each one changes, and what is uncertain.
    """
    raise AssertionError("it is never executed")


def _question(args: bytes) -> Ask:
    asked = _decode_asked(args)
    if not asked.further:
        return Ask(asked.question, "question", tuple(asked.options or ()), asked.multiple)
    parts = [AskBody(one.question, tuple(one.options or ()), one.multiple) for one in (asked, *asked.further)]
    listed = [f"{number}. {_in_full(one)}" for number, one in enumerate(parts, 1)]
    return Ask("\n".join(listed), "question", parts=tuple(parts))


def _in_full(part: AskBody) -> str:
    return f"{part.prompt} ({' / '.join(part.options)})" if part.options else part.prompt


ask_user = _PeopleTool(_ask_user, ask=_question)
present_plan = _PeopleTool(_present_plan, ask=lambda args: Ask(_decode_presented(args).plan, "plan"))
