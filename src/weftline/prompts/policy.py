"""Texts for a model when the policy of its run stops a call."""

from __future__ import annotations


def excluded(tool: str) -> str:
    """For a tool that the run has but its policy does not allow."""
    return f"The tool {tool} is not available in this run. Continue with the tools that are."


def withheld(tool: str) -> str:
    """For a tool that is not offered for one turn, because of how it failed in the previous one."""
    return f"The tool {tool} failed in the previous turn and is not available in this one. Continue without it."


def over_call_cap(limit: int) -> str:
    return f"Not executed: the calls of this turn would exceed the run's limit of {limit} tool calls."


def over_turn_limit(limit: int) -> str:
    return f"Not executed: at most {limit} tool calls are executed per turn. Call the tool again if you still need it."


def policy_failed(tool: str) -> str:
    return f"Not executed: the check whether {tool} is allowed failed."


def over_budget(level: str) -> str:
    return f"Not executed: the budget of the {level} does not leave room for this call."


TOOLS_DISABLED = "Not executed: tools have been disabled for this run."
NO_TIME_TO_BEGIN = "Not executed: the time budget of this run is used up."


def out_of_time(tool: str, *, in_doubt: bool) -> str:
    """For a call that had begun."""
    if in_doubt:
        return (
            f"The call to {tool} was cut off because the time budget of this run is used up."
            " It may or may not have taken effect."
        )
    return f"The call to {tool} was cut off because the time budget of this run is used up."
