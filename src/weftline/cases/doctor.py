"""Reports what in a store needs a person, and what the code of this process would do to its runs.

It only reads, so it may examine the store of a server that runs other code.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping
from typing import Literal, Protocol, TypeAlias

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from weftline.kernel.bodies import decode_created
from weftline.kernel.control import Change, DeployAdopted, Digests, Part, adopted
from weftline.kernel.damage import UNREADABLE
from weftline.kernel.entries import FACTS, decode_fact
from weftline.kernel.evolve import fold
from weftline.kernel.state import State
from weftline.plan import RunPlan, agent_of, decode_plan, limits_of
from weftline.runtime import ids
from weftline.runtime.deploys import changes_of, have, left_alone, parts_of
from weftline.runtime.reads.calls import stored_doubts
from weftline.runtime.tool_calls.toolbox import ToolSource
from weftline.store.base import ReadStore
from weftline.store.records import deliveries, schedules, webhooks
from weftline.store.rows import AwaitFilter, OpenAwait, RunFilter, RunRow
from weftline.workspace import workspaces
from weftline.workspace.context import Workspaces

_PAGE = 200
_DELIVERIES = 50
_UNFINISHED = ("queued", "running", "paused")
Kind: TypeAlias = Literal[
    "deploy", "agent_gone", "tool_gone", "newer", "suspect", "in_doubt", "await", "schedule", "webhook", "damaged"
]


class Present(ToolSource, Protocol):
    """The agents and tools of this process."""

    def tool_names(self, plan: RunPlan) -> Collection[str] | None:
        """Returns the names of the tools of a run with this plan; None if some are unknown until they are opened."""
        ...


class Finding(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    kind: Kind
    workspace: str
    what: str
    """What the problem is, and what will happen or can be done."""
    needs_person: bool
    """Whether nothing will happen unless somebody decides."""
    run_id: str | UnsetType = UNSET
    agent: str | UnsetType = UNSET
    policy: str | UnsetType = UNSET
    """For a run affected by a deploy: its `on_deploy`."""
    changed: Mapping[Part, Change] | UnsetType = UNSET
    about: str | UnsetType = UNSET
    """The id of the call, await, schedule or webhook."""


async def examine(
    store: ReadStore, at: Workspaces, present: Present, *, only: str | None = None
) -> AsyncGenerator[Finding]:
    """Yields the findings in a workspace, or in all of them: first about runs, newest first, then about the rest.

    Raises `NotFound` for an unknown workspace.
    """
    for slug in await workspaces.slugs(at) if only is None else [only]:
        look = _Look(store, at, present, workspace=await workspaces.find(at, slug), slug=slug)
        async for found in look.at_runs():
            yield found
        async for found in look.at_awaits():
            yield found
        async for found in look.at_records():
            yield found


class _Look:
    """Examines one workspace."""

    def __init__(self, store: ReadStore, at: Workspaces, present: Present, *, workspace: int, slug: str) -> None:
        self._store = store
        self._workspaces = at
        self._present = present
        self._workspace = workspace
        self._slug = slug
        self._now_us = at.clock.now_us()

    async def at_runs(self) -> AsyncGenerator[Finding]:
        before: int | None = None
        wanted = RunFilter(workspace=self._workspace, statuses=_UNFINISHED, limit=_PAGE)
        while rows := await self._store.log.runs(replace(wanted, before=before)):
            before = rows[-1].key
            for row in rows:
                for found in await self._at_run(row):
                    yield found

    async def _at_run(self, row: RunRow) -> list[Finding]:
        if row.damaged:
            return [self._of_run(row, "damaged", f"The column {row.damaged} of its row cannot be read.")]
        if newer := await left_alone(self._store.log, row):
            return [self._of_run(row, "newer", f"It needs a newer version of Weftline ({newer}): it waits.")]
        found: list[Finding] = []
        if row.trial_size:
            found.append(self._of_run(row, "suspect", _suspicion(row), needs_person=False))
        for call in stored_doubts(row) or ():
            what = f"It is not known whether the call of {call.name} happened."
            found.append(self._of_run(row, "in_doubt", what, about=call.id))
        try:
            return [*found, *await self._at_code(row)]
        except UNREADABLE:
            return [*found, self._of_run(row, "damaged", "Its log cannot be read.")]

    async def _at_code(self, row: RunRow) -> list[Finding]:
        created = await self._store.log.entry(row.key, 1)
        if created is None:
            return []
        stored = decode_created(created.body).plan
        plan, agent = decode_plan(stored, limits_of(created.head)), agent_of(stored)
        if not self._present.knows(plan):
            what = f"Its agent {plan.code!r} is not in this code: it waits until it is."
            return [self._of_run(row, "agent_gone", what, agent=agent)]
        changed = changes_of(plan, self._present, before=await self._rests_on(row, plan))
        if not changed:
            return []
        is_new = f"Its {parts_of(changed)} {have(changed)} changed"
        policy = plan.limits.on_deploy
        match policy:
            case "adopt":
                what = f"{is_new}: it continues with the new version."
            case "pin":
                what = f"{is_new}: it waits for the code that it started with."
            case "ask":
                what = f"{is_new}: it asks a person before it continues."
        found = [
            self._of_run(
                row, "deploy", what, agent=agent, policy=policy, changed=changed, needs_person=policy != "adopt"
            )
        ]
        if "tools" in changed:
            found += [
                self._of_run(row, "tool_gone", f"Its tool {name} is gone: the call will fail.", agent=agent, about=id)
                for id, name in await self._orphaned_calls(row, plan)
            ]
        return found

    async def _rests_on(self, row: RunRow, plan: RunPlan) -> Digests | None:
        now = plan.digests
        if now is not None:
            for head in await self._store.log.heads(row.key, kinds=["deploy.adopted"]):
                fact = decode_fact.decode(head)
                if isinstance(fact, DeployAdopted):
                    now = adopted(now, fact.changed)
        return now

    async def _orphaned_calls(self, row: RunRow, plan: RunPlan) -> list[tuple[str, str]]:
        """Returns id and tool of its calls that have no result yet and whose tool this code does not have."""
        names = self._present.tool_names(plan)
        if names is None:
            return []
        heads = await self._store.log.heads(row.key, kinds=list(FACTS))
        state = fold(State(), [(0, decode_fact.decode(head)) for head in heads])
        open_calls = [call for call in state.batch.calls if call.stage != "closed" and call.client is None]
        return [(call.id, call.name) for call in open_calls if call.name not in names]

    async def at_awaits(self) -> AsyncGenerator[Finding]:
        wanted = AwaitFilter(workspace=self._workspace, limit=_PAGE, max_bytes=0)
        async for one in self._awaits(replace(wanted, kinds=("doubt",))):
            yield self._of_await(
                one, "in_doubt", "It is not known whether a call happened: the run waits for an answer."
            )
        async for one in self._awaits(replace(wanted, due_before=self._now_us)):
            what = "It has expired without an answer: the run continues accordingly once a server drives it."
            yield self._of_await(one, "await", what)

    async def _awaits(self, wanted: AwaitFilter) -> AsyncGenerator[OpenAwait]:
        while page := await self._store.log.awaits(wanted):
            wanted = replace(wanted, after=(page[-1].run, page[-1].id))
            for one in page:
                yield one

    def _of_await(self, one: OpenAwait, kind: Kind, what: str) -> Finding:
        return Finding(
            kind=kind,
            workspace=self._slug,
            what=what,
            needs_person=True,
            run_id=ids.run_id(one.run, one.salt),
            agent=one.agent or UNSET,
            about=one.id,
        )

    async def at_records(self) -> AsyncGenerator[Finding]:
        at = self._workspaces
        for schedule in await at.records.read(schedules.of_workspace(self._workspace)):
            if schedule.damaged:
                what = f"The column {schedule.damaged} of the schedule cannot be read."
                yield self._about("damaged", schedule.id, what)
            elif schedule.last_error:
                what = f"No run started last time: {schedule.last_error}"
                yield self._about("schedule", schedule.id, what, agent=schedule.agent)
        for webhook in await at.records.read(webhooks.of_workspace(self._workspace)):
            if webhook.damaged:
                yield self._about("damaged", webhook.id, f"The column {webhook.damaged} of the webhook cannot be read.")
            elif webhook.enabled:
                query = deliveries.of_webhook(webhook.key, status="failed", limit=_DELIVERIES)
                failed = await at.records.read(query, heavy=True)
                if failed:
                    many = f"{len(failed)} or more" if len(failed) == _DELIVERIES else str(len(failed))
                    what = f"Deliveries that were given up: {many}; the last one with {failed[0].last_error!r}."
                    yield self._about("webhook", webhook.id, what)

    def _about(self, kind: Kind, id: str, what: str, *, agent: str | None = None) -> Finding:
        return Finding(kind=kind, workspace=self._slug, what=what, needs_person=True, about=id, agent=agent or UNSET)

    def _of_run(
        self,
        row: RunRow,
        kind: Kind,
        what: str,
        *,
        needs_person: bool = True,
        agent: str | None = None,
        policy: str | UnsetType = UNSET,
        changed: Mapping[Part, Change] | UnsetType = UNSET,
        about: str | UnsetType = UNSET,
    ) -> Finding:
        return Finding(
            kind=kind,
            workspace=self._slug,
            what=what,
            needs_person=needs_person,
            run_id=ids.run_id(row.key, row.salt),
            agent=agent or row.agent or UNSET,
            policy=policy,
            changed=changed,
            about=about,
        )


def _suspicion(row: RunRow) -> str:
    if row.deaths_alone:
        times = "once" if row.deaths_alone == 1 else f"{row.deaths_alone} times"
        return f"The process died {times} while it recovered this run alone: it is tried last."
    return "The process died while it recovered this run, among others: it is tried after them."
