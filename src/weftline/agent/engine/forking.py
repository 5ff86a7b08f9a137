"""Changes that a fork of an agent's run may make."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from weftline.agent.behavior import Behavior, resolved
from weftline.agent.definition import Definition
from weftline.agent.settings import Limits, Settings
from weftline.messages import Sampling
from weftline.plan import RunPlan
from weftline.providers.base import Provider


class ForkChanges(Struct, frozen=True, kw_only=True):
    """Fields that are None stay as they were."""

    message: str | None = None
    """What the model reads before the turn."""
    model: str | Provider | None = None
    instructions: str | None = None
    settings: Settings | None = None
    limits: Limits | None = None

    def applied(self, plan: RunPlan, agent: Definition[Any, Any] | None) -> RunPlan:
        if self.instructions is not None:
            plan = replace(plan, system=self.instructions)
        if self.settings is not None:
            given = self.settings
            level = plan.reasoning if given.level is None else given.level
            plan = replace(plan, reasoning=level, sampling=_over(plan, given))
        if self.limits is not None:
            was = plan.limits
            behavior = resolved(
                Behavior.from_stored(plan.behavior), agent.behavior if agent is not None else Behavior()
            )
            limits = self.limits.stored(
                behavior, fallbacks=was.fallbacks, check_output=was.check_output, await_gate=was.await_gate
            )
            plan = replace(plan, limits=limits)
        return plan


def _over(plan: RunPlan, given: Settings) -> Sampling:
    was = plan.sampling
    below = Settings(
        temperature=was.temperature, top_p=was.top_p, stop=was.stop, max_output_tokens=was.max_output_tokens
    )
    return given.over(below).sampling
