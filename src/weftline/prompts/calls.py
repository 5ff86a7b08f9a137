"""Instead of a result: what a model reads about a call that never began, was cut off or failed."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.json import encode

SKIPPED = "Skipped: a new message arrived before this call began. Make the call again if you still need it."
CANCELLED = "Aborted: the run was cancelled before this call finished."
NOT_RUN = "Not executed: the run ended first."
NO_MORE_TOOLS = "Not executed: tools are no longer available in this run."
NO_MORE_TURNS = "Not executed: this run has reached its tool turn limit."
LOCAL_TIMEOUT = "Timed out waiting for local tool result"
"""Clients recognize this text."""
RESULT_TOO_LARGE = "The client's result was too large to be taken."
"""Clients recognize this text."""
LONG_RUNNING = (
    "NOTE: This is a long-running operation. "
    "Do not call this tool again if it has already returned an intermediate or pending status."
)
"""Ends the description of a tool; part of the protocol."""

NOT_AN_OBJECT = "must be a JSON object"
TOO_MUCH_TO_CHECK = "too large or too deeply nested to be checked against its schema; send something simpler"
TOO_MUCH_TO_LIST = "violates its schema in more ways than can be listed; send something simpler"
NOT_STORED = "cannot be stored and read back unchanged"
"""These appear in lists of what is wrong with arguments and answers."""

_AGAIN = "You may call it again."
FIND_OUT = (
    "Do not repeat the call: find out in another way whether it took effect, "
    "or say in your answer that this is uncertain."
)


def nobody_to_ask(question: str) -> str:
    return f"The tool asked a person: {question!r}. Nobody can be asked during this run, so the question was declined."


# Instead of a result: the call never began


def unknown_tool(tool: str) -> str:
    return f"Unknown tool: {tool}. Use one of the tools you were given, or answer without it."


ARGUMENTS_NOT_OBJECT = f"The arguments {NOT_AN_OBJECT}."


def arguments_not_json(reason: str) -> str:
    return f"The arguments are not valid JSON: {reason}."


def invalid_arguments(tool: str, problems: Sequence[str]) -> str:
    return f"The arguments do not fit {tool}: {'; '.join(problems)}. Correct them and call it again."


def cannot_be_stored(tool: str, arguments: Sequence[str]) -> str:
    what = " and ".join([repr(one) for one in arguments]) or "an argument"
    return (
        f"Not executed: {what} {NOT_STORED}, so {tool} would not run with the arguments that were checked. "
        "This is a fault of the tool, not of your arguments. Continue without it."
    )


def tool_failed_to_prepare(tool: str, reason: str) -> str:
    return (
        f"Not executed: {tool} failed while its arguments were checked: {reason}. "
        "This is a fault of the tool, not of your arguments. Continue without it."
    )


_ASK_AGAIN = "Nothing has been done. If the call is still needed, make it again."


def waited_too_long(seconds: float) -> str:
    return f"they waited more than {seconds:g} seconds for others"


def not_checked(tool: str, reason: str) -> str:
    return f"Not executed: the arguments of {tool} were not checked, because {reason}. {_ASK_AGAIN}"


def changed_since_asked(tool: str) -> str:
    return (
        f"Not executed: {tool} has changed since you made this call, and would now run with different arguments. "
        f"{_ASK_AGAIN}"
    )


def no_longer_fit(tool: str, problems: Sequence[str]) -> str:
    return (
        f"Not executed: the arguments were valid for {tool} when it was called and no longer are: "
        f"{'; '.join(problems)}. {_ASK_AGAIN}"
    )


def took_too_long(limit_s: float) -> str:
    """A reason for `tool_failed_to_prepare`."""
    return f"it took longer than {limit_s:g} seconds"


class _InvalidInput(Struct):
    error: str
    tool: str
    message: str
    issues: Sequence[object]


def invalid_input(tool: str, *, message: str, issues: Sequence[object]) -> str:
    """`invalid_arguments` in the shape that clients of the protocol know."""
    return encode(_InvalidInput("tool_input_invalid", tool, message, issues)).decode()


def budget_spent(tool: str, max_calls: int) -> str:
    if max_calls == 0:
        return f"Blocked: {tool} may not be called in this run. Continue without it, or give your final answer."
    times = "once" if max_calls == 1 else f"{max_calls} times"
    return (
        f"Blocked: {tool} may be called {times} in this run, and that budget is used up. "
        "Continue without it, or give your final answer."
    )


def repeated_call(tool: str) -> str:
    return (
        f"Not executed: you have already made this exact call to {tool}, and its result is above. "
        "Use that result, try something different, or give your final answer."
    )


def repeat_of_doubt(tool: str) -> str:
    return (
        f"Not executed: an earlier call to {tool} with the same arguments may already have taken effect, "
        "so making it again could do the same thing twice. "
        "Find out in another way whether it took effect, or say in your answer that this is uncertain."
    )


def blocked(reason: str) -> str:
    return f"Blocked: {reason}"


BLOCKED_WITHOUT_REASON = "Tool execution was blocked"


def gate_failed(tool: str) -> str:
    """A reason for `blocked`."""
    return f"{tool} was not called because a required check failed."


def tool_in_doubt(tool: str) -> str:
    return (
        f"Not executed: many earlier calls to {tool} may already have taken effect, "
        "so calling it again could do the same thing twice. "
        "Find out in another way what took effect, or say in your answer that this is uncertain."
    )


def tool_gone(tool: str) -> str:
    return f"Not executed: {tool} is no longer available. Use another tool, or answer without it."


# Instead of a result: the call began


def client_gone(tool: str) -> str:
    return f"Error: the client that was carrying out {tool} is gone and never returned a result."


def no_fallback(tool: str, why: str) -> str:
    return f"Error: the client that was carrying out this call is gone, and {tool} cannot take its place: {why}."


FALLBACK_FOR_CLIENTS = "it is also executed by clients"
FALLBACK_NOT_PLAIN = "it is not a plain tool"
FALLBACK_NOT_ALLOWED = "the run's policy does not allow it"
FALLBACK_NOT_CHECKED = "the agent's gates have not checked it"
FALLBACK_INJECTED = "it takes values that the call does not have"
FALLBACK_NOT_APPROVED = "it needs the approval of a person"
FALLBACK_OTHER_ARGUMENTS = "it would run with other arguments"
"""Reasons for `no_fallback`."""


def fallback_failed(reason: str) -> str:
    """A reason for `no_fallback`."""
    return f"it failed while the arguments were checked: {reason.rstrip('.')}"


FAILED = "The tool failed."


def missing_variables(names: Sequence[str]) -> str:
    return f"The tool cannot run: nothing gives a value to {', '.join(names)}."


def no_such_attachment(path: str) -> str:
    return f"The tool's result names the file {path}, which does not exist."


def in_doubt(tool: str) -> str:
    return (
        f"Aborted: this call to {tool} was cut off while it was under way, and it is not known whether it took effect. "
        "It was not repeated. Do not repeat it either: find out in another way whether it took effect, "
        "or say in your answer that this is uncertain."
    )


def changed_since_begun(tool: str) -> str:
    return (
        f"Aborted: this call to {tool} was cut off while it was under way, and it is not known whether it took effect. "
        f"It was not repeated, because {tool} has changed since. {FIND_OUT}"
    )


def tool_failed(tool: str, error: str) -> str:
    return f"{tool} failed: {error}"


def tool_timed_out(tool: str, timeout_s: float, *, in_doubt: bool) -> str:
    stopped = f"{tool} did not finish within {timeout_s:g} seconds and was stopped."
    return f"{stopped} It is not known whether it took effect. {FIND_OUT}" if in_doubt else f"{stopped} {_AGAIN}"


def timed_out_before_start(tool: str, timeout_s: float) -> str:
    return (
        f"Not executed: {tool} could not begin within {timeout_s:g} seconds, because too many tools are running. "
        f"{_ASK_AGAIN}"
    )


def stopped_before_start(tool: str) -> str:
    return f"Not executed: the server was stopped before {tool} could begin. {_ASK_AGAIN}"


def no_thread(tool: str) -> str:
    return f"Not executed: the server could not start a thread for {tool}. {_ASK_AGAIN}"


def tool_cancelled_itself(tool: str) -> str:
    return (
        f"{tool} cancelled itself before it finished, because of an internal error. "
        "Parts of it may have taken effect: check before you call it again."
    )


def result_not_text(tool: str) -> str:
    return f"{tool} has run, but its result cannot be shown: it is not valid Unicode text."


def result_withheld(tool: str) -> str:
    return f"{tool} has run, but its result cannot be shown: a required check of the result failed. {FIND_OUT}"


def result_not_json(tool: str, reason: str) -> str:
    return f"{tool} has run, but its result cannot be shown: it cannot be written as JSON ({reason})."


# The model is not to blame: values that others provide, results that cannot be used


def options_do_not_fit(tool: str, option: str, problem: str) -> str:
    return (
        f"{tool} has run, but has no result: its question has an option that is not a valid result "
        f"({option!r}: {problem}). Continue without it."
    )


def not_injected(tool: str, field: str, reason: str) -> str:
    why = f"the one that this run has does not fit ({reason})" if reason else "this run was not given one"
    return f"Not executed: {tool} needs a value for {field}, which you cannot set, and {why}. Continue without it."


def not_adapted(tool: str, reason: str) -> str:
    return f"Not executed: the arguments could not be passed on to {tool}: {reason}"


def not_materialized(tool: str, reason: str) -> str:
    return f"{tool} has run, but its result cannot be used: {reason}"
