"""What a model reads when a policy is in the way, word for word."""

from __future__ import annotations

from weftline import prompts


def test_the_texts_are_these() -> None:
    assert prompts.policy.excluded("pay") == (
        "The tool pay is not available in this run. Continue with the tools that are."
    )
    assert prompts.policy.withheld("pay") == (
        "The tool pay failed in the previous turn and is not available in this one. Continue without it."
    )
    assert (
        prompts.policy.over_call_cap(3)
        == "Not executed: the calls of this turn would exceed the run's limit of 3 tool calls."
    )
    assert prompts.policy.over_turn_limit(2) == (
        "Not executed: at most 2 tool calls are executed per turn. Call the tool again if you still need it."
    )
    assert prompts.policy.policy_failed("pay") == ("Not executed: the check whether pay is allowed failed.")
    assert prompts.policy.over_budget("run") == "Not executed: the budget of the run does not leave room for this call."
    assert prompts.policy.TOOLS_DISABLED == "Not executed: tools have been disabled for this run."
    assert prompts.policy.NO_TIME_TO_BEGIN == "Not executed: the time budget of this run is used up."
    assert prompts.policy.out_of_time("pay", in_doubt=False) == (
        "The call to pay was cut off because the time budget of this run is used up."
    )
    assert prompts.policy.out_of_time("pay", in_doubt=True) == (
        "The call to pay was cut off because the time budget of this run is used up."
        " It may or may not have taken effect."
    )
