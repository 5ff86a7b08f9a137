"""The texts that models read, word for word: if you change one, read it aloud here."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast, get_args

import pytest

from prompt_texts import sentences_of_their_own
from weftline import prompts
from weftline.kernel.entries import FinalReason

PINNED_HERE = (
    prompts.builtin,
    prompts.calls,
    prompts.models,
    prompts.remote,
    prompts.subagents,
    prompts.turns,
)
"""The other modules of the package have tests of their own."""
TEXTS = {
    name: value
    for module in PINNED_HERE
    for name, value in vars(module).items()
    if getattr(value, "__module__", module.__name__) == module.__name__
}
CONSTANTS: dict[str, str] = {
    "NO_CHILDREN": "Not executed: this run may not have subagents. Do this part yourself.",
    "SKIPPED": "Skipped: a new message arrived before this call began. Make the call again if you still need it.",
    "CANCELLED": "Aborted: the run was cancelled before this call finished.",
    "NOT_RUN": "Not executed: the run ended first.",
    "NO_MORE_TOOLS": "Not executed: tools are no longer available in this run.",
    "NO_MORE_TURNS": "Not executed: this run has reached its tool turn limit.",
    "LOCAL_TIMEOUT": "Timed out waiting for local tool result",
    "RESULT_TOO_LARGE": "The client's result was too large to be taken.",
    "LONG_RUNNING": "NOTE: This is a long-running operation. Do not call this tool again if it has already "
    "returned an intermediate or pending status.",
    "NOT_AN_OBJECT": "must be a JSON object",
    "ARGUMENTS_NOT_OBJECT": "The arguments must be a JSON object.",
    "TOO_MUCH_TO_CHECK": "too large or too deeply nested to be checked against its schema; send something simpler",
    "TOO_MUCH_TO_LIST": "violates its schema in more ways than can be listed; send something simpler",
    "NOT_STORED": "cannot be stored and read back unchanged",
    "BLOCKED_WITHOUT_REASON": "Tool execution was blocked",
    "ANSWER_REJECTED": "The answer was rejected. Give another one.",
    "ANSWER_NOT_CHECKED": "The answer could not be checked. Give it again.",
    "ANSWER_INVALID": "The answer does not fit the output schema.",
    "FIND_OUT": "Do not repeat the call: find out in another way whether it took effect, or say in your answer that "
    "this is uncertain.",
    "FALLBACK_FOR_CLIENTS": "it is also executed by clients",
    "FALLBACK_NOT_PLAIN": "it is not a plain tool",
    "FALLBACK_NOT_ALLOWED": "the run's policy does not allow it",
    "FALLBACK_NOT_CHECKED": "the agent's gates have not checked it",
    "FALLBACK_INJECTED": "it takes values that the call does not have",
    "FALLBACK_NOT_APPROVED": "it needs the approval of a person",
    "FALLBACK_OTHER_ARGUMENTS": "it would run with other arguments",
    "CONTINUE": "Continue.",
    "IMAGE_PLACEHOLDER": "[An image was shown here.]",
    "NO_RESULT": "No result was recorded for this call.",
    "ANSWER_TOOL": "Gives the final answer. Call this tool once, when everything else is done, with the complete "
    "answer as its input; do not write the answer as text.",
    "ANSWER_FUNCTION": "Delivers the final answer in the form that the caller needs.",
    "RESULT_FOLLOWS": "The result follows in the next message.",
    "FAILED_WITHOUT_WORDS": "The tool failed.",
    "NO_THREAD": "The server could not start a thread.",
    "PATH_NOT_ALLOWED": "An argument is not allowed as part of the address.",
    "HEADER_NOT_ALLOWED": "An argument has control characters, which are not allowed in a header.",
    "NO_MCP": "MCP servers need the extra `mcp`, which is not installed here.",
    "MCP_NO_CONNECTION": "It was not asked: the workspace has reached its MCP connection limit.",
    "MCP_ASKED_ABOUT_SOME_RUN": "During this call the server asked a person something, perhaps for another run that "
    "uses it. The question was declined.",
    "MCP_TIMED_OUT": "The server did not answer in time.",
    "NO_REASON": "no reason given",
    "ANSWER_NOT_OBJECT": "the answer is not a JSON object",
    "ANSWER_IS_ERROR": "the answer is an error",
    "ANSWER_WITHOUT_RESULT": "the answer has no result",
    "MCP_TOO_LARGE": "The answer is too large.",
    "MCP_SESSION_ENDED": "The session has ended.",
    "MCP_LOG_IN": "The operator can log in there with `weftline mcp login`, or give the tool other headers.",
    "MCP_UNREADABLE": "The server's answer does not follow the protocol.",
    "FETCH_HTTP_ONLY": "Only http and https addresses can be fetched.",
    "FETCH_START": "start must be 0 or more.",
    "FETCH_TOO_COMPLICATED": "The page is too complicated to be read.",
    "FETCH_REDIRECTS": "The page redirects too often.",
    "CALCULATE_NOT_ARITHMETIC": "That is not an arithmetic expression.",
    "CALCULATE_BY_ZERO": "Division by zero.",
    "CALCULATE_TOO_LARGE": "The result is too large.",
    "CALCULATE_TOO_DEEP": "The expression is nested too deeply.",
    "CALCULATE_NUMBERS_ONLY": "Only numbers can be used in a calculation.",
}
INSTRUCTIONS: dict[FinalReason, str] = {
    "loop_detected": "You keep making the same tool calls, so tools are no longer available. Give your best final "
    "answer now, using what you already know.",
    "max_tool_turns": "This run has reached its tool turn limit, so tools are no longer available. Give your "
    "best final answer now, using what you already know.",
    "max_turns": "This run has reached its turn limit, so tools are no longer available. Give your best final "
    "answer now, using what you already know.",
    "max_cost": "This run has reached its cost limit, so tools are no longer available. Give your best final "
    "answer now, using what you already know.",
    "time_budget": "This run has used up its time, so tools are no longer available. Give your best final answer "
    "now, using what you already know.",
    "tool_cap": "This run has reached its tool call limit, so tools are no longer available. Give your best "
    "final answer now, using what you already know.",
    "failure_cap": "Too many tool calls in a row have failed, so tools are no longer available. Give your best "
    "final answer now, using what you already know.",
    "budget": (
        "The budget for this work is used up, so tools are no longer available."
        " Give your best final answer now, using what you already know."
    ),
    "tool_failure": "A tool has failed for good, so tools are no longer available. Give your best final answer now, "
    "using what you already know.",
    "policy": "Tools have been disabled for this run. Give your best final answer now, using what you already know.",
}
FUNCTIONS: list[tuple[str, tuple[object, ...], str]] = [
    (
        "unknown_tool",
        ("ghost",),
        "Unknown tool: ghost. Use one of the tools you were given, or answer without it.",
    ),
    (
        "cannot_be_stored",
        ("pay", ["to", "amount"]),
        "Not executed: 'to' and 'amount' cannot be stored and read back unchanged, so pay would not run with "
        "the arguments that were checked. This is a fault of the tool, not of your arguments. "
        "Continue without it.",
    ),
    (
        "tool_failed_to_prepare",
        ("pay", "'currency'"),
        "Not executed: pay failed while its arguments were checked: 'currency'. This is a fault of the tool, not of "
        "your arguments. Continue without it.",
    ),
    ("took_too_long", (30.0,), "it took longer than 30 seconds"),
    ("waited_too_long", (30.0,), "they waited more than 30 seconds for others"),
    (
        "not_checked",
        ("pay", "they waited more than 30 seconds for others"),
        "Not executed: the arguments of pay were not checked, because they waited more than 30 seconds for others."
        " Nothing has been done. If the call is still needed, make it again.",
    ),
    (
        "changed_since_asked",
        ("pay",),
        "Not executed: pay has changed since you made this call, and would now run with different arguments. "
        "Nothing has been done. If the call is still needed, make it again.",
    ),
    (
        "no_longer_fit",
        ("pay", ["/to: Field required", "/n: Input should be a valid integer"]),
        "Not executed: the arguments were valid for pay when it was called and no longer are: "
        "/to: Field required; /n: Input should be a valid integer. "
        "Nothing has been done. If the call is still needed, make it again.",
    ),
    (
        "changed_since_begun",
        ("pay",),
        "Aborted: this call to pay was cut off while it was under way, and it is not known whether it took effect. "
        "It was not repeated, because pay has changed since. "
        "Do not repeat the call: find out in another way whether it took effect, or say in your answer that this is "
        "uncertain.",
    ),
    (
        "invalid_arguments",
        ("pay", ["/to: is missing", "/amount: is not a number"]),
        "The arguments do not fit pay: /to: is missing; /amount: is not a number. Correct them and call it again.",
    ),
    (
        "budget_spent",
        ("pay", 2),
        "Blocked: pay may be called 2 times in this run, and that budget is used up. Continue "
        "without it, or give your final answer.",
    ),
    (
        "budget_spent",
        ("pay", 1),
        "Blocked: pay may be called once in this run, and that budget is used up. Continue "
        "without it, or give your final answer.",
    ),
    (
        "budget_spent",
        ("pay", 0),
        "Blocked: pay may not be called in this run. Continue without it, or give your final answer.",
    ),
    (
        "results_over_budget",
        (900, 100),
        "[Tool output budget exceeded: 900 bytes returned in this turn (cap: 100). Summarize the salient findings "
        "before calling more tools.]",
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
    ("blocked", ("Not today.",), "Blocked: Not today."),
    ("gate_failed", ("pay",), "pay was not called because a required check failed."),
    (
        "tool_in_doubt",
        ("pay",),
        "Not executed: many earlier calls to pay may already have taken effect, so calling it again could do the same "
        "thing twice. Find out in another way what took effect, or say in your answer that this is uncertain.",
    ),
    ("tool_gone", ("look",), "Not executed: look is no longer available. Use another tool, or answer without it."),
    (
        "client_gone",
        ("look",),
        "Error: the client that was carrying out look is gone and never returned a result.",
    ),
    (
        "no_fallback",
        ("look", "it needs the approval of a person"),
        "Error: the client that was carrying out this call is gone, and look cannot take its place: "
        "it needs the approval of a person.",
    ),
    ("fallback_failed", ("'currency'",), "it failed while the arguments were checked: 'currency'"),
    (
        "in_doubt",
        ("pay",),
        "Aborted: this call to pay was cut off while it was under way, and it is not known whether it took "
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
        "tool_cancelled_itself",
        ("look",),
        "look cancelled itself before it finished, because of an internal error. Parts of it may have taken "
        "effect: check before you call it again.",
    ),
    (
        "result_withheld",
        ("pay",),
        "pay has run, but its result cannot be shown: a required check of the result failed. Do not repeat the "
        "call: find out in another way whether it took effect, or say in your answer that this is uncertain.",
    ),
    ("result_not_text", ("look",), "look has run, but its result cannot be shown: it is not valid Unicode text."),
    (
        "result_not_json",
        ("look", "nested deeper than 100 levels"),
        "look has run, but its result cannot be shown: it cannot be written as JSON (nested deeper than 100 levels).",
    ),
    (
        "too_deep",
        (3,),
        "Not executed: subagents may be nested 3 deep, and this one would be deeper. Do this part yourself.",
    ),
    (
        "too_many_children",
        (3,),
        "Not executed: at most 3 subagents may be at work at once. Call it again when the others are done, or do this "
        "part yourself.",
    ),
    (
        "child_not_started",
        ("researcher", "There is no model."),
        "The subagent 'researcher' could not be started: There is no model.",
    ),
    ("child_failed", ("researcher", "It is asleep."), "The subagent 'researcher' failed: It is asleep."),
    (
        "child_answer_invalid",
        ("researcher", "Field required"),
        "The subagent 'researcher' returned a result of the wrong type: Field required",
    ),
    ("child_cancelled", ("researcher",), "The subagent 'researcher' was cancelled before it had an answer."),
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
    ("answer_invalid", (["/name: is missing"],), "The answer does not fit the output schema: /name: is missing."),
    (
        "answer_again",
        (prompts.turns.ANSWER_INVALID,),
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
    (
        "unreadable_file",
        ("plan.dwg", "image/x-dwg", "https://example.com/plan.dwg"),
        "[The file plan.dwg (image/x-dwg) at https://example.com/plan.dwg, which this model cannot read.]",
    ),
    ("unreadable_file", ("", "a/b", None), "[A file without a name (a/b), which this model cannot read.]"),
    ("returned_by", ("look", "call_1"), "Returned by look (call_1):"),
    ("late_system_message", ("Be brief.",), "[System message]\nBe brief."),
    ("result_schema", ('{"type":"object"}',), 'The result follows this JSON Schema: {"type":"object"}'),
    ("answer_by_tool", ("report",), "Give your final answer by calling the tool `report`, never as text."),
    (
        "answer_by_schema",
        ('{"type":"object"}',),
        "When you give your final answer, write nothing but JSON that fits the JSON Schema below: no other text and no "
        'code fence.\n\n{"type":"object"}',
    ),
    (
        "answer_by_function",
        ("report",),
        "Give your final answer by calling the function `report` exactly once, with the answer as its arguments. Never "
        "write the final answer as plain text. Until the answer is ready, use the other functions as usual.",
    ),
    ("arguments_not_json", ("nested too deeply",), "The arguments are not valid JSON: nested too deeply."),
]


NOT_TO_BLAME: list[tuple[str, tuple[object, ...], str]] = [
    (
        "options_do_not_fit",
        ("book", "later", "must be a number"),
        "book has run, but has no result: its question has an option that is not a valid result "
        "('later': must be a number). Continue without it.",
    ),
    (
        "not_injected",
        ("orders", "tenant", ""),
        "Not executed: orders needs a value for tenant, which you cannot set, and this run was not given one. "
        "Continue without it.",
    ),
    (
        "not_injected",
        ("orders", "tenant", "must be a number"),
        "Not executed: orders needs a value for tenant, which you cannot set, and the one that this run has does "
        "not fit (must be a number). Continue without it.",
    ),
    (
        "not_adapted",
        ("refund", "no such order"),
        "Not executed: the arguments could not be passed on to refund: no such order",
    ),
    (
        "not_materialized",
        ("refund", "no receipt"),
        "refund has run, but its result cannot be used: no receipt",
    ),
]


def test_the_fixed_texts() -> None:
    found = {name: value for name, value in TEXTS.items() if isinstance(value, str) and name.isupper()}
    assert {name: value for name, value in found.items() if not name.startswith("_")} == CONSTANTS


def test_the_instructions_of_a_final_turn() -> None:
    assert prompts.turns.FINAL_TURN == INSTRUCTIONS
    assert set(INSTRUCTIONS) == set(get_args(FinalReason))


OF_TOOLS: list[tuple[str, tuple[object, ...], dict[str, object], str]] = [
    (
        "sampled_system",
        ("", 10),
        {},
        "You are answering a request from a program. Reply with exactly what it asks for.\n\n"
        "Your answer must not be longer than 10 tokens.",
    ),
    (
        "sampled_system",
        ("You are a poet.", 10),
        {},
        "You are a poet.\n\nYour answer must not be longer than 10 tokens.",
    ),
    ("sampled_messages", ([("user", "Why?")],), {}, "Why?"),
    (
        "sampled_messages",
        ([("user", "Why?"), ("assistant", "Because.")],),
        {},
        "User: Why?\n\nAssistant: Because.",
    ),
    ("child_answer", ("Yes.",), {"turns": 2, "elapsed_ms": 15, "tokens": 90}, "[turns: 2, ms: 15, tokens: 90]\nYes."),
    (
        "tool_timed_out",
        ("pay", 2.5),
        {"in_doubt": True},
        "pay did not finish within 2.5 seconds and was stopped. It is not known whether it took effect. Do not repeat "
        "the call: find out in another way whether it took effect, "
        "or say in your answer that this is uncertain.",
    ),
    (
        "tool_timed_out",
        ("look", 2.5),
        {"in_doubt": False},
        "look did not finish within 2.5 seconds and was stopped. You may call it again.",
    ),
    (
        "timed_out_before_start",
        ("pay", 2.5),
        {},
        "Not executed: pay could not begin within 2.5 seconds, because too many tools are running. "
        "Nothing has been done. If the call is still needed, make it again.",
    ),
    (
        "stopped_before_start",
        ("pay",),
        {},
        "Not executed: the server was stopped before pay could begin. Nothing has been done. If the call is still "
        "needed, make it again.",
    ),
    (
        "no_thread",
        ("pay",),
        {},
        "Not executed: the server could not start a thread for pay. Nothing has been done. If the call is still "
        "needed, make it again.",
    ),
    (
        "request_failed",
        ("pay", "bank.example: no answer in 5 s."),
        {"in_doubt": True},
        "pay failed: bank.example: no answer in 5 s. The call may or may not have taken effect. "
        "Do not repeat the call: find out in another way whether it took effect, "
        "or say in your answer that this is uncertain.",
    ),
    (
        "request_failed",
        ("pay", "Connection closed"),
        {"in_doubt": True},
        "pay failed: Connection closed. The call may or may not have taken effect. "
        "Do not repeat the call: find out in another way whether it took effect, "
        "or say in your answer that this is uncertain.",
    ),
    ("request_failed", ("pay", "no."), {"in_doubt": False}, "pay failed: no."),
    (
        "agent_request_failed",
        ("peer", "no answer."),
        {"in_doubt": True},
        "peer failed: no answer. The agent may or may not have accepted the task. Do not repeat the call: "
        "find out in another way whether it took effect, "
        "or say in your answer that this is uncertain.",
    ),
    ("agent_request_failed", ("peer", "no."), {"in_doubt": False}, "peer failed: no."),
    (
        "mcp_stand_in",
        ("files",),
        {},
        "The MCP server files could not be reached, so its tools are missing. Call this to learn why.",
    ),
    (
        "mcp_needs_scope",
        ("The server answered HTTP 403 Forbidden.", "mail"),
        {},
        "The server answered HTTP 403 Forbidden. It needs the scope 'mail'. The operator can log in there again with "
        "`weftline mcp login --scope`.",
    ),
    (
        "mcp_needs_scope",
        ("The server answered HTTP 403 Forbidden.", ""),
        {},
        "The server answered HTTP 403 Forbidden. It needs a scope that the login does not have. The operator can log "
        "in there again with `weftline mcp login --scope`.",
    ),
    (
        "mcp_unavailable",
        ("files", "It hung up."),
        {},
        "The MCP server files is unavailable: It hung up. Continue without its tools.",
    ),
    (
        "delegate_over_a2a",
        ("peer",),
        {},
        "Delegate a task to the peer agent over A2A. Pass the full task as a single message.",
    ),
    ("delegate", ("Ada", "Counts things."), {}, "Delegate a task to Ada: Counts things."),
    ("delegate", ("Ada", ""), {}, "Delegate a task to Ada"),
    ("agent_out_of_reach", ("peer", ["a", "b"]), {}, "peer could not be reached over A2A: a; b"),
    ("rejected", ("no reason given", "https://peer"), {}, "no reason given (https://peer)"),
    ("http_rejected", (401, "https://peer"), {"without_headers": False}, "HTTP 401 (https://peer)"),
    (
        "http_rejected",
        (401, "https://peer"),
        {"without_headers": True},
        "HTTP 401 (https://peer, sent without the tool's headers, which are for another origin)",
    ),
    (
        "agent_waits",
        ("peer", "Which colour?"),
        {},
        "Which colour?\n[peer is waiting for an answer to this, and its task is still open. "
        "Call peer again with the answer as the message: the next call continues the same task.]",
    ),
    (
        "agent_task_lost",
        ("peer", "no such task."),
        {},
        "peer accepted the task, but its outcome could not be retrieved: no such task. Do not repeat the call: "
        "find out in another way whether it took effect, "
        "or say in your answer that this is uncertain.",
    ),
    ("agent_refused", ("peer", "busy"), {}, "peer answered with an error: busy"),
    ("agent_returned_nothing", ("peer", "failed"), {}, "peer answered without text (its task is failed)."),
    ("agent_returned_nothing", ("peer", ""), {}, "peer answered without text."),
    ("answer_too_large", ("peer",), {}, "peer failed: the answer is too large."),
    ("answer_without_structure", ("look",), {}, "look failed: its answer has no structured content."),
    (
        "answer_unlike_schema",
        ("look", ["/n: is missing", "/m: is not a number"]),
        {},
        "look failed: its answer does not fit its schema: /n: is missing; /m: is not a number.",
    ),
    (
        "answer_not_text",
        (200, "application/zip", 5),
        {},
        "HTTP 200. The answer is application/zip (5 bytes), which cannot be shown as text.",
    ),
    (
        "answer_not_text",
        (500, "", 5),
        {},
        "HTTP 500. The answer is of unknown type (5 bytes), which cannot be shown as text.",
    ),
    (
        "request_too_large",
        ("body", 100),
        {},
        "The arguments make the request's body longer than 100 characters. Send less.",
    ),
    ("missing_secret", ("KEY",), {}, "The tool has no secret 'KEY'; it must be set up first."),
    (
        "too_many_stuck",
        (16,),
        {},
        "Too many earlier tool calls (16) never returned from their threads; no further call can start until some of "
        "them do.",
    ),
    ("cut_after_bytes", ("abc", 3), {}, "abc\n[cut after 3 bytes]"),
    ("cut_after_chars", ("abc", 3, 9), {}, "abc\n[cut after 3 of 9 characters]"),
    ("server_refused", (404, "Not Found"), {}, "The server answered HTTP 404 Not Found."),
    ("server_refused", (599, ""), {}, "The server answered HTTP 599."),
    ("mcp_answer_has", ("too many numbers",), {}, "The answer has too many numbers."),
    ("fetch_not_text", ("image/png",), {}, "The page is image/png, which cannot be shown as text."),
    ("fetch_more", ("abc", 7), {"start": 3}, "abc\n[7 more characters; read on with start=3]"),
    ("calculate_too_long", (1000,), {}, "The expression is longer than 1000 characters."),
    ("calculate_impossible", ("math domain error",), {}, "That cannot be calculated: math domain error."),
    ("calculate_unknown", ("x.y",), {}, "This tool cannot evaluate 'x.y'."),
    (
        "unknown_time_zone",
        ("Mars/Base",),
        {},
        "There is no time zone 'Mars/Base'; use an IANA name such as Europe/Berlin.",
    ),
]


@pytest.mark.parametrize(("name", "given", "options", "text"), OF_TOOLS)
def test_the_texts_of_tools(name: str, given: tuple[object, ...], options: dict[str, object], text: str) -> None:
    write = cast("Callable[..., str]", TEXTS[name])
    assert write(*given, **options) == text


@pytest.mark.parametrize(("name", "given", "text"), [*FUNCTIONS, *NOT_TO_BLAME])
def test_the_texts_that_are_filled_in(name: str, given: tuple[object, ...], text: str) -> None:
    write = cast("Callable[..., str]", TEXTS[name])
    assert write(*given) == text


def test_invalid_input_in_the_shape_that_clients_know() -> None:
    issues = [{"path": "/to", "message": "is missing"}]
    assert prompts.calls.invalid_input("pay", message="The arguments do not fit pay.", issues=issues) == (
        '{"error":"tool_input_invalid","tool":"pay","message":"The arguments do not fit pay.",'
        '"issues":[{"path":"/to","message":"is missing"}]}'
    )


def test_no_text_is_left_out_here() -> None:
    functions = {name for name, value in TEXTS.items() if inspect.isfunction(value) and name[0] != "_"}
    assert functions == {name for name, *_ in (*FUNCTIONS, *OF_TOOLS, *NOT_TO_BLAME)} | {"invalid_input"}


def _sentences(folder: str, spoken: Callable[[ast.AST], Sequence[ast.expr]]) -> list[str]:
    """Literals of several words in the expressions that `spoken` finds."""
    found: list[str] = []
    for path in sorted((Path(prompts.__file__).parents[1] / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            said = [part for root in spoken(node) for part in ast.walk(root) if isinstance(part, ast.Constant)]
            words = [
                part.value for part in said if isinstance(part.value, str) and part.value.strip(" .[]():").count(" ")
            ]
            found += [f"{path.name}: {word}" for word in words]
    return found


def test_no_module_puts_a_sentence_of_its_own_before_a_model() -> None:
    root = Path(prompts.__file__).parents[1]
    folders = [path for path in root.iterdir() if path.is_dir() and path.name not in ("prompts", "testing")]
    assert sentences_of_their_own([path for folder in sorted(folders) for path in sorted(folder.rglob("*.py"))]) == []


def test_a_sentence_that_a_model_reads_by_a_detour_is_found(tmp_path: Path) -> None:
    module = tmp_path / "peer.py"
    module.write_text(
        "class _Rejected(Exception): ...\n"
        "def send(status):\n"
        "    why = 'without any headers' if status else prompts.remote.NO_REASON\n"
        "    raise _Rejected(f'{status} {why}')\n"
        "def ask():\n"
        "    try: send(1)\n"
        "    except _Rejected as error: return ToolOutput.of(str(error))\n"
        "    except ValueError: raise ValueError('nobody reads this')\n"
        "    return ToolOutput.of(prompts.remote.MCP_TIMED_OUT)\n"
    )
    assert sentences_of_their_own([module]) == ["peer.py:4: without any headers"]


def test_no_tool_of_ours_puts_a_sentence_of_its_own_before_a_model() -> None:
    """`ToolFailed("…")` and the like, with words in place: those belong in `prompts/`."""
    speakers = ("ToolFailed", "ToolOutput.of", "InvalidArguments", "Issue")

    def spoken(node: ast.AST) -> Sequence[ast.expr]:
        if not isinstance(node, ast.Call):
            return ()
        described = [one.value for one in node.keywords if one.arg in ("description", "explanation")]
        return [*node.args, *described] if ast.unparse(node.func) in speakers else described

    assert _sentences("tools", spoken) == []


def test_no_provider_of_ours_puts_a_sentence_of_its_own_before_a_model() -> None:
    """`text_block("…")`, `{"text": "…"}` and `{"description": "…"}` with words in place."""

    def spoken(node: ast.AST) -> Sequence[ast.expr]:
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("text_block", "Text"):
            return node.args
        if isinstance(node, ast.Dict):
            keys = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
            return [value for key, value in zip(keys, node.values, strict=True) if key in ("text", "description")]
        return ()

    assert _sentences("providers", spoken) == []
