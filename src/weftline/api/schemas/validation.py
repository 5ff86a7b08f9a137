"""From what pydantic says about a body to the issues of our one error."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ValidationError

from weftline.errors import InvalidRequest, Issue, invalid
from weftline.wire.unknown_fields import shape_of, unknown_fields, with_typos
from weftline.wire.validation import path_of, words_of


def refused(error: ValidationError, model: type[BaseModel], fields: dict[str, Any]) -> InvalidRequest:
    """The error for a body that is not one of these, which also names the fields that look misspelt."""
    return with_typos(invalid(issues_of(error)), unknown_fields(fields, shape_of(model)))


def issues_of(error: ValidationError) -> list[Issue]:
    """Never holds what was sent: that may be a secret."""
    found: list[Issue] = []
    for problem in error.errors(include_url=False, include_context=False, include_input=False):
        path = path_of([step for step in problem["loc"] if step != "[key]"])
        found.append(Issue(path, words_of(problem)))
    return found
