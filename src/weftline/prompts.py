"""Every text of ours that a model reads: results that no tool produced, nudges and instructions.

They are prompts. Each says what happened, whether anything took effect, and what to do next, in words that make sense
to a reader who knows nothing about this server. A test pins them all. A text that clients also see and compare stays as
they know it; a note next to it says so.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.json import encode

SKIPPED = "Skipped: a new message arrived before this call began. Make the call again if you still need it."
CANCELLED = "Aborted: the run was cancelled before this call finished."
NOT_RUN = "Not executed: the run ended first."
NO_MORE_TOOLS = "Not executed: tools are no longer available in this run."
NO_MORE_TURNS = "Not executed: this run has reached its limit of tool turns."
LOCAL_TIMEOUT = "Timed out waiting for local tool result"
"""Clients know it by these words."""
RESULT_TOO_LARGE = "The client's result was too large to be taken."
"""Clients know it by these words."""
LONG_RUNNING = (
    "NOTE: This is a long-running operation. "
    "Do not call this tool again if it has already returned an intermediate or pending status."
)
"""Ends the description of a tool; part of the protocol."""

NOT_AN_OBJECT = "must be a JSON object"
TOO_MUCH_TO_CHECK = "too large or too deeply nested to be checked against its schema; send something simpler"
TOO_MUCH_TO_LIST = "does not fit its schema, in more ways than can be listed; send something simpler"
OUTPUT_CHANGED = "the tool's validators change their own output"
"""These appear in lists of what is wrong with arguments and answers."""

_ANSWER_NOW = "Give your final answer now with what you know, or take a different approach."
_AGAIN = "You may call it again."
_FIND_OUT = (
    "Do not repeat the call: find out in another way whether it took effect, "
    "or say in your answer that this is uncertain."
)
_LAST_ANSWER = "Give your best final answer now, using what you already know."


def nobody_to_ask(question: str) -> str:
    return f"The tool asked a person: {question!r}. Nobody can be asked during this run, so the question was declined."


# In place of a result: the call never began


def unknown_tool(tool: str) -> str:
    return f"Unknown tool: {tool}. Use one of the tools you were given, or answer without it."


ARGUMENTS_NOT_OBJECT = f"The arguments {NOT_AN_OBJECT}."


def arguments_not_json(reason: str) -> str:
    return f"The arguments are not valid JSON: {reason}."


def invalid_arguments(tool: str, problems: Sequence[str]) -> str:
    return f"The arguments do not fit {tool}: {'; '.join(problems)}. Correct them and call it again."


def unstable_arguments(tool: str) -> str:
    return (
        f"Not executed: {OUTPUT_CHANGED}, so {tool} would run with other arguments than those that were checked. "
        "This is a fault of the tool, not of your arguments. Continue without it."
    )


def tool_failed_to_prepare(tool: str, reason: str) -> str:
    return (
        f"Not executed: {tool} failed while its arguments were checked: {reason}. "
        "This is a fault of the tool, not of your arguments. Continue without it."
    )


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
    return f"the check that {tool} has to pass failed, so it was not called."


def tool_in_doubt(tool: str) -> str:
    return (
        f"Not executed: many earlier calls to {tool} may already have taken effect, "
        "so calling it again could do the same thing twice. "
        "Find out in another way what took effect, or say in your answer that this is uncertain."
    )


def tool_gone(tool: str) -> str:
    return f"Not executed: {tool} is no longer available. Use another tool, or answer without it."


# In place of a result: the call began


def client_gone(tool: str) -> str:
    return f"Error: the client that was carrying out {tool} is gone, and nobody else has taken its place."


def no_fallback(tool: str, why: str) -> str:
    return f"Error: the client that was carrying out this call is gone, and {tool} cannot take its place: {why}."


def in_doubt(tool: str) -> str:
    return (
        f"Aborted: this call to {tool} was cut off while it was under way, and it is not known whether it took effect. "
        "It was not repeated. Do not repeat it either: find out in another way whether it took effect, "
        "or say in your answer that this is uncertain."
    )


def tool_failed(tool: str, error: str) -> str:
    return f"{tool} failed: {error}"


def tool_timed_out(tool: str, timeout_s: float, *, in_doubt: bool) -> str:
    stopped = f"{tool} did not finish within {timeout_s:g} seconds and was stopped."
    return f"{stopped} It is not known whether it took effect. {_FIND_OUT}" if in_doubt else f"{stopped} {_AGAIN}"


def tool_cancelled_itself(tool: str) -> str:
    return (
        f"{tool} was interrupted by an error of its own before it finished. "
        "Parts of it may have taken effect: check before you call it again."
    )


def result_not_text(tool: str) -> str:
    return f"{tool} has run, but its result cannot be shown: it is not valid Unicode text."


def result_withheld(tool: str) -> str:
    return f"{tool} has run, but its result cannot be shown: a check that the result has to pass failed. {_FIND_OUT}"


def result_not_json(tool: str, reason: str) -> str:
    return f"{tool} has run, but its result cannot be shown: it cannot be written as JSON ({reason})."


# Calls that are carried out by a run of their own


def too_deep(max_depth: int) -> str:
    return (
        f"Not started: subagents may be nested {max_depth} deep, and this one would be deeper. Do this part yourself."
    )


def too_many_children(max_children: int) -> str:
    return (
        f"Not started: at most {max_children} subagents may be at work at once. "
        "Call it again when the others are done, or do this part yourself."
    )


def child_not_started(tool: str, reason: str) -> str:
    return f"The subagent {tool!r} could not be started: {reason}"


def child_failed(tool: str, error: str) -> str:
    return f"The subagent {tool!r} failed: {error}"


def child_misfit(tool: str, problem: str) -> str:
    return f"The subagent {tool!r} returned a result of the wrong type: {problem}"


def child_cancelled(tool: str) -> str:
    return f"The subagent {tool!r} was cancelled before it had an answer."


def child_answer(text: str, *, turns: int, elapsed_ms: int, tokens: int) -> str:
    return f"[turns: {turns}, ms: {elapsed_ms}, tokens: {tokens}]\n{text}"


# Messages between turns


def repeating_calls(count: int) -> str:
    return f"You have made the same tool calls {count} times in a row without getting any further. {_ANSWER_NOW}"


def repeating_results(count: int) -> str:
    return (
        f"Your last {count} rounds of tool calls returned the same results, although their arguments differed. "
        f"{_ANSWER_NOW}"
    )


def results_over_budget(size: int, budget: int) -> str:
    return (
        f"[Tool output budget exceeded: {size} bytes returned in this turn (cap: {budget}). "
        "Summarize the salient findings before calling more tools.]"
    )


FINAL_TURN = {
    "loop_detected": f"You keep making the same tool calls, so tools are no longer available. {_LAST_ANSWER}",
    "max_tool_turns": f"This run has reached its limit of tool turns, so tools are no longer available. {_LAST_ANSWER}",
    "max_turns": f"This run has reached its limit of turns, so tools are no longer available. {_LAST_ANSWER}",
    "max_cost": f"This run has reached its limit of cost, so tools are no longer available. {_LAST_ANSWER}",
    "time_budget": f"This run has used up its time, so tools are no longer available. {_LAST_ANSWER}",
    "tool_cap": f"This run has reached its limit of tool calls, so tools are no longer available. {_LAST_ANSWER}",
    "failure_cap": f"Too many tool calls in a row have failed, so tools are no longer available. {_LAST_ANSWER}",
    "budget": f"The budget for this work is used up, so tools are no longer available. {_LAST_ANSWER}",
    "tool_failure": f"A tool has failed for good, so tools are no longer available. {_LAST_ANSWER}",
    "policy": f"Tools have been disabled for this run. {_LAST_ANSWER}",
}
"""The instruction for a forced final turn, by its reason."""

ANSWER_REJECTED = "The answer was rejected. Give another one."
ANSWER_NOT_CHECKED = "The answer could not be checked. Give it once more."
ANSWER_MISFIT = "The answer does not fit the output schema."


def answer_not_json(reason: str) -> str:
    return f"The answer is not valid JSON: {reason}."


def answer_misfit(problems: Sequence[str]) -> str:
    return f"The answer does not fit the output schema: {'; '.join(problems)}."


def answer_again(problem: str) -> str:
    """Asks once more for an answer that fits; `problem` is one of the three sentences above."""
    return f"{problem} Answer again with nothing but JSON that fits the schema: no other text and no code fence."


# Content that a model cannot take


def unseen_image(media_type: str) -> str:
    return f"[An image ({media_type}) that this model cannot see.]"


def attached_text(name: str, content: str) -> str:
    """A text file that came with a message."""
    return f"Attached file {encode(name).decode()}:\n{content}"


def lost_attachment(media_type: str) -> str:
    return f"[An attachment ({media_type}) that is no longer stored.]"


def unfetched_attachment(url: str, media_type: str) -> str:
    return f"[An attachment ({media_type}) at {url}, which this model cannot fetch.]"


def unreadable_file(name: str | None, media_type: str, url: str | None) -> str:
    where = f" at {url}" if url else ""
    return f"[The file {name or 'without a name'} ({media_type}){where}, which this model cannot read.]"


# What has to be said because a model API has no other way

CONTINUE = "Continue."
"""Before a conversation that does not begin with a user."""
IMAGE_PLACEHOLDER = "[An image was shown here.]"
"""In place of an image in what the model said itself."""
NO_RESULT = "No result was recorded for this call."
RESULT_FOLLOWS = "The result follows in the next message."
"""In place of a result that the model API takes only in a message of the user."""
ANSWER_TOOL = (
    "Gives the final answer. Call this tool once, when everything else is done, with the complete answer as its input; "
    "write no answer as text."
)
ANSWER_FUNCTION = "Delivers the final answer in the form that the caller needs."


def returned_by(tool: str, call_id: str) -> str:
    """Before what `RESULT_FOLLOWS` announced."""
    return f"Returned by {tool} ({call_id}):"


def late_system_message(content: str) -> str:
    return f"[System message]\n{content}"


def result_schema(schema: str) -> str:
    """Ends the description of a tool."""
    return f"The result follows this JSON Schema: {schema}"


def answer_by_tool(tool: str) -> str:
    return f"Give your final answer by calling the tool `{tool}`, never as text."


def answer_by_function(function: str) -> str:
    return (
        f"Give your final answer by calling the function `{function}` exactly once, with the answer as its arguments. "
        "Never write the final answer as plain text. Until the answer is ready, use the other functions as usual."
    )


# What tools that the server dials say about themselves

FAILED_WITHOUT_WORDS = "The tool failed."
PATH_NOT_ALLOWED = "An argument of the tool is not allowed as a part of the address."
HEADER_NOT_ALLOWED = "An argument of the tool has control characters, which a header cannot carry."
NO_MCP = "MCP servers need the extra `mcp`, which is not installed here: pip install 'weftline[mcp]'."
MCP_TIMED_OUT = "The server did not answer in time."
MCP_UNREADABLE = "The server's answer does not follow the protocol."
MCP_ASKED_ABOUT_SOME_RUN = (
    "The server asked a person something meanwhile, perhaps about another run that uses it. The question was declined."
)
MCP_NO_CONNECTION = "It was not asked: the workspace has as many MCP connections in use as it may have."


def mcp_stand_in(server: str) -> str:
    """The description of the one tool that stands in for a server."""
    return f"The MCP server {server} could not be reached, so its tools are missing. Call this to learn why."


def mcp_unavailable(server: str, reason: str) -> str:
    return f"The MCP server {server} is unavailable: {reason} Go on without its tools."


def delegate_over_a2a(agent: str) -> str:
    """The description of an agent as a tool."""
    return f"Delegate a task to the {agent} agent over A2A. Pass the full task as a single message."


def delegate(agent: str, about: str) -> str:
    """The description of an agent that says what it is for."""
    return f"Delegate a task to {agent}: {about}" if about else f"Delegate a task to {agent}"


def request_failed(tool: str, reason: str, *, in_doubt: bool) -> str:
    """`in_doubt`: nobody knows whether the request arrived, and repeating it would matter."""
    if not in_doubt:
        return tool_failed(tool, reason)
    return f"{tool_failed(tool, _sentence(reason))} The call may or may not have taken effect. {_FIND_OUT}"


def agent_request_failed(agent: str, reason: str, *, in_doubt: bool) -> str:
    if not in_doubt:
        return tool_failed(agent, reason)
    return f"{tool_failed(agent, _sentence(reason))} The agent may or may not have accepted the task. {_FIND_OUT}"


def _sentence(reason: str) -> str:
    """Reasons are others' words, and may lack the full stop."""
    return reason if reason.rstrip().endswith((".", "!", "?")) else f"{reason.rstrip()}."


