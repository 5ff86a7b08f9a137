"""The `awaits` of a run's spec, as a pydantic model."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from weftline.wire.limits import MAX_AWAIT_MS

_Milliseconds: TypeAlias = Annotated[int, Field(ge=1, le=MAX_AWAIT_MS)]


class AwaitsModel(BaseModel):
    """What holds for questions to people. It only validates.

    A misspelt rule would be one that does not hold, so nothing unknown is let through.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    timeoutMs: _Milliseconds | None = None
    onExpired: Literal["deny", "end"] | None = None
    grantTtlMs: _Milliseconds | None = None
    fourEyes: bool | None = None
