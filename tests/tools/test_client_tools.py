import msgspec
import pytest
from msgspec import UNSET, Raw

from weftline.kernel.bodies import A2APeer, McpPeer
from weftline.messages import joined_text
from weftline.tools.arguments import InvalidArguments
from weftline.tools.base import Tool, ToolContext, Unknown
from weftline.tools.client_side import A2ALocalTool, LocalTool, McpLocalTool, input_invalid_result

SCHEMA = b'{"type":"object", "properties":{"path":{"type":"string","minLength":2}}, "required":["path"]}'
NOTE = (
    "NOTE: This is a long-running operation. Do not call this tool again if it has already returned an "
    "intermediate or pending status."
)


def decoded(raw: Raw | None) -> object:
    assert raw is not None
    return msgspec.json.decode(raw)


def all_kinds() -> list[Tool]:
    return [
        LocalTool("read", parameters=Raw(SCHEMA)),
        A2ALocalTool("ask", card=Raw(b'{"name":"Ada"}')),
        McpLocalTool("fs_read", entry=Raw(b'{"name":"fs_read"}'), server="fs"),
    ]


def test_client_tools_are_offered_concurrently_and_again_after_a_crash() -> None:
    assert [tool.client for tool in all_kinds()] == ["local", "a2a_local", "mcp_local"]
    assert {(tool.effect, tool.concurrent, tool.timeout_s) for tool in all_kinds()} == {("idempotent", True, None)}


async def test_client_tools_cannot_be_invoked_on_the_server() -> None:
    context = ToolContext("run", "0.0", "key", "read", "default")
    for tool in all_kinds():
        with pytest.raises(RuntimeError):
            await tool.invoke(b"{}", context)
        assert await tool.reconcile(b"{}", context) == Unknown()


@pytest.mark.requirement("wire.tools.client_schema")
def test_schema_and_description_of_client_tool_reach_model_unchanged() -> None:
    local = LocalTool("read", description=" Reads.\n", parameters=Raw(SCHEMA))
    assert (local.spec.name, local.spec.description, bytes(local.spec.parameters)) == ("read", " Reads.\n", SCHEMA)
    entry = b'{"name":"fs_read","description":" Reads.\\n","inputSchema":' + SCHEMA + b"}"
    remote = McpLocalTool("fs_read", entry=Raw(entry), server="fs")
    assert (remote.spec.name, remote.spec.description, bytes(remote.spec.parameters)) == (
        "fs_read",
        " Reads.\n",
        SCHEMA,
    )


@pytest.mark.requirement("wire.tools.client_schema")
def test_missing_schema_is_an_empty_object_schema() -> None:
    empty: dict[str, object] = {"type": "object", "properties": {}}
    roots = (None, Raw(b"{}"), Raw(b'{"type":"array"}'), Raw(b'{"type":"object"}'))
    for spec in [LocalTool("t", parameters=root).spec for root in roots]:
        assert decoded(spec.parameters) == empty
        assert spec.description == ""
    for entry in (b'{"name":"t"}', b'{"name":"t","inputSchema":{}}', b'{"name":"t","inputSchema":null}'):
        spec = McpLocalTool("t", entry=Raw(entry), server="s").spec
        assert decoded(spec.parameters) == empty
        assert spec.description == ""


@pytest.mark.parametrize("args", ["{}", '{"path":"x"}', '{"path":3}', "[]", "{", ""])
async def test_arguments_that_violate_schema_are_stopped_before_call_is_offered(args: str) -> None:
    entry = Raw(b'{"name":"fs_read","inputSchema":' + SCHEMA + b"}")
    for tool in (LocalTool("fs_read", parameters=Raw(SCHEMA)), McpLocalTool("fs_read", entry=entry, server="fs")):
        with pytest.raises(InvalidArguments) as caught:
            await tool.prepare(args)
        output = input_invalid_result(tool, caught.value)
        assert output.is_error
        body = msgspec.json.decode(joined_text(output.parts), type=dict[str, object])
        assert body["error"] == "tool_input_invalid"
        assert body["tool"] == "fs_read"
        assert body["message"] == caught.value.message
        assert body["issues"]


NESTED = b"""{"type": "object", "required": ["to"], "properties": {
    "to": {"type": "string"}, "days": {"type": "integer"}, "note": {"type": ["string", "null"]},
    "kind": {"enum": ["a", "b"]}, "a/b": {"$ref": "#/$defs/text"},
    "items": {"type": "array", "items": {"type": "object", "properties": {"size": {"type": "number"}}}}},
    "$defs": {"text": {"type": "string"}}}"""


@pytest.mark.parametrize(
    ("args", "sent"),
    [
        ('{"to": "x", "days": null}', b'{"to":"x"}'),
        ('{"to": "x", "note": null, "kind": null, "a/b": null}', b'{"note":null,"to":"x"}'),
        ('{"to": "x", "items": [{"size": null}, {"size": 1}]}', b'{"items":[{},{"size":1}],"to":"x"}'),
    ],
)
async def test_a_null_for_what_is_optional_is_left_out(args: str, sent: bytes) -> None:
    assert await LocalTool("send", parameters=Raw(NESTED)).prepare(args) == sent


