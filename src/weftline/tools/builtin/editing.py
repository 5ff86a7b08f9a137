"""Changing files: replacing text, what a person decided about each edit, and its outcome."""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import combinations, islice, pairwise
from typing import Literal, TypeAlias, cast, get_args

from msgspec import Struct

from weftline import prompts
from weftline.text.canonical import NotCanonical, canonical_value
from weftline.tools.base import Happened, Reconciled, ToolContext, ToolFailed, Unknown, WillNotHappen
from weftline.tools.builtin.reading import FileMemory, display_path, fingerprint, parse_path
from weftline.tools.builtin.workplace import Workplace, errors_for_model
from weftline.tools.contexts.base import FileBytes, FileError
from weftline.tools.workers import shared_workers

_NUMBERED = re.compile(r"\s*(\d+)\t(.*)", re.DOTALL)
_PREVIEW_LINES = 10
_COMPARED_LINES = 5_000
_COMPARED_CHARS = 200
_MAX_COMPARED = 200
"""How many lines are compared in detail for a preview; the others only by their letters."""
_NEAR = 0.4
_TRIALS = 200
"""How many ways of undoing edits are tried."""


@dataclass(frozen=True)
class Edit:
    """`old_string` becomes `new_string`, once or, with `replace_all`, everywhere."""

    old_string: str
    new_string: str
    replace_all: bool = False


class EditRefused(Exception):
    """The edit cannot be applied; the message is for the model."""

    def __init__(self, reason: str, *, number: int = 1) -> None:
        super().__init__(reason)
        self.reason = reason
        self.number = number


def applied(data: bytes, edit: Edit) -> tuple[bytes, int]:
    """Returns the content after the edit, and how many places were replaced. Raises `EditRefused`."""
    if not edit.old_string:
        raise EditRefused(prompts.files.OLD_STRING_EMPTY)
    if edit.old_string == edit.new_string:
        raise EditRefused(prompts.files.NOTHING_TO_CHANGE)
    for old, new in _spellings(edit, crlf=b"\r\n" in data):
        first = data.find(old)
        if first < 0:
            continue
        if edit.replace_all:
            return data.replace(old, new), data.count(old)
        if data.find(old, first + 1) >= 0:
            raise EditRefused(prompts.files.not_unique(sum(1 for _ in _places(data, old))))
        return data[:first] + new + data[first + len(old) :], 1
    raise EditRefused(prompts.files.not_found(nearest(data, edit.old_string)))


def all_applied(data: bytes, edits: Sequence[Edit]) -> tuple[bytes, int]:
    """Returns the content after all edits, each on the result of the one before, and how many places were replaced.

    Raises:
        EditRefused: with the number of the first edit that cannot be applied.
    """
    replaced = 0
    for number, edit in enumerate(edits, 1):
        try:
            data, count = applied(data, edit)
        except EditRefused as refused:
            raise EditRefused(refused.reason, number=number) from None
        replaced += count
    return data, replaced


def texts_before(data: bytes, edits: Sequence[Edit]) -> tuple[list[bytes], bool]:
    """Returns contents from which the edits would have produced `data`, and whether these are all."""
    if any(not edit.new_string for edit in edits):
        return [], False  # removed text could have been anywhere
    trials = [_TRIALS]
    found: list[bytes] = []
    for before in _undone(data, list(edits), trials):
        try:
            if before not in found and all_applied(before, edits)[0] == data:
                found.append(before)
        except EditRefused:
            continue
    return found, trials[0] > 0


def _undone(data: bytes, edits: list[Edit], trials: list[int]) -> Iterator[bytes]:
    if not edits:
        yield data
        return
    *earlier, last = edits
    for old, new in _spellings(last, crlf=True):
        for places in _subsets(data, new) if last.replace_all else ((place,) for place in _places(data, new)):
            trials[0] -= 1
            if trials[0] <= 0:
                return
            if all(later - place >= len(new) for place, later in pairwise(places)):
                yield from _undone(_put_back(data, places, old, len(new)), earlier, trials)


def _subsets(data: bytes, new: bytes) -> Iterator[tuple[int, ...]]:
    """Yields the sets of places that a `replace_all` may have written: all, or some if others existed before."""
    apart: list[int] = []
    for place in _places(data, new):
        if not apart or place - apart[-1] >= len(new):
            apart.append(place)
    if apart:
        yield tuple(apart)
    places = list(islice(_places(data, new), _TRIALS))
    yield from (chosen for size in range(len(places), 0, -1) for chosen in combinations(places, size))


