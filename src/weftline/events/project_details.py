"""Builds the details of a run from its entries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, cast

from msgspec import Raw, Struct
from msgspec.json import Decoder, decode
from msgspec.structs import replace

from weftline.events import details, waiting
from weftline.events.classes import AnyEvent
from weftline.events.details import AnyDetail
from weftline.events.project import object_of
from weftline.events.wire import type_of
from weftline.failure import Clarification
from weftline.kernel import bodies
from weftline.kernel.calls import external_id
from weftline.kernel.context import CompactionFailed, CompactionStarted, ContextCompacted
from weftline.kernel.entries import (
    AttemptFailed,
    AttemptStarted,
    AwaitClosed,
    AwaitOpened,
    CallAsked,
    CallOpened,
    CallStarted,
    Fact,
    ModelRef,
    RunCreated,
    RunEnded,
    TurnCompleted,
)
from weftline.kernel.notes import decode_args_delta, decode_child_note, decode_prompt_note, decode_run_note
from weftline.messages import Usage
from weftline.plan import agent_of

RATE_LIMITED = "rate_limited"
"""The code of the note that a rate-limited model call leaves."""
NEEDED_HEADS = ("attempt.started", "compaction.started", *waiting.HEADS)
"""The entries whose heads a projection must see before it can project later ones."""
_DECISIONS = frozenset({"confirm", "plan", "doubt", "deploy", "budget"})
"""Awaits in which a person decides whether something may be done."""


class _PlanFields(Struct):
    """The fields that are needed from a plan, whatever its version."""

    turn_id: str = ""


_decode_given = Decoder(_PlanFields).decode


class RunFacts(Struct, frozen=True):
    """What every detail contains about its run."""

    run_id: str
    agent: str | None = None
    thread: str | None = None
    turn_id: str = ""


class _AskedQuestion(Struct, frozen=True):
    """The question that an answer belongs to."""

    kind: str
    name: str
    call: str
    prompt: str


def facts_of(run_id: str, *, created: bytes | None, thread: str | None) -> RunFacts:
    """`created` is the body of the run's first entry; None if retention has removed it."""
    if created is None:
        return RunFacts(run_id, None, thread, run_id)
    plan = bodies.decode_created(created).plan
    return RunFacts(run_id, agent_of(plan), thread, _decode_given(plan).turn_id or run_id)


