"""Where an engine is created. Everything else only knows the protocols of `weftline.runtime.engine`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict, Unpack

from weftline.providers.catalog import Catalog
from weftline.providers.workspace import WorkspaceCatalogs
from weftline.runtime.clock import Clock
from weftline.runtime.driver import CarryOut, TakeStep
from weftline.runtime.embedded import EmbeddedEngine
from weftline.runtime.engine import OwnedEngine
from weftline.runtime.fleet.holding import WorkspaceLimits
from weftline.runtime.tool_calls.toolbox import ToolSource
from weftline.store.base import Store
from weftline.tools.base import Tool


class NewEngineOptions(TypedDict, total=False):
    clock: Clock | None
    model_timeout_s: float
    model_retries_timeout_s: float
    slow_turn_s: float
    limits: WorkspaceLimits | None
    max_recoveries: int
    traces: bool
    """Whether spans are emitted for runs without agent code."""
    public_errors: Mapping[str, str] | None
    step: TakeStep
    """This and `carry_out` are seams for tests, which observe what passes there or plant a bug."""
    carry_out: CarryOut


def new_engine(
    store: Store | Path | str,
    *,
    models: Catalog | WorkspaceCatalogs,
    tools: ToolSource | Mapping[str, Tool] | None = None,
    **options: Unpack[NewEngineOptions],
) -> OwnedEngine:
    """Returns an engine on this store, not started yet. It closes the store when it is stopped."""
    return EmbeddedEngine(store, models=models, tools=tools, **options)
