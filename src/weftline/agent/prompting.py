"""Prompts with a name and a version, and their overrides at run time.

def instructions(context: RunContext) -> str:
    return context.render("tone", tone="kind")

agent = Agent("openai:gpt-5", instructions=instructions, prompts=[Prompt("tone", "Be {tone}.")])
await engine.override_prompt("tone", "Be very {tone}.", labels={"tier": "gold"})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from string import Formatter
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct

from weftline.errors import InvalidRequest
from weftline.kernel.notes import PromptNote
from weftline.text.suggestions import did_you_mean

if TYPE_CHECKING:
    from weftline.store.records.prompt_overrides import PromptOverrideRow
    from weftline.workspace.context import Workspaces

MAX_ID_CHARS = 128
MAX_TEMPLATE_CHARS = 100_000
MAX_LABELS = 16


class Prompt(Struct, frozen=True):
    """A template with `{names}` in it. Rendering fails if one of them is missing.

    Its `version` is a digest of the template unless you give one. It can be overridden while the agent is in use, for
    a thread, for runs with certain labels, or for all: see `Engine.override_prompt`.
    """

    id: str
    template: str
    version: str = ""
    description: str = ""

    def __post_init__(self) -> None:
        check_template(self.id, self.template)

    @property
    def known_as(self) -> str:
        """The version: the given one, or the digest of the template."""
        return self.version or version_of(self.template)


class PromptOverride(Struct, frozen=True, kw_only=True):
    """The replacement of a prompt. It applies to runs in `thread` and with `labels`; with neither, to all runs."""

    prompt_id: str
    template: str
    version: str
    thread: str | None = None
    """The id of the thread."""
    labels: dict[str, str] = {}
    set_by: str = ""
    set_at: int = 0
    """In microseconds since the epoch, UTC."""

    def fits(self, thread: str | None, labels: Mapping[str, str]) -> bool:
        """Returns True if it applies to a run in this thread with these labels."""
        wanted = self.labels.items()
        return self.thread in (None, thread) and all(labels.get(name) == value for name, value in wanted)

    @property
    def rank(self) -> tuple[bool, int]:
        """A thread outranks any number of labels, and more labels outrank fewer."""
        return self.thread is not None, len(self.labels)


def version_of(template: str) -> str:
    return f"sha256:{sha256(template.encode()).hexdigest()}"


def check_template(id: object, template: object) -> None:
    """Raises `ValueError` for an invalid id or template."""
    if not isinstance(id, str) or not 1 <= len(id) <= MAX_ID_CHARS:
        raise ValueError(f"the id of a prompt must have 1 to {MAX_ID_CHARS} characters, not {id!r:.40}")
    if not isinstance(template, str) or not 1 <= len(template) <= MAX_TEMPLATE_CHARS:
        raise ValueError(f"the template of the prompt {id!r} must have 1 to {MAX_TEMPLATE_CHARS:,} characters")
    try:
        fields = [field for _, field, _, _ in Formatter().parse(template) if field is not None]
    except ValueError as error:
        raise ValueError(f"the prompt {id!r} is not a template: {error}") from None
    for field in fields:
        if not field.isidentifier():
            raise ValueError(f"the prompt {id!r} may have names in it, such as {{name}}, not {{{field}}}")


def checked_prompts(given: object) -> tuple[Prompt, ...]:
    """Checks prompts.

    Raises `TypeError` unless they are a list of prompts, and `ValueError` if two have the same id.
    """
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise TypeError(f"prompts must be a list of Prompts, not {given!r:.80}")
    found = list(cast("Sequence[object]", given))
    prompts = [one for one in found if isinstance(one, Prompt)]
    if len(prompts) < len(found):
        raise TypeError("prompts must be a list of Prompts, such as [Prompt('tone', 'Be {tone}.')]")
    if len({one.id for one in prompts}) < len(prompts):
        raise ValueError("two prompts of an agent have the same id")
    return tuple(prompts)


class _Strict(Formatter):
    """Formats values by name only, without attributes or positions."""

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        return kwargs[field_name], field_name


class Overrides:
    """The prompt overrides of each workspace: read once, and updated as they change in this process."""

    def __init__(self) -> None:
        self._by_workspace: dict[int, list[PromptOverride]] = {}

    async def of(self, at: Workspaces, workspace: int) -> list[PromptOverride]:
        """Returns the overrides, newest first. Later ones are added to the same list."""
        from weftline.workspace import agents  # defining an agent needs no store

        if workspace not in self._by_workspace:
            rows = await agents.prompt_overrides_of(at, workspace)
            self._by_workspace.setdefault(workspace, [_to_override(row) for row in rows])
        return self._by_workspace[workspace]

    async def add(self, at: Workspaces, workspace: int, one: PromptOverride) -> None:
        from weftline.store.records.prompt_overrides import PromptOverrideRow
        from weftline.workspace import agents

        known = await self.of(at, workspace)
        row = PromptOverrideRow(
            one.prompt_id, one.thread or "", one.labels, one.template, one.version, one.set_by, one.set_at
        )
        await agents.add_prompt_override(at, workspace, row)
        known.insert(0, one)


def _to_override(row: PromptOverrideRow) -> PromptOverride:
    return PromptOverride(
        prompt_id=row.prompt,
        template=row.template,
        version=row.version,
        thread=row.thread or None,
        labels=row.labels,
        set_by=row.set_by,
        set_at=row.set_at,
    )


class RunPrompts:
    """The prompts of an agent in one run."""

    def __init__(
        self,
        prompts: Sequence[Prompt],
        overrides: Sequence[PromptOverride],
        *,
        thread: str | None,
        labels: Mapping[str, str],
    ) -> None:
        self._prompts = {one.id: one for one in prompts}
        self._overrides = overrides
        self._thread = thread
        self._labels = labels

    def render(self, id: str, data: Mapping[str, Any]) -> tuple[str, PromptNote]:
        """Returns the text of a prompt, and the note to store about it.

        Raises `ValueError` for an unknown prompt, and for missing data.
        """
        prompt = self._prompts.get(id)
        if prompt is None:
            raise ValueError(f"the agent has no prompt {id!r}.{did_you_mean(id, self._prompts)}")
        fitting = [one for one in self._overrides if one.prompt_id == id and one.fits(self._thread, self._labels)]
        # `max` returns the first of equals, which is the newest.
        chosen = max(fitting, key=lambda one: one.rank) if fitting else None
        template, version = (prompt.template, prompt.known_as) if chosen is None else (chosen.template, chosen.version)
        try:
            text = _Strict().vformat(template, (), data)
        except LookupError as error:
            missing = f"the prompt {id!r} (version {version}) needs {error.args[0]!r}, which is not given"
            raise ValueError(missing) from None
        if chosen is None:
            return text, PromptNote(id, version)
        return text, PromptNote(id, version, chosen.thread or "", chosen.labels)


NO_PROMPTS = RunPrompts((), (), thread=None, labels={})


def checked_override(
    id: str, template: str, *, thread: str | None, labels: Mapping[str, str] | None, version: str, by: str, at: int
) -> PromptOverride:
    """Returns a valid override. Raises `InvalidRequest` for an invalid one."""
    try:
        check_template(id, template)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None
    given = dict(labels or {})
    named = [part for pair in given.items() for part in pair if isinstance(part, str) and part]  # pyright: ignore[reportUnnecessaryIsInstance]
    if len(given) > MAX_LABELS or len(named) < 2 * len(given):
        raise InvalidRequest(f"labels= takes up to {MAX_LABELS} strings by name.")
    return PromptOverride(
        prompt_id=id,
        template=template,
        version=version or version_of(template),
        thread=thread,
        labels=given,
        set_by=by,
        set_at=at,
    )
