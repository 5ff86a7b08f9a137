"""Results of calls from outside: each becomes a fact once.

Those for a whole turn are accepted together or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, TypeAlias

from msgspec import UNSET, Struct
from msgspec.structs import replace

from weftline.errors import Conflict, InvalidRequest, Issue, invalid
from weftline.failure import Bounds, Failure
from weftline.kernel.bodies import ClosedBody, decode_closed, encode
from weftline.kernel.entries import KIND, CallClosed, decode_fact
from weftline.kernel.questions import answerable
from weftline.kernel.state import Question, State
from weftline.messages import UserPart
from weftline.runtime.live import Draft, LiveRun
from weftline.runtime.people.awaits import with_edits
from weftline.runtime.tool_calls.shaping import shaped_result
from weftline.runtime.tool_calls.toolbox import EMPTY, Toolbox
from weftline.runtime.writing import closed_body, named_failure, size_of, with_failure
from weftline.store.base import LogReader
from weftline.text.canonical import NotCanonical, canonical_value
from weftline.tools.base import Tool, ToolOutput
from weftline.tools.checking import result_problem
from weftline.tools.results import Bounded, bounds_problem, output_of, with_bounds

_LOOK_BACK = 1000
_LOOK_BACK_BYTES = 32 * 1024 * 1024
"""How far back results are searched for a repeated one: a client that got no response retries soon."""


def closed_by_client(
    run: LiveRun, question: Question, output: ToolOutput, *, message_id: str, idempotency_key: str, lease: str = ""
) -> Draft:
    """The fact that closes the call of this open question with a client's result."""
    call, turn = run.state.batch.calls[question.index], run.state.turn - 1
    given = output
    output = shaped_result(output, run.work, turn=turn, index=question.index, id=call.id, name=call.name)
    sent = "" if is_stored_as(given, output.parts, is_error=output.is_error) else digest_of(given)
    output = with_edits(output, question.index, run.work)
    head = CallClosed(
        turn,
        question.index,
        call.id,
        call.name,
        "failed" if output.is_error else "returned",
        is_error=output.is_error,
        client=call.client,
        size=size_of(run.work, output.parts),
        parent=run.work.conversation.turn.parent_of(question.index),
        lease=lease,
    )
    failure = named_failure(output.failure, call.name) if output.is_error else None
    body = closed_body(
        run.work,
        question.index,
        output.parts,
        message_id=message_id,
        idempotency_key=idempotency_key,
        failure=failure,
        telemetry=output.telemetry,
        bounds=output.bounds,
        server_data=output.server_data,
        sent=sent if idempotency_key else "",
        is_json=output.is_json,
    )
    return Draft(with_failure(head, failure), body)


def digest_of(output: ToolOutput) -> str:
    """Identifies a client's result."""
    return blake2b(encode((output.parts, output.is_error)), digest_size=16).hexdigest()


def is_stored_as(output: ToolOutput, parts: tuple[UserPart, ...], *, is_error: bool) -> bool:
    """Returns True if a client's result equals what was stored. A note about a person's edits may follow it there."""
    return (parts[: len(output.parts)], is_error) == (output.parts, output.is_error)


def is_repeated(output: ToolOutput, head: CallClosed, body: ClosedBody) -> bool:
    """Returns True if a client's result is the one that closed the call, whatever its tool made of it."""
    if body.sent:
        return body.sent == digest_of(output)
    return is_stored_as(output, body.parts, is_error=head.is_error)


async def was_answered(store: LogReader, run: int, call: str, output: ToolOutput, *, idempotency_key: str) -> bool:
    """Returns True if the same answer, sent under the same key before, has closed the call.

    Raises `Conflict` (`idempotency_conflict`) if a different answer under this key has.
    """
    closed = await store.newest_facts(run, kinds=(KIND[CallClosed],), limit=_LOOK_BACK, max_bytes=_LOOK_BACK_BYTES)
    for fact in reversed(closed):
        head = decode_fact.decode(fact.head)
        if not isinstance(head, CallClosed) or head.id != call:
            continue
        body = decode_closed(fact.body)
        if body.idempotency_key != idempotency_key:
            return False
        if not is_repeated(output, head, body):
            raise Conflict("This Idempotency-Key was used for another result.", code="idempotency_conflict")
        return True
    return False


class Provided(Struct, frozen=True, kw_only=True):
    """The outcome of a call that was executed outside: a result, any JSON, or an error.

    `name` is the name of the tool, if the sender wants it checked. `bounds` go with the result of a tool that is
    declared bounded; a `Bounded` result has its own. `failure` is what is known about an error besides its text,
    `token` is that of a lease.
    """

    call_id: str
    name: str = ""
    result: Any = UNSET
    error: str | None = None
    failure: Failure | None = None
    bounds: Bounds | None = None
    server_data: Any = UNSET
    """Rejected: only server tools may set this."""
    token: str = ""


class ProvidedResult(Struct, frozen=True):
    """One of them after the checks: the call's result, or what is wrong with it."""

    output: ToolOutput | None
    problems: tuple[tuple[str, str], ...] = ()
    """What is wrong with it, each with its field."""


Problems: TypeAlias = Mapping[int, Sequence[tuple[str, str]]]
"""What the caller found wrong while parsing: problems by the position of the result, each with its field."""
NO_PROBLEMS: Final[Problems] = {}


