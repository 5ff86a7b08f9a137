"""What a model call is said to have used, from what its provider reported and what it streamed."""

from __future__ import annotations

import pytest

from weftline.kernel.state import CallModel
from weftline.messages import Usage
from weftline.plan import RunPlan
from weftline.providers.assemble import Assembler
from weftline.providers.base import Chunk, Finish, TextDelta, UsageUpdate
from weftline.runtime.conversation import Conversation
from weftline.runtime.live import WorkingSet
from weftline.runtime.model_calls.model_call import abandoned
from weftline.runtime.model_calls.spending import ModelUsage, spent

END = Finish("end_turn")


def answer(text: str, *chunks: Chunk) -> Assembler:
    assembler = Assembler("stand-in")
    assembler.feed([TextDelta(text), *chunks])
    return assembler


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        (Usage(input=7, output=5), ModelUsage(Usage(input=7, output=5))),
        (Usage(input=7), ModelUsage(Usage(input=7, output=2), estimated=True)),
        (Usage(output=5), ModelUsage(Usage(input=100, output=5), estimated=True)),
        (Usage(), ModelUsage(Usage(input=100, output=2), estimated=True)),
    ],
)
def test_what_a_complete_answer_does_not_count_is_estimated(reported: Usage, expected: ModelUsage) -> None:
    assert spent(answer("abcdefgh", UsageUpdate(reported), END), estimate=100) == expected


def test_an_answer_without_output_is_no_estimate() -> None:
    assert spent(answer("", UsageUpdate(Usage(input=7)), END), estimate=100) == ModelUsage(Usage(input=7))


@pytest.mark.parametrize(
    ("text", "output", "expected"),
    [
        ("abc", 1, ModelUsage(Usage(input=7, output=1), estimated=True)),  # the count that the answer began with
        ("abcdefgh", 1, ModelUsage(Usage(input=7, output=2), estimated=True)),
        ("abcdefgh", 40, ModelUsage(Usage(input=7, output=40))),
        ("", 1, ModelUsage(Usage(input=7, output=1))),
    ],
)
def test_an_answer_that_is_cut_off_is_an_estimate_unless_its_report_covers_what_came(
    text: str, output: int, expected: ModelUsage
) -> None:
    cut = answer(text, UsageUpdate(Usage(input=7, output=output)))
    assert spent(cut, estimate=100, unanswered=True) == expected


@pytest.mark.parametrize("chunks", [(), (END,)], ids=["under way", "complete"])
def test_a_report_of_a_provider_that_does_not_stop_with_the_server_is_an_estimate(chunks: tuple[Chunk, ...]) -> None:
    work = WorkingSet("run_1", RunPlan(messages=()), Conversation([]))
    work.answering = answer("abcdefgh", UsageUpdate(Usage(input=7, output=40)), *chunks)
    heads = [abandoned(CallModel(0, 1), work, estimate=100, goes_on=goes_on).head for goes_on in (True, False)]
    assert [getattr(head, "usage", None) for head in heads] == [Usage(input=7, output=40)] * 2
    assert [getattr(head, "estimated", None) for head in heads] == [not chunks, False]
