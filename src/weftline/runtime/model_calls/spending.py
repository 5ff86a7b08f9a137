"""Usage of a model call: as its provider reported it, or else an estimate that is marked as one.

A call without a report still costs something. Input is estimated from the conversation (`attempt.started` has the
number), output from what was streamed.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from weftline.messages import AssistantPart, Text, Thinking, ToolCall, Usage
from weftline.providers.assemble import Assembler

BYTES_PER_TOKEN = 4


class ModelUsage(Struct, frozen=True):
    usage: Usage = Usage()
    estimated: bool = False


NOTHING = ModelUsage()


def spent(answer: Assembler, *, estimate: int, unanswered: bool = False) -> ModelUsage:
    """Returns the usage so far of the call behind `answer`. `estimate` is its input in tokens, if the provider did not
    report it.

    A call that received nothing at all was rejected and used nothing, unless it is known to have been sent and left
    `unanswered`.
    """
    reported = answer.usage
    if answer.complete and reported.input > 0 and reported.output > 0:
        return ModelUsage(reported)
    streamed = _output_tokens(answer)
    if answer.complete and _is_reported(reported):
        # One of the two was not counted: every answer has input, and this one may have output.
        known = replace(reported, input=reported.input or estimate, output=reported.output or streamed)
        return ModelUsage(known, known != reported)
    if _is_reported(reported):
        # Some APIs begin with a count of the input and a token or so, and report the output at the end, which did not
        # arrive.
        is_last = not streamed or streamed < reported.output
        return ModelUsage(reported) if is_last else ModelUsage(replace(reported, output=streamed), True)
    if streamed or answer.complete or unanswered:
        return ModelUsage(Usage(input=estimate, output=streamed), True)
    return NOTHING


def _is_reported(usage: Usage) -> bool:
    """Every answer has input or output: a report of neither means that the server does not count."""
    return usage.input > 0 or usage.output > 0


def _output_tokens(answer: Assembler) -> int:
    size = sum([_size(part) for part in answer.message().parts])
    return -(-size // BYTES_PER_TOKEN)


def _size(part: AssistantPart) -> int:
    match part:
        case Text(text) | Thinking(text):
            return len(text.encode(errors="replace"))
        case ToolCall():
            return len(part.name) + len(part.args.encode(errors="replace"))
        case _:
            return 0
