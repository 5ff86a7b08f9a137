"""What handlers are given: JSON of messages, files and results, and that the types load light."""

from __future__ import annotations

import inspect
from typing import Any, cast

import msgspec
import pytest

from weftline.threads import (
    AttachmentRef,
    FileRecord,
    SubagentRegistryEntry,
    SyncThreadState,
    ThreadMessage,
    ThreadState,
    ToolAttachment,
    ToolResult,
)

STORED: list[tuple[Any, set[str]]] = [
    (
        ThreadMessage(id="m1", role="tool", tool_call_id="c1", created_at=7, attachments=(AttachmentRef(path="/a"),)),
        {"tool_call_id", "created_at", "attachments"},
    ),
    (
        SubagentRegistryEntry(reference="r", name="n", status="idle", thread_name="t", spawn_group_id="g"),
        {"threadName", "spawnGroupId"},
    ),
    (FileRecord(path="/a", name="a", mime_type="text/plain", is_directory=False), {"mimeType"}),
]


@pytest.mark.parametrize(("value", "names"), STORED, ids=["message", "child", "file"])
@pytest.mark.requirement("thread.define.spelling")
def test_json_is_spelled_as_specified_and_loses_nothing(value: Any, names: set[str]) -> None:
    text = msgspec.json.encode(value)
    assert names <= set(msgspec.json.decode(text))
    kind = cast("type[Any]", type(value))
    assert msgspec.json.decode(text, type=kind) == value


def test_both_states_have_the_same_members() -> None:
    def members(state: type) -> dict[str, list[str]]:
        found: dict[str, Any] = {name: getattr(state, name) for name in dir(state) if not name.startswith("_")}
        return {name: [*inspect.signature(one).parameters] if callable(one) else [] for name, one in found.items()}

    assert members(ThreadState) == members(SyncThreadState)


RESULTS: list[tuple[object, ToolResult]] = [
    ("text", ToolResult(result="text")),
    (None, ToolResult()),
    ({"a": 1}, ToolResult(result='{"a":1}')),
    ({"status": "error", "error": "no"}, ToolResult(status="error", error="no")),
    ({"status": "shipped", "order": 1}, ToolResult(result='{"status":"shipped","order":1}')),
    (
        {"status": "success", "attachments": ["/a", {"path": "/b"}, {"name": "c", "data": b"d"}]},
        ToolResult(
            attachments=(AttachmentRef(path="/a"), AttachmentRef(path="/b"), ToolAttachment(name="c", data=b"d"))
        ),
    ),
    (ToolResult(result="x"), ToolResult(result="x")),
]


@pytest.mark.parametrize(("value", "result"), RESULTS)
def test_what_a_function_returns_is_a_result(value: object, result: ToolResult) -> None:
    assert ToolResult.of(value) == result


@pytest.mark.requirement("thread.define.deprecated")
def test_result_in_parts_still_works_and_warns() -> None:
    with pytest.warns(DeprecationWarning, match="return the text"):
        assert ToolResult.of({"content": [{"type": "text", "text": "Hello."}]}) == ToolResult(result="Hello.")
