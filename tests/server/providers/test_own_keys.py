"""Providers that a workspace brings: stored, listed, used, changed, deleted, and never given away."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from commands import Done, new_secret, weftline_beside
from weftline.testing import ServerProcess

from ..kit import Api, check_error
from .conftest import KEY, Team, team_of
from .dialects import FAMILIES, Anthropic, Chat, Dialect
from .upstream import Upstream

SHOWN = {
    "id",
    "name",
    "family",
    "baseUrl",
    "models",
    "anyModel",
    "maxConcurrency",
    "tokensPerMinute",
    "options",
    "hasApiKey",
    "headerNames",
    "createdAt",
    "updatedAt",
}


async def ids(api: Api) -> list[str]:
    return [model["id"] for model in (await api.get("models")).json["models"]]


async def test_a_provider_is_stored_read_changed_and_deleted(team: Team) -> None:
    dialect = Anthropic()
    await team.bring(dialect)
    (listed,) = (await team.api.get("providers")).json["providers"]
    assert set(listed) == SHOWN and listed["hasApiKey"] is True and listed["name"] == "mine"
    assert (await team.api.get(f"providers/{listed['id']}")).json == listed
    assert (await team.api.get("providers/mine")).json == listed
    other = [{"id": "claude-opus-5", "label": "Opus", "contextWindowTokens": 5, "vision": True}]
    changed = await team.api.call("PATCH", "providers/mine", {"name": "ours", "models": other})
    assert changed.status == 200 and changed.json["hasApiKey"] and changed.json["baseUrl"] == team.upstream.url
    entries = {model["id"]: model for model in (await team.api.get("models")).json["models"]}
    assert "mine:claude-sonnet-4-5" not in entries
    entry = entries["ours:claude-opus-5"]
    assert (entry["label"], entry["contextWindowTokens"], entry["pricing"]) == ("Opus", 5, None)
    assert entry["source"] == "workspace_provider" and entry["capabilities"] == {"vision": True}
    team.upstream.answers(dialect.answer("Hello"))
    assert (await team.run("ours:claude-opus-5"))[-1]["text"] == "Hello"
    assert team.upstream.asked[0].headers["x-api-key"] == KEY, "the key stays when it is not sent again"
    assert (await team.api.call("DELETE", f"providers/{listed['id']}")).status == 200
    check_error(await team.api.get("providers/ours"), 404, "not_found")
    check_error(await team.api.call("DELETE", "providers/ours"), 404, "not_found")
    assert "ours:claude-opus-5" not in await ids(team.api)


@pytest.mark.requirement("wire.models.list")
async def test_a_provider_is_the_workspaces_own(team: Team, other_api: Api) -> None:
    model = await team.bring(Anthropic())
    assert model in await ids(team.api) and model not in await ids(other_api)
    body = check_error(await other_api.post("agent-runs", {"modelId": model, "prompt": "hi"}), 400, "invalid_model")
    assert model not in body["candidates"]
    (own,) = (await team.api.get("providers")).json["providers"]
    assert (await other_api.get("providers")).json == {"providers": [], "nextCursor": None}
    for reply in (
        await other_api.get(f"providers/{own['id']}"),
        await other_api.call("PATCH", f"providers/{own['id']}", {"apiKey": None}),
        await other_api.call("DELETE", f"providers/{own['id']}"),
    ):
        check_error(reply, 404, "not_found")


@pytest.mark.requirement("wire.models.resolve")
async def test_a_model_of_an_own_provider_has_several_names(team: Team) -> None:
    dialect = Chat()
    model = await team.bring(dialect, anyModel=True)
    (own,) = (await team.api.get("providers")).json["providers"]
    for name, vendor in (
        (model, "gpt-5.5"),
        (f"provider:{own['id']}", "gpt-5.5"),
        (f"provider:{own['id']}:gpt-9", "gpt-9"),
        ("provider:mine:gpt-9", "gpt-9"),
        ("mine:gpt-9", "gpt-9"),
        ("gpt-5.5", "gpt-5.5"),
        ("gpt-9", "gpt-9"),
        ("openai:gpt-5.5", "gpt-5.5"),
        (None, "gpt-5.5"),
    ):
        team.upstream.answers(dialect.answer("Hello"))
        frames = await team.run(name) if name else await team.api.events(await _without_model(team))
        assert frames[-1]["ok"] and team.upstream.asked[-1].body["model"] == vendor, name
        assert frames[-1]["model"]["id"] == f"mine:{vendor}"
    await team.bring(dialect, "second", anyModel=True)
    for ambiguous in ("gpt-5.5", "gpt-9"):
        reply = await team.api.post("agent-runs", {"modelId": ambiguous, "prompt": "hi"})
        assert check_error(reply, 400, "invalid_model")["candidates"] == [f"mine:{ambiguous}", f"second:{ambiguous}"]


async def _without_model(team: Team) -> str:
    reply = await team.api.post("agent-runs", {"prompt": "hi"})
    assert reply.status == 202, reply.body
    return reply.json["runId"]


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"name": "Not A Name"}, "name"),
        ({"name": "scripted"}, "name"),
        ({"family": "nope"}, "family"),
        ({"baseUrl": "ftp://x"}, "baseUrl"),
        ({"baseUrl": "http://["}, "baseUrl"),
        ({"baseUrl": "http://0x7f.1/"}, "baseUrl"),
        ({"baseUrl": "http://[::ffff:127.1]/"}, "baseUrl"),
        ({"baseUrl": "http://℀.example/"}, "baseUrl"),
        ({"apiKey": f"env:{KEY}"}, "apiKey"),
        ({"apiKey": 5}, "apiKey"),
        ({"models": [{"id": "x", "price": 1}]}, "models[0]"),
        ({"models": [5]}, "models[0]"),
        ({"options": {"headers": 5}}, "options.headers"),
        ({"options": {"transport": 1}}, "options.transport"),
        ({"options": {"nope": KEY}}, "options.nope"),
        ({"options": {"headers": {"X": KEY}}}, "options.headers"),
        ({"maxConcurrency": 0}, "maxConcurrency"),
        ({"secret": KEY}, "secret"),
        ({"apiKey": None, "baseUrl": None}, "apiKey"),
    ],
)
async def test_settings_that_cannot_work_are_refused_by_field(team: Team, fields: dict[str, Any], path: str) -> None:
    body = {"name": "mine", "apiKey": KEY, **Anthropic().settings(team.upstream.url), **fields}
    reply = await team.api.post("providers", body)
    error = check_error(reply, 400, "invalid_request")
    assert error["issues"][0]["path"] == path, error
    assert KEY not in reply.body.decode()
    assert (await team.api.get("providers")).json == {"providers": [], "nextCursor": None}


@pytest.mark.requirement("provider.request.key_secrecy")
async def test_a_stored_key_does_not_follow_to_another_address(team: Team) -> None:
    await team.bring(Chat(), headers={"X-Team": "hdr-secret-55aa77cc"})
    other = {"baseUrl": f"{team.upstream.url}/elsewhere"}
    for fields in (other, {**other, "apiKey": "new"}, {"family": "anthropic"}, {"options": {"profile": "groq"}}):
        error = check_error(await team.api.call("PATCH", "providers/mine", fields), 400, "invalid_request")
        assert {issue["path"] for issue in error["issues"]} <= {"apiKey", "headers"}
    moved = await team.api.call("PATCH", "providers/mine", {**other, "apiKey": "new", "headers": {}})
    assert moved.status == 200 and moved.json["headerNames"] == []


async def test_two_providers_of_one_name_are_a_conflict(team: Team) -> None:
    await team.bring(Anthropic())
    await team.bring(Anthropic(), "other")
    body = {"name": "mine", "apiKey": KEY, **Anthropic().settings(team.upstream.url)}
    check_error(await team.api.post("providers", body), 409, "conflict")
    check_error(await team.api.call("PATCH", "providers/other", {"name": "mine"}), 409, "conflict")


async def test_only_an_unnarrowed_api_key_may_bring_a_provider(team: Team, server: ServerProcess) -> None:
    slug = team.api.slug
    narrow = new_secret(server.db, slug, name="narrow", agents=["agent_x"])
    body = {"name": "mine", "apiKey": KEY, **Anthropic().settings(team.upstream.url)}
    check_error(await team.api.post("providers", body, key=narrow), 403, "forbidden")
    check_error(await team.api.call("DELETE", "providers/mine", key=narrow), 403, "forbidden")
    assert (await team.api.get("providers", key=narrow)).status == 200


@pytest.mark.requirement("provider.request.key_secrecy")
async def test_a_key_appears_nowhere_but_in_the_request(
    dialect: Dialect, tmp_path: Path, http: aiohttp.ClientSession, upstream: Upstream
) -> None:
    header, token = "hdr-secret-55aa77cc", "url-tok1"
    with ServerProcess(tmp_path, arguments=("--log-level", "debug")) as server:
        team = team_of(server, http, upstream)
        extra: dict[str, Any] = {"headers": {"X-Team": header}} if dialect.family.startswith("openai") else {}
        model = await team.bring(dialect, **extra, baseUrl=f"{upstream.url}{dialect.path}?token={token}")
        echo = f"The key {KEY}, the header {header} and the token {token} are wrong."
        upstream.answers(
            dialect.answer("Hello"),
            dialect.fails(401, "authentication_error", echo),
            dialect.fails(500, "server_error", echo),
            dialect.answer("Hello"),
        )
        seen = b""
        for _ in range(3):
            run = await team.start(model)
            seen += b"".join(frame.raw for frame in await team.api.events(run))
            seen += (await team.api.get(f"agent-runs/{run}")).body
        for path in ("providers", "providers/mine", "models"):
            seen += (await team.api.get(path)).body
        assert upstream.spent and KEY in str(upstream.asked[0].headers)
        assert (header in str(upstream.asked[0].headers)) == bool(extra)
        assert upstream.asked[0].query["token"] == token
        assert server.terminate() == 0
        stored = b"".join(path.read_bytes() for path in server.db.rglob("*") if path.is_file())
        text = seen.decode() + "".join(server.log) + stored.decode(errors="replace")
    assert "Hello" in text and "auth" in text
    for secret in (KEY, token, header) if extra else (KEY, token):
        assert secret not in text


async def command(*arguments: str, env: dict[str, str] | None = None, stdin: str = "") -> Done:
    hidden = dict.fromkeys(name for name in os.environ if name.endswith("_API_KEY"))
    return await weftline_beside(*arguments, env={**hidden, **(env or {})}, stdin=stdin)


async def test_commands_take_keys_and_reach_a_running_server(team: Team, server: ServerProcess) -> None:
    dialect = Anthropic()
    where = ("--workspace", team.api.slug, "--db", str(server.db))
    made = await command(
        *("providers", "create", "mine", *where, "--family", "anthropic", "--base-url", team.upstream.url),
        *("--model", dialect.model, "--option", "cache=false", "--api-key-env", "THEIR_KEY", "--json"),
        env={"THEIR_KEY": KEY},
    )
    assert made.code == 0, made.err
    shown = json.loads(made.out)
    assert shown["options"] == {"cache": False} and shown["hasApiKey"] and KEY not in made.out
    second = await command(
        "providers", "create", "two", *where, "--family", "google", "--api-key-stdin", stdin=f"{KEY}\n"
    )
    assert second.code == 0 and second.out.startswith("prov_")
    assert (await command("providers", "list", "-q", *where)).out.split() == [shown["id"], second.out.strip()]
    assert KEY not in (await command("providers", "show", "mine", *where)).out
    # The server knows of it at once.
    team.upstream.answers(dialect.answer("Hello"))
    assert (await team.run(f"mine:{dialect.model}"))[-1]["text"] == "Hello"
    assert team.upstream.asked[0].headers["x-api-key"] == KEY
    assert b"cache_control" not in team.upstream.asked[0].raw
    listed = json.loads((await command("models", *where, "--json")).out)
    found = {model["id"]: model for model in listed["models"]}
    assert found["mine:claude-sonnet-4-5"]["source"] == "workspace_provider" and "two:gemini-3.8-flash" in found
    gone = await command("providers", "delete", "mine", *where, "--json")
    assert json.loads(gone.out) == {"id": shown["id"], "deleted": True}
    assert f"mine:{dialect.model}" not in await ids(team.api)
    for arguments, code in (
        (("delete", "mine", *where), 1),
        (("create", "bad", *where, "--family", "nope"), 1),
        (("create", "bad", *where, "--family", "google", "--api-key-env", "NOT_SET_ANYWHERE"), 1),
        (("create", "bad", *where, "--family", "google", "--api-key", KEY), 2),
    ):
        refused = await command("providers", *arguments)
        assert refused.code == code and refused.err and "Traceback" not in refused.err


async def test_models_command_tells_prices_capabilities_and_why_provider_is_missing(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(
        """
        [providers.lab]
        family = "openai_chat"
        base_url = "http://127.0.0.1:9/v1"
        models = [{id = "llama", context_window_tokens = 8192, max_output_tokens = 1024, tools = true}]
        source = "platform_offering"

        [providers.claude]
        family = "anthropic"
        api_key = "env:NOT_SET_ANYWHERE"

        [[prices]]
        provider = "lab"
        model = "llama"
        input_per_1m_usd = 0.25
        output_per_1m_usd = 0.5
        """
    )
    done = await command("models", "--config", str(config), "--json")
    shown = json.loads(done.out)
    assert shown["defaultModelId"] == "lab:llama"
    (model,) = shown["models"]
    assert model["contextWindowTokens"] == 8192 and model["maxOutputTokens"] == 1024
    assert model["capabilities"] == {"vision": None, "reasoning": None, "tools": True}
    assert model["pricing"]["inputPer1MUsd"] == 0.25 and model["pricing"]["cacheReadPer1MUsd"] is None
    (missing,) = shown["unavailable"]
    assert missing["name"] == "claude" and "NOT_SET_ANYWHERE" in missing["reason"]
    shown = await command("models", "--config", str(config))
    assert "lab:llama\t8,192\t" in shown.out and "platform_offering, default" in shown.out
    assert "not available: claude" in shown.err
    done = await command("models", "--workspace", "acme", "--db", str(tmp_path / "none"))
    assert done.code == 1 and "There is no store" in done.err


@pytest.mark.requirement("wire.models.list")
async def test_prices_are_shown_for_platform_offerings_alone(
    tmp_path: Path, http: aiohttp.ClientSession, upstream: Upstream
) -> None:
    config = """
    [providers.house]
    family = "anthropic"
    api_key = "k"
    models = ["claude-sonnet-4-5"]
    source = "platform_offering"

    [providers.plain]
    family = "anthropic"
    api_key = "k"
    models = ["claude-haiku-4-5"]
    """
    with ServerProcess(tmp_path, config=config) as server:
        team = team_of(server, http, upstream)
        await team.bring(Anthropic())
        catalog = (await team.api.get("models")).json
        found = {model["id"]: model for model in catalog["models"]}
        price = found["house:claude-sonnet-4-5"]["pricing"]
        assert set(price) == {"inputPer1MUsd", "outputPer1MUsd", "cacheReadPer1MUsd"} and price["inputPer1MUsd"] > 0
        assert found["plain:claude-haiku-4-5"]["pricing"] is None is found["mine:claude-sonnet-4-5"]["pricing"]
        haiku = found["plain:claude-haiku-4-5"]
        assert haiku["contextWindowTokens"] == 200_000 and haiku["maxOutputTokens"] == 64_000
        assert haiku["capabilities"] == {"vision": True, "reasoning": True, "tools": True}
        assert catalog["defaultModelId"] == "house:claude-sonnet-4-5"
        # The workspace's own comes before the platform's.
        upstream.answers(Anthropic().answer("Hello"))
        assert (await team.run("claude-sonnet-4-5"))[-1]["model"]["id"] == "mine:claude-sonnet-4-5"


async def test_own_provider_of_same_name_takes_servers_place(
    tmp_path: Path, http: aiohttp.ClientSession, upstream: Upstream
) -> None:
    models = 'models = ["claude-opus-5", "claude-sonnet-4-5"]'
    config = (
        'default_model = "claude:claude-opus-5"\n'
        f'[providers.claude]\nfamily = "anthropic"\napi_key = "house"\n{models}\n'
    )
    with ServerProcess(tmp_path, config=config) as server:
        team = team_of(server, http, upstream)
        model = await team.bring(Anthropic(), "claude")
        upstream.answers(Anthropic().answer("Hello"))
        assert (await team.run(model))[-1]["text"] == "Hello"
        assert upstream.asked[0].headers["x-api-key"] == KEY
        assert await ids(team.api) == [model], "none of the server's is left under this name"
        assert (await team.api.get("models")).json["defaultModelId"] == model


@pytest.mark.parametrize("host", ["169.254.169.254", "127.0.0.1"])
async def test_own_providers_keep_to_the_servers_egress(
    host: str, tmp_path: Path, http: aiohttp.ClientSession, upstream: Upstream
) -> None:
    private = "" if host == "169.254.169.254" else "allow_private_egress = false"
    with ServerProcess(tmp_path, config=f"[server]\n{private}\n") as server:
        team = team_of(server, http, upstream)
        port = upstream.url.rpartition(":")[2]
        model = await team.bring(Anthropic(), baseUrl=f"http://{host}:{port}")
        frames = await team.run(model)
        assert frames[-1]["errorClass"] == "invalid_request" and host in frames[-1]["error"]
        assert not upstream.asked


async def test_lost_secret_key_makes_provider_unavailable_and_nothing_else(
    tmp_path: Path, http: aiohttp.ClientSession, upstream: Upstream
) -> None:
    with ServerProcess(tmp_path, scripts={"hello": {"turns": [{"text": "hi"}]}}) as server:
        team = team_of(server, http, upstream)
        model = await team.bring(FAMILIES["anthropic"])
        server.kill()
        (server.db / "secret.key").unlink()
        server.start()
        assert await ids(team.api) == ["scripted:hello"]
        check_error(await team.api.post("agent-runs", {"modelId": model, "prompt": "hi"}), 400, "invalid_model")
        assert (await team.api.play("hello"))[-1]["text"] == "hi"
        shown = await command("models", "--db", str(server.db), "--workspace", "acme", "--json")
        reasons = {one["name"]: one["reason"] for one in json.loads(shown.out)["unavailable"]}
        assert "secret" in reasons["mine"]