def agent_out_of_reach(agent: str, reasons: Sequence[str]) -> str:
    return f"{agent} could not be reached over A2A: {'; '.join(reasons)}"


def agent_refused(agent: str, error: str) -> str:
    return f"{agent} answered with an error: {error}"


def agent_returned_nothing(agent: str, state: str) -> str:
    return f"{agent} answered without text" + (f" (its task is {state})." if state else ".")


def agent_waits(agent: str, question: str) -> str:
    return (
        f"{question}\n[{agent} is waiting for an answer to this, and its task is still open. "
        f"Call {agent} again with the answer as the message: the next call continues the same task.]"
    )


def agent_task_lost(agent: str, reason: str) -> str:
    return f"{agent} accepted the task, but its outcome could not be retrieved: {reason.rstrip('.')}. {_FIND_OUT}"


def answer_too_large(agent: str) -> str:
    return tool_failed(agent, "the answer is too large.")


def answer_without_structure(tool: str) -> str:
    return tool_failed(tool, "its answer lacks the structured content.")


def answer_unlike_schema(tool: str, problems: Sequence[str]) -> str:
    return tool_failed(tool, f"its answer does not fit its schema: {'; '.join(problems)}.")


def answer_not_text(status: int, media_type: str, size: int) -> str:
    kind = media_type or "of no stated type"
    return f"HTTP {status}. The answer is {kind} ({size} bytes), which cannot be shown as text."


