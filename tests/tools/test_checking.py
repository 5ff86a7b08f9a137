"""Values against schemas, with a bound: whichever way is taken, the verdict is the same."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from weftline import prompts
from weftline.tools import checking
from weftline.tools.checking import can_be_checked, issues_of
from weftline.tools.schema import ArgsValidator
from weftline.work.processes import Workers

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "pattern": "^[A-Z]"}, "tags": {"type": "array", "items": {"enum": [1]}}},
    "required": ["name"],
}
TREE: dict[str, Any] = {"type": "object", "properties": {"n": {"type": "integer"}, "next": {"$ref": "#"}}}


def text(value: object) -> bytes:
    return msgspec.json.encode(value)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (PERSON, {"name": "Ada", "tags": [1, 1]}),
        (PERSON, {"name": "ada"}),
        (PERSON, {"name": "Ada", "tags": [1] * 20_000}),
        (PERSON, {"name": "Ada", "tags": [2] * 20_000}),
        (TREE, {"next": {"next": {"n": 1}}}),
        (TREE, {"next": {"next": {"n": "one"}}}),
        ({"type": "string", "pattern": "^(?!no)"}, "yes"),
        ({"type": "string", "pattern": "^(?!no)"}, "no"),
        ({"$ref": "https://x.example/unknown"}, 1),
    ],
)
async def test_the_bound_changes_no_verdict(schema: dict[str, Any], value: object) -> None:
    assert await issues_of(text(value), text(schema)) == ArgsValidator.of(text(schema)).validate(text(value))


async def test_a_small_check_asks_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "shared_workers", None)
    assert await issues_of(text({"name": "Ada"}), text(PERSON)) == ()
    assert await issues_of(text({"name": "ada"}), text(PERSON)) != ()


async def test_slow_validation_is_an_issue(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers(cpu_s=0.15)
    monkeypatch.setattr(checking, "shared_workers", lambda: workers)
    node: dict[str, Any] = {"properties": {"a": {"$ref": "#"}, "leaf": False}}
    union = text({"anyOf": [node, {**node, "title": "another"}]})
    deep = b'{"a":' * 40 + b'{"leaf":1}' + b"}" * 40
    assert [issue.message for issue in await issues_of(deep, union)] == [prompts.calls.TOO_MUCH_TO_LIST]
    looking_back: Any = {"type": "object", "properties": {"a": {"type": "string"}}}
    for _ in range(30):
        looking_back = {"anyOf": [looking_back], "unevaluatedProperties": False}
    issues = await issues_of(text({"a": "x"}), text(looking_back))
    assert [issue.message for issue in issues] == [prompts.calls.TOO_MUCH_TO_CHECK]


@pytest.mark.parametrize(
    ("schema", "can"),
    [
        (PERSON, True),
        (TREE, True),
        ({"pattern": "(?=x)"}, True),
        ({"pattern": "("}, False),
        ({"type": "objekt"}, False),
        ({"$ref": "#/$defs/missing"}, False),
    ],
)
async def test_a_schema_can_be_checked_or_not(schema: dict[str, Any], can: bool) -> None:
    assert await can_be_checked(text(schema)) is can
