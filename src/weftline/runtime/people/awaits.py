"""Awaits: how a question about a call is put, and what a model reads of the answer."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any, cast

from msgspec import UNSET, Raw, Struct
from msgspec.json import decode
from msgspec.structs import replace

from weftline import prompts
from weftline.failure import Clarification, Hint
from weftline.kernel import bodies
from weftline.kernel.batch import await_id
from weftline.kernel.bodies import AnswerBody, AskBody, AwaitBody, Pattern
from weftline.kernel.entries import Asks, AwaitOpened, CallClosed, Verdict
from weftline.kernel.state import Call, Reconcile, RunTool, State
from weftline.messages import Text
from weftline.runtime import ids
from weftline.runtime.live import Draft, WorkingSet
from weftline.text.canonical import canonical_value
from weftline.tools.arguments import StaleArguments
from weftline.tools.asking import Ask, ask_of
from weftline.tools.base import Tool, ToolOutput
from weftline.work.outcomes import is_interruption

logger = logging.getLogger(__name__)

_PLAIN = re.compile(r"[\w ./:=@,+%-]*", re.ASCII)
"""What may follow a prefix: nothing that a shell, a path or a query would interpret as more than a word."""


class AwaitPlan(Struct, frozen=True):
    """The record about a call that people are asked about."""

    verdict: Verdict = "ok"
    asks: Asks | None = None
    body: AskBody | None = None
    allowed_by: str = ""
    problem: str = ""
    """What the model reads if the question cannot be asked."""


def put_to_people(tool: Tool, args: bytes, work: WorkingSet, *, ask: Ask | None = None) -> AwaitPlan | None:
    """Returns the question to people about a call with these final arguments: that of a gate (`ask`), or else of its
    tool.

    None if nobody is asked. A question that cannot be built blocks the call.
    """
    name = tool.spec.name
    if ask is None:
        try:
            ask = ask_of(tool, args)
        except StaleArguments as error:
            return AwaitPlan("blocked", problem=error.message)
        except BaseException as error:
            if is_interruption(error):
                raise
            logger.exception("run %s: the question about a call of %s could not be created", work.run_id, name)
            return AwaitPlan("blocked", problem=prompts.people.not_askable(name, f"{type(error).__name__}: {error}"))
    if ask is None:
        return None
    if ask.kind == "confirm":
        for approval, pattern in work.conversation.allowed:
            if may_decide(ask.approvers, approval.by) and covers(pattern, name, args):
                return AwaitPlan(allowed_by=approval.id)
    timeout_us = None if ask.timeout_s is None else int(ask.timeout_s * 1_000_000)
    body = AskBody(ask.prompt, ask.options, ask.multiple, ask.parts, ask.approvers)
    return AwaitPlan(asks=Asks(ask.kind, timeout_us), body=body)


def may_decide(approvers: Sequence[str], by: str) -> bool:
    return not approvers or by in approvers


def covers(pattern: Pattern, tool: str, args: bytes) -> bool:
    """Returns True if an approval with this pattern covers a call with these arguments.

    Only plain words may follow a prefix: `git status` is covered by the prefix `git `, `git status; rm -r .` is not.
    """
    if pattern.tool != tool:
        return False
    given = decode(args, type=dict[str, Any])
    for name, value in pattern.args.items():
        if name not in given or not _same(given[name], decode(value)):
            return False
    for name, prefix in pattern.prefixes.items():
        text = given.get(name)
        if not isinstance(text, str) or not text.startswith(prefix) or not _PLAIN.fullmatch(text[len(prefix) :]):
            return False
    return True


def _same(one: object, other: object) -> bool:
    """Returns True if two values are the same JSON. `3` and `3.0` are: a browser that receives one sends the other."""
    if isinstance(one, dict) and isinstance(other, dict):
        fields, others = cast("dict[str, object]", one), cast("dict[str, object]", other)
        return fields.keys() == others.keys() and all(_same(fields[name], others[name]) for name in fields)
    if isinstance(one, list) and isinstance(other, list):
        items, more = cast("list[object]", one), cast("list[object]", other)
        return len(items) == len(more) and all(map(_same, items, more))
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def question_of(index: int, work: WorkingSet) -> AskBody | None:
    """Returns the question to people about a call of the latest turn, according to the log."""
    conversation = work.conversation
    if index in conversation.turn.asked_back:
        return conversation.turn.asked_back[index]
    gated = conversation.turn.gated.get(index)
    if gated is not None and gated.ask is not None:
        return gated.ask
    return conversation.turn.asked(index).ask


def await_body(call: Call, head: AwaitOpened, work: WorkingSet) -> AwaitBody:
    args = work.conversation.turn.args
    args_of_call = Raw(args[head.index] if head.index < len(args) else b"{}")
    if head.kind == "clarification":
        return _clarification(call, head, work, args_of_call)
    asked = question_of(head.index, work)
    if head.kind == "doubt":
        key = ids.idempotency_key(work.store_id, work.unique_id, head.turn, head.index, call.digest)
        return AwaitBody(
            f"Did this call of {call.name} take effect?",
            call.id,
            call.name,
            args_of_call,
            key=key,
            called_at=call.begun_at,
            approvers=() if asked is None else asked.approvers,
        )
    if asked is None:
        return AwaitBody(f"May {call.name} be called?", call.id, call.name, args_of_call)
    return AwaitBody(
        asked.prompt, call.id, call.name, args_of_call, asked.options, asked.multiple, approvers=asked.approvers
    )


def _clarification(call: Call, head: AwaitOpened, work: WorkingSet, args: Raw) -> AwaitBody:
    """Asks for what a failed call lacks, in the words of its hint."""
    hint = work.conversation.turn.hints.get(head.index) or Hint("missing_fields", tool=call.name)
    about = Clarification(
        hint.missing_fields, hint.tool if hint.restrict_to_tool else "", hint.example_input, hint.message
    )
    question = hint.clarifying_question or prompts.failure.ask_what_to_call(call.name)
    return AwaitBody(question, call.id, call.name, args, clarification=about)


def ask_back(command: RunTool, call: Call, state: State, work: WorkingSet, ask: Ask) -> Draft:
    """Asks a person the question that a tool has ended with."""
    timeout_us = state.limits.await_timeout_us if ask.timeout_s is None else int(ask.timeout_s * 1_000_000)
    id = await_id(command.turn, command.index, call)
    head = AwaitOpened(command.turn, command.index, id, "question", call.digest, timeout_us)
    args_of_call = Raw(work.conversation.turn.args[command.index])
    body = AwaitBody(ask.prompt, call.id, call.name, args_of_call, ask.options, ask.multiple, by_tool=True)
    return Draft(head, bodies.encode(body))


def ask_about_doubt(command: Reconcile, call: Call, state: State, work: WorkingSet) -> Draft:
    """Asks a person whether a call that was interrupted has happened."""
    id = await_id(command.turn, command.index, call)
    head = AwaitOpened(command.turn, command.index, id, "doubt", call.digest, state.limits.await_timeout_us)
    return Draft(head, bodies.encode(await_body(call, head, work)))


def with_edits(output: ToolOutput, index: int, work: WorkingSet) -> ToolOutput:
    """The result of a call, with a note about its arguments if a person has changed them.

    The note is for models only: code that asked for the call gets the result unchanged.
    """
    _, answer = work.conversation.turn.answers.get(index, (None, None))
    if answer is None or answer.args is UNSET or work.conversation.turn.parent_of(index):
        return output
    return replace(output, parts=(*output.parts, Text(prompts.people.edited(bytes(answer.args).decode()))))


def answer_text(call: Call, head: CallClosed, work: WorkingSet) -> str:
    """Returns a person's answer as the model reads it, or "" if the answer does not close the call."""
    closed, answer = work.conversation.turn.answers[head.index]
    if call.asked_back:
        kind = "question"
    else:
        kind = "doubt" if call.asks is None or call.stage == "started" else call.asks.kind
    match head.how:
        case "denied":
            return _refused(kind, answer.reason, expired=closed.outcome == "expired")
        case "answered" if kind == "plan" and closed.outcome == "approved":
            return _approved_plan(answer)
        case "answered" if kind == "plan":
            return prompts.people.plan_commented(in_words(answer.value))
        case "answered" | "returned" if closed.outcome == "answered":
            asked = question_of(head.index, work) if kind == "question" else None
            return _answers(() if asked is None else asked.parts, answer.value)
        case _:
            return ""


