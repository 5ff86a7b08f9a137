"""From what pydantic says about a body to the issues of our one error."""

from __future__ import annotations

from pydantic import ValidationError

from weftline.errors import Issue


def issues_of(error: ValidationError) -> list[Issue]:
    """Never holds what was sent: that may be a secret."""
    found: list[Issue] = []
    for problem in error.errors(include_url=False, include_context=False, include_input=False):
        path = ".".join(str(step) for step in problem["loc"] if step != "[key]")
        found.append(Issue(path, problem["msg"]))
    return found
