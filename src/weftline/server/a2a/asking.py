"""A task's questions to people, and which message of the caller answers which.

A message answers a question or comments on a plan. It never approves a call, nor reports the outcome of one in doubt:
that is done over HTTP, with permission. A message with an await's id as data answers that await; any other message
answers the only await that it can answer.

The task also asks the questions of the runs below it. Ids of awaits are unique within a run, so those of other runs
than the task's are named `RUN/ID`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, cast

from msgspec import Struct

from weftline import prompts
from weftline.kernel import bodies
from weftline.kernel.bodies import AwaitBody
from weftline.kernel.entries import AwaitClosed
from weftline.runtime import ids
from weftline.runtime.people.awaits import in_words
from weftline.server.a2a.parts import Content
from weftline.server.a2a.rpc import RpcError, invalid
from weftline.store.rows import OpenAwait

MAX_QUESTIONS = 50
"""How many questions a status lists."""
_ANSWERABLE = ("question", "plan", "clarification")


class TaskMessage(Struct, frozen=True):
    """A message of a task. `data` is its text in a form for programs, `note` tells the reader what to do about it."""

    id: str
    role: Literal["user", "agent"]
    text: str
    data: tuple[Any, ...] = ()
    note: str = ""


class NamedAnswer(NamedTuple):
    """An answer that names its await."""

    await_id: str
    value: Any


def put(asked: Sequence[OpenAwait], *, task: int) -> TaskMessage:
    """Returns one message with all questions, with a part for programs for each."""
    read = [(one, bodies.decode_await(one.body)) for one in asked]
    texts = [_in_words(body) for _, body in read]
    text = texts[0] if len(texts) == 1 else "\n".join([f"{n}. {one}" for n, one in enumerate(texts, 1)])
    data = tuple([_data(name_of(one, task=task), one.kind, body) for one, body in read])
    below = any(one.run != task for one in asked)
    note = _note([one.kind for one in asked], below=below)
    if not note and read[0][1].multiple:
        note = prompts.people.A2A_CHOICES
    return TaskMessage(name_of(asked[0], task=task), "agent", text, data, note)


def name_of(one: OpenAwait, *, task: int) -> str:
    """Returns the name by which callers know an await."""
    return one.id if one.run == task else f"{ids.run_id(one.run, one.salt)}/{one.id}"


def question(id: str, kind: str, body: AwaitBody) -> TaskMessage:
    """Returns the message for one question."""
    return TaskMessage(id, "agent", _in_words(body), (_data(id, kind, body),))


def _in_words(body: AwaitBody) -> str:
    """Returns the question with its options, for callers that only show text."""
    return f"{body.prompt} ({' / '.join(body.options)})" if body.options else body.prompt


def how_to_answer(one: OpenAwait) -> str:
    """Returns what else a caller is told if a message does not fit as an answer."""
    return f" {prompts.people.A2A_CHOICES}" if bodies.decode_await(one.body).multiple else ""


def reply(head: AwaitClosed, body: bytes) -> TaskMessage | None:
    """Returns somebody's answer to an await; None if there was none."""
    answer = bodies.decode_answer(body) if body else bodies.AnswerBody()
    match head.outcome:
        case "answered":
            text = in_words(answer.value)
        case "approved":
            text = "Approved."
        case "denied":
            text = f"Denied: {answer.reason}" if answer.reason else "Denied."
        case "expired" | "withdrawn":
            return None
    return TaskMessage(f"{head.id}_answer", "user", text)


def _data(id: str, kind: str, body: AwaitBody) -> dict[str, Any]:
    about = {"awaitId": id, "kind": kind, "name": body.name, "args": body.args}
    return {**about, "options": body.options, "multiple": body.multiple}


def _note(kinds: list[str], *, below: bool) -> str:
    open_ = [number for number, kind in enumerate(kinds, 1) if kind in _ANSWERABLE]
    if len(open_) > 1:
        return prompts.people.A2A_SEVERAL
    if open_ and len(kinds) > 1:
        return prompts.people.a2a_one_of_several(open_[0])
    if open_:
        return prompts.people.A2A_PLAN if kinds == ["plan"] else ""
    return prompts.people.A2A_DOUBT if below or set(kinds) != {"confirm"} else prompts.people.A2A_CONFIRM


def answered_by(asked: Sequence[OpenAwait], *, task: int) -> OpenAwait | None:
    """Returns the await that a message without an id answers; None if there is none.

    Raises `RpcError` if there are several.
    """
    able = [one for one in asked if is_answerable(one)]
    if len(able) > 1:
        names = ", ".join([name_of(one, task=task) for one in able])
        raise invalid("message.parts", f"the task asks several things ({names}). {prompts.people.A2A_SEVERAL}")
    return able[0] if able else None


def is_answerable(one: OpenAwait) -> bool:
    """Returns True if a message can answer it; otherwise it is decided over HTTP."""
    return one.kind in _ANSWERABLE


def value_of(content: Content) -> Any:
    """Returns a message's answer to the only question: its text, or its only data part."""
    if len(content.data) != 1 or content.words or content.attachments:
        return content.text
    (data,) = content.data
    fields = _object(data)
    return fields["value"] if list(fields) == ["value"] else data


def named_answers(content: Content) -> list[NamedAnswer]:
    """Returns the answers in a message that name their await; empty if none do.

    Raises `RpcError` if it is unclear what answers what.
    """
    named = [fields for data in content.data if isinstance((fields := _object(data)).get("awaitId"), str)]
    if not named:
        return []
    if len(named) == len(content.data):
        if not content.words and all(set(fields) == {"awaitId", "value"} for fields in named):
            return [NamedAnswer(fields["awaitId"], fields["value"]) for fields in named]
        if content.words and len(named) == 1 and set(named[0]) == {"awaitId"}:
            return [NamedAnswer(named[0]["awaitId"], content.words)]
    raise _unclear()


def _unclear() -> RpcError:
    how = "give data with exactly `awaitId` and `value`, or with `awaitId` and a text as the value."
    return invalid("message.parts", f"it is not clear what answers what: {how}")


def _object(data: object) -> dict[str, Any]:
    return cast("dict[str, Any]", data) if isinstance(data, dict) else {}
