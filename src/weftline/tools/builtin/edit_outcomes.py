"""A person's decision about each edit of a `multi_edit`, and its outcome.

A host that shows the edits of a call one by one puts the decisions into the call's arguments with
`inject_edit_outcomes`, in a gate. They carry a seal that only this process can make, so a model cannot decide for the
person by writing `_outcomes` itself. `parse_edit_outcomes` reads a stored result back.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, cast, get_args

from msgspec import Struct

from weftline import prompts
from weftline.text.canonical import NotCanonical, canonical_value

KEY = "_outcomes"
Verdict: TypeAlias = Literal["approved", "denied"]

_SEAL_KEY = secrets.token_bytes(32)
_HEAD = re.compile(r"Edited (?P<path>[^\n]+): \d+/\d+ applied(?: · \d+ (?:denied|failed))*")
_LINE = re.compile(r"#(?P<number>\d+) (?:(?P<applied>applied)|(?P<denied>denied)|failed(?:: (?P<reason>[^\n]+))?)")


class EditOutcome(Struct, frozen=True):
    """One edit of a call: the decision, and whether it was applied. `reason` says why an approved edit was not."""

    verdict: Verdict
    applied: bool
    reason: str = ""


def inject_edit_outcomes(args: Mapping[str, object], verdicts: Sequence[Verdict]) -> dict[str, object]:
    """Returns the arguments of a `multi_edit` call with a decision for each of its edits.

    Raises:
        ValueError: if there are not as many decisions as edits.
    """
    plain = {name: value for name, value in args.items() if name != KEY}
    edits = plain.get("edits")
    count = len(cast("list[object]", edits)) if isinstance(edits, list) else 0
    if len(verdicts) != count or not set(verdicts) <= set(get_args(Verdict)):
        raise ValueError(f"there are {count} edits, so there must be {count} of 'approved' or 'denied'")
    return {**plain, KEY: {"verdicts": list(verdicts), "seal": _seal(plain, verdicts)}}


def sealed_verdicts(args: Mapping[str, object]) -> list[Verdict] | None:
    """Returns the decisions that `inject_edit_outcomes` put into arguments; None if the seal is missing or wrong."""
    found = args.get(KEY)
    plain = {name: value for name, value in args.items() if name != KEY}
    if not isinstance(found, dict):
        return None
    given = cast("dict[str, object]", found)
    verdicts = given.get("verdicts")
    seal = given.get("seal")
    if not isinstance(verdicts, list) or not isinstance(seal, str):
        return None
    try:
        right = _seal(plain, cast("list[Verdict]", verdicts))
    except NotCanonical:
        return None
    return cast("list[Verdict]", verdicts) if hmac.compare_digest(right.encode(), seal.encode()) else None


def _seal(plain: Mapping[str, object], verdicts: Sequence[str]) -> str:
    # Defaults are filled in between the gate and the last check, so only the contents of the edits are sealed.
    edits = cast("list[Mapping[str, object]]", plain.get("edits") or [])
    fields = [
        [str(edit.get("old_string")), str(edit.get("new_string")), bool(edit.get("replace_all"))] for edit in edits
    ]
    data = canonical_value([str(plain.get("path")), fields, list(verdicts)])
    return hmac.new(_SEAL_KEY, data, "sha256").hexdigest()


def outcomes_text(path: str, outcomes: Sequence[EditOutcome]) -> str:
    """Returns the result of a `multi_edit` with decisions."""
    count = sum(outcome.applied for outcome in outcomes)
    denied = sum(outcome.verdict == "denied" for outcome in outcomes)
    failed = len(outcomes) - count - denied
    head = prompts.files.edits_decided(path, applied=count, denied=denied, failed=failed)
    return "\n".join([head, *(_line(number, outcome) for number, outcome in enumerate(outcomes, 1))])


def _line(number: int, outcome: EditOutcome) -> str:
    if outcome.applied:
        return prompts.files.edit_decided(number, "applied")
    if outcome.verdict == "denied":
        return prompts.files.edit_decided(number, "denied")
    return prompts.files.edit_decided(number, "failed", outcome.reason)


def parse_edit_outcomes(text: str) -> tuple[EditOutcome, ...] | None:
    """Returns the outcomes in a result of `multi_edit`; None for any other text."""
    head, *lines = text.split("\n")
    whole = _HEAD.fullmatch(head)
    if whole is None:
        return None
    outcomes: list[EditOutcome] = []
    for number, line in enumerate(lines, 1):
        found = _LINE.fullmatch(line)
        if found is None or found["number"] != str(number):
            return None
        outcomes.append(
            EditOutcome("denied" if found["denied"] else "approved", bool(found["applied"]), found["reason"] or "")
        )
    return tuple(outcomes) if outcomes and outcomes_text(whole["path"], outcomes) == text else None
