"""People's answers: what is checked before one becomes a fact, and how repeated ones are treated.

A rejected answer changes nothing: the run keeps waiting for a valid one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from weftline.errors import (
    LOG_DAMAGED,
    Conflict,
    Forbidden,
    InvalidRequest,
    Issue,
    NotFound,
    StoreError,
    invalid,
    run_has_ended,
)
from weftline.kernel.bodies import AnswerBody, AskBody, Pattern, decode_answer, encode
from weftline.kernel.control import ANSWERS, OF_RUN
from weftline.kernel.entries import KIND, AwaitClosed, AwaitOutcome, decode_fact
from weftline.kernel.state import Question
from weftline.runtime.live import Draft, LiveRun
from weftline.runtime.people.awaits import covers, may_decide, question_of
from weftline.runtime.tool_calls.preparing import injecting
from weftline.runtime.tool_calls.toolbox import EMPTY
from weftline.store.base import LogReader
from weftline.text.canonical import NotCanonical, canonical_value, digest
from weftline.tools.arguments import InvalidArguments
from weftline.tools.asking import describe_invalid
from weftline.tools.function import FunctionTool
from weftline.work.outcomes import as_errors

AnswerOutcome: TypeAlias = Literal["approved", "denied", "answered"]

MAX_VALUE_BYTES = 2 * 1024 * 1024
MAX_REASON_CHARS = 8 * 1024
_LOOK_BACK = 1000
_LOOK_BACK_BYTES = 32 * 1024 * 1024


class AwaitAnswer(Struct, frozen=True, kw_only=True):
    """A person's answer to an await.

    A confirmation is approved, with other `args` if desired, or denied. A question is answered with a `value`, or
    denied; several questions at once are answered with a list of values. A plan is approved, with another one in `args`
    and a comment in `reason` if desired, denied, or answered with a comment. For a call in doubt, `approved` means that
    it did not happen and may begin again, `answered` that it happened with the result in `value`, `denied` that nobody
    knows. A run that a deploy would continue with different code may do so (`approved`), or is cancelled (`denied`).
    """

    outcome: AnswerOutcome
    args: dict[str, Any] | None = None
    value: Any = None
    reason: str = ""
    labels: dict[str, str] = {}
    """Stored with the answer."""
    remember: Pattern | None = None
    """Later calls of the run that are approved together with this one. A pattern without a tool applies to the call's
    tool.
    """
    request: str = ""
    """Distinguishes this request from another one with the same answer; without it, the two count as one."""
    idempotency_key: str = ""
    """A different answer by the same person to this await under the same key is rejected."""

    @property
    def digest(self) -> str:
        """Equal answers have equal digests."""
        try:
            fields = [self.outcome, self.args, self.value, self.reason, _plain(self.remember)]
            fields = [*fields, self.labels] if self.labels else fields
            return digest(canonical_value([*fields, self.request] if self.request else fields))
        except NotCanonical as error:
            raise _invalid(Issue("", f"The answer is not JSON: {error}")) from None

    @property
    def mark(self) -> str:
        """The mark of a repeated answer in the log: its digest and, if it was sent with a key, the digest of that."""
        return f"{self.digest} {self._key_digest}" if self.idempotency_key else self.digest

    def was_sent_as(self, mark: str) -> bool:
        return mark in (self.mark, self.digest)  # older logs have no digest of the key

    def shares_key_with(self, mark: str) -> bool:
        """Returns True if the answer with that mark was sent under the same key, whatever its content."""
        return bool(self.idempotency_key) and mark.partition(" ")[2] == self._key_digest

    @property
    def _key_digest(self) -> str:
        return digest(self.idempotency_key.encode())


def _plain(pattern: Pattern | None) -> list[Any] | None:
    if pattern is None:
        return None
    return [pattern.tool, {name: bytes(raw).decode() for name, raw in pattern.args.items()}, pattern.prefixes]


NAMELESS = "library"
"""The name of somebody who answers through the library without giving one."""


def pattern_of(tool: str, remember: bool | Mapping[str, object]) -> Pattern | None:
    """Which later calls an approval covers: all of the tool, or those with these arguments.

    A text that ends in `*` matches every text that begins with it and continues with plain words.
    """
    if remember is False:
        return None
    if remember is True:
        return Pattern(tool)
    if not isinstance(remember, Mapping) or not remember:  # pyright: ignore[reportUnnecessaryIsInstance]
        problem = "say which arguments later calls must have, or True to allow all calls of the tool"
        raise _invalid(Issue("remember", problem))
    args: dict[str, Raw] = {}
    prefixes: dict[str, str] = {}
    for name, value in remember.items():
        if isinstance(value, str) and value.endswith("*"):
            prefixes[name] = value[:-1]
            continue
        try:
            args[name] = Raw(canonical_value(value))
        except NotCanonical as error:
            raise _invalid(Issue("remember", f"{name} is not JSON: {error}")) from None
    return Pattern(tool, args, prefixes)


def require_askable(run: LiveRun, question: Question, answer: AwaitAnswer, *, by: str) -> None:
    """Raises `InvalidRequest` for an answer that this kind of await does not accept, whatever its arguments, and
    `Forbidden` if there are approvers and `by` is not one of them.
    """
    assert question.kind != "call"
    if question.index != OF_RUN and question.kind != "clarification":
        asked = question_of(question.index, run.work)
        if asked is not None and not may_decide(asked.approvers, by):
            raise Forbidden(
                "Only the approvers of this call may decide.", code="not_approver", approvers=asked.approvers
            )
    issues: list[Issue] = []
    if not by.strip():
        issues.append(Issue("by", "`by` is required: who is answering?"))
    if answer.outcome not in ANSWERS[question.kind]:
        can = " or ".join(sorted(ANSWERS[question.kind]))
        issues.append(Issue("outcome", f"a {question.kind} cannot be {answer.outcome}, only {can}"))
    issues += _too_large(answer)
    approves = answer.outcome == "approved"
    if answer.args is not None and not (approves and question.kind in ("confirm", "plan")):
        issues.append(Issue("args", "only the approval of a call or a plan can change it"))
    if answer.remember is not None and not (approves and question.kind == "confirm"):
        issues.append(Issue("remember", "only the approval of a call covers others"))
    if answer.value is not None and answer.outcome != "answered":
        issues.append(Issue("value", "only an answer has a value"))
    elif answer.outcome == "answered" and (problem := _problem(run, question, answer.value)):
        issues.append(Issue("value", problem))
    if issues:
        raise _invalid(*issues)


def _problem(run: LiveRun, question: Question, value: object) -> str:
    """Returns the problem with the answer to a question, or "" if there is none."""
    if question.kind == "clarification":  # an empty string is an answer too
        return "" if isinstance(value, str) else "must be a string"
    asked = question_of(question.index, run.work) if question.kind == "question" else None
    if not needs_tools(run, question):
        return describe_invalid(asked or AskBody(""), value)
    if asked is not None and asked.options and (problem := describe_invalid(asked, value)):
        return problem
    tool = (run.work.toolbox or EMPTY).get(run.state.batch.calls[question.index].name)
    if not isinstance(tool, FunctionTool):
        return ""
    problem = tool.result_problem(value)
    if problem and asked is not None and asked.multiple and not isinstance(value, list):
        return problem if tool.result_problem([value]) else ""
    return problem


def needs_tools(run: LiveRun, question: Question) -> bool:
    """Returns True if an answer is checked by the tool that asked for it."""
    return question.kind == "question" and run.state.batch.calls[question.index].asked_back


def _too_large(answer: AwaitAnswer) -> list[Issue]:
    """The limits are the same for every caller. Over HTTP they are checked before anything else."""
    issues: list[Issue] = []
    for name, value in (("value", answer.value), ("args", answer.args)):
        try:
            if value is not None and len(canonical_value(value)) > MAX_VALUE_BYTES:
                issues.append(Issue(name, f"must not be larger than {MAX_VALUE_BYTES:,} bytes"))
        except NotCanonical as error:
            issues.append(Issue(name, f"is not JSON: {error}"))
    if len(answer.reason) > MAX_REASON_CHARS:
        issues.append(Issue("reason", f"must not be longer than {MAX_REASON_CHARS:,} characters"))
    return issues


def _invalid(*issues: Issue) -> InvalidRequest:
    return invalid(issues, code="invalid_answer")


async def edited(run: LiveRun, index: int, args: dict[str, Any]) -> bytes:
    """The final arguments of a call of the latest turn, changed by a person. They pass the same checks as a model's.

    Raises `InvalidRequest` if they do not fit, and `Conflict` if the tool no longer exists.
    """
    toolbox, call = run.work.toolbox or EMPTY, run.state.batch.calls[index]
    tool = toolbox.get(call.name)
    if tool is None:
        raise Conflict(f"The tool {call.name} is not available, so its arguments cannot be checked.")
    parent = run.work.conversation.turn.parent_of(index)
    tool = injecting(tool, run.work, turn=run.state.turn - 1, call_id=call.id, parent=parent)
    try:
        written = canonical_value(args).decode()
        with as_errors():
            return await (tool.prepare(written) if toolbox.code is None else toolbox.code.prepare(tool, written))
    except (InvalidArguments, NotCanonical) as error:
        issues = error.issues if isinstance(error, InvalidArguments) else ()
        named = [Issue("args" + one.path.replace("/", "."), one.message) for one in issues]
        raise _invalid(*named or [Issue("args", str(error))]) from None


def closing(run: LiveRun, id: str, question: Question, answer: AwaitAnswer, *, by: str, args: bytes | None) -> Draft:
    """The fact that closes an await, for an answer that has been checked. `args` are final."""
    if question.index == OF_RUN:
        about_run = AwaitClosed(run.state.turn, OF_RUN, id, answer.outcome, by)
        return Draft(about_run, encode(AnswerBody(reason=answer.reason, sent=answer.mark)))
    call = run.state.batch.calls[question.index]
    known = run.work.conversation.turn.args
    if question.index >= len(known):  # the turn's entry can no longer be found by its kind
        raise StoreError(f"The log of run {run.work.run_id} is damaged: a call of it cannot be read.", code=LOG_DAMAGED)
    present = known[question.index]
    changed = args is not None and args != present
    final = args if args is not None else present
    sent = answer.mark
    remember = answer.remember
    if remember is not None:
        remember = replace(remember, tool=remember.tool or call.name)
        if not covers(remember, call.name, final):
            raise _invalid(Issue("remember", "the pattern does not cover the call itself"))
    value = UNSET if answer.value is None else Raw(canonical_value(answer.value))
    if question.kind == "plan":  # the call keeps its arguments; an edited plan is the value of the answer
        body = AnswerBody(UNSET, Raw(final) if changed else value, answer.reason, remember, sent, answer.labels)
        changed = False
    else:
        body = AnswerBody(Raw(final) if changed else UNSET, value, answer.reason, remember, sent, answer.labels)
    head = AwaitClosed(
        run.state.turn - 1,
        question.index,
        id,
        answer.outcome,
        by,
        digest(final) if changed else call.digest,
    )
    return Draft(head, encode(body))


async def earlier_outcome(
    store: LogReader, run: int, id: str, answer: AwaitAnswer, *, by: str, ended: bool
) -> AwaitOutcome:
    """The outcome of an await that is no longer open. The same answer, repeated by the same person, has the same
    outcome.

    Raises `NotFound` for an unknown await, and `Conflict` for one that was closed by a different answer, by somebody
    else, or without one (`idempotency_conflict` if the other answer was sent under the same key).
    """
    closed = await store.newest_facts(run, kinds=(KIND[AwaitClosed],), limit=_LOOK_BACK, max_bytes=_LOOK_BACK_BYTES)
    for fact in reversed(closed):
        head = decode_fact.decode(fact.head)
        if not isinstance(head, AwaitClosed) or head.id != id:
            continue
        body = decode_answer(fact.body) if fact.body else AnswerBody()
        if head.outcome == answer.outcome and head.by == by and answer.was_sent_as(body.sent):
            return head.outcome
        if head.by == by and answer.shares_key_with(body.sent):
            raise Conflict("This Idempotency-Key was used for another answer.", code="idempotency_conflict")
        match head.outcome:
            case "expired":
                raise Conflict("Nobody answered this in time, and the run continued.", code="await_expired")
            case "withdrawn":
                raise Conflict("The run no longer needs this answer.", code="await_closed")
            case "approved" | "denied" | "answered":
                raise Conflict(f"This was {head.outcome} by {head.by}.", code="await_closed")
    if ended:
        raise run_has_ended()
    raise NotFound("The run has no such await.", code="unknown_await")
