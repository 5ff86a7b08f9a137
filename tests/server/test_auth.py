"""Credentials: where they stand, what they open, and that nothing shows them again."""

from __future__ import annotations

import pytest

from .kit import Api, check_error

NO_SUCH_RUN, NO_SUCH_SESSION = "run_1aabbccddeeff", "ses_1aabbccddeeff"


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer KEY"},
        {"Authorization": "bEaReR   KEY"},
        {"X-API-Key": "KEY"},
        {"Authorization": "Basic Zm9vOmJhcg==", "X-API-Key": "KEY"},
    ],
    ids=["bearer", "any case", "x-api-key", "beside basic"],
)
async def test_a_key_is_taken_from_either_header(api: Api, headers: dict[str, str]) -> None:
    sent = {name: value.replace("KEY", api.key) for name, value in headers.items()}
    assert (await api.get("models", headers=sent)).status == 200


@pytest.mark.requirement("wire.auth.unauthorized")
async def test_no_credential_and_a_wrong_one_are_told_apart(api: Api) -> None:
    nobody = await api.get("models", key=None)
    body = check_error(nobody, 401, "unauthorized")
    assert body["error"] == "Unauthorized" and nobody.headers["WWW-Authenticate"] == "Bearer"
    for headers in (
        {"Authorization": "Bearer mantyx_wrong"},
        {"Authorization": "Bearer mantyx_at_wrong"},
        {"X-API-Key": "mtx_live_wrong"},
        {"X-API-Key": "schlüssel".encode().decode("latin-1")},
    ):
        reply = await api.get("models", headers=headers)
        body = check_error(reply, 401, "unauthorized")
        assert body["error"] == "Invalid API key or OAuth access token"
        assert reply.headers["WWW-Authenticate"] == 'Bearer error="invalid_token"'
    for headers in ({"Authorization": "Bearer "}, {"Authorization": "Bearer"}, {"X-API-Key": " "}):
        reply = await api.get("models", headers=headers)
        assert reply.json["error"] == "Unauthorized", headers


@pytest.mark.requirement("wire.auth.workspace_mismatch")
async def test_another_workspaces_path_names_the_right_one(api: Api, other_api: Api) -> None:
    for path in ("models", "agent-runs/x", "agent-sessions/x"):
        for slug in (other_api.slug, "no-such-workspace"):
            body = check_error(await api.get(f"/api/v1/workspaces/{slug}/{path}"), 404, "not_found")
            assert body["correctSlug"] == api.slug and api.slug in body["hint"]
            assert other_api.slug not in body["hint"]


async def test_request_that_fails_several_checks_is_answered_by_first(api: Api, other_api: Api) -> None:
    path = f"/api/v1/workspaces/{other_api.slug}/agent-runs"
    check_error(await api.post(path, data=b"{", key=None), 401, "unauthorized")
    check_error(await api.post(path, data=b"{", key="wrong"), 401, "unauthorized")
    assert check_error(await api.post(path, data=b"{"), 404, "not_found")["correctSlug"] == api.slug
    check_error(await api.post("agent-runs", data=b"{"), 400, "invalid_request")


@pytest.mark.requirement("wire.auth.isolation")
async def test_foreign_runs_and_sessions_look_nonexistent(api: Api, other_api: Api) -> None:
    theirs, their_session = await other_api.start("stuck"), await other_api.session("hello")
    message = {"prompt": "hi"}
    result = {"toolUseId": "call_0_0", "result": "x"}
    for method, path, body in (
        ("GET", "agent-runs/{run}", None),
        ("GET", "agent-runs/{run}/stream", None),
        ("POST", "agent-runs/{run}/tool-results", result),
        ("POST", "agent-runs/{run}/cancel", None),
        ("GET", "agent-sessions/{session}", None),
        ("DELETE", "agent-sessions/{session}", None),
        ("POST", "agent-sessions/{session}/messages", message),
    ):
        answers = [
            check_error(await api.call(method, path.format(run=run, session=session), body), 404, "not_found")
            for run, session in ((theirs, their_session), (NO_SUCH_RUN, NO_SUCH_SESSION))
        ]
        for answer in answers:
            answer.pop("requestId")
        assert answers[0] == answers[1], path
    assert (await other_api.snapshot(theirs))["status"] != "cancelled"
    assert (await other_api.get(f"agent-sessions/{their_session}")).json["status"] == "active"
    await other_api.cancel(theirs)


@pytest.mark.parametrize(
    "run", ["x", "run_", "run_zz", "ses_1aabbccddeeff", "run_" + "f" * 40, "run_%0a", "run_-1aabbccddeeff"]
)
async def test_invalid_run_id_is_an_unknown_run(api: Api, run: str) -> None:
    check_error(await api.get(f"agent-runs/{run}"), 404, "not_found")


async def test_a_run_id_with_another_random_part_is_unknown(api: Api) -> None:
    run = await api.start("hello")
    guessed = run[:-1] + ("0" if run[-1] != "0" else "1")
    check_error(await api.get(f"agent-runs/{guessed}"), 404, "not_found")


async def test_two_keys_of_one_workspace_see_the_same_runs(api: Api, second_key: str) -> None:
    run = await api.start("hello")
    assert second_key != api.key
    assert (await api.get(f"agent-runs/{run}", key=second_key)).status == 200