def _put_back(data: bytes, places: Sequence[int], old: bytes, length: int) -> bytes:
    for place in reversed(places):
        data = data[:place] + old + data[place + length :]
    return data


def _spellings(edit: Edit, *, crlf: bool) -> list[tuple[bytes, bytes]]:
    """Returns the possible readings of an edit, the most literal first."""
    texts = [(edit.old_string, edit.new_string)]
    plain = _without_numbers(edit.old_string, edit.new_string)
    if plain is not None:
        texts.append(plain)
    pairs = [(old.encode("utf-8", "replace"), new.encode("utf-8", "replace")) for old, new in texts]
    if crlf:
        pairs += [(_crlf(old), _crlf(new)) for old, new in pairs if b"\n" in old]
    return pairs


def _crlf(text: bytes) -> bytes:
    return text.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")


def _without_numbers(old: str, new: str) -> tuple[str, str] | None:
    """Returns both without the prefixes of `read_file`, if all lines of `old` have them, in order."""
    lines = [_NUMBERED.fullmatch(line) for line in old.removesuffix("\n").split("\n")]
    numbered = [found for found in lines if found is not None]
    if len(numbered) < len(lines):
        return None
    first = int(numbered[0][1]) if len(numbered[0][1]) < 10 else -1
    if first < 0 or [found[1] for found in numbered] != [str(first + step) for step in range(len(numbered))]:
        return None
    plain = "\n".join(found[2] for found in numbered) + ("\n" if old.endswith("\n") else "")
    written = new.split("\n")
    # A number far from these belongs to the new line itself.
    return plain, "\n".join(_without_number(line, first, first + len(numbered) + len(written)) for line in written)


def _without_number(line: str, lowest: int, highest: int) -> str:
    found = _NUMBERED.fullmatch(line)
    if found is None or len(found[1]) > 9 or not lowest <= int(found[1]) <= highest:
        return line
    return found[2]


def _places(data: bytes, wanted: bytes) -> Iterator[int]:
    place = data.find(wanted)
    while place >= 0:
        yield place
        place = data.find(wanted, place + 1)


def nearest(data: bytes, old: str) -> str:
    """Returns the lines most similar to `old`, with their numbers; empty if there are none."""
    plain = _without_numbers(old, "")
    sought = [line for line in (plain[0] if plain else old).split("\n") if line.strip()][:1]
    if not sought:
        return ""
    lines = [line.decode("utf-8", "replace").rstrip("\r") for line in data.split(b"\n")[:_COMPARED_LINES]]
    best, best_ratio, looks = -1, _NEAR, _MAX_COMPARED
    matcher = SequenceMatcher(autojunk=False)
    matcher.set_seq2(sought[0].strip()[:_COMPARED_CHARS])
    for number, line in enumerate(lines):
        matcher.set_seq1(line.strip()[:_COMPARED_CHARS])
        if matcher.real_quick_ratio() <= best_ratio or matcher.quick_ratio() <= best_ratio:
            continue
        looks -= 1
        ratio = matcher.ratio()
        if ratio > best_ratio:
            best, best_ratio = number, ratio
        if not looks:
            break
    if best < 0:
        return ""
    count = min(_PREVIEW_LINES, old.removesuffix("\n").count("\n") + 1)
    excerpt = lines[best : best + count]
    return "\n".join(f"{number}\t{line[:500]}" for number, line in enumerate(excerpt, best + 1))


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


