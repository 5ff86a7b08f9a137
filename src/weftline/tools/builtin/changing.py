"""The implementation of `write_file`, `edit` and `multi_edit`; their descriptions for the model are in `files`."""

from __future__ import annotations

from collections.abc import Sequence

from weftline import prompts
from weftline.tools.base import Happened, Reconciled, ToolContext, ToolFailed, Unknown, WillNotHappen
from weftline.tools.builtin.edit_outcomes import EditOutcome, Verdict, outcomes_text
from weftline.tools.builtin.editing import Edit, EditRefused, all_applied, applied, texts_before
from weftline.tools.builtin.file_memory import FileMemory, fingerprint
from weftline.tools.builtin.paths import display_path, parse_path
from weftline.tools.builtin.workplace import Workplace, errors_for_model
from weftline.tools.contexts.base import FileBytes, FileError
from weftline.tools.workers import shared_workers


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
