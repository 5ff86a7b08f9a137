# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Attachments over HTTP: with a prompt, in messages and in sessions; what is refused; where their content is kept."""

from __future__ import annotations

import asyncio
import base64
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import apsw
import pytest

from commands import operate
from weftline.testing import ServerProcess
from weftline.wire.limits import MAX_ATTACHMENT_BYTES

from ..kit import Api, Json, check_error
from ..scripts import SCRIPTS

IMAGE = b"\x89PNG\r\n\x1a\n" + bytes(range(200))
PNG = base64.b64encode(IMAGE).decode()
DIGEST = sha256(IMAGE).hexdigest()
CAT: Json = {"data": PNG, "name": "cat.png"}
STORED: Json = {"mediaType": "image/png", "name": "cat.png", "sha256": DIGEST, "sizeBytes": len(IMAGE)}


async def test_run_shows_its_attachments_to_model_and_snapshot(api: Api) -> None:
    run = await api.start("attached", prompt="see", attachments=[CAT, {"url": "https://example.com/a.pdf"}])
    frames = await api.events(run)
    assert frames[-1]["text"] == f"see: image/png {len(IMAGE)} bytes, application/pdf https://example.com/a.pdf"
    snapshot = await api.snapshot(run)
    assert snapshot["spec"]["attachments"] == [
        STORED,
        {"url": "https://example.com/a.pdf", "mediaType": "application/pdf"},
    ]


async def test_data_url_and_message_of_user_carry_content_too(api: Api) -> None:
    messages = [
        {"role": "user", "content": "first", "attachments": [{"url": f"data:image/png;base64,{PNG}"}]},
        {"role": "assistant", "content": "ok"},
        {"role": "user", "content": "second", "attachments": [{"url": "data:text/plain,a%20b"}]},
    ]
    run = await api.start("attached", messages=messages)
    assert (await api.events(run))[-1]["text"] == (f"first | second: image/png {len(IMAGE)} bytes, text/plain 3 bytes")
    sent = (await api.snapshot(run))["spec"]["messages"]
    assert sent[0]["attachments"] == [{key: STORED[key] for key in ("mediaType", "sha256", "sizeBytes")}]


async def test_the_secrets_in_an_address_are_for_the_model_alone(api: Api) -> None:
    address = "https://me:pw@example.com/a.png?v=1&token=s3cret#x"
    shown = "https://[redacted]@example.com/a.png?v=[redacted]&token=[redacted]"
    given = [{"url": address}, {"data": PNG}]
    message = {"role": "user", "content": "see", "attachments": given}
    for spec in ({"prompt": "see", "attachments": given}, {"messages": [message]}):
        run = await api.start("attached", **spec)
        assert address in (await api.events(run))[-1]["text"]
        stored = (await api.snapshot(run))["spec"]
        attachments = stored.get("attachments") or stored["messages"][0]["attachments"]
        assert attachments[0] == {"url": shown, "mediaType": "image/png"} and attachments[1]["sha256"] == DIGEST
    session = await api.session("attached")
    assert address in (await api.events(await api.send(session, "one", attachments=given)))[-1]["text"]
    messages = (await api.get(f"agent-sessions/{session}")).json["messages"]
    assert messages[0]["attachments"][0]["url"] == shown


async def test_a_session_remembers_attachments_for_later_messages(api: Api) -> None:
    session = await api.session("attached")
    assert (await api.events(await api.send(session, "one", attachments=[CAT])))[-1].type == "result"
    again = await api.events(await api.send(session, "two"))
    assert again[-1]["text"] == f"one | two: image/png {len(IMAGE)} bytes"
    messages = (await api.get(f"agent-sessions/{session}")).json["messages"]
    assert [(message["content"], message.get("attachments")) for message in messages[::2]] == [
        ("one", [STORED]),
        ("two", None),
    ]


@pytest.mark.parametrize(
    ("attachment", "path", "fault"),
    [
        ({}, "attachments[0]", "give exactly one of `data` and `url`"),
        ({"data": PNG, "url": "https://x/a.png"}, "attachments[0]", "give exactly one of `data` and `url`"),
        ({"data": "???"}, "attachments[0].data", "is not base64"),
        ({"data": "é"}, "attachments[0].data", "is not base64"),
        ({"data": ""}, "attachments[0].data", "is empty"),
        ({"data": "aGk="}, "attachments[0].mediaType", "is missing, and cannot be determined from the rest"),
        ({"data": "aGk=", "mediaType": "image/png"}, "attachments[0].mediaType", "but the content is something else"),
        ({"data": PNG, "mediaType": "text/plain"}, "attachments[0].mediaType", "but the content is image/png"),
        ({"data": "aGk=", "mediaType": "audio/mpeg"}, "attachments[0].mediaType", "must be one of image/png"),
        ({"url": "ftp://x/a.png"}, "attachments[0].url", "must be an http, https or data address"),
        ({"url": "https://x/a b.png"}, "attachments[0].url", "must be an http, https or data address"),
        ({"url": "http://[/a.png"}, "attachments[0].url", "must be an http, https or data address"),
        ({"url": "http://169.254.169.254/a.png"}, "attachments[0].url", "must be a public address"),
        ({"url": "http://[::1]:80/a.png"}, "attachments[0].url", "must be a public address"),
        ({"url": "http://0x7f.1/a.png"}, "attachments[0].url", "must be a public address"),
        ({"url": "http://localhost./a.png"}, "attachments[0].url", "must be a public address"),
        ({"url": "data:nothing"}, "attachments[0].url", "is not a data URL"),
        ({"url": "data:text/plain" + ";" * 5000 + ",x"}, "attachments[0].url", "is not a data URL"),
        ({"url": "data:text/plain," + "%" * 5000}, "attachments[0].url", "is not a data URL"),
        ({"url": "data:text/plain," + "a" * 10_500_000}, "attachments[0].url", "more than 10,485,760 bytes"),
        ({"url": "https://x/a"}, "attachments[0].mediaType", "is missing"),
        ({**CAT, "name": "a\nb"}, "attachments[0].name", "must be printable"),
        ({"data": 5}, "attachments[0].data", "must be a string"),
        ({"sha256": DIGEST, "mediaType": "image/png"}, "attachments[0]", "give exactly one of `data` and `url`"),
    ],
)
async def test_attachment_that_cannot_be_taken_is_refused_by_its_place(
    api: Api, attachment: Json, path: str, fault: str
) -> None:
    body = {"modelId": "scripted:attached", "prompt": "hi", "attachments": [attachment]}
    issue = check_error(await api.post("agent-runs", body), 400, "invalid_request")["issues"][0]
    assert issue["path"] == path and fault in issue["message"]


