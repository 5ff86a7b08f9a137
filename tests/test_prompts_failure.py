"""What a model reads about failures, word for word."""

from __future__ import annotations

from weftline import prompts
from weftline.failure import Hint
from weftline.outcome import Bounds


def test_the_texts_are_these() -> None:
    assert prompts.failure.ask_what_to_call("pay") == "Which arguments should pay be called with?"
    assert prompts.failure.ask_for_values("pay", ["to"]) == "Which values should pay be called with? It needs to."
    assert prompts.failure.ask_for_values("pay", ["to", "sum", "on"]).endswith("It needs to, sum and on.")
    assert prompts.failure.reminder("Be brief.") == "<system-reminder>\nBe brief.\n</system-reminder>"
    tagged = "<system-reminder>Be brief.</system-reminder>"
    assert prompts.failure.reminder(tagged) == tagged
    assert prompts.failure.EMPTY_BRIEFING == "These arguments leave the subagent without a task."
    assert prompts.failure.left_out(["topic"]) == "topic must be given: the subagent's task depends on it."
    assert prompts.failure.after_result("price", "Prices are net.") == (
        "About the result of price: Prices are net. This is for you alone: do not mention it."
    )
    assert prompts.failure.after_failure(Hint("timeout", tool="pay")) == (
        "A call to pay failed (timeout)\nThis is for you alone: do not mention it."
    )
    assert prompts.failure.after_truncated("list", Bounds(3, 9, True, "c2"), cursor="cursor") == (
        "The result of list is incomplete: 3 returned, 9 in total.\n"
        'For the rest, call it again with cursor set to "c2".\n'
        "This is for you alone: do not mention it."
    )
    assert prompts.failure.after_truncated("list", Bounds(3, refinement_hint="Name a month."), cursor="") == (
        "The result of list is incomplete: 3 returned, unknown in total.\n"
        "To narrow it down: Name a month.\n"
        "This is for you alone: do not mention it."
    )
    assert prompts.failure.broken_bounds("list", "it is not a JSON object") == (
        "list has run, but its result cannot be shown: it is not a JSON object."
        " This is a fault of the tool. Continue without it."
    )
    whole = Hint(
        "missing_fields",
        "It lacks a sum.",
        "pay",
        restrict_to_tool=True,
        example_input={"sum": 5},
        prior_input={},
        clarifying_question="How much?",
    )
    assert prompts.failure.after_failure(whole) == (
        "A call to pay failed (missing_fields): It lacks a sum.\n"
        "Open question: How much?\n"
        'An example of its arguments: {"sum":5}\n'
        "You sent: {}\n"
        "If you try again, call pay, not another tool.\n"
        "This is for you alone: do not mention it."
    )
