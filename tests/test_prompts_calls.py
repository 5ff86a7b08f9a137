"""What a model reads about calls for which it is not to blame, word for word."""

from __future__ import annotations

from weftline import prompts_calls as prompts


def test_the_texts_are_these() -> None:
    assert prompts.options_do_not_fit("book", "later", "must be a number") == (
        "book has run, but has no result: no answer to the question it asked could be its result "
        "(the option 'later': must be a number). Go on without it."
    )
    assert prompts.not_injected("orders", "tenant", "") == (
        "Not executed: orders needs a tenant that is not for you to set, and this run was not given one. "
        "Go on without it."
    )
    assert prompts.not_injected("orders", "tenant", "must be a number") == (
        "Not executed: orders needs a tenant that is not for you to set, and the one that this run has does not fit "
        "(must be a number). Go on without it."
    )
    assert prompts.not_adapted("refund", "no such order") == (
        "Not executed: the arguments could not be passed on to refund: no such order"
    )
    assert prompts.not_materialized("refund", "no receipt") == (
        "refund has run, but its result cannot be used: no receipt"
    )