async def results_of(
    results: Sequence[Provided], names: Mapping[str, str], toolbox: Toolbox | None, *, problems: Problems = NO_PROBLEMS
) -> list[ProvidedResult]:
    """Each as the result of its tool. `names` has the tools of the calls; their ids are not checked."""
    tools = toolbox or EMPTY
    made = [await _to_result(one, tools.get(names.get(one.call_id, one.name))) for one in results]
    for place, known in problems.items():
        made[place] = ProvidedResult(None, (*known, *made[place].problems))
    return made


async def _to_result(one: Provided, tool: Tool | None) -> ProvidedResult:
    problems: list[tuple[str, str]] = []
    result, bounds = one.result, one.bounds
    if isinstance(result, Bounded):
        result, bounds = result.value, result.bounds
    if one.server_data is not UNSET:
        problems.append(("", "only server tools may set this"))
    if (one.error is None) == (result is UNSET):
        problems.append(("result" if one.error is None else "error", "give exactly one of `result` and `error`"))
        return ProvidedResult(None, tuple(problems))
    if one.error is not None:
        output = ToolOutput.of(one.error, is_error=True, failure=one.failure)
    else:
        output = output_of(result, tool_name=one.name)
        if problem := _not_json(result) or ("" if tool is None else await result_problem(tool, result)):
            problems.append(("result", problem))
        if one.failure is not None:
            problems.append(("failure", "only an error has one"))
    if tool is not None and (bounds is not None or (tool.traits.bounded and one.error is None)):
        output = replace(output, bounds=bounds)
        if problem := bounds_problem(tool, output):
            problems.append(("bounds", problem))
        elif not problems:
            output = with_bounds(tool, output)
    return ProvidedResult(None if problems else output, tuple(problems))


def _not_json(value: object) -> str:
    try:
        canonical_value(value)
    except NotCanonical as error:
        return f"it is not JSON: {error}"
    return ""


def open_calls(state: State) -> dict[str, Question]:
    """The calls that wait to be executed outside, in order."""
    open = {id: question for id, question in state.questions.open.items() if question.kind == "call"}
    return dict(sorted(open.items(), key=lambda item: item[1].index))


def require_whole(
    state: State, results: Sequence[Provided], made: Sequence[ProvidedResult], *, leases: Mapping[str, str]
) -> dict[str, ToolOutput]:
    """The result of every call that waits for one, in the order of the calls.

    Raises `InvalidRequest` (`invalid_answer`) that lists everything that is wrong. `leases` has the digests of the
    tokens, by call.
    """
    issues = list(_issues(state, results, made, leases))
    if issues:
        raise refusal(issues)
    outputs = {one.call_id: each.output for one, each in zip(results, made, strict=True)}
    return {id: output for id in open_calls(state) if (output := outputs[id]) is not None}


def refusal(issues: Sequence[Issue]) -> InvalidRequest:
    """One error for everything that is wrong."""
    return invalid(issues, code="invalid_answer")


def _issues(
    state: State, results: Sequence[Provided], made: Sequence[ProvidedResult], leases: Mapping[str, str]
) -> Iterator[Issue]:
    waiting = open_calls(state)
    if not results:
        yield Issue("results", "give a result for each call that waits for one")
        return
    seen: set[str] = set()
    for place, (one, each) in enumerate(zip(results, made, strict=True)):
        at = f"results[{place}]"
        question = waiting.get(one.call_id)
        if not one.call_id and each.problems:
            pass  # the id is one of the problems, or is unknown
        elif one.call_id in seen:
            yield Issue(at, f"a second result for the call {one.call_id!r}")
        elif question is None:
            yield Issue(
                at, f"no call with the id {one.call_id!r} waits for a result" if one.call_id else "name the call"
            )
        else:
            name = state.batch.calls[question.index].name
            if one.name and one.name != name:
                yield Issue(f"{at}.name", f"the call {one.call_id!r} is a call of {name!r}")
            if not answerable(question, leases.get(one.call_id, "")):
                yield Issue(at, f"another client is executing the call {one.call_id!r}, or the lease has expired")
        seen.add(one.call_id)
        for field, problem in each.problems:
            yield Issue(f"{at}.{field}" if field else at, problem)
    for id, question in waiting.items():
        if id not in seen:
            yield Issue("results", f"the call {id!r} of {state.batch.calls[question.index].name!r} has no result here")


async def was_provided(
    store: LogReader, run: int, results: Sequence[Provided], toolbox: Toolbox | None, *, idempotency_key: str
) -> bool:
    """Returns True if the same set, sent under the same key before, has closed its calls.

    Raises `Conflict` (`idempotency_conflict`) if a different one under this key has.
    """
    closed: dict[str, tuple[CallClosed, bytes]] = {}
    for fact in await store.newest_facts(run, kinds=(KIND[CallClosed],), limit=_LOOK_BACK, max_bytes=_LOOK_BACK_BYTES):
        head = decode_fact.decode(fact.head)
        if isinstance(head, CallClosed) and decode_closed(fact.body).idempotency_key == idempotency_key:
            closed[head.id] = head, fact.body
    if not closed:
        return False
    names = {id: head.name for id, (head, _) in closed.items()}
    made = await results_of(results, names, toolbox)
    outputs = {one.call_id: each.output for one, each in zip(results, made, strict=True)}
    same = len(outputs) == len(results) and outputs.keys() == closed.keys()
    for id, (head, body) in closed.items():
        output = outputs.get(id)
        same = same and output is not None and is_repeated(output, head, decode_closed(body))
    if not same:
        raise Conflict("This Idempotency-Key was used for other results.", code="idempotency_conflict")
    return True
