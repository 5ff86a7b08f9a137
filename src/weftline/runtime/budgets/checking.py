"""Checks that the models of a plan exist, accept its settings and may be used under its budgets."""

from __future__ import annotations

from weftline.errors import invalid
from weftline.messages import Sampling
from weftline.plan import RunPlan
from weftline.providers.catalog import Catalog
from weftline.runtime.budgets.ledger import Account
from weftline.runtime.budgets.reserving import require_prices
from weftline.runtime.model_calls.models import refused_sampling

_AS_THE_MODEL_DOES = Sampling()


def check_models(plan: RunPlan, catalog: Catalog, account: Account | None) -> None:
    """Raises `WeftlineError` for anything that a run of the plan could not use. Without an account, no budget
    applies.
    """
    models = [catalog.resolve(model) for model in (plan.model, *plan.fallbacks)]
    if account is not None:
        require_prices(account, models, catalog)
    if plan.limits.compaction is not None and plan.limits.compaction.model:
        catalog.resolve(plan.limits.compaction.model)
    if plan.sampling != _AS_THE_MODEL_DOES:
        issues = [issue for model in models for issue in refused_sampling(plan, model)]
        if issues:
            raise invalid(issues)
