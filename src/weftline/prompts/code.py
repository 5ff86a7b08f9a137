"""Texts for a model about code that it writes, and for that code about the calls that it makes."""

from __future__ import annotations

from collections.abc import Mapping

PARENT_ENDED = "Not executed: the code that asked for this call has ended."


def not_arguments(tool: str, problem: str) -> str:
    return f"{tool} takes one object of arguments: {problem}"


def too_many_calls(limit: int) -> str:
    return f"Not executed: the code of one turn may make at most {limit:,} calls, and none after it has ended."


def diverged(before: str, now: str) -> str:
    """The code was interrupted, is executed again from its start, and behaves differently."""
    how = f"{now} with different arguments" if now == before else f"{now} where it called {before} before"
    return (
        f"The code was interrupted and restarted, and now calls {how}."
        " Its calls so far are not repeated. Write code that makes the same calls each time it runs."
    )


NO_BYTES = "Bytes cannot be passed to a tool: encode them as text."


def too_many_arguments(function: str, maximum: int, *, given: int) -> str:
    return f"{function} takes at most {maximum} arguments, not {given}."


def argument_twice(function: str, name: str) -> str:
    return f"{function} was given {name} twice."


# The tool `code`

_LANGUAGES = {"typescript": "TypeScript", "javascript": "JavaScript", "python": "Python"}
_SCRIPT = (
    "{language} is an ES module: use top-level await, and export the result with `export default`, as a value or as a"
    " function that returns it. Start calls together with Promise.all. A call that fails throws an error with the"
    " tool's message."
)
_PYTHON = (
    "Python is a module: use top-level await, and assign the result to `default`. There is no standard library and no"
    " import. Calls that are made first and awaited afterwards run together. A call that fails raises an exception with"
    " the tool's message."
)


def code_tool(languages: list[str], signatures: dict[str, list[str]]) -> str:
    """Returns the description of the tool. `signatures` has the functions by language."""
    parts = [
        "Runs code that you write, in a sandbox without files, network or timers, and returns its result and what it"
        " logged.",
        "The code can call these functions, which are asynchronous. Use it for several calls, and to select, combine or"
        " compute what you need from their results: you read only what the code returns. A result is an object or a"
        " list if the tool returns one, and a string otherwise.",
    ]
    scripts = [_LANGUAGES[one] for one in languages if one != "python"]
    if scripts:
        parts.append(_SCRIPT.format(language=" or ".join(scripts)))
    if "python" in languages:
        parts.append(_PYTHON)
    for language, functions in signatures.items():
        listed = "\n\n".join(functions) or "(no functions)"
        parts.append(f"```{language}\n{listed}\n```")
    return "\n\n".join(parts)


CODE_PARAMETER = "The complete code. Nothing carries over from earlier code."
LANGUAGE_PARAMETER = "The language of the code."


def code_result(result: str, logs: str, unread: list[str]) -> str:
    """Returns what the model reads about code that succeeded. `unread` are its calls that failed after it had ended."""
    text = result
    if unread:
        text += "\n\nFailed calls that the code did not await:\n" + "\n".join(unread)
    return f"{text}\n\nLogged:\n{logs}" if logs else text


def code_failed(status: str, error: str, logs: str, calls: list[str]) -> str:
    """Returns what the model reads about code that failed. `calls` are those that it made, with their outcomes."""
    began = {
        "link_error": "The code was not run",
        "memory": "The code ran out of memory",
        "terminated": "The code was stopped",
    }.get(status, "The code failed")
    text = f"{began}: {error}"
    if calls:
        text += "\n\nCalls that it made:\n" + "\n".join(calls)
    return f"{text}\n\nLogged:\n{logs}" if logs else text


def code_call(function: str, args: str, *, outcome: str) -> str:
    return f"{function}({args}): {outcome}"


def calls_left_out(outcomes: Mapping[str, int]) -> str:
    """Summarizes the calls in the middle, by their outcomes."""
    counted = ", ".join([f"{number:,} {outcome}" for outcome, number in outcomes.items()])
    return f"… ({sum(outcomes.values()):,} more calls: {counted})"


CALL_OK, CALL_FAILED = "done", "failed"
CALL_OPEN = "no result when the code ended; it may have been carried out"
LOG_CUT = "… (the rest of the log is left out)"


def out_of_time(limit_s: float) -> str:
    return f"The code reached its limit of {_seconds(limit_s)}, not counting the time it waited for calls."


def sandbox_missing(problem: str) -> str:
    return f"Code cannot be run here: {problem}"


def tool_out_of_time(limit_s: float) -> str:
    """For a stored code tool."""
    return f"The code reached its limit of {_seconds(limit_s)}."


def sandbox_busy(waited_s: float) -> str:
    return f"The code did not begin: other code has kept this server busy for {_seconds(waited_s)}. Try again later."


def _seconds(number: float) -> str:
    return "1 second" if number == 1 else f"{number:g} seconds"