@pytest.mark.parametrize("args", ['{"to": null}', '{"to": "x", "days": "1"}', '{"to": "x", "items": [null]}'])
async def test_other_arguments_that_do_not_fit_are_named_as_before(args: str) -> None:
    with pytest.raises(InvalidArguments) as caught:
        await LocalTool("send", parameters=Raw(NESTED)).prepare(args)
    assert [one.constraint for one in caught.value.issues] == ["type"]


async def test_an_issue_names_where_and_what() -> None:
    tool = LocalTool("read", parameters=Raw(SCHEMA))
    with pytest.raises(InvalidArguments) as caught:
        await tool.prepare('{"path":"x"}')
    assert [(issue.path, issue.constraint) for issue in caught.value.issues] == [("/path", "minLength")]


async def test_arguments_that_fit_become_canonical_bytes() -> None:
    tool = LocalTool("read", parameters=Raw(SCHEMA))
    assert await tool.prepare('{ "path": "ab", "n": 12345678901234567890123, "b": 1.0 }') == (
        b'{"b":1.0,"n":12345678901234567890123,"path":"ab"}'
    )


@pytest.mark.requirement("wire.tools.local_output_schema")
def test_an_output_schema_is_kept_only_with_an_object_root() -> None:
    schema = b'{"type": "object", "properties": {"ok": {"type": "boolean"}}}'
    spec = LocalTool("t", output_schema=Raw(schema)).spec
    assert spec.output_schema is not UNSET
    assert bytes(spec.output_schema) == schema
    for other in (b'{"type":"string"}', b"[]", b"true", b"null"):
        assert LocalTool("t", output_schema=Raw(other)).spec.output_schema is UNSET


@pytest.mark.requirement("wire.tools.local_long_running")
def test_long_running_appends_its_sentence_and_changes_nothing_else() -> None:
    plain = LocalTool("t", description="Builds.", parameters=Raw(SCHEMA))
    long = LocalTool("t", description="Builds.", parameters=Raw(SCHEMA), long_running=True)
    assert long.spec.description.removesuffix(NOTE).strip() == "Builds."
    assert long.spec.description.endswith(NOTE)
    assert bytes(long.spec.parameters) == bytes(plain.spec.parameters)
    assert (long.effect, long.concurrent, long.timeout_s, long.client, long.peer) == (
        plain.effect,
        plain.concurrent,
        plain.timeout_s,
        plain.client,
        plain.peer,
    )
    assert LocalTool("t", long_running=True).spec.description == NOTE


async def test_a2a_local_tool_takes_one_message_and_has_its_card() -> None:
    card = b'{"name":"Ada","unknown":{"deep":[1.50,null]},"skills":"odd"}'
    tool = A2ALocalTool("ask_ada", card=Raw(card))
    assert await tool.prepare('{"message":"hi"}') == b'{"message":"hi"}'
    for wrong in ("{}", '{"message":1}'):
        with pytest.raises(InvalidArguments):
            await tool.prepare(wrong)
    assert tool.peer == A2APeer(Raw(card))


@pytest.mark.requirement("wire.tools.a2a_local_description")
def test_a2a_local_tool_description_is_given_or_from_its_card() -> None:
    skills = [{"id": f"s{n}", "name": f"Skill {n}", "description": f"Does {n}"} for n in range(15)]
    card = Raw(msgspec.json.encode({"name": "Ada", "description": "Counts things.", "skills": skills}))
    assert A2ALocalTool("ask", card=card, description="Mine.").spec.description == "Mine."
    lines = A2ALocalTool("ask", card=card).spec.description.splitlines()
    assert lines[0] == "Delegate a task to Ada: Counts things."
    assert lines[1:] == [f"- Skill {n}: Does {n}" for n in range(12)]


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        (b'{"name":"Ada"}', "Delegate a task to Ada"),
        (b'{"name":"Ada","skills":[1,{},{"id":"x"},{"name":"N\\n1"}]}', "Delegate a task to Ada\n- x\n- N 1"),
        (b"{}", "Delegate a task to ask"),
    ],
)
def test_a_sparse_card_still_gives_a_description(card: bytes, expected: str) -> None:
    assert A2ALocalTool("ask", card=Raw(card)).spec.description == expected


def test_mcp_local_tool_has_its_server_and_its_own_name() -> None:
    entry = Raw(b'{"name":"fs_read","annotations":{"readOnlyHint":true,"x":1}}')
    tool = McpLocalTool("fs_read", entry=entry, server="fs", server_info=Raw(b'{"name":"fs","version":"1"}'))
    info, annotations = Raw(b'{"name":"fs","version":"1"}'), Raw(b'{"readOnlyHint":true,"x":1}')
    assert tool.peer == McpPeer("fs", "fs_read", info, annotations)
    bare = McpLocalTool("fs_read", entry=Raw(b'{"name":"fs_read","annotations":null}'), server="fs")
    assert bare.peer == McpPeer("fs", "fs_read")