class DetailProjection:
    """Builds the details of one run from its entries.

    Most are built from one entry alone. But usage is reported with the model, an answer with its question, and a nested
    call with its parent. A reader that begins in the middle first passes the heads of all entries of some kinds
    (`NEEDED_HEADS`, in order) to `learn`, and then some whole entries (`needed`) to `learn_whole`. An entry may be
    passed again, and gives the same details.
    """

    def __init__(self, facts: RunFacts) -> None:
        self.facts = facts
        self._models: dict[tuple[int, int], tuple[ModelRef, int]] = {}
        self._summarizers: dict[int, str] = {}
        self._asked: dict[str, _AskedQuestion] = {}
        self._calls: dict[tuple[int, int], tuple[str, str]] = {}
        self._below: dict[tuple[int, int], set[int]] = {}
        """For each call, the indexes of the calls that it asked for."""
        self._args: dict[tuple[int, int], Raw] = {}
        """The arguments of client-side calls."""
        self._waiting = waiting.Waiting()

    def of_fact(self, head: Fact, body: bytes, *, seq: int, at: int) -> list[AnyDetail]:
        """The details of an entry, in order."""
        self.learn(head)
        self.learn_whole(head, body)
        return [self._placed(detail, seq=seq, at=at) for detail in self._details_of(head, body)]

    def around(
        self, event: AnyEvent | None, head: Fact, body: bytes, *, seq: int, at: int
    ) -> list[AnyEvent | AnyDetail]:
        """The event of an entry among its details, in order."""
        found = self.of_fact(head, body, seq=seq, at=at)
        earlier = [detail for detail in found if not _comes_after(detail, head)]
        later = [detail for detail in found if _comes_after(detail, head)]
        return [*earlier, *([] if event is None else [event]), *later]

    def of_observation(self, kind: str, body: bytes, *, seq: int, at: int) -> list[AnyDetail]:
        """The details of an entry without a head."""
        detail = _observed(kind, body)
        return [] if detail is None else [self._placed(detail, seq=seq, at=at)]

    def _placed(self, detail: AnyDetail, *, seq: int, at: int) -> AnyDetail:
        facts = self.facts
        return replace(
            detail,
            run_id=facts.run_id,
            seq=seq,
            key=key_of(seq, type_of(type(detail))),
            at=at,
            agent=facts.agent,
            thread=facts.thread,
            turn_id=facts.turn_id,
        )

    def learn(self, head: Fact) -> None:
        """Takes the head of an entry that may come before the reader's position."""
        self._waiting.see(head)
        match head:
            case AttemptStarted():
                self._models[head.turn, head.attempt] = head.model, head.choice
            case CompactionStarted():
                self._summarizers[head.number] = head.model
            case CallOpened():
                self._calls[head.turn, head.index] = head.id, head.name
            case CallAsked():
                self._below.setdefault((head.turn, head.parent), set()).add(head.index)
            case _:
                pass

    @property
    def needed(self) -> tuple[str, ...]:
        """The kinds of the entries that it has to see whole, once it has learned the heads."""
        return ("await.opened", "call.opened") if self._waiting.offers_several else ("await.opened",)

    def learn_whole(self, head: Fact, body: bytes) -> None:
        """Takes in one of the entries that are `needed` whole."""
        match head:
            case AwaitOpened():
                asked = bodies.decode_await(body)
                self._asked[head.id] = _AskedQuestion(head.kind, asked.name, asked.call, asked.prompt)
            case CallOpened() if head.client is not None and not head.blocked:
                self._args[head.turn, head.index] = bodies.decode_opened(body).args
            case _:
                pass

    def _details_of(self, head: Fact, body: bytes) -> Iterator[AnyDetail]:
        yield from self._of_one(head, body)
        if (offer := self._waiting.offered(head)) is not None:
            yield self._external(offer.turn, offer.indexes)
        if (change := self._waiting.change(head)) is not None:
            yield details.Paused(awaits=change.awaits) if change.to == "paused" else details.Resumed()

    def _external(self, turn: int, offered: tuple[int, ...]) -> AnyDetail:
        """The calls of a turn that clients execute."""
        items: list[dict[str, Any]] = []
        for index in offered:
            id, name = self._calls.get((turn, index), ("", ""))
            items.append({"name": name, "call_id": id, "args": object_of(self._args.get((turn, index), b"{}"))})
        return details.AwaitExternalTools(id=external_id(turn), items=tuple(items))

    def _of_one(self, head: Fact, body: bytes) -> Iterator[AnyDetail]:
        match head:
            case RunCreated():
                yield details.PhaseChanged(phase="prompted")
            case AttemptStarted():
                phase = "synthesizing" if head.final else "planning"
                yield details.PhaseChanged(phase=phase, turn=head.turn, attempt=head.attempt)
            case AttemptFailed():
                yield self._attempt(head)
                if head.cls == "rate_limit":
                    message = bodies.decode_failed(body).message if body else ""
                    yield details.PlannerNote(text=message, labels={"code": RATE_LIMITED}, turn=head.turn)
            case TurnCompleted():
                yield self._attempt(head)
                if head.calls:
                    yield details.PhaseChanged(phase="executing_tools", turn=head.turn, attempt=head.attempt)
            case CompactionFailed():
                yield self._summary(head, self._summarizers.get(head.number, ""))
            case ContextCompacted() if head.number:  # a summary that was taken over was paid for by another run
                known = self._summarizers.get(head.number, "")
                yield self._summary(head, known or (bodies.decode_summary(body).model if body else ""))
            case AwaitOpened():
                yield _question(head, body)
            case AwaitClosed():
                if (asked := self._asked.get(head.id)) is not None and asked.kind in _DECISIONS:
                    yield from _decision(head, body, asked)
            case CallAsked():
                id, name = self._calls.get((head.turn, head.parent), ("", ""))
                expected = len([one for one in self._below[head.turn, head.parent] if one <= head.index])
                yield details.ToolCallUpdated(call_id=id, name=name, expected_children=expected)
            case CallStarted() if head.child:
                yield details.ChildRunLinked(
                    name=head.name, call_id=head.id, child_id=head.child, child_agent=head.name
                )
            case RunEnded():
                yield details.PhaseChanged(phase=head.status, turn=max(head.turns - 1, 0))
            case _:
                pass

    def _attempt(self, head: TurnCompleted | AttemptFailed) -> details.UsageRecorded:
        model, choice = self._models.get((head.turn, head.attempt), (ModelRef(), 0))
        used = _usage(head.usage, model.id, "fallback" if choice else "default")
        return replace(
            used, turn=head.turn, attempt=head.attempt, estimated=head.estimated, cost_usd=_usd(head.cost_nusd)
        )

    def _summary(self, head: ContextCompacted | CompactionFailed, model: str) -> details.UsageRecorded:
        used = _usage(head.usage, model, "summary")
        return replace(used, estimated=head.estimated, cost_usd=_usd(head.cost_nusd))


