"""The models of a run: named by its plan, resolved in the current catalog of its workspace."""

from __future__ import annotations

from hashlib import blake2b

from msgspec.structs import replace

from weftline.errors import Issue, WeftlineError
from weftline.kernel.entries import ModelRef
from weftline.kernel.policy import PolicyRule
from weftline.kernel.state import MAX_COST_NUSD
from weftline.messages import Usage
from weftline.plan import RunPlan
from weftline.providers.catalog import Catalog, ResolvedModel
from weftline.providers.sampling import ANYTHING, SamplingLimits, issues_of
from weftline.runtime.live import WorkingSet
from weftline.runtime.tool_calls.toolbox import Toolbox

PLAN_TIMEOUT_S = 120.0
"""The time-out of one model call in a run whose policy sets none."""


def model_id(work: WorkingSet, choice: int) -> str | None:
    return work.plan.all_models[choice]


def resolve(work: WorkingSet, choice: int) -> ResolvedModel:
    """The run's own model (0) or one of its fallbacks. Raises `WeftlineError` if it no longer exists."""
    assert work.catalog is not None
    return work.catalog.resolve(model_id(work, choice))


def is_blind(work: WorkingSet, choice: int) -> bool:
    """Returns True if the model is known to have no vision."""
    try:
        return resolve(work, choice).entry.vision is False
    except WeftlineError:
        return False


def model_ref(work: WorkingSet, choice: int) -> ModelRef:
    try:
        resolved = resolve(work, choice)
    except WeftlineError:
        # Calling it fails with an explanation.
        return ModelRef(model_id(work, choice) or "")
    reasoning = work.plan.reasoning
    if reasoning is not None and not _takes_reasoning(resolved):
        reasoning = None
    return ModelRef(resolved.catalog_id, resolved.provider.name, resolved.vendor_id, reasoning)


def cost_nusd(work: WorkingSet, choice: int, usage: Usage) -> int | None:
    """Billionths of a US dollar; None if the price is unknown."""
    if work.catalog is None:
        return None
    try:
        model = resolve(work, choice)
    except WeftlineError:
        return None
    return cost_of(work.catalog, model, usage)


def cost_of(catalog: Catalog, model: ResolvedModel, usage: Usage) -> int | None:
    """Returns the cost of a known model's usage, in billionths of a US dollar; None without a price."""
    cost = catalog.cost_usd(usage, model)
    return None if cost is None else min(round(cost * 1_000_000_000), MAX_COST_NUSD)


def refused_sampling(plan: RunPlan, model: ResolvedModel) -> list[Issue]:
    """Which of the plan's sampling settings the model does not accept; a family that declares nothing accepts
    everything.
    """
    asked = getattr(model.provider, "sampling_limits", None)
    limits: SamplingLimits = asked(model.vendor_id, reasoning=plan.reasoning) if asked is not None else ANYTHING
    if limits.max_output_tokens is None and model.entry.max_output_tokens is not None:
        limits = replace(limits, max_output_tokens=model.entry.max_output_tokens)
    return issues_of(plan.sampling, limits, model=model.catalog_id)


def _takes_reasoning(model: ResolvedModel) -> bool:
    """Returns True if the model has a reasoning setting at all; a family that declares nothing is assumed to have
    one.
    """
    asked = getattr(model.provider, "takes_reasoning", None)
    return True if asked is None else bool(asked(model.vendor_id))


def attempt_limit(rule: PolicyRule | None, max_s: float) -> tuple[float, bool]:
    """Returns how many seconds one model call may take, and whether that comes from a policy: then it may be tried
    again.
    """
    if rule is None:
        return max_s, False
    planned_s = PLAN_TIMEOUT_S if rule.plan_timeout_us is None else rule.plan_timeout_us / 1_000_000
    return (max_s, False) if planned_s > max_s else (planned_s, True)


def offered_digest(system: str | None, toolbox: Toolbox) -> str:
    return blake2b((system or "").encode(errors="replace") + toolbox.declared, digest_size=16).hexdigest()
