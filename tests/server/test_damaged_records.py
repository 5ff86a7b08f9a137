# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""A damaged row harms itself alone: commits go on, lists show the others and it as damaged, and it can be deleted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import apsw

from weftline.testing import ServerProcess

from .kit import Api, Json, check_error
from .scripts import SCRIPTS, TOOLS

DAMAGE = {
    "webhooks": [("events", "'{garbage'"), ("events", "CAST(x'ff' AS TEXT)"), ("url", "CAST(x'fffe' AS TEXT)")],
    "api_keys": [("name", "CAST(x'ff' AS TEXT)"), ("agents", "'{garbage'")],
    "deliveries": [
        ("status", "CAST(x'ff' AS TEXT)"),
        ("about", "CAST(x'ff' AS TEXT)"),
        ("last_error", "CAST(x'fffd' AS TEXT)"),
    ],
    "open_awaits": [
        ("body", "x'7b'"),
        ("body", "x'ff'"),
        ("opened_at", "-9223372036854775808"),
        ("kind", "CAST(x'ff' AS TEXT)"),
    ],
    "agents": [("spec", "x'7b'"), ("name", "CAST(x'ff' AS TEXT)")],
    "tools": [("spec", "x'7b'"), ("name", "CAST(x'ff' AS TEXT)")],
    "providers": [("spec", "x'5b315d'"), ("name", "CAST(x'ff' AS TEXT)")],
    "threads": [("name", "CAST(x'ff' AS TEXT)"), ("agent", "CAST(x'ff' AS TEXT)")],
}
PAY: list[Json] = [{"kind": "server", "name": "pay"}]


def damage(db: Path, *, spared: dict[str, int]) -> dict[str, list[str]]:
    """Damages one row after the other of each table, and returns their ids; the first `spared` ones stay whole."""
    store, ids = apsw.Connection(str(db / "weftline.db")), dict[str, list[str]]()
    for table, columns in DAMAGE.items():
        keys: list[Any] = store.execute(
            f"SELECT key FROM {table} ORDER BY key LIMIT {len(columns)} OFFSET {spared[table]}"
        ).fetchall()
        assert len(keys) == len(columns), table
        for (key,), (column, value) in zip(keys, columns, strict=True):
            store.execute(f"UPDATE {table} SET {column} = {value} WHERE key = ?", (key,))
            if table in ("webhooks", "api_keys"):
                rows: list[Any] = store.execute(f"SELECT id FROM {table} WHERE key = ?", (key,)).fetchall()
                ids.setdefault(table, []).append(rows[0][0])
    # The run of an await: the inbox shows its agent.
    store.execute("UPDATE runs SET agent = CAST(x'ff' AS TEXT) WHERE key = (SELECT max(run) FROM open_awaits)")
    store.close()
    return ids


async def test_a_damaged_row_harms_itself_alone(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    with ServerProcess(tmp_path, scripts=SCRIPTS, tools=TOOLS) as server:
        api = Api(http, server.url, "acme", server.create_key("acme"))
        hooks = [
            (await api.post("webhooks", {"url": f"http://127.0.0.1:9/{n}", "events": ["succeeded", "waiting"]})).json
            for n in range(4)
        ]
        secrets = [(await api.post("api-keys", {"name": f"k{n}"})).json["key"] for n in range(3)]
        for _ in range(6):
            async with api.stream(await api.start("pay", tools=PAY)) as stream:
                await stream.until("await_opened")
        for _ in range(3):
            assert (await api.post("agent-sessions", {"modelId": "scripted:hello"})).status == 201
        stored = {name: [await _stored(api, name, number) for number in range(3)] for name in STORED}
        assert server.terminate() == 0
        ids = damage(
            server.db,
            spared={"webhooks": 1, "api_keys": 1, "deliveries": 0, "open_awaits": 1, "threads": 1}
            | dict.fromkeys(STORED, 1),
        )
        server.start()

        assert (await api.get("models")).status == 200  # on a connection to the new process
        run = await api.start("hello")
        assert (await api.events(run))[-1].type == "result"
        waiting = await api.start("pay", tools=PAY)
        assert (await api.post(f"agent-runs/{waiting}/cancel")).status == 200

        listed = (await api.get("webhooks")).json["webhooks"]
        assert [one["id"] for one in listed] == [one["id"] for one in hooks]
        assert [one.get("errorCode") for one in listed] == [None, "log_damaged", "log_damaged", "log_damaged"]
        deliveries = (await api.get(f"webhooks/{hooks[0]['id']}/deliveries")).json["deliveries"]
        assert run in [one["runId"] for one in deliveries]
        every = [one for hook in hooks for one in await _deliveries(api, hook["id"])]
        assert any("errorCode" in one for one in every)  # those that were attempted have a status and an error again
        for hook in ids["webhooks"]:
            assert (await api.call("PATCH", f"webhooks/{hook}", {"enabled": False})).status == 200
            assert (await api.call("DELETE", f"webhooks/{hook}")).status == 200
        assert [one["id"] for one in (await api.get("webhooks")).json["webhooks"]] == [hooks[0]["id"]]

        keys = (await api.get("api-keys")).json["keys"]
        assert [one["id"] for one in keys if "errorCode" in one] == ids["api_keys"]
        # A key whose agents cannot be read is for none of them.
        assert [(await api.get("awaits", key=secret)).status for secret in secrets] == [401, 401, 200]
        assert (await api.call("DELETE", f"api-keys/{ids['api_keys'][0]}")).status == 200

        awaits = (await api.get("awaits?limit=200")).json["awaits"]
        assert [one.get("errorCode") for one in awaits] == [None, *["log_damaged"] * 5]
        assert (await api.get("awaits?name=pay&kind=confirm&waitingSince=2030-01-01T00:00:00Z")).status == 200
        for one in awaits[1:3]:
            answer = f"agent-runs/{one['runId']}/awaits/{one['id']}"
            assert (await api.post(answer, {"outcome": "denied"})).status == 200
        sessions = (await api.get("agent-sessions")).json["sessions"]
        assert [one.get("errorCode") for one in sessions] == ["log_damaged", "log_damaged", None]
        for one in sessions:
            assert (await api.call("DELETE", f"agent-sessions/{one['id']}")).status == 200
        agent = {"agentId": stored["agents"][1], "prompt": "x"}
        check_error(await api.post("agent-runs", agent), 500, "log_damaged")
        for name, made in stored.items():
            listed = (await api.get(name)).json[name]
            assert [(one["id"], one.get("errorCode")) for one in listed] == [
                (made[0], None),
                (made[1], "log_damaged"),
                (made[2], "log_damaged"),
            ]
            for id in made:
                assert (await api.call("DELETE", f"{name}/{id}")).status == 200, (name, id)
        assert "Traceback" not in "".join(server.log)


STORED: dict[str, Json] = {
    "agents": {"spec": {"modelId": "scripted:hello"}},
    "tools": {"kind": "http", "url": "http://127.0.0.1:9/"},
    "providers": {"family": "openai_chat", "baseUrl": "http://127.0.0.1:9/v1", "apiKey": "secret", "models": ["m"]},
}


async def _stored(api: Api, name: str, number: int) -> str:
    made = await api.post(name, {**STORED[name], "name": f"one{number}"})
    assert made.status == 201, made.body
    return made.json["id"]


async def _deliveries(api: Api, hook: str) -> list[Json]:
    return (await api.get(f"webhooks/{hook}/deliveries")).json["deliveries"]
