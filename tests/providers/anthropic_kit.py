"""The answers of the Messages API that tests replay, each with what it comes to."""

from __future__ import annotations

from weftline.messages import Usage

Outcome = tuple[str, Usage | int]
"""The finish reason and the usage, or the class of the failure and its status."""

OURS: dict[str, list[Outcome]] = {
    "streams/anthropic/thinking_then_a_call": [
        ("tool_use", Usage(398, output=155)),
        ("end_turn", Usage(566, output=126)),
    ],
    "streams/anthropic/code_execution": [("end_turn", Usage(4714, output=304))],
    "streams/anthropic/web_fetch": [("end_turn", Usage(7244, output=153))],
    "streams/anthropic/redacted_thinking": [("end_turn", Usage(92, output=189))],
    "streams/anthropic/prompt_cache": [
        ("end_turn", Usage(1114, 1111, 0, 406)),
        ("end_turn", Usage(1532, 1111, 0, 33, 418)),
    ],
    "streams/anthropic/two_tools_in_turn": [
        ("tool_use", Usage(628, output=50)),
        ("tool_use", Usage(691, output=53)),
        ("end_turn", Usage(757, output=6)),
    ],
    "streams/anthropic/text_document": [("end_turn", Usage(57, output=14))],
    "streams/anthropic/json_answer": [("end_turn", Usage(210, output=24))],
    "streams/anthropic/unknown_model": [("invalid_request", 404)],
    "streams/anthropic/refused_effort": [("invalid_request", 400)],
}
RECORDED: dict[str, list[Outcome]] = {
    "anthropic/anthropic_cache_real_api": [
        ("end_turn", Usage(1114, 1111, 0, 406)),
        ("end_turn", Usage(1532, 1111, 0, 33, 418)),
    ],
    "anthropic/anthropic_code_execution_tool_stream": [("end_turn", Usage(4714, output=304))],
    "anthropic/anthropic_count_tokens_error": [("invalid_request", 404)],
    "anthropic/anthropic_explicit_effort_xhigh_unsupported_model_errors": [("invalid_request", 400)],
    "anthropic/anthropic_mixed_strict_tool_run": [
        ("tool_use", Usage(628, output=50)),
        ("tool_use", Usage(691, output=53)),
        ("end_turn", Usage(757, output=6)),
    ],
    "anthropic/anthropic_model_thinking_part": [
        ("end_turn", Usage(43, output=321)),
        ("end_turn", Usage(354, output=525)),
    ],
    "anthropic/anthropic_model_thinking_part_redacted_stream": [("end_turn", Usage(92, output=189))],
    "anthropic/anthropic_tool_output": [("tool_use", Usage(445, output=23)), ("tool_use", Usage(497, output=56))],
    "anthropic/anthropic_tool_with_thinking": [
        ("tool_use", Usage(398, output=155)),
        ("end_turn", Usage(566, output=126)),
    ],
    "anthropic/anthropic_web_fetch_tool_stream": [("end_turn", Usage(7244, output=153))],
    "anthropic/text_document_as_binary_content_input": [("end_turn", Usage(57, output=14))],
}


def answered(outcomes: dict[str, list[Outcome]]) -> list[tuple[str, int]]:
    """The file and number of every answer that is not a failure."""
    return [
        (file, number)
        for file, several in outcomes.items()
        for number, (_, usage) in enumerate(several)
        if isinstance(usage, Usage)
    ]
