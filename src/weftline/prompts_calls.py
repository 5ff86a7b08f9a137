"""What a model reads about calls for which it is not to blame: fields that are not its to fill in, questions that
cannot be asked, results that are too large for it. Pinned.
"""

from __future__ import annotations


def options_do_not_fit(tool: str, option: str, fault: str) -> str:
    return (
        f"{tool} has run, but has no result: no answer to the question it asked could be its result "
        f"(the option {option!r}: {fault}). Go on without it."
    )


def not_injected(tool: str, field: str, reason: str) -> str:
    why = f"the one that this run has does not fit ({reason})" if reason else "this run was not given one"
    return f"Not executed: {tool} needs a {field} that is not for you to set, and {why}. Go on without it."


def not_adapted(tool: str, reason: str) -> str:
    return f"Not executed: the arguments could not be passed on to {tool}: {reason}"


def not_materialized(tool: str, reason: str) -> str:
    return f"{tool} has run, but its result cannot be used: {reason}"
