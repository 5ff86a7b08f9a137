"""Refusals name the fields that the client sent, whatever Python calls them."""

from __future__ import annotations

from collections.abc import Mapping

from weftline.tools.stored_code import TIMEOUT_S

from ..kit import Api, Json, Reply, check_error

PROVIDER: Json = {"name": "mine", "family": "openai_chat", "baseUrl": "https://api.example/v1", "apiKey": "sk-1"}
TOOL: Json = {"kind": "code", "name": "mine", "language": "python", "source": "print(1)"}
LONG: Json = {"timeoutMs": int(TIMEOUT_S * 1000) + 1}
APP: Json = {"name": "Notes", "redirectUris": ["https://app.example"], "allowedScopes": ["runs:read"]}


def check_issues(reply: Reply, issues: Mapping[str, str]) -> None:
    refused = check_error(reply, 400, "invalid_request")
    assert refused["issues"] == [{"path": path, "message": text} for path, text in issues.items()]
    assert refused["message"] == "; ".join(f"{path}: {text}" for path, text in issues.items())


async def test_a_provider_is_refused_by_the_fields_that_were_sent(api: Api) -> None:
    wrong = {"apiKey": "env:KEY", "baseUrl": "https://[redacted]", "options": {"base_url": "x"}}
    check_issues(
        await api.post("providers", {**PROVIDER, **wrong}),
        {
            "options.base_url": "is not an option: it has its own field, or only the server may set it",
            "apiKey": "must be the key itself: a workspace cannot use the server's environment",
            "baseUrl": "must be sent in full: [redacted] stands for what was not shown",
        },
    )
    check_issues(
        await api.post("providers", {**PROVIDER, "baseUrl": "nowhere"}),
        {"baseUrl": "Only http and https addresses can be reached."},
    )
    check_issues(
        await api.post("providers", {"name": "mine", "family": "anthropic"}),
        {"apiKey": "There is no API key: give one, or the address of a server that needs none."},
    )
    assert (await api.post("providers", PROVIDER)).status == 201
    check_issues(
        await api.call("PATCH", "providers/mine", {"baseUrl": "https://other.example"}),
        {"apiKey": "must be sent again when the provider's address changes"},
    )


async def test_a_tool_is_refused_by_the_fields_that_were_sent(api: Api) -> None:
    too_long = {"timeoutMs": "code may run for at most 30,000 milliseconds"}
    check_issues(await api.post("tools", {**TOOL, **LONG}), too_long)
    made = (await api.post("tools", TOOL)).json["id"]
    check_issues(await api.call("PATCH", f"tools/{made}", LONG), too_long)


async def test_key_issues_are_counted_by_the_fields_that_were_sent(api: Api) -> None:
    check_issues(await api.post("api-keys", {"agentIds": ["gone"]}), {"agentIds": "there is no agent 'gone'"})
    reply = await api.post("api-keys", {"agentIds": [f"gone_{number}" for number in range(150)]})
    refused = check_error(reply, 400, "invalid_request")
    assert refused["message"].startswith("agentIds: there is no agent 'gone_0'; agentIds: ")
    assert refused["message"].endswith(" (and 147 more)")
    assert refused["issues"][99] == {"path": "agentIds", "message": "there is no agent 'gone_99'"}


async def test_oauth_app_is_refused_by_field_that_was_sent(api: Api) -> None:
    wrong: list[tuple[Json, str]] = [
        (
            {"visibility": "public", "allowsClientCredentials": True},
            "allowsClientCredentials: only private apps may act for themselves.",
        ),
        ({"allowedScopes": ["all"]}, "allowedScopes: 'all' is not a scope; use one of "),
        ({"allowedScopes": []}, "allowedScopes: name at least one scope."),
        ({"redirectUris": ["ftp://x"]}, "redirectUris: 'ftp://x' is not allowed; use https, "),
        ({"redirectUris": []}, "redirectUris: name at least one, or allow client credentials."),
        ({"redirectUris": ["https://a.example"] * 51}, "redirectUris: at most 50."),
    ]
    for fields, message in wrong:
        refused = check_error(await api.post("oauth-apps", {**APP, **fields}), 400, "invalid_request")
        assert refused["message"].startswith(message) and "issues" not in refused


async def test_hints_and_details_name_field_that_is_to_be_sent(api: Api) -> None:
    agent = (await api.post("agents", {"name": "Helper", "spec": {}})).json["id"]
    key = (await api.post("api-keys", {"agentIds": [agent]})).json["key"]
    for path, body in {"agent-runs": {"prompt": "x"}, "agent-sessions": {}}.items():
        refused = check_error(await api.post(path, body, key=key), 403, "forbidden")
        assert refused["hint"] == "Name one of them in agentId."
    missing = check_error(await api.post("agent-runs", {"agentId": "gone", "prompt": "x"}), 404, "not_found")
    assert missing["agentId"] == "gone"
