"""Reads bodies as pydantic models, and turns its errors into the issues of our own error."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from weftline.errors import InvalidRequest, Issue, invalid
from weftline.tools.arguments import names_absent, path_in
from weftline.wire.unknown_fields import UnknownField, shape_of, unknown_fields, with_typos
from weftline.wire.validation import path_of, words_of

_Model = TypeVar("_Model", bound=BaseModel)


def parsed_as(model: type[_Model], fields: dict[str, Any]) -> tuple[_Model, tuple[UnknownField, ...]]:
    """Parses the fields; also returns the unknown ones."""
    try:
        return model.model_validate(fields), unknown_fields(fields, shape_of(model))
    except ValidationError as error:
        raise refused(error, model, fields) from None


def refused(error: ValidationError, model: type[BaseModel], fields: dict[str, Any]) -> InvalidRequest:
    """Returns the error for an invalid body, which also names fields that look misspelt."""
    return with_typos(invalid(issues_of(error, fields)), unknown_fields(fields, shape_of(model)))


def issues_of(error: ValidationError, sent: object) -> list[Issue]:
    """Returns the issues of a body, which never contain what was sent, as that may be a secret."""
    found: list[Issue] = []
    for problem in error.errors(include_url=False, include_context=False, include_input=False):
        path = path_in(sent, problem["loc"], names_absent=names_absent(problem["type"]))
        found.append(Issue(path_of(path), words_of(problem)))
    return found
