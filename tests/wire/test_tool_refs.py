"""Tool refs: the seven kinds, their names, what passes through untouched, and secrets that are not stored."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import Raw
from refusals import paths, refused

from weftline.plan import A2ALocalRef, LocalRef, McpLocalRef
from weftline.spec.door import parse_message, parse_run, parse_session
from weftline.spec.plan import plan_from_spec
from weftline.text.redaction import REDACTED

Json = dict[str, Any]

KINDS: list[Json] = [
    {"kind": "mantyx", "id": "tool_clx0123"},
    {"kind": "mantyx_plugin", "name": "@web-tools/search_all"},
    {"kind": "mantyx_plugin", "name": "web_search"},
    {"kind": "local", "name": "x" * 64},
    {
        "kind": "local",
        "name": "send",
        "description": "",
        "parameters": {"type": "object", "properties": {}},
        "outputSchema": {"type": "object"},
        "longRunning": True,
    },
    {"kind": "local", "name": "coerced", "parameters": ["no", "schema"], "outputSchema": "nor this"},
    {"kind": "local", "name": "nulls", "description": None, "parameters": None, "longRunning": None},
    {"kind": "a2a", "name": "peer", "agentCardUrl": "https://peer.example/card.json"},
    {
        "kind": "a2a",
        "name": "peer2",
        "agentCardUrl": "http://127.0.0.1:8000",
        "description": "d",
        "headers": {"X-Key": "k" * 8192, "X-Empty": ""},
        "contextId": "c",
    },
    {"kind": "a2a_local", "name": "hr", "agentCard": {"name": "HR"}},
    {"kind": "mcp", "name": "gh", "url": "https://mcp.example/mcp", "toolFilter": ["get-issue"], "headers": {}},
    {"kind": "mcp_local", "name": "my files", "tools": [{"name": f"t{n}"} for n in range(64)]},
    {"kind": "mcp_local", "name": "fs", "tools": [{"name": "read"}], "serverInfo": {"name": "s"}},
    {"kind": "local", "name": "extra", "annotations": {"kept": True}},
]

REFUSED: list[tuple[Any, str]] = [
    (5, "tools[1]"),
    ({"name": "x"}, "tools[1].kind"),
    ({"kind": "zip", "name": "x"}, "tools[1].kind"),
    ({"kind": 3, "name": "x"}, "tools[1].kind"),
    ({"kind": ["local"], "name": "x"}, "tools[1].kind"),
    ({"kind": "mantyx"}, "tools[1].id"),
    ({"kind": "mantyx", "id": ""}, "tools[1].id"),
    ({"kind": "mantyx", "id": "a b"}, "tools[1].id"),
    ({"kind": "mantyx_plugin"}, "tools[1].name"),
    ({"kind": "mantyx_plugin", "name": "@Up/x"}, "tools[1].name"),
    ({"kind": "mantyx_plugin", "name": "a/b"}, "tools[1].name"),
    ({"kind": "local"}, "tools[1].name"),
    ({"kind": "local", "name": 5}, "tools[1].name"),
    ({"kind": "local", "name": "x", "description": 5}, "tools[1].description"),
    ({"kind": "local", "name": "x", "longRunning": "yes"}, "tools[1].longRunning"),
    ({"kind": "a2a", "name": "x"}, "tools[1].agentCardUrl"),
    ({"kind": "a2a", "name": "x", "agentCardUrl": "peer.example"}, "tools[1].agentCardUrl"),
    ({"kind": "a2a", "name": "x", "agentCardUrl": "file:///etc/passwd"}, "tools[1].agentCardUrl"),
    ({"kind": "a2a", "name": "x", "agentCardUrl": "https://"}, "tools[1].agentCardUrl"),
    ({"kind": "a2a", "name": "x", "agentCardUrl": "https://a b"}, "tools[1].agentCardUrl"),
    ({"kind": "a2a", "name": "x", "agentCardUrl": "https://a", "headers": []}, "tools[1].headers"),
    ({"kind": "a2a", "name": "x", "agentCardUrl": "https://a", "headers": {"K": 1}}, "tools[1].headers.K"),
    ({"kind": "a2a", "name": "x", "agentCardUrl": "https://a", "headers": {"K": None}}, "tools[1].headers.K"),
    ({"kind": "a2a", "name": "x", "agentCardUrl": "https://a", "headers": {"K": "k" * 8193}}, "tools[1].headers.K"),
    ({"kind": "a2a", "name": "x", "agentCardUrl": "https://a", "headers": {"K": "é" * 4097}}, "tools[1].headers.K"),
    ({"kind": "a2a", "name": "x", "agentCardUrl": "https://a", "headers": {"K": "a\r\nB: c"}}, "tools[1].headers.K"),
    ({"kind": "a2a", "name": "x", "agentCardUrl": "https://a", "headers": {"K:": "a"}}, "tools[1].headers.K:"),
    ({"kind": "a2a", "name": "x", "agentCardUrl": "https://a", "contextId": 1}, "tools[1].contextId"),
    ({"kind": "a2a_local", "name": "x"}, "tools[1].agentCard"),
    ({"kind": "a2a_local", "name": "x", "agentCard": "card"}, "tools[1].agentCard"),
    ({"kind": "a2a_local", "name": "x", "agentCard": {}}, "tools[1].agentCard"),
    ({"kind": "a2a_local", "name": "x", "agentCard": {"name": ""}}, "tools[1].agentCard"),
    ({"kind": "mcp", "name": "x"}, "tools[1].url"),
    ({"kind": "mcp", "name": "x-y", "url": "https://a"}, "tools[1].name"),
    ({"kind": "mcp", "name": "x", "url": "https://a", "headers": {"K": "k" * 8193}}, "tools[1].headers.K"),
    (
        {"kind": "mcp", "name": "x", "url": "https://a", "headers": {f"K{i}": "k" * 8000 for i in range(9)}},
        "tools[1].headers",
    ),
    ({"kind": "mcp", "name": "x", "url": "https://a", "toolFilter": "all"}, "tools[1].toolFilter"),
    ({"kind": "mcp", "name": "x", "url": "https://a", "toolFilter": [1]}, "tools[1].toolFilter[0]"),
    ({"kind": "mcp_local", "name": "x"}, "tools[1].tools"),
    ({"kind": "mcp_local", "name": "", "tools": [{"name": "a"}]}, "tools[1].name"),
    ({"kind": "mcp_local", "name": "x", "tools": []}, "tools[1].tools"),
    ({"kind": "mcp_local", "name": "x", "tools": [{"name": f"t{n}"} for n in range(65)]}, "tools[1].tools"),
    ({"kind": "mcp_local", "name": "x", "tools": ["a"]}, "tools[1].tools[0]"),
    ({"kind": "mcp_local", "name": "x", "tools": [{"name": "a"}, {}]}, "tools[1].tools[1].name"),
    ({"kind": "mcp_local", "name": "x", "tools": [{"name": "a"}], "serverInfo": "s"}, "tools[1].serverInfo"),
]


def body(*tools: Any) -> bytes:
    return msgspec.json.encode({"prompt": "hi", "tools": tools})


@pytest.mark.requirement("wire.tools.ref_validation")
@pytest.mark.parametrize("tool", KINDS, ids=lambda tool: f"{tool['kind']}-{str(tool.get('name'))[:12]}")
def test_each_kind_is_accepted_with_its_fields(tool: Json) -> None:
    run = parse_run(body(tool))
    assert len(plan_from_spec(run.spec).tools) == 1


@pytest.mark.requirement("wire.tools.ref_validation")
def test_all_kinds_are_accepted_together() -> None:
    distinct = [tool for tool in KINDS if tool.get("name") != "my files"]
    assert len(plan_from_spec(parse_run(body(*distinct)).spec).tools) == len(distinct)


@pytest.mark.requirement("wire.tools.ref_validation")
@pytest.mark.parametrize(("tool", "path"), REFUSED, ids=lambda value: str(value)[:60])
def test_a_wrong_ref_is_refused_with_its_index(tool: Any, path: str) -> None:
    error = refused(body({"kind": "local", "name": "fine"}, tool))
    assert error.code == "invalid_request"
    assert path in paths(error)
    assert "tools[1]" in error.message


def test_an_address_that_cannot_be_one_is_refused_in_words() -> None:
    error = refused(body({"kind": "mcp", "name": "m", "url": "ftp://x"}))
    assert error.message == "tools[0].url: must be an http or https address"


@pytest.mark.requirement("wire.tools.names")
@pytest.mark.parametrize("name", ["get-weather", "a b", "", "x" * 65, "naïve", "x\n"])
def test_name_that_model_cannot_use_is_refused_by_name(name: str) -> None:
    for tool in (
        {"kind": "local", "name": name},
        {"kind": "a2a", "name": name, "agentCardUrl": "https://a"},
        {"kind": "a2a_local", "name": name, "agentCard": {"name": "x"}},
    ):
        assert repr(name)[:60] in refused(body(tool)).message


@pytest.mark.requirement("wire.tools.names")
@pytest.mark.parametrize("name", ["a b", "", "x" * 129, "naïve", "x\n", "provider:shell"])
def test_name_that_no_mcp_server_gives_is_refused_by_name(name: str) -> None:
    tool = {"kind": "mcp_local", "name": "server", "tools": [{"name": name}]}
    assert repr(name)[:60] in refused(body(tool)).message


LOCAL = {"kind": "local", "name": "read"}
A2A = {"kind": "a2a", "name": "read", "agentCardUrl": "https://a"}
MCP = {"kind": "mcp", "name": "read", "url": "https://a"}
CARD = {"kind": "a2a_local", "name": "read", "agentCard": {"name": "x"}}
FILES = {"kind": "mcp_local", "name": "fs", "tools": [{"name": "list"}, {"name": "read"}]}
STORED = {"kind": "mantyx", "id": "read"}
PLUGIN = {"kind": "mantyx_plugin", "name": "read"}


@pytest.mark.requirement("wire.tools.names")
@pytest.mark.parametrize(
    ("first", "second", "path"),
    [
        (LOCAL, LOCAL, "tools[1].name"),
        (LOCAL, CARD, "tools[1].name"),
        (LOCAL, A2A, "tools[1].name"),
        (LOCAL, FILES, "tools[1].tools[1].name"),
        (FILES, LOCAL, "tools[1].name"),
        (PLUGIN, LOCAL, "tools[1].name"),
        (STORED, STORED, "tools[1].id"),
        (MCP, MCP, "tools[1].name"),
        (A2A, MCP, "tools[1].name"),
        (MCP, A2A, "tools[1].name"),
    ],
)
def test_a_name_is_taken_once(first: Json, second: Json, path: str) -> None:
    error = refused(body(first, second))
    assert path in paths(error)
    assert "read" in error.message


def test_servers_prefix_does_not_clash_with_tool_of_that_name() -> None:
    assert parse_run(body(MCP, LOCAL)).spec
    assert parse_run(body(STORED, LOCAL)).spec


PASSTHROUGH = (
    b'{"kind":"a2a_local","name":"hr","agentCard":{ "name" : "HR\\u00e9", "n":1.0,"big":123456789012345678901234567890,'
    b'"e":1e3, "skills":[ ],"x":{"y":null}}}',
    b'{"kind":"mcp_local","name":"fs","serverInfo":{"version" : "0.4.10", "v":2.50},'
    b'"tools":[{"name":"read","inputSchema":{"type":"object","minimum":1.0},  "annotations":{"readOnlyHint":true}}]}',
    b'{"kind":"local","name":"send","parameters":{"type":"object", "properties":{"a":{"maximum":1E2}}}, "mine":[1.50]}',
)


@pytest.mark.requirement("wire.tools.passthrough")
def test_forwarded_value_keeps_its_bytes() -> None:
    raw = b'{"tools":[' + b",".join(PASSTHROUGH) + b'],"prompt":"hi"}'
    spec = parse_run(raw).spec
    for tool in PASSTHROUGH:
        assert tool in spec
    card, files, local = plan_from_spec(spec).tools
    assert isinstance(card, A2ALocalRef)
    assert isinstance(files, McpLocalRef)
    assert isinstance(local, LocalRef)
    assert PASSTHROUGH[0].endswith(b'"agentCard":' + bytes(card.card) + b"}")
    assert isinstance(files.info, Raw)
    assert b'"serverInfo":' + bytes(files.info) + b"," in PASSTHROUGH[1]
    assert PASSTHROUGH[1].endswith(b"[" + bytes(files.tools[0].raw) + b"]}")
    assert isinstance(local.parameters, Raw)
    assert b'"parameters":' + bytes(local.parameters) + b"," in PASSTHROUGH[2]


def test_secret_headers_are_removed_and_other_bytes_kept() -> None:
    raw = (
        b'{"prompt":"hi","tools":['
        + PASSTHROUGH[0]
        + b',{"kind":"mcp","name":"gh","url":"https://a","headers":{"Authorization":"Bearer s3cret"},"x":1.0},'
        + b'{"kind":"a2a","name":"peer","agentCardUrl":"https://b","headers":{"X-Key":"s3cret2"}}]}'
    )
    for run in (parse_run(raw), parse_message(raw), parse_session(raw.replace(b'"hi"', b"null"))):
        assert run.secrets == {"gh": {"Authorization": "Bearer s3cret"}, "peer": {"X-Key": "s3cret2"}}
        assert b"s3cret" not in run.spec
        assert PASSTHROUGH[0] in run.spec
        assert b'"x":1.0' in run.spec
        stored = msgspec.json.decode(run.spec)["tools"]
        assert stored[1]["headers"] == {"Authorization": REDACTED}
        assert stored[2]["headers"] == {"X-Key": REDACTED}


@pytest.mark.parametrize(
    "raw",
    [
        b'{"prompt":"","tools":[{"kind":"mcp","name":"m","url":"https://a","headers":{"K":"s3cret"}}],"tools":[]}',
        b'{"prompt":"","tools":[{"kind":"mcp","name":"m","url":"https://a","headers":{"K":"s3cret"},"headers":null}]}',
        b'{"prompt":"","tools":[{"kind":"mcp","name":"m","url":"https://a","headers":{"K":"s3cret","K":""}}]}',
    ],
)
def test_no_secret_hides_behind_a_repeated_key(raw: bytes) -> None:
    assert b"s3cret" not in parse_run(raw).spec


def test_no_message_shows_a_header_value() -> None:
    error = refused(body({"kind": "mcp", "name": "m", "url": "https://a", "headers": {"K": "s3cret\n"}}))
    assert "s3cret" not in str(error.details) + error.message


@pytest.mark.parametrize("name", ["Transfer-Encoding", "content-length", "HOST", "Connection", "Proxy-Authorization"])
def test_a_header_that_frames_the_request_is_refused(name: str) -> None:
    error = refused(body({"kind": "mcp", "name": "m", "url": "https://a", "headers": {name: "0"}}))
    assert "is a header that the server sets itself" in error.message