def request_too_large(part: str, max_chars: int) -> str:
    return f"The arguments would give the request's {part} more than {max_chars} characters. Send less."


def missing_secret(name: str) -> str:
    return f"The tool has no secret {name!r}; it must be set up first."


def too_many_stuck(count: int) -> str:
    return (
        f"Too many earlier tool calls ({count}) never returned from their threads; "
        "no further call can start until some of them do."
    )


def cut_after_bytes(text: str, max_bytes: int) -> str:
    return f"{text}\n[cut after {max_bytes} bytes]"


def cut_after_chars(text: str, max_chars: int, whole: int) -> str:
    return f"{text}\n[cut after {max_chars} of {whole} characters]"


# What the tools that come with Weftline say

FETCH_HTTP_ONLY = "Only http and https addresses can be fetched."
FETCH_START = "start must not be negative."
FETCH_TOO_COMPLICATED = "The page is too complicated to be read."
FETCH_REDIRECTS = "The page redirects too often."
CALCULATE_NOT_ARITHMETIC = "That is not an arithmetic expression."
CALCULATE_BY_ZERO = "Division by zero."
CALCULATE_TOO_LARGE = "The result is too large."
CALCULATE_TOO_DEEP = "The expression is nested too deeply."
CALCULATE_NUMBERS_ONLY = "Only numbers can be used in a calculation."


