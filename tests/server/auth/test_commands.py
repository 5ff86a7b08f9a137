"""Keys, users, apps and features by command: on a store at rest, and through the server that owns it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest

from commands import weftline
from weftline.store import open_store
from weftline.testing import ServerProcess

Run = Callable[..., str]


def runner(db: Path) -> Run:
    def run(*arguments: str, stdin: str = "", code: int = 0) -> str:
        done = weftline(*arguments, "--db", str(db), stdin=stdin)
        assert done.code == code, done.err
        return done.out.strip() if code == 0 else done.err

    return run


@pytest.fixture(params=["at rest", "owned"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Run]:
    if request.param == "at rest":
        asyncio.run(open_store(tmp_path / "store").close())
        yield runner(tmp_path / "store")
        return
    with ServerProcess(tmp_path) as server:
        yield runner(server.db)


def fetch(url: str, *, key: str = "", form: dict[str, str] | None = None) -> tuple[int, Any]:
    data = urlencode(form).encode() if form is not None else None
    request = Request(url, data=data, headers={"X-API-Key": key} if key else {})
    try:
        with urlopen(request, timeout=120) as reply:
            return reply.status, json.load(reply)
    except HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_keys_are_made_listed_shown_and_ended(run: Run) -> None:
    key = run("keys", "create", "--workspace", "acme", "--name", "one")
    made = json.loads(run("keys", "create", "--workspace", "acme", "--usage", "mcp", "--agent", "a1", "--json"))
    ids = run("keys", "list", "-q", "--workspace", "acme").split()
    assert key.startswith("weft_") and len(ids) == 2 and ids[1] == made["id"]
    shown = json.loads(run("keys", "show", ids[1], "--json"))
    assert shown["usage"] == "mcp" and shown["agentIds"] == ["a1"] and made["key"] not in json.dumps(shown)
    assert "usage" in run("keys", "show", ids[1])
    assert run("keys", "delete", ids[1]) == ""
    assert run("keys", "list", "-q", "--workspace", "acme").split() == ids[:1]
    assert run("keys", "list", "-q", "--workspace", "acme", "--all").split() == ids
    imported = run("keys", "import", "--workspace", "acme", stdin="mtx_live_0123456789abcdef\n")
    assert json.loads(run("keys", "show", imported, "--json"))["prefix"] == "mtx_live"
    assert "no such" in run("keys", "show", "key_none", code=1)
    assert "short" not in run("keys", "import", "--workspace", "acme", stdin="short\n", code=1)


def test_users_apps_and_features_are_administered(run: Run) -> None:
    password = run("users", "create", "--email", "Ann@example.com", "--workspace", "acme", "--workspace", "globex")
    assert len(password) >= 16
    stdin = "my own password\n"
    identity = run("users", "create", "--email", "bob@x.org", "--workspace", "acme", "--password-stdin", stdin=stdin)
    assert identity.startswith("usr_")
    assert run("users", "list", "-q").split() == ["ann@example.com", "bob@x.org"]
    assert run("users", "list", "-q", "--workspace", "globex") == "ann@example.com"
    run("users", "leave", "ann@example.com", "--workspace", "globex")
    run("users", "join", "bob@x.org", "--workspace", "globex")
    assert json.loads(run("users", "show", "bob@x.org", "--json"))["workspaces"] == ["acme", "globex"]
    assert "already" in run("users", "create", "--email", "bob@x.org", "--workspace", "acme", code=1)
    run("users", "set-password", "bob@x.org")
    assert run("oauth", "grants", "list", "-q", "--user", "bob@x.org") == ""
    run("users", "delete", "bob@x.org")
    assert run("users", "list", "-q") == "ann@example.com"

    app = ("oauth", "apps", "create", "--workspace", "acme", "--name", "Notes", "--scope", "runs:read")
    client_id, secret = run(*app, "--redirect-uri", "https://app.example/cb").split()
    assert client_id.startswith("mantyx_oa_") and secret.startswith("mantyx_oas_")
    assert run("oauth", "apps", "list", "-q", "--workspace", "acme") == client_id
    assert secret not in run("oauth", "apps", "show", client_id, "--json")
    assert "redirectUris" in run(*app, "--redirect-uri", "http://app.example/cb", code=1)
    run("oauth", "apps", "delete", client_id)
    assert run("oauth", "apps", "list", "-q", "--workspace", "acme") == ""

    assert json.loads(run("workspaces", "features", "acme", "--json")) == {"apiKeys": True, "oauthApps": True}
    assert run("workspaces", "features", "acme", "--off", "oauthApps").split() == ["apiKeys", "on", "oauthApps", "off"]
    assert "plan" in run(*app, "--redirect-uri", "https://app.example/cb", code=1)
    assert "oauthApps  on" in run("workspaces", "features", "acme", "--on", "oauthApps")
    assert run("workspaces", "list", "-q").split() == ["acme", "globex"]
    assert "not a feature" in run("workspaces", "features", "acme", "--off", "everything", code=1)


@pytest.mark.requirement("wire.auth.forbidden", "wire.oauth.client_credentials")
def test_a_running_server_knows_of_a_change_at_once(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        run = runner(server.db)
        models = f"{server.url}/api/v1/workspaces/acme/models"
        made = json.loads(run("keys", "create", "--workspace", "acme", "--json"))
        app = ("oauth", "apps", "create", "--workspace", "acme", "--name", "Robot", "--scope", "models:read")
        client_id, secret = run(*app, "--client-credentials").split()
        form = {"grant_type": "client_credentials", "client_id": client_id, "client_secret": secret}
        status, answer = fetch(f"{server.url}/api/oauth/token", form=form)
        token = answer["access_token"]
        assert status == 200 and fetch(models, key=made["key"])[0] == fetch(models, key=token)[0] == 200
        run("workspaces", "features", "acme", "--off", "apiKeys")
        assert fetch(models, key=made["key"])[1]["code"] == "api_keys_plan"
        run("workspaces", "features", "acme", "--on", "apiKeys")
        assert fetch(models, key=made["key"])[0] == 200
        run("keys", "delete", made["id"])
        run("oauth", "apps", "delete", client_id)
        assert fetch(models, key=made["key"])[0] == fetch(models, key=token)[0] == 401
        log = "".join(server.log)
        assert made["key"] not in log and token not in log and secret not in log


def test_the_rate_limit_comes_from_the_configuration_or_the_flag(tmp_path: Path) -> None:
    limits: dict[str, int] = {}
    config = "[server]\nrate_limit_per_minute = 2\n"
    for name, arguments in (("file", ()), ("flag", ("--rate-limit", "4"))):
        folder = tmp_path / name
        folder.mkdir()
        with ServerProcess(folder, config=config, arguments=arguments) as server:
            key = server.create_key("acme")
            statuses = [fetch(f"{server.url}/api/v1/workspaces/acme/models", key=key)[0] for _ in range(6)]
            limits[name] = statuses.count(200)
    assert limits == {"file": 2, "flag": 4}


@pytest.mark.parametrize(
    "line", ["rate_limit_per_minute = -1", "rate_limit_per_minute = true", 'public_url = "weft"', "rate = 1"]
)
def test_a_setting_of_the_server_that_is_wrong_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "weft.toml").write_text(f"[server]\n{line}\n")
    told = runner(tmp_path / "store")("serve", "--port", "0", "--config", str(tmp_path / "weft.toml"), code=1)
    assert f"server.{line.split()[0]}" in told
