"""Forks requested by clients: the origin's spec with the client's changes, from a turn on."""

from __future__ import annotations

from functools import partial
from typing import Any

from msgspec import Raw, Struct
from msgspec.json import decode, encode
from msgspec.structs import replace

from weftline.api.planning import plan_of
from weftline.errors import InvalidRequest, Issue, invalid
from weftline.plan import RunPlan
from weftline.replay.forking import ForkPoint, create_fork, fork_point
from weftline.runtime.engine import Engine
from weftline.spec.door import Door, parse_run, use_one_fallback
from weftline.spec.fields import ForkModel
from weftline.spec.merge import forked
from weftline.spec.plan import plan_from_spec
from weftline.store.base import LogReader
from weftline.store.rows import IdempotencyKey, RunRow
from weftline.wire.errors import as_sent
from weftline.wire.unknown_fields import UnknownField
from weftline.work.heavy import parsed
from weftline.workspace.context import Workspaces
from weftline.workspace.thread_branches import Branches

_OWN = ("turn", "message")
_OF_ANY_RUN = ("modelId", "systemPrompt", "reasoningLevel")


_FORK = Door(ForkModel)


class Fork(Struct, frozen=True):
    """A requested fork. `changes` are fields of a run's spec, as they were sent."""

    turn: int
    message: str | None
    changes: dict[str, Any]


def parse_fork(fields: dict[str, Any]) -> tuple[Fork, tuple[UnknownField, ...]]:
    unknown = _FORK.check(fields)
    if fields.get("agentId") is not None:
        raise invalid([Issue("agentId", "a fork keeps the agent of the original run")])
    known = _FORK.shape.known
    changes = {
        name: value for name, value in fields.items() if name in known and name not in _OWN and value is not None
    }
    use_one_fallback(changes)
    return Fork(fields["turn"], fields.get("message"), changes), unknown


class _Changed(Struct, frozen=True):
    plan: RunPlan
    spec: bytes | None
    headers: dict[str, dict[str, str]]
    metadata: dict[str, str] | None = None


async def log_bytes(log: LogReader, row: RunRow) -> int:
    """Returns how much is read to fork a run."""
    return await log.log_size(row.key) + (await log.thread_size(row.thread) if row.thread is not None else 0)


async def fork_run(
    engine: Engine,
    at: Workspaces,
    row: RunRow,
    fork: Fork,
    *,
    requested_by: str,
    idempotency: IdempotencyKey | None = None,
) -> str:
    """Starts the fork and returns its id. Raises before anything is created if it cannot be forked."""
    point = await fork_point(engine.stored.logs, row, turn=fork.turn)
    changed = await _changed(at, point, fork, in_session=row.thread is not None)
    plan = point.continued(changed.plan, message=fork.message, requested_by=requested_by)
    if not plan.messages and not point.messages:
        raise InvalidRequest("The run has no messages to continue from.")
    try:
        return await create_fork(
            engine,
            Branches(at),
            point,
            plan,
            workspace=row.workspace,
            sent=changed.spec,
            metadata=row.metadata if changed.metadata is None else encode(changed.metadata).decode(),
            idempotency=idempotency,
            secrets=at.vault.seal_headers(changed.headers, workspace=row.workspace),
        )
    except InvalidRequest as error:
        raise as_sent(error) from None


async def _changed(at: Workspaces, point: ForkPoint, fork: Fork, *, in_session: bool) -> _Changed:
    if point.sent is None:
        return _Changed(_replaced(point.plan, fork.changes), None, {})
    spec = forked(point.sent, encode(fork.changes), in_session=in_session)
    # Checked like the spec of a new run, which needs an input.
    prompt = fork.message or f"(forked from {point.origin.run}, turn {point.origin.turn})"
    body = await parsed(parse_run, encode({**decode(spec, type=dict[str, Raw]), "prompt": prompt}))
    plan = await parsed(partial(plan_of, at), body.spec)
    return _Changed(plan, body.spec, body.secrets, body.metadata)


def _replaced(plan: RunPlan, changes: dict[str, Any]) -> RunPlan:
    """Applies changes to the plan itself, for a run that no client described."""
    if refused := [name for name in changes if name not in _OF_ANY_RUN]:
        raise invalid([Issue(name, "cannot be changed: the run belongs to a Python agent") for name in refused])
    body = parse_run(encode({**changes, "prompt": "x"}))
    asked = plan_from_spec(body.spec)
    return replace(
        plan,
        model=asked.model if "modelId" in changes else plan.model,
        system=asked.system if "systemPrompt" in changes else plan.system,
        reasoning=asked.reasoning if "reasoningLevel" in changes else plan.reasoning,
    )
