"""The texts that models read, word for word: whoever changes one sees it here and reads it aloud."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import cast, get_args

import pytest

from weftline import prompts
from weftline.kernel.entries import FinalReason

CONSTANTS: dict[str, str] = {
    "SKIPPED": "Skipped: a new message arrived before this call began. Make the call again if you still need it.",
    "CANCELLED": "The run was cancelled before this call finished.",
    "NOT_RUN": "Not executed: the run ended first.",
    "NO_MORE_TOOLS": "Not executed: tools are no longer available in this run.",
    "NO_MORE_TURNS": "Not executed: this run has reached its limit of tool turns.",
    "LOCAL_TIMEOUT": "Timed out waiting for local tool result",
    "RESULT_TOO_LARGE": "The client's result was too large to be taken.",
    "LONG_RUNNING": "NOTE: This is a long-running operation. Do not call this tool again if it has already "
    "returned an intermediate or pending status.",
    "TOO_MUCH_TO_CHECK": "too large or too deeply nested to be checked against its schema; send something simpler",
    "TOO_MUCH_TO_LIST": "does not fit its schema, in more ways than can be listed; send something simpler",
    "ANSWER_MISFIT": "The answer does not fit the output schema.",
}
INSTRUCTIONS: dict[FinalReason, str] = {
    "loop_detected": "You keep making the same tool calls, so tools are no longer available. Give your best final "
    "answer now, using what you already know.",
    "max_tool_turns": "This run has reached its limit of tool turns, so tools are no longer available. Give your "
    "best final answer now, using what you already know.",
}
FUNCTIONS: list[tuple[str, tuple[object, ...], str]] = [
    (
        "unknown_tool",
        ("ghost",),
        "There is no tool named ghost in this run. Use one of the tools you were given, or answer without it.",
    ),
    (
        "invalid_arguments",
        ("pay", ["/to: is missing", "/amount: is not a number"]),
        "The arguments do not fit pay: /to: is missing; /amount: is not a number. Correct them and call it again.",
    ),
    (
        "budget_spent",
        ("pay", 2),
        "Not executed: pay may be called 2 times in this run, and that budget is used up. Continue "
        "without it, or give your final answer.",
    ),
    (
        "budget_spent",
        ("pay", 1),
        "Not executed: pay may be called once in this run, and that budget is used up. Continue "
        "without it, or give your final answer.",
    ),
    (
        "budget_spent",
        ("pay", 0),
        "Not executed: pay may not be called in this run. Continue without it, or give your final answer.",
    ),
    (
        "repeated_call",
        ("look",),
        "Not executed: you have already made this exact call to look, and its result is above. Use "
        "that result, try something different, or give your final answer.",
    ),
    (
        "repeat_of_doubt",
        ("pay",),
        "Not executed: an earlier call to pay with the same arguments may already have taken effect, "
        "so making it again could do the same thing twice. Find out in another way whether it took "
        "effect, or say in your answer that this is uncertain.",
    ),
    ("tool_gone", ("look",), "Not executed: look is no longer available. Use another tool, or answer without it."),
    (
        "in_doubt",
        ("pay",),
        "This call to pay was cut off while it was under way, and it is not known whether it took "
        "effect. It was not repeated. Do not repeat it either: find out in another way whether it "
        "took effect, or say in your answer that this is uncertain.",
    ),
    ("tool_failed", ("look", "there was a fire"), "look failed: there was a fire"),
    (
        "nobody_to_ask",
        ("Which city?",),
        "The tool asked a person: 'Which city?'. Nobody can be asked during this run, so the question was declined.",
    ),
    (
        "tool_timed_out",
        ("look", 2.5),
        "look did not finish within 2.5 seconds and was stopped. Parts of it may have taken effect: "
        "check before you call it again.",
    ),
    (
        "tool_cancelled_itself",
        ("look",),
        "look was interrupted by an error of its own before it finished. Parts of it may have taken "
        "effect: check before you call it again.",
    ),
    ("result_not_text", ("look",), "look has run, but its result cannot be shown: it is not valid Unicode text."),
    (
        "result_not_json",
        ("look", "nested deeper than 100 levels"),
        "look has run, but its result cannot be shown: it cannot be written as JSON (nested deeper than 100 levels).",
    ),
    (
        "repeating_calls",
        (3,),
        "You have made the same tool calls 3 times in a row without getting any further. Give your "
        "final answer now with what you know, or take a different approach.",
    ),
    (
        "repeating_results",
        (3,),
        "Your last 3 rounds of tool calls returned the same results, although their arguments differed. Give "
        "your final answer now with what you know, or take a different approach.",
    ),
    (
        "answer_not_json",
        ("the JSON text ends too early",),
        "The answer is not valid JSON: the JSON text ends too early.",
    ),
    ("answer_misfit", (["/name: is missing"],), "The answer does not fit the output schema: /name: is missing."),
    (
        "answer_again",
        (prompts.ANSWER_MISFIT,),
        "The answer does not fit the output schema. Answer again with nothing but JSON that fits the "
        "schema: no other text and no code fence.",
    ),
    ("unseen_image", ("image/png",), "[An image (image/png) that this model cannot see.]"),
    ("attached_text", ("notes.txt", "Buy milk."), 'Attached file "notes.txt":\nBuy milk.'),
    ("lost_attachment", ("image/png",), "[An attachment (image/png) that is no longer stored.]"),
    (
        "unfetched_attachment",
        ("https://example.com/cat.png", "image/png"),
        "[An attachment (image/png) at https://example.com/cat.png, which this model cannot fetch.]",
    ),
]


def test_the_fixed_texts() -> None:
    found = {name: value for name, value in vars(prompts).items() if isinstance(value, str) and name.isupper()}
    assert {name: value for name, value in found.items() if not name.startswith("_")} == CONSTANTS


def test_the_instructions_of_a_final_turn() -> None:
    assert prompts.FINAL_TURN == INSTRUCTIONS
    assert set(INSTRUCTIONS) == set(get_args(FinalReason))


@pytest.mark.parametrize(("name", "given", "text"), FUNCTIONS)
def test_the_texts_that_are_filled_in(name: str, given: tuple[object, ...], text: str) -> None:
    write = cast("Callable[..., str]", getattr(prompts, name))
    assert write(*given) == text


def test_invalid_input_in_the_shape_that_clients_know() -> None:
    issues = [{"path": "/to", "message": "is missing"}]
    assert prompts.invalid_input("pay", message="The arguments do not fit pay.", issues=issues) == (
        '{"error":"tool_input_invalid","tool":"pay","message":"The arguments do not fit pay.",'
        '"issues":[{"path":"/to","message":"is missing"}]}'
    )


def test_no_text_is_left_out_here() -> None:
    functions = {name for name, value in vars(prompts).items() if inspect.isfunction(value) and name[0] != "_"}
    own = {name for name in functions if getattr(prompts, name).__module__ == prompts.__name__}
    assert own == {name for name, _, _ in FUNCTIONS} | {"invalid_input"}