@pytest.mark.parametrize("indent", [None, 2])
async def test_two_documents_of_9_mb_may_come_with_one_request(api: Api, indent: int | None) -> None:
    documents = [b"%PDF-1.7\n" + bytes([place]) * 9 * 1024 * 1024 for place in (1, 2)]
    attachments = [{"data": base64.b64encode(one).decode()} for one in documents]
    session = await api.session("attached")
    shown = ", ".join(f"application/pdf {len(one)} bytes" for one in documents)
    spec: Json = {"modelId": "scripted:attached"}
    for path, own in (("agent-runs", spec), (f"agent-sessions/{session}/messages", {})):
        body = json.dumps({"prompt": "see", "attachments": attachments, **own}, indent=indent).encode()
        reply = await api.call("POST", path, data=body, headers={"Content-Type": "application/json"})
        assert reply.status == 202, reply.body
        assert (await api.events(reply.json["runId"]))[-1]["text"] == f"see: {shown}"
    # What is not in a file has the limit of any body.
    whole = {**spec, "prompt": "x" * 17 * 1024 * 1024, "attachments": [CAT]}
    assert check_error(await api.post("agent-runs", whole), 413, "body_too_large")["limitBytes"] == 16 * 1024 * 1024


async def test_blobs_are_limited_in_size_number_and_place(api: Api) -> None:
    large = base64.b64encode(IMAGE + bytes(MAX_ATTACHMENT_BYTES)).decode()
    refused: list[tuple[Json, str]] = [
        ({"prompt": "x", "attachments": [{"data": large}]}, "attachments[0].data"),
        ({"prompt": "x", "attachments": [CAT] * 21}, "attachments"),
        ({"messages": [{"role": "user", "content": "x", "attachments": [CAT] * 11}] * 2}, "attachments"),
        ({"messages": [{"role": "system", "content": "x", "attachments": [CAT]}]}, "messages[0].attachments"),
        ({"messages": [{"role": "user", "content": "x"}], "attachments": [CAT]}, "attachments"),
    ]
    for body, path in refused:
        reply = await api.post("agent-runs", {"modelId": "scripted:attached", **body})
        assert check_error(reply, 400, "invalid_request")["issues"][0]["path"] == path
    session = await api.post("agent-sessions", {"modelId": "scripted:attached", "attachments": [CAT]})
    assert check_error(session, 400, "invalid_request")["issues"][0]["path"] == "attachments"


async def test_client_claims_about_a_blob_are_not_believed(api: Api) -> None:
    """The names that stand for content in stored specs mean nothing in a request."""
    attachment = {"url": "https://example.com/a.png", "sha256": DIGEST, "sizeBytes": 3}
    run = await api.start("attached", prompt="see", attachments=[attachment])
    assert (await api.events(run))[-1]["text"] == "see: image/png https://example.com/a.png"
    assert (await api.snapshot(run))["spec"]["attachments"] == [
        {"url": "https://example.com/a.png", "mediaType": "image/png"}
    ]


async def test_content_is_stored_once_and_deleted_with_its_last_run(
    tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    with ServerProcess(tmp_path, scripts={"attached": SCRIPTS["attached"]}) as server:
        api = Api(http, server.url, "acme", server.create_key("acme"))
        session = await api.session("attached")
        await api.events(await api.send(session, "kept", attachments=[CAT]))
        for _ in range(2):
            await api.events(await api.start("attached", prompt="see", attachments=[CAT, {"url": "data:text/css,x"}]))
        killed = await api.start("attached", prompt="last", attachments=[CAT])
        server.kill()
        assert stored(server) == [(DIGEST, IMAGE), (sha256(b"x").hexdigest(), b"x")]
        assert PNG.encode() not in b"".join(bodies(server))
        server.start()
        api = Api(http, server.url, "acme", api.key)
        assert (await api.events(killed))[-1]["text"] == f"last: image/png {len(IMAGE)} bytes"
        await asyncio.to_thread(operate, server.db, "POST", "store/trim", {"before": 2**62})
        # Only the session names anything now.
        assert stored(server) == [(DIGEST, IMAGE)]
        again = await api.events(await api.send(session, "two"))
        assert again[-1]["text"] == f"kept | two: image/png {len(IMAGE)} bytes"


def rows(server: ServerProcess, query: str) -> list[Any]:
    db = apsw.Connection(str(server.db / "weftline.db"), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return list(db.execute(query))
    finally:
        db.close()


def stored(server: ServerProcess) -> list[tuple[str, bytes]]:
    return [(row[0], row[1]) for row in rows(server, "SELECT id, data FROM blobs ORDER BY length(data) DESC")]


def bodies(server: ServerProcess) -> list[bytes]:
    return [row[0] for row in rows(server, "SELECT body FROM entries UNION ALL SELECT message FROM thread_messages")]
