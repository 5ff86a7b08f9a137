"""Input of people for a run, as JSON: answers, pauses, resumes and messages."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from msgspec import UNSET
from msgspec.json import encode
from pydantic import BeforeValidator, Field, ValidationError
from pydantic_core import PydanticCustomError

from weftline.api.schemas.validation import refused
from weftline.errors import Issue, invalid
from weftline.runtime.people.answering import AwaitAnswer, pattern_of
from weftline.wire.awaits import Outcome
from weftline.wire.limits import MAX_ERROR_BYTES, MAX_METADATA_ENTRIES, MAX_METADATA_VALUE_CHARS, MAX_RESULT_BYTES
from weftline.wire.models import Part
from weftline.wire.responses import Ok, Warnings
from weftline.wire.unknown_fields import UnknownField, shape_of, unknown_fields

MAX_MESSAGES = 20
_Labels: TypeAlias = dict[str, Annotated[str, Field(max_length=MAX_METADATA_VALUE_CHARS)]]
_Model = TypeVar("_Model", bound=Part)


def _pattern(value: object) -> object:
    if type(value) not in (bool, dict):
        raise PydanticCustomError("remember", "must be true, false or a JSON object of arguments")
    return value


class AnswerModel(Part):
    """A person's answer to an await. The credential identifies the person."""

    outcome: Literal["approved", "denied", "answered"]
    args: dict[str, Any] | None = None
    value: Any = None
    reason: str = Field(default="", max_length=MAX_ERROR_BYTES)
    remember: Annotated[bool | dict[str, Any], BeforeValidator(_pattern)] = False
    labels: _Labels = Field(default={}, max_length=MAX_METADATA_ENTRIES)


class PauseModel(Part):
    reason: str = Field(default="", max_length=MAX_ERROR_BYTES)
    labels: _Labels = Field(default={}, max_length=MAX_METADATA_ENTRIES)


class ResumeModel(Part):
    """`messages` are texts that the model reads before its next turn, in this order."""

    notes: str = Field(default="", max_length=MAX_ERROR_BYTES)
    labels: _Labels = Field(default={}, max_length=MAX_METADATA_ENTRIES)
    messages: list[Annotated[str, Field(min_length=1, max_length=MAX_RESULT_BYTES)]] = Field(
        default=[], max_length=MAX_MESSAGES
    )


class MessageToRunModel(Part):
    """A text that the model reads at its next turn (`steer`), or when the run would otherwise end (`follow_up`)."""

    text: str = Field(min_length=1, max_length=MAX_RESULT_BYTES)
    mode: Literal["steer", "follow_up"] = "steer"
    labels: _Labels = Field(default={}, max_length=MAX_METADATA_ENTRIES)


class AnsweredAwait(Ok, frozen=True, rename="camel", kw_only=True):
    id: str
    run_id: str
    outcome: Outcome
    by: str
    """Who gave the answer, as in the log."""
    warnings: Warnings = UNSET


class Acknowledged(Ok, frozen=True, kw_only=True):
    by: str
    """Who requested it, as in the log."""
    warnings: Warnings = UNSET


class QueuedMessage(Ok, frozen=True, kw_only=True):
    id: str
    """Unique in its run."""
    by: str
    """Who sent it, as in the log."""
    warnings: Warnings = UNSET


def parsed_as(model: type[_Model], fields: dict[str, Any]) -> tuple[_Model, tuple[UnknownField, ...]]:
    """Parses the fields; also returns the unknown ones."""
    try:
        return model.model_validate(fields), unknown_fields(fields, shape_of(model))
    except ValidationError as error:
        raise refused(error, model, fields) from None


def answer_of(sent: AnswerModel, *, request: str, idempotency_key: str = "") -> AwaitAnswer:
    """Returns the answer. `request` distinguishes a repeated request from another one with the same answer."""
    if sent.value is not None and len(encode(sent.value)) > MAX_RESULT_BYTES:
        raise invalid([Issue("value", f"must not be larger than {MAX_RESULT_BYTES:,} bytes")])
    return AwaitAnswer(
        outcome=sent.outcome,
        args=sent.args,
        value=sent.value,
        reason=sent.reason,
        labels=sent.labels,
        remember=pattern_of("", sent.remember),
        request=request,
        idempotency_key=idempotency_key,
    )
