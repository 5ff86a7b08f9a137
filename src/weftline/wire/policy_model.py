"""The `policy` of a run's spec as a pydantic model, which only validates."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from weftline.wire.limits import MAX_LOCAL_TIMEOUT_MS, MAX_POLICY_ENTRIES, MAX_POLICY_NAME_CHARS

_Count: TypeAlias = Annotated[int, Field(ge=0, le=2**31 - 1)]
_Milliseconds: TypeAlias = Annotated[int, Field(ge=0, le=MAX_LOCAL_TIMEOUT_MS)]
_Name: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=MAX_POLICY_NAME_CHARS)]
_Tags: TypeAlias = Annotated[list[_Name], Field(max_length=MAX_POLICY_ENTRIES)]


class _Strict(BaseModel):
    """Refuses unknown fields, as a misspelt limit would not apply."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class TagClauseModel(_Strict):
    allowedAny: _Tags | None = None
    deniedAny: _Tags | None = None


class PolicyModel(_Strict):
    """How far the run may go, and which tools it may use. A count or a time of 0 means no limit."""

    maxToolCalls: _Count | None = None
    perTurnMaxToolCalls: _Count | None = None
    maxConsecutiveFailedToolCalls: _Count | None = None
    failureCounting: Literal["turn", "call"] | None = None
    timeBudgetMs: _Milliseconds | None = None
    planTimeoutMs: _Milliseconds | None = None
    toolTimeoutMs: _Milliseconds | None = None
    perToolTimeoutMs: Annotated[dict[_Name, _Milliseconds], Field(max_length=MAX_POLICY_ENTRIES)] | None = None
    finalizerGraceMs: _Milliseconds | None = None
    restrictToTool: _Name | None = None
    allowedTags: _Tags | None = None
    deniedTags: _Tags | None = None
    tagClauses: Annotated[list[TagClauseModel], Field(max_length=MAX_POLICY_ENTRIES)] | None = None
    onMissingFields: Literal["resume", "finalize", "await_clarification"] | None = None
    interruptsAllowed: bool | None = None

    @model_validator(mode="after")
    def _can_ask(self) -> PolicyModel:
        if self.onMissingFields == "await_clarification" and self.interruptsAllowed is False:
            raise ValueError("onMissingFields: await_clarification asks people, which interruptsAllowed: false forbids")
        return self