class Changing:
    """The tools that change the files of one workplace."""

    def __init__(self, place: Workplace, *, require_read: bool) -> None:
        self._place = place
        self._require_read = require_read

    async def write(self, path: str, content: str, context: ToolContext) -> str:
        data = content.encode("utf-8", "replace")
        async with errors_for_model():
            before = await self.content(path)
            if before is not None and before.complete and before.data == data:
                FileMemory(context.state).wrote(before.path, data)
                return prompts.files.no_change_needed(display_path(path))
            real = await self._place.context.write_file(await self._place.handle(), parse_path(path), data)
        FileMemory(context.state).wrote(real, data)
        lines = data.count(b"\n") + (not data.endswith(b"\n") and bool(data))
        describe = prompts.files.created if before is None else prompts.files.updated
        return describe(display_path(path), len(data), lines)

    async def edit(self, path: str, edits: Sequence[Edit], context: ToolContext, *, several: bool) -> str:
        """Applies all of the edits or none."""
        async with errors_for_model():
            before = await self._editable(path, context)
            try:
                after, count = await shared_workers().run(lambda: all_applied(before.data, edits))
            except EditRefused as refused:
                if several:
                    raise ToolFailed(
                        prompts.files.multi_edit_failed(display_path(path), refused.number, refused.reason)
                    ) from None
                raise ToolFailed(prompts.files.edit_refused(display_path(path), refused.reason)) from None
            await self._store(before, after, context)
        return _edited_text(path, len(edits), count, several=several)

    async def edit_decided(
        self, path: str, edits: Sequence[Edit], verdicts: Sequence[Verdict], context: ToolContext
    ) -> str:
        """Applies each of the edits that were approved."""
        async with errors_for_model():
            before = await self._editable(path, context)
            after, outcomes = await shared_workers().run(lambda: _decided(before.data, edits, verdicts))
            if after != before.data:
                await self._store(before, after, context)
        return outcomes_text(display_path(path), outcomes)

    async def reconcile(
        self, path: str, edits: Sequence[Edit], verdicts: Sequence[Verdict] | None, context: ToolContext
    ) -> Reconciled:
        """Returns whether interrupted edits took place, as far as the file shows it.

        A file is replaced atomically, so either all edits happened or none. If the file can only be their result, they
        happened; if it cannot be, or is unchanged since it was last read, they did not.
        """
        approved = [edit for edit, verdict in zip(edits, verdicts or (), strict=False) if verdict == "approved"]
        wanted = list(edits) if verdicts is None else approved
        try:
            now = await self.content(path)
        except FileError:
            return WillNotHappen()  # it cannot be edited now, and the model should read why
        if now is None:
            return WillNotHappen()
        memory = FileMemory(context.state)
        known = memory.known(now.path)
        if known == fingerprint(now.data):
            return WillNotHappen()
        count = await shared_workers().run(lambda: replaced(now.data, wanted, known))
        if count is None:
            return Unknown()
        if not count:
            return WillNotHappen()
        memory.wrote(now.path, now.data)
        if verdicts is None:
            return Happened(_edited_text(path, len(edits), count, several=context.tool_name == "multi_edit"))
        return Happened(outcomes_text(display_path(path), [EditOutcome(one, one == "approved") for one in verdicts]))

    async def content(self, path: str) -> FileBytes | None:
        """Returns the file, or None if it does not exist."""
        try:
            return await self._place.context.read_file(await self._place.handle(), parse_path(path))
        except FileError as error:
            if error.kind == "missing":
                return None
            raise

    async def _editable(self, path: str, context: ToolContext) -> FileBytes:
        file = await self._place.context.read_file(await self._place.handle(), parse_path(path))
        if not file.complete:
            raise FileError("too_large", path)
        if self._require_read:
            known = FileMemory(context.state).known(file.path)
            if known is None:
                raise ToolFailed(prompts.files.read_first(display_path(path)))
            if known != fingerprint(file.data):
                raise ToolFailed(prompts.files.read_again(display_path(path)))
        return file

    async def _store(self, before: FileBytes, after: bytes, context: ToolContext) -> None:
        await self._place.context.write_file(await self._place.handle(), before.path, after)
        FileMemory(context.state).wrote(before.path, after)


def _edited_text(path: str, edits: int, count: int, *, several: bool) -> str:
    return (
        prompts.files.edited_often(display_path(path), edits, count)
        if several
        else prompts.files.edited(display_path(path), count)
    )


def _decided(data: bytes, edits: Sequence[Edit], verdicts: Sequence[Verdict]) -> tuple[bytes, list[EditOutcome]]:
    outcomes: list[EditOutcome] = []
    for edit, verdict in zip(edits, verdicts, strict=True):
        if verdict == "denied":
            outcomes.append(EditOutcome("denied", False))
            continue
        try:
            data, _ = applied(data, edit)
        except EditRefused as refused:
            outcomes.append(EditOutcome("approved", False, refused.reason.partition("\n")[0]))
        else:
            outcomes.append(EditOutcome("approved", True))
    return data, outcomes


def replaced(data: bytes, edits: Sequence[Edit], known: str | None) -> int | None:
    """Returns how many places the edits replaced to produce `data`; 0 if they did not produce it, None if unknown."""
    origins, are_all = texts_before(data, edits)
    for before in origins:
        if fingerprint(before) == known:
            return all_applied(before, edits)[1]
    try:
        all_applied(data, edits)
    except EditRefused:
        if origins:
            return all_applied(origins[0], edits)[1]
        return 0 if are_all else None
    return 0 if are_all and not origins else None
