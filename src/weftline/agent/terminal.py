"""`ask_in_terminal`: a person at the terminal answers the run's questions."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from weftline.agent.hooking.calling import hook
from weftline.agent.hooks import AwaitGate
from weftline.kernel.bodies import AskBody

_one_at_a_time = threading.Lock()


def _unlocked() -> None:
    """Replaces the lock after a fork, as a thread of the parent may have held it."""
    global _one_at_a_time
    _one_at_a_time = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlocked)


class TerminalQuestion(Protocol):
    """A question and its possible replies."""

    @property
    def about(self) -> str: ...
    @property
    def question(self) -> str: ...
    @property
    def options(self) -> Sequence[str]: ...
    def approve(self) -> None: ...
    def deny(self, reason: str = "") -> None: ...
    def answer(self, value: Any) -> None: ...


Read: TypeAlias = Callable[[str], str]
"""Shows a prompt and returns the line that the person types; raises `EOFError` if there is none."""


class _PartOf:
    """One of several questions. Its answer is added to `taken`."""

    about = "question"

    def __init__(self, part: AskBody, taken: list[object]) -> None:
        self.question, self.options, self._taken = part.prompt, part.options, taken

    def approve(self) -> None:
        raise AssertionError("a question is answered")

    def deny(self, reason: str = "") -> None:
        """Does nothing: without an answer to this question, none is given to the others."""

    def answer(self, value: Any) -> None:
        self._taken.append(value)


@hook(AwaitGate)
async def ask_in_terminal(gate: AwaitGate) -> None:
    """Asks on the terminal, one question after the other. Without a terminal, the question is left to others."""
    from asyncio import to_thread  # heavy, for a program that only defines agents

    await to_thread(_ask_in_turn, gate)


def _ask_in_turn(gate: AwaitGate) -> None:
    with _one_at_a_time:
        try:
            if gate.parts:
                _each(gate)
            else:
                ask(gate)
        except EOFError:
            pass  # nobody is at the terminal


def ask(asked: TerminalQuestion, *, read: Read | None = None) -> None:
    """Asks the person at the terminal, in this thread. Raises `EOFError` if there is none."""
    # A newer server may ask about something else; what it asks can be read all the same.
    _PROMPTS.get(asked.about, _question)(asked, read or input)


def _each(gate: AwaitGate) -> None:
    answers: list[object] = []
    for number, part in enumerate(gate.parts, 1):
        _question(_PartOf(part, answers), input)
        if len(answers) < number:
            gate.deny()
            return
    gate.answer(answers)


def _confirm(gate: TerminalQuestion, read: Read) -> None:
    typed = _something(f"\n{gate.question} [y/n, or why not] ", read)
    if typed.lower() in ("y", "yes"):
        gate.approve()
    else:
        gate.deny("" if typed.lower() in ("n", "no") else typed)


def _something(prompt: str, read: Read) -> str:
    """Returns what the person types, asking until it is something: Enter alone decides nothing."""
    while not (typed := read(prompt).strip()):
        pass
    return typed


def _question(gate: TerminalQuestion, read: Read) -> None:
    listed = "".join(f"  {number}. {option}\n" for number, option in enumerate(gate.options, 1))
    prompt = f"\n{gate.question}\n{listed}> "
    while True:
        typed = read(prompt).strip()
        if not typed:
            return gate.deny()
        if not gate.options:
            return gate.answer(typed)
        if typed.isdigit() and 0 < int(typed) <= len(gate.options):
            typed = gate.options[int(typed) - 1]
        if typed in gate.options:
            return gate.answer(typed)
        prompt = f"Enter a number from 1 to {len(gate.options)}, or nothing to skip.\n> "


def _plan(gate: TerminalQuestion, read: Read) -> None:
    typed = _something(f"\n{gate.question}\n\nGo ahead? [y/n, or a comment] ", read)
    match typed.lower():
        case "y" | "yes":
            gate.approve()
        case "n" | "no":
            gate.deny()
        case _:
            gate.answer(typed)


def _doubt(gate: TerminalQuestion, read: Read) -> None:
    typed = read(f"\n{gate.question} [y/n, or nothing if you do not know] ").strip().lower()
    if typed in ("y", "yes"):
        gate.answer(read("What was its result? ").strip() or "It took effect.")
    elif typed in ("n", "no"):
        gate.approve()
    else:
        gate.deny()


_PROMPTS = {
    "confirm": _confirm,
    "question": _question,
    "plan": _plan,
    "doubt": _doubt,
    "clarification": _question,
    "deploy": _confirm,
    "budget": _confirm,
}
