"""Fields of a spec by which an agent and a session bind their runs: a request can only tighten them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Raw

from weftline.wire.awaiting import awaits_within, on_deploy_within
from weftline.wire.budget import budget_within
from weftline.wire.plan import NULL
from weftline.wire.policy import policy_within

WITHIN: Mapping[str, Callable[[Raw, Raw], Raw]] = {
    "policy": policy_within,
    "budget": budget_within,
    "awaits": awaits_within,
    "onDeploy": on_deploy_within,
}


def tightened(field: str, own: Raw, above: Raw) -> Raw:
    """Returns the value of such a field for a request with `own` under what is `above` it; either may be null."""
    if own == NULL or above == NULL:
        return above if own == NULL else own
    return WITHIN[field](own, above)
