"""Texts for a model about tools that the server dials: HTTP, MCP servers and agents over A2A."""

from __future__ import annotations

from collections.abc import Sequence

from weftline.prompts.calls import FIND_OUT, tool_failed

FAILED_WITHOUT_WORDS = "The tool failed."
PATH_NOT_ALLOWED = "An argument is not allowed as part of the address."
HEADER_NOT_ALLOWED = "An argument has control characters, which are not allowed in a header."
NO_MCP = "MCP servers need the extra `mcp`, which is not installed here."
MCP_TIMED_OUT = "The server did not answer in time."
MCP_TOO_LARGE = "The answer is too large."
MCP_SESSION_ENDED = "The session has ended."
MCP_LOG_IN = "The operator can log in there with `weftline mcp login`, or give the tool other headers."
MCP_UNREADABLE = "The server's answer does not follow the protocol."
MCP_ASKED_ABOUT_SOME_RUN = (
    "During this call the server asked a person something, perhaps for another run that uses it. "
    "The question was declined."
)
MCP_NO_CONNECTION = "It was not asked: the workspace has reached its MCP connection limit."


def server_refused(status: int, reason: str) -> str:
    return f"The server answered HTTP {status} {reason}".rstrip() + "."


def mcp_needs_scope(refused: str, scope: str) -> str:
    """Says that a login does not cover a call; without a `scope`, the server did not say which one it wants."""
    what = f"the scope {scope!r}" if scope else "a scope that the login does not have"
    return f"{refused} It needs {what}. The operator can log in there again with `weftline mcp login --scope`."


def mcp_answer_has(too_much: str) -> str:
    return f"The answer has {too_much}."


def mcp_stand_in(server: str) -> str:
    """The description of the one tool that stands in for a server."""
    return f"The MCP server {server} could not be reached, so its tools are missing. Call this to learn why."


def mcp_unavailable(server: str, reason: str) -> str:
    return f"The MCP server {server} is unavailable: {_sentence(reason)} Continue without its tools."


def delegate_over_a2a(agent: str) -> str:
    """The description of an agent as a tool."""
    return f"Delegate a task to the {agent} agent over A2A. Pass the full task as a single message."


def delegate(agent: str, about: str) -> str:
    """The description of an agent that says what it is for."""
    return f"Delegate a task to {agent}: {about}" if about else f"Delegate a task to {agent}"


def request_failed(tool: str, reason: str, *, in_doubt: bool) -> str:
    """`in_doubt` means that it is unknown whether the request arrived, and repeating it would matter."""
    if not in_doubt:
        return tool_failed(tool, reason)
    return f"{tool_failed(tool, _sentence(reason))} The call may or may not have taken effect. {FIND_OUT}"


def agent_request_failed(agent: str, reason: str, *, in_doubt: bool) -> str:
    if not in_doubt:
        return tool_failed(agent, reason)
    return f"{tool_failed(agent, _sentence(reason))} The agent may or may not have accepted the task. {FIND_OUT}"


def _sentence(reason: str) -> str:
    """Adds a full stop if it is missing, as reasons come from others."""
    return reason if reason.rstrip().endswith((".", "!", "?")) else f"{reason.rstrip()}."


def agent_out_of_reach(agent: str, reasons: Sequence[str]) -> str:
    return f"{agent} could not be reached over A2A: {'; '.join(reasons)}"


NO_REASON = "no reason given"
ANSWER_NOT_OBJECT = "the answer is not a JSON object"
ANSWER_IS_ERROR = "the answer is an error"
ANSWER_WITHOUT_RESULT = "the answer has no result"


def rejected(reason: str, url: str) -> str:
    """A reason for `agent_out_of_reach`."""
    return f"{reason} ({url})"


def http_rejected(status: int, url: str, *, without_headers: bool) -> str:
    """A reason for `agent_out_of_reach`."""
    sent = ", sent without the tool's headers, which are for another origin" if without_headers else ""
    return f"HTTP {status} ({url}{sent})"


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
    return f"{agent} accepted the task, but its outcome could not be retrieved: {reason.rstrip('.')}. {FIND_OUT}"


def answer_too_large(agent: str) -> str:
    return tool_failed(agent, "the answer is too large.")


def answer_without_structure(tool: str) -> str:
    return tool_failed(tool, "its answer has no structured content.")


def answer_unlike_schema(tool: str, problems: Sequence[str]) -> str:
    return tool_failed(tool, f"its answer does not fit its schema: {'; '.join(problems)}.")


def answer_not_text(status: int, media_type: str, size: int) -> str:
    kind = media_type or "of unknown type"
    return f"HTTP {status}. The answer is {kind} ({size} bytes), which cannot be shown as text."


def request_too_large(part: str, max_chars: int) -> str:
    return f"The arguments make the request's {part} longer than {max_chars} characters. Send less."


def missing_secret(name: str) -> str:
    return f"The tool has no secret {name!r}; it must be set up first."


NO_THREAD = "The server could not start a thread."


def too_many_stuck(count: int) -> str:
    return (
        f"Too many earlier tool calls ({count}) never returned from their threads; "
        "no further call can start until some of them do."
    )


def cut_after_bytes(text: str, max_bytes: int) -> str:
    return f"{text}\n[cut after {max_bytes} bytes]"


def cut_after_chars(text: str, max_chars: int, whole: int) -> str:
    return f"{text}\n[cut after {max_chars} of {whole} characters]"


_SAMPLED = "You are answering a request from a program. Reply with exactly what it asks for."


def sampled_system(system: str, max_tokens: int) -> str:
    """Returns the instructions of an MCP server's request for a model."""
    return f"{system or _SAMPLED}\n\nYour answer must not be longer than {max_tokens} tokens."


def sampled_messages(messages: Sequence[tuple[str, str]]) -> str:
    """Returns what a model reads of such a request: a conversation, or only the user's text."""
    if len(messages) == 1:
        return messages[0][1]
    return "\n\n".join([f"{role.capitalize()}: {text}" for role, text in messages])
