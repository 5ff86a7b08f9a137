from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.file_tools.kit import file_kit
from weftline.tools.arguments import InvalidArguments
from weftline.tools.base import Happened
from weftline.tools.builtin.editing import (
    EditOutcome,
    Verdict,
    inject_edit_outcomes,
    outcomes_text,
    parse_edit_outcomes,
)

ARGS = {
    "path": "f",
    "edits": [
        {"old_string": "one", "new_string": "1"},
        {"old_string": "two", "new_string": "2"},
        {"old_string": "none", "new_string": "x"},
        {"old_string": "three", "new_string": "3"},
    ],
}
VERDICTS: list[Verdict] = ["approved", "denied", "approved", "approved"]


@pytest.mark.requirement("tool.multi_edit.outcomes", "tool.multi_edit.outcomes_parse")
async def test_with_decisions_each_edit_stands_alone(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("one two three")
    kit = file_kit(tmp_path)
    final = await kit.final("multi_edit", inject_edit_outcomes(ARGS, VERDICTS))
    assert msgspec.json.decode(final)["_outcomes"] == VERDICTS
    result = await kit.invoke("multi_edit", final)
    assert result.startswith("Edited f: 2/4 applied · 1 denied · 1 failed\n")
    assert file.read_text() == "1 two 3"
    outcomes = parse_edit_outcomes(result)
    assert outcomes is not None
    assert [outcome.verdict for outcome in outcomes] == VERDICTS
    assert [outcome.applied for outcome in outcomes] == [True, False, False, True]
    assert outcomes[2].reason.startswith("old_string is not in the file.")


async def test_decided_edits_that_were_cut_off_are_told_from_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("1 two")
    kit = file_kit(tmp_path)
    args = inject_edit_outcomes({"path": "f", "edits": ARGS["edits"][:2]}, ["approved", "denied"])
    answer = await kit.reconcile("multi_edit", **args)
    assert answer == Happened("Edited f: 1/2 applied · 1 denied\n#1 applied\n#2 denied")


@pytest.mark.requirement("tool.multi_edit.outcomes")
@pytest.mark.parametrize(
    "forged",
    [
        VERDICTS,
        {"verdicts": VERDICTS},
        {"verdicts": VERDICTS, "seal": "0" * 64},
        {"verdicts": VERDICTS, "seal": 1},
        {"verdicts": "approved", "seal": ""},
        "approved",
        None,
    ],
)
async def test_a_model_cannot_decide_for_a_person(tmp_path: Path, forged: object) -> None:
    kit = file_kit(tmp_path)
    with pytest.raises(InvalidArguments):
        await kit.final("multi_edit", {**ARGS, "_outcomes": forged})


async def test_decisions_are_for_the_edits_that_a_person_saw(tmp_path: Path) -> None:
    kit = file_kit(tmp_path)
    decided = inject_edit_outcomes(ARGS, VERDICTS)
    for other in ({"path": "g"}, {"edits": list(reversed(ARGS["edits"]))}):
        with pytest.raises(InvalidArguments):
            await kit.final("multi_edit", {**decided, **other})
    with pytest.raises(ValueError, match="4 edits"):
        inject_edit_outcomes(ARGS, ["approved"])


OUTCOMES = st.builds(
    EditOutcome,
    st.just("approved"),
    st.just(False),
    st.text(st.characters(exclude_characters="\n"), min_size=1, max_size=20),
) | st.sampled_from([EditOutcome("approved", True), EditOutcome("denied", False)])


@pytest.mark.requirement("tool.multi_edit.outcomes_parse")
@given(
    path=st.text(st.characters(exclude_characters="\n"), min_size=1),
    outcomes=st.lists(OUTCOMES, min_size=1, max_size=6),
)
def test_outcomes_are_read_back_from_the_result(path: str, outcomes: list[EditOutcome]) -> None:
    assert parse_edit_outcomes(outcomes_text(path, outcomes)) == tuple(outcomes)


@pytest.mark.requirement("tool.multi_edit.outcomes_parse")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "Edited f: 1 replacement.",
        "Edited f: applied 2 edits (2 replacements).",
        "Edited f: 1/1 applied",
        "Edited f: 1/2 applied\n#1 applied",
        "Edited f: 1/1 applied\n#2 applied",
        "Edited f: 0/1 applied\n#1 applied",
        "Edited f: 1/1 applied\n#1 applied\n",
        "Edited f: 1/1 applied · 1 denied\n#1 applied",
    ],
)
def test_any_other_text_tells_nothing(text: str) -> None:
    assert parse_edit_outcomes(text) is None