def _comes_after(detail: AnyDetail, head: Fact) -> bool:
    """Whether the detail follows the event of the same entry, which clients know already; most precede it.

    A run begins before it has a phase, and the reason for a pause or resume comes before it.
    """
    return isinstance(head, RunCreated) or isinstance(detail, details.Paused | details.Resumed)


def key_of(seq: int, kind: str) -> str:
    """The key of a detail of this type from this entry: unique in the run."""
    return f"{seq}.{kind}"


def _usage(used: Usage, model: str, which: Literal["default", "fallback", "summary"]) -> details.UsageRecorded:
    return details.UsageRecorded(
        model=model,
        model_class=which,
        input=used.input,
        output=used.output,
        total=used.input + used.output,
        cache_read=used.cached,
        cache_write=used.cache_write,
        reasoning=used.reasoning,
    )


def _usd(cost_nusd: int | None) -> float | None:
    return None if cost_nusd is None else cost_nusd / 1_000_000_000


def _question(head: AwaitOpened, body: bytes) -> AnyDetail:
    asked = bodies.decode_await(body)
    if head.kind == "clarification":
        lacks = asked.clarification or Clarification()
        return details.AwaitClarification(
            id=head.id,
            question=asked.prompt,
            missing_fields=lacks.missing_fields,
            restrict_to_tool=lacks.restrict_to_tool,
            example_input=lacks.example_input,
            name=asked.name,
            call_id=asked.call,
        )
    args = object_of(asked.args)
    if head.kind == "question":
        return details.AwaitQuestions(
            id=head.id,
            question=asked.prompt,
            options=asked.options,
            multiple=asked.multiple,
            name=asked.name,
            call_id=asked.call,
            args=args,
        )
    return details.AwaitConfirmation(
        id=head.id, kind=head.kind, question=asked.prompt, name=asked.name, call_id=asked.call, args=args
    )


def _decision(head: AwaitClosed, body: bytes, asked: _AskedQuestion) -> Iterator[AnyDetail]:
    if head.outcome == "withdrawn":
        return  # there was no decision
    answer = bodies.decode_answer(body) if body else bodies.AnswerBody()
    yield details.ToolAuthorization(
        id=head.id,
        name=asked.name,
        call_id=asked.call,
        approved=head.outcome == "approved",
        summary=asked.prompt,
        approved_by=head.by,
        labels=answer.labels,
    )


def _observed(kind: str, body: bytes) -> AnyDetail | None:
    match kind:
        case "note.tool":
            note = bodies.decode_tool_note(body)
            return _output(note) if note.kind == "output" else None
        case "delta.args":
            piece = decode_args_delta(body)
            return details.ToolCallArgsDelta(
                call_id=piece.call, name=piece.name, delta=piece.text, turn=piece.turn, attempt=piece.attempt
            )
        case "note.run":
            planned = decode_run_note(body)
            return details.PlannerNote(text=planned.text, labels=planned.labels, turn=planned.turn)
        case "note.child":
            grown = decode_child_note(body)
            return details.ToolCallUpdated(call_id=grown.call, name=grown.name, expected_children=grown.calls)
        case "note.prompt":
            of = decode_prompt_note(body)
            scope = {"thread": of.thread or None, "labels": of.labels}
            return details.PromptRendered(prompt_id=of.prompt, version=of.version, scope=scope)
        case _:
            return None


def _output(note: bodies.ToolNote) -> details.ToolOutputDelta:
    """A tool emits its output as a text, or as an object with a `stream` and a `delta`."""
    data: Any = decode(note.data)
    if isinstance(data, dict):
        fields = cast("dict[str, Any]", data)
        stream, delta = str(fields.get("stream") or ""), str(fields.get("delta") or "")
    else:
        stream, delta = "", data if isinstance(data, str) else bytes(note.data).decode()
    return details.ToolOutputDelta(name=note.name, call_id=note.call, stream=stream, delta=delta)
