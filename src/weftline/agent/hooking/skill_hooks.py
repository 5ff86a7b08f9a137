"""Connects an agent's skills to its hooks, at the points `skills_*`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary, ref

from weftline.agent import hooks_outside as points
from weftline.agent.context import RunContext
from weftline.agent.hooking.calling import Hook, Hooks
from weftline.agent.skills.toolset import SkillActivated, SkillDeactivated, Skills, SkillsCatalog, SkillsResolved
from weftline.trace_context import current_run


class Owner(Protocol):
    """An agent, as its skills need it."""

    hooks: list[Hook[Any]]


class Notifier(Protocol):
    """The code of a run."""

    owner: object

    async def notify(self, point: points.Point) -> None: ...


_owners: WeakKeyDictionary[Skills, WeakSet[Any]] = WeakKeyDictionary()
runs: WeakValueDictionary[tuple[str, str], Any] = WeakValueDictionary()
"""The code of runs that are in memory, by workspace and run id."""


def connect_skills(toolsets: Iterable[object], agent: Owner) -> None:
    """Connects the agent to those of its toolsets that are skills."""
    for one in toolsets:
        if isinstance(one, Skills):
            connect(one, agent)


def connect(skills: Skills, agent: Owner) -> None:
    """Notifies the agent's hooks of what happens to the skills from now on.

    Holds only a weak reference to the agent.
    """
    owners = _owners.setdefault(skills, WeakSet())
    if agent in owners:
        return
    owners.add(agent)
    weak = ref(agent)

    async def resolved(event: SkillsResolved) -> None:
        await _notify(weak, "", points.SkillsResolve(event.skills, event.diagnostics))

    async def cataloged(event: SkillsCatalog) -> None:
        agent = weak()
        if agent is not None:
            point = points.SkillsCatalog(list(event.skills))
            await Hooks(agent.hooks).shape(point, _NO_RUN)
            event.skills = list(point.catalog)

    async def activated(event: SkillActivated) -> None:
        await _notify(weak, event.run_id, points.SkillsActivate(event.skill, event.via))

    async def deactivated(event: SkillDeactivated) -> None:
        await _notify(weak, event.run_id, points.SkillsDeactivate(event.skill, event.reason))

    skills.on_resolve.append(resolved)
    skills.on_catalog.append(cataloged)
    skills.on_activate.append(activated)
    skills.on_deactivate.append(deactivated)


_NO_RUN: RunContext[Any] | None = None


async def _notify(weak: Callable[[], Owner | None], run_id: str, point: points.Point) -> None:
    agent = weak()
    if agent is None:
        return
    if not run_id:
        await Hooks(agent.hooks).watch(point, _NO_RUN)
        return
    run = _find(run_id)
    if run is not None and run.owner is agent:
        await run.notify(point)


def _find(run_id: str) -> Notifier | None:
    """Returns the run in which something happens. Workspaces may have runs with the same id."""
    driven = current_run.get()
    if driven is not None:
        return runs.get((driven.workspace_slug, run_id))
    found = [run for (_, id), run in runs.items() if id == run_id]
    return found[0] if len(found) == 1 else None
