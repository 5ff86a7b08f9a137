"""The body that answers a client-side call."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import msgspec
import pytest

from weftline.errors import InvalidRequest
from weftline.messages import File, Image
from weftline.wire.limits import MAX_ERROR_BYTES, MAX_RESULT_BYTES
from weftline.wire.requests import ToolResultBody, parse_tool_result

PNG = b64encode(b"\x89PNG\r\n\x1a\n").decode()
GO = "Go-http-client/1.1"


def parsed(*, user_agent: str = "python", **fields: Any) -> ToolResultBody:
    return parse_tool_result(msgspec.json.encode(fields), user_agent=user_agent)


@pytest.mark.requirement("wire.toolresult.validation")
def test_a_result_or_an_error_is_taken() -> None:
    assert parsed(toolUseId="t", result="r") == ToolResultBody("t", result="r")
    assert parsed(toolUseId="t", result="") == ToolResultBody("t", result="")
    assert parsed(toolUseId="t", error="e") == ToolResultBody("t", error="e")
    assert parsed(toolUseId="t", result="r", error=None) == ToolResultBody("t", result="r")


def test_files_come_with_a_result() -> None:
    files = [{"filename": "a.txt", "mimeType": "text/plain", "data": "YQ=="}, {"data": PNG, "name": "dot"}]
    assert parsed(toolUseId="t", result="", files=files) == ToolResultBody(
        "t", result="", files=(File("text/plain", "YQ==", name="a.txt"), Image("image/png", PNG, name="dot"))
    )
    assert parsed(toolUseId="t", result="r", files=[], extra=1).files == ()


@pytest.mark.parametrize("files", [[5_300_000], [3_000_000, 3_000_000], [1] * 21], ids=["one", "two", "many"])
def test_files_that_are_too_large_close_their_call(files: list[int]) -> None:
    sent = [{"mimeType": "text/plain", "data": b64encode(b"a" * size).decode()} for size in files]
    assert parsed(toolUseId="t", result="r", files=sent) == ToolResultBody("t", oversize=True)


@pytest.mark.requirement("wire.toolresult.validation")
@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"result": "r"}, "toolUseId"),
        ({"toolUseId": "", "result": "r"}, "toolUseId"),
        ({"toolUseId": 5, "result": "r"}, "toolUseId"),
        ({"toolUseId": None, "result": "r"}, "toolUseId"),
        ({"toolUseId": "t" * 257, "result": "r"}, "toolUseId"),
        ({"toolUseId": "t"}, "result"),
        ({"toolUseId": "t", "result": None}, "result"),
        ({"toolUseId": "t", "result": {"a": 1}}, "result"),
        ({"toolUseId": "t", "result": 5}, "result"),
        ({"toolUseId": "t", "error": ["x"]}, "error"),
        ({"toolUseId": "t", "result": "r", "error": "e"}, "error"),
        ({"toolUseId": "t", "result": "", "error": ""}, "error"),
        ({"toolUseId": "t", "result": "r", "failure": {}}, "failure"),
        ({"toolUseId": "t", "error": "e", "failure": 5}, "failure"),
        ({"toolUseId": "t", "error": "e", "files": [{"data": "YQ==", "mimeType": "text/plain"}]}, "files"),
        ({"toolUseId": "t", "result": "r", "files": "YQ=="}, "files"),
        ({"toolUseId": "t", "result": "r", "files": [{"filename": "a"}]}, "files"),
        ({"toolUseId": "t", "result": "r", "files": [{"data": "?", "mimeType": "text/plain"}]}, "files[0].data"),
        ({"toolUseId": "t", "result": "r", "files": [{"data": "YQ==", "mimeType": "a/zip"}]}, "files[0].mediaType"),
        ({"toolUseId": "t", "error": "e", "failure": {"kind": "odd"}}, "failure.kind"),
        ({"toolUseId": "t", "error": "e", "failure": {"hint": {}}}, "failure.hint"),
        ({"toolUseId": "t", "error": "e", "failure": {"hint": {"reason": "bored"}}}, "failure.hint.reason"),
        (
            {"toolUseId": "t", "error": "e", "failure": {"kind": "timeout", "recovery": "correct_call"}},
            "failure.recovery",
        ),
        (
            {"toolUseId": "t", "error": "e", "failure": {"hint": {"reason": "timeout", "message": "x" * 16384}}},
            "failure",
        ),
    ],
)
def test_anything_else_is_refused_with_its_path(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parsed(**fields)
    assert [issue["path"] for issue in caught.value.details["issues"]] == [path]


def test_fields_of_a_failure_that_are_not_known_are_named() -> None:
    sent = {"kind": "timeout", "recovry": "finish", "hint": {"reason": "timeout", "mesage": "x"}}
    body = parsed(toolUseId="t", error="e", failure=sent)
    assert [(one.path, one.nearest) for one in body.unknown] == [
        ("failure.recovry", "recovery"),
        ("failure.hint.mesage", "message"),
    ]
    assert body.failure is not None and body.failure.kind == "timeout"
    assert not parsed(toolUseId="t", error="e", failure={"hint": {"reason": "timeout"}}).unknown


@pytest.mark.parametrize("character", ["x", "é", "😀", "\x01"])
def test_the_limits_count_utf8_bytes_and_not_escapes(character: str) -> None:
    width = len(character.encode())
    for name, most in (("result", MAX_RESULT_BYTES), ("error", MAX_ERROR_BYTES)):
        text = character * (most // width)
        assert getattr(parsed(toolUseId="t", **{name: text}), name) == text
        assert parsed(toolUseId="t", **{name: text + "y"}) == ToolResultBody("t", oversize=True)


def test_an_oversize_answer_with_another_fault_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        parsed(toolUseId="t", result="x" * (MAX_RESULT_BYTES + 1), error="e")


def test_neither_key_is_an_empty_result_from_go_alone() -> None:
    assert parsed(user_agent=GO, toolUseId="t") == ToolResultBody("t", result="")
    for agent in ("", "python", "not-Go-http-client/1.1"):
        with pytest.raises(InvalidRequest):
            parsed(user_agent=agent, toolUseId="t")
    with pytest.raises(InvalidRequest):
        parsed(user_agent=GO)
