"""A turn of a run, as the protocol shows it."""

from __future__ import annotations

from msgspec import UNSET
from msgspec.structs import asdict

from weftline.kernel.entries import How
from weftline.messages import ToolResult, Usage
from weftline.runtime.reads.turns import LoggedAttempt, LoggedRequest, LoggedTurn
from weftline.wire.responses import iso, iso_or_none
from weftline.wire.run_responses import model_used, tokens
from weftline.wire.turns import (
    Turn,
    TurnAnswer,
    TurnAttempt,
    TurnRequest,
    TurnTool,
    answer_message,
    json_or_text,
    turn_message,
    turn_tools,
)

_SETTINGS = {"temperature": "temperature", "top_p": "topP", "stop": "stop", "max_output_tokens": "maxOutputTokens"}


def turn_view(found: LoggedTurn) -> Turn:
    costs = [one.cost_nusd for one in found.attempts]
    known = [one for one in costs if one is not None]
    answer = None
    if found.answer is not None:
        results: dict[str, tuple[How, ToolResult]] = {id: (one.how, one.result) for id, one in found.results.items()}
        message = answer_message(found.answer, found.args, results)
        answer = TurnAnswer(
            message=message, finish_reason=found.finish, problem=found.problem or UNSET, metadata=found.metadata
        )
    return Turn(
        run_id=found.run_id,
        turn=found.turn,
        last_turn=found.last,
        request=_request(found.request, found.agent),
        attempts=[_attempt(one) for one in found.attempts],
        answer=answer,
        tokens=tokens(sum([one.usage for one in found.attempts], Usage())),
        usage_estimated=any(one.estimated for one in found.attempts),
        cost_usd=_usd(sum(known) if len(known) == len(costs) else None),
    )


def _request(sent: LoggedRequest, agent: str | None) -> TurnRequest:
    schema = sent.output_schema
    return TurnRequest(
        system_prompt=sent.system,
        tools=_tools(sent),
        tools_of_agent=agent if sent.offered is None else None,
        tools_disabled=sent.tools_disabled,
        messages=[turn_message(message) for message in sent.messages],
        earlier=sent.earlier,
        output_schema=None if schema is None else {"name": schema.name, "schema": json_or_text(bytes(schema.schema))},
        reasoning_level=sent.reasoning,
        settings={_SETTINGS[name]: value for name, value in asdict(sent.sampling).items() if value not in (None, ())},
    )


def _tools(sent: LoggedRequest) -> list[TurnTool]:
    named = [tool for ref in sent.tools for tool in turn_tools(ref)]
    if sent.offered is None:
        return named
    kinds = {tool.name: tool.kind for tool in named}
    return [
        TurnTool(
            kind=kinds.get(one.name, "server"),
            name=one.name,
            description=one.description or UNSET,
            parameters=json_or_text(bytes(one.parameters)),
        )
        for one in sent.offered
    ]


def _attempt(one: LoggedAttempt) -> TurnAttempt:
    return TurnAttempt(
        attempt=one.attempt,
        model=model_used(one.model),
        cause=one.cause or UNSET,
        started_at=iso(one.started_at),
        ended_at=iso_or_none(one.ended_at),
        active_ms=one.active_us // 1000,
        error_class=one.failure or UNSET,
        tokens=tokens(one.usage),
        usage_estimated=one.estimated,
        cost_usd=_usd(one.cost_nusd),
    )


def _usd(nusd: int | None) -> float | None:
    return None if nusd is None else nusd / 1_000_000_000
