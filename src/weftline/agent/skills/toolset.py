"""`skills(…)`: everything about the skills of one agent, as a toolset with instructions.

Active skills belong to a run and are kept in its tool state; `Skills` itself only knows the catalog and what the
program has activated for the next run.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from weftline import prompts
from weftline.agent.skills import allowed
from weftline.agent.skills.activation import Reason, SkillActivations, TooManyActive, Via, to_resume
from weftline.agent.skills.content import ProcessRuns, Runs, content_of
from weftline.agent.skills.discovery import Diagnostic, Place, discover, standard_places
from weftline.agent.skills.format import Skill
from weftline.agent.skills.tools import Catalog, skill_tools
from weftline.errors import NotFound
from weftline.messages import Message
from weftline.text.suggestions import did_you_mean
from weftline.tools.base import Tool, ToolContext, ToolFailed
from weftline.work.outcomes import attempt

AllowedTools: TypeAlias = Literal["restrict", "preapprove"]
State: TypeAlias = MutableMapping[str, Any]
SkillPath: TypeAlias = str | os.PathLike[str] | Skill

_log = logging.getLogger("weftline.skills")
_LEVELS = {"warning": logging.INFO, "shadowed": logging.INFO, "unknown_tool": logging.INFO}
"""The log levels of some diagnostics; the others mean that something is missing."""


class UnknownSkill(NotFound):
    """The catalog has no skill of this name; `details["names"]` lists those that it has."""

    default_code = "unknown_skill"


class SkillsResolved(Struct):
    """The skills that were found. Handlers must not change them."""

    skills: tuple[Skill, ...]
    diagnostics: tuple[Diagnostic, ...]


class SkillsCatalog(Struct):
    """The skills about to be offered. Handlers may change `skills`; the model sees the result."""

    skills: list[Skill]


class SkillActivated(Struct, frozen=True):
    skill: Skill
    via: Via
    run_id: str = ""


class SkillDeactivated(Struct, frozen=True):
    skill: Skill
    reason: Reason
    run_id: str = ""


class Skills:
    """The skills of one agent. Made by `skills(…)`; a `weftline.tools.base.Toolset`.

    The lists `on_…` hold functions, plain or async, to call on events: `on_resolve` and `on_catalog` once, when the
    skills are searched for, so that functions added later are not called for these.
    """

    def __init__(
        self,
        places: Sequence[Place],
        *,
        inline: Iterable[Skill] = (),
        disabled: Iterable[str] = (),
        allowed_tools: AllowedTools = "restrict",
        max_active: int | None = None,
        runs: Runs | None = None,
    ) -> None:
        self.runs: Runs = runs or ProcessRuns()
        self.allowed_tools: AllowedTools = allowed_tools
        self.max_active = max_active
        self.catalog = Catalog()
        self.diagnostics: tuple[Diagnostic, ...] = ()
        self.on_resolve: list[Callable[[SkillsResolved], object]] = []
        self.on_catalog: list[Callable[[SkillsCatalog], object]] = []
        self.on_activate: list[Callable[[SkillActivated], object]] = []
        self.on_deactivate: list[Callable[[SkillDeactivated], object]] = []
        self._places = tuple(places)
        self._inline = tuple(inline)
        self._disabled = tuple(disabled)
        self._tools: tuple[Tool, ...] | None = None
        self._opening = asyncio.Lock()
        # What the program activated for the next run, in the same form as a run's state.
        self._next_run: State = {}

    @property
    def instructions(self) -> str:
        """The catalog for the system prompt; empty before `open`, and if there are no skills."""
        return self.catalog.text

    async def open(self) -> Sequence[Tool]:
        """Searches for skills, once. Returns the three skills tools, or none if there are no skills."""
        async with self._opening:
            if self._tools is None:
                found = await asyncio.to_thread(discover, self._places, inline=self._inline, disabled=self._disabled)
                self._report(found.diagnostics)
                await _notify(self.on_resolve, SkillsResolved(found.skills, found.diagnostics))
                draft = SkillsCatalog(list(found.skills))
                for handler in tuple(self.on_catalog):
                    changed = SkillsCatalog(list(draft.skills))
                    # A handler that fails midway changes nothing.
                    draft = changed if await _notify([handler], changed) else draft
                self.catalog = Catalog(draft.skills)
                self._tools = skill_tools(self, self.catalog.names)
            return self._tools

    async def close(self) -> None:
        """Does nothing, as nothing is held open."""

    # Methods for the program

    async def activate(self, name: str) -> None:
        """Makes a skill active from the first turn of the next run.

        Raises:
            UnknownSkill: if the catalog has no such skill.
            TooManyActive: if `max_active` skills are active already.
        """
        await self.open()
        skill = self._known(name)
        if SkillActivations(self._next_run, max_active=self.max_active).activate(name, via="explicit"):
            await _notify(self.on_activate, SkillActivated(skill, "explicit"))

    async def deactivate(self, name: str, *, state: State | None = None, run_id: str = "") -> None:
        """Ends the activation of a skill for the next run and, if its state is given, for the current one.

        Raises:
            UnknownSkill: if the catalog has no such skill.
        """
        await self.open()
        skill = self._known(name)
        if SkillActivations(self._next_run).deactivate(name):
            await _notify(self.on_deactivate, SkillDeactivated(skill, "explicit"))
        if state is not None and SkillActivations(state).deactivate(name):
            await _notify(self.on_deactivate, SkillDeactivated(skill, "explicit", run_id))

    async def reset(self) -> None:
        """Ends the activations for the next run."""
        await self._clear(self._next_run, "reset", "")

    # Methods for the runtime

    async def begin_run(self, state: State, *, run_id: str = "", resume_from: Sequence[Message] = ()) -> str:
        """Activates the skills that the program asked for and those that stored messages show; once, even after a
        crash.

        `resume_from` has the messages of a thread on the first run over it, and is empty on later runs. Returns the
        contents of the skills that the program activated: no message has them, so they go into the run's instructions.
        """
        await self.open()
        activations = SkillActivations(state, max_active=self.max_active)
        if activations.has_begun:
            return ""
        activations.begin()
        contents: list[str] = []
        for active in SkillActivations(self._next_run).clear():
            skill = self.catalog.get(active.name)
            if skill is not None and activations.activate(active.name, via=active.via):
                contents.append(await content_of(skill, self.runs))
        for name in to_resume(resume_from, max_active=self.max_active):
            skill = self.catalog.get(name)
            try:
                if skill is not None and activations.activate(name, via="resume"):
                    await _notify(self.on_activate, SkillActivated(skill, "resume", run_id))
            except TooManyActive:
                _log.info("run %s: the skill %s is not resumed, as %s are active", run_id, name, self.max_active)
        return "\n\n".join(contents)

    async def end_run(self, state: State, *, run_id: str = "") -> None:
        """Ends every activation of a run, however it ended."""
        await self._clear(state, "run_end", run_id)

    def active(self, state: State) -> tuple[Skill, ...]:
        """The skills that are active in a run, in the order of their activation."""
        found = (self.catalog.get(name) for name in SkillActivations(state).names)
        return tuple(skill for skill in found if skill is not None)

    def refusal(self, call: allowed.Call, *, state: State, names: allowed.ToolNames) -> str:
        """Returns why the active skills do not allow a call; empty if they do, or only pre-approve."""
        if self.allowed_tools != "restrict":
            return ""
        return allowed.refusal(call, active=self.active(state), names=names)

    def preapproved(self, call: allowed.Call, *, state: State, names: allowed.ToolNames) -> bool:
        """Returns True if a call needs no confirmation because an active skill lists it."""
        if self.allowed_tools != "preapprove":
            return False
        return allowed.preapproved(call, active=self.active(state), names=names)

    def check_tools(self, names: allowed.ToolNames) -> tuple[Diagnostic, ...]:
        """Diagnostics of `allowed-tools` entries that match no tool of the agent; also added to `diagnostics`."""
        found = tuple(
            Diagnostic("unknown_tool", skill.directory, sentence)
            for skill in self.catalog
            for sentence in allowed.faulty_entries(skill, names=names)
        )
        new = tuple(one for one in found if one not in self.diagnostics)
        self._report(new)
        return found

    async def use(self, name: str, context: ToolContext) -> str:
        """Implements the tool skills_use."""
        skill = self.catalog.get(name)
        if skill is None:
            raise ToolFailed(prompts.skills.unknown_skill(name, did_you_mean(name, self.catalog.names)))
        activations = SkillActivations(context.state, max_active=self.max_active)
        if name in activations.names:
            return prompts.skills.already_active(name)
        try:
            activations.check_room(name)
        except TooManyActive:
            raise ToolFailed(prompts.skills.too_many_active(name, activations.names, self.max_active or 0)) from None
        content = await content_of(skill, self.runs)
        activations.activate(name, via="model")
        await _notify(self.on_activate, SkillActivated(skill, "model", context.run_id))
        return content

    async def _clear(self, state: State, reason: Reason, run_id: str) -> None:
        for active in SkillActivations(state).clear():
            skill = self.catalog.get(active.name)
            if skill is not None:
                await _notify(self.on_deactivate, SkillDeactivated(skill, reason, run_id))

    def _known(self, name: str) -> Skill:
        skill = self.catalog.get(name)
        if skill is None:
            near = did_you_mean(name, self.catalog.names)
            known = ", ".join(self.catalog.names) or "none"
            raise UnknownSkill(
                f"There is no skill {name!r}.{near} The skills are: {known}.", names=list(self.catalog.names)
            )
        return skill

    def _report(self, diagnostics: Iterable[Diagnostic]) -> None:
        new = tuple(diagnostics)
        for one in new:
            _log.log(_LEVELS.get(one.kind, logging.WARNING), "%s", one)
        self.diagnostics += new


def skills(
    paths: SkillPath | Iterable[SkillPath] = (),
    *,
    project: str | os.PathLike[str] | None = None,
    home: str | os.PathLike[str] | None = None,
    trust_project: bool | None = None,
    claude_dirs: bool = False,
    allowed_tools: AllowedTools = "restrict",
    max_active: int | None = None,
    disabled: Iterable[str] = (),
    context: Runs | None = None,
) -> Skills:
    """Skills for an agent: `Agent(…, tools=[skills("./skills")])`.

    Args:
        paths: Directories that are skills or contain skills, and skills written in code (`Skill`). These are trusted
        like the program. Without any, `project="."` and the user's home are searched.
        project: A directory whose `.weftline/skills` and `.agents/skills` are searched.
        home: The same for the user's home directory.
        trust_project: What to do with the skills of `project`. None lists them, but runs no command and no script of
            theirs; True trusts them; False leaves them out.
        claude_dirs: Whether `.claude/skills` of both is searched too.
        allowed_tools: Whether the `allowed-tools` of active skills restrict what may be called, or approve in advance.
        max_active: How many skills may be active at once in a run.
        disabled: Names of skills that are not offered.
        context: Where commands and scripts are run; on this machine if not given.
    """
    if allowed_tools not in ("restrict", "preapprove"):
        raise ValueError(f'allowed_tools must be "restrict" or "preapprove", not {allowed_tools!r}')
    if max_active is not None and max_active < 1:
        raise ValueError(f"max_active must be 1 or more, not {max_active}")
    given = [paths] if isinstance(paths, str | os.PathLike | Skill) else list(paths)
    if not given and project is None and home is None:
        project, home = ".", Path.home()
    places = [Place(_absolute(one), "inline", must_exist=True) for one in given if not isinstance(one, Skill)]
    places += standard_places(
        project=None if project is None else _absolute(project),
        home=None if home is None else _absolute(home),
        trust_project=trust_project,
        claude_dirs=claude_dirs,
    )
    return Skills(
        places,
        inline=[one for one in given if isinstance(one, Skill)],
        disabled=[disabled] if isinstance(disabled, str) else disabled,
        allowed_tools=allowed_tools,
        max_active=max_active,
        runs=context,
    )


def _absolute(path: str | os.PathLike[str]) -> Path:
    return Path(path).expanduser().absolute()


async def _notify(handlers: Sequence[Callable[[Any], object]], event: object) -> bool:
    """Calls the handlers; returns False if one of them failed. The others are still called."""
    failures = 0
    for handler in tuple(handlers):
        with attempt(_log, "a handler of %s failed", type(event).__name__) as calling:
            answer = handler(event)
            if inspect.isawaitable(answer):
                await answer
        failures += calling.error is not None
    return not failures