def fetch_refused(status: int, reason: str) -> str:
    return f"The server answered HTTP {status} {reason}".rstrip() + "."


def fetch_not_text(media_type: str) -> str:
    return f"The page is {media_type}, which cannot be shown as text."


def fetch_more(part: str, left: int, *, start: int) -> str:
    return f"{part}\n[{left} more characters; read on with start={start}]"


def calculate_too_long(max_chars: int) -> str:
    return f"The expression is longer than {max_chars} characters."


def calculate_impossible(reason: str) -> str:
    return f"That cannot be calculated: {reason}."


def calculate_unknown(expression: str) -> str:
    return f"{expression!r} is not arithmetic that this tool knows."


def unknown_time_zone(name: str) -> str:
    return f"There is no time zone {name!r}; use an IANA name such as Europe/Berlin."


_SAMPLED = "You are answering a request from a program. Reply with exactly what it asks for."


def sampled_system(system: str, max_tokens: int) -> str:
    """The instructions of a request that an MCP server has for a model."""
    return f"{system or _SAMPLED}\n\nYour answer must not be longer than {max_tokens} tokens."


def sampled_messages(messages: Sequence[tuple[str, str]]) -> str:
    """What a model reads of such a request: a conversation, or what the user said."""
    if len(messages) == 1:
        return messages[0][1]
    return "\n\n".join([f"{role.capitalize()}: {text}" for role, text in messages])