def _approved_plan(answer: AnswerBody) -> str:
    if isinstance(answer.value, Raw):
        edited = decode(answer.value, type=dict[str, Any])
        return prompts.people.plan_edited(in_words(edited.get("plan", edited)), answer.reason)
    return prompts.people.plan_approved(answer.reason) if answer.reason else prompts.people.PLAN_APPROVED


def _answers(parts: Sequence[AskBody], value: object) -> str:
    given: object = decode(value) if isinstance(value, Raw) else None
    if not parts or not isinstance(given, list):
        return in_words(value)
    each = zip(parts, cast("list[object]", given), strict=False)
    return prompts.people.answers([(part.prompt, in_words(one)) for part, one in each])


def _refused(kind: str, reason: str, *, expired: bool) -> str:
    match kind:
        case "question" | "plan" if expired:
            return prompts.people.NOT_ANSWERED_IN_TIME
        case "question":
            return prompts.people.no_answer(reason) if reason else prompts.people.NO_ANSWER
        case "plan":
            return prompts.people.plan_rejected(reason) if reason else prompts.people.PLAN_REJECTED
        case _:
            if expired:
                return prompts.people.EXPIRED
            return prompts.people.denied(reason) if reason else prompts.people.DENIED


def in_words(value: object) -> str:
    """An answer as a model reads it: texts as they are, several one below the other, anything else as JSON."""
    if value is UNSET:
        return ""
    plain: object = decode(value) if isinstance(value, Raw) else value
    if isinstance(plain, str):
        return plain
    several = cast("Sequence[object]", plain) if isinstance(plain, list) else ()
    if several and all(isinstance(one, str) for one in several):
        return "\n".join([str(one) for one in several])
    return canonical_value(cast(object, plain)).decode()
