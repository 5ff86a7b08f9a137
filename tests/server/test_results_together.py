"""Client-side calls of a turn that are answered together."""

from __future__ import annotations

from .kit import Api, Json, check_error, local_tool

SCHEMA: Json = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


async def offered(api: Api, run: str) -> list[str]:
    async with api.stream(run) as stream:
        return [(await stream.until("local_tool_call"))["toolUseId"] for _ in range(3)]


def some(ids: list[str], **fields: Json) -> Json:
    """A result for each; `one`, `two` or `three` has what is sent for that in place of its own."""
    words = dict(zip(("one", "two", "three"), ids, strict=True))
    return {"results": [fields.get(word, {"toolUseId": id, "result": word}) for word, id in words.items()]}


async def test_all_calls_of_a_turn_are_answered_in_one_request(api: Api) -> None:
    run = await api.start("three", tools=[local_tool()])
    ids = await offered(api, run)
    body = some(ids[::-1])
    once = {"idempotency-key": "k1"}
    reply = await api.post(f"agent-runs/{run}/tool-results/external_0", body, headers=once)
    assert (reply.status, reply.json) == (200, {"ok": True})
    assert (await api.events(run))[-1]["text"] == "three,two,one"
    again = await api.post(f"agent-runs/{run}/tool-results/external_0", body, headers=once)
    assert (again.status, again.json) == (200, {"ok": True})
    other = await api.post(f"agent-runs/{run}/tool-results/external_0", some(ids), headers=once)
    check_error(other, 409, "idempotency_conflict")
    late = await api.post(f"agent-runs/{run}/tool-results/external_0", body)
    check_error(late, 409, "run_terminal")


async def test_a_set_that_does_not_fit_is_refused_and_the_run_goes_on_waiting(api: Api) -> None:
    run = await api.start("three", tools=[local_tool(outputSchema=SCHEMA)])
    path = f"agent-runs/{run}/tool-results/external_0"
    first, second, third = ids = await offered(api, run)
    n: Json = {"result": {"n": 1}}
    bad = {"toolUseId": second, "name": "look", "result": {"n": "one"}, "serverData": [{"kind": "x", "data": 1}]}
    error = check_error(
        await api.post(path, some(ids, one={"toolUseId": first, **n, "bounds": {"returned": 1}}, two=bad)),
        *(400, "invalid_answer"),
    )
    assert [issue["path"] for issue in error["issues"]] == [
        *("results[0].bounds", "results[1].name", "results[1]", "results[1].result", "results[2].result"),
    ]
    refused: list[tuple[Json, str]] = [
        ({}, "results"),
        ({"results": [{"result": 1}]}, "results.0.toolUseId"),
        ({"results": [{"toolUseId": first, "error": "x" * 9000}]}, "results[0].error: must not be larger"),
        ({"results": [{"toolUseId": first, "error": "x", "failure": {"kind": "odd"}}]}, "results[0].failure.kind"),
        (
            {"results": [{"toolUseId": first, "result": 1, "failure": {}}]},
            "results[0].failure: can only be",
        ),
    ]
    for body, words in refused:
        assert words in check_error(await api.post(path, body), 400, "invalid_request")["message"]
    check_error(await api.post(f"agent-runs/{run}/tool-results/external_1", some(ids)), 404, "unknown_await")
    await api.answer(run, second, result="alone")
    lacking = check_error(await api.post(path, {"results": [{"toolUseId": first, **n}]}), 400, "invalid_answer")
    assert lacking["issues"] == [{"path": "results", "message": f"the call '{third}' of 'lookup' has no result here"}]
    rest = [{"toolUseId": first, **n}, {"toolUseId": third, "name": "lookup", "result": '{"n": 3}'}]
    assert (await api.post(path, {"results": rest})).status == 200
    assert (await api.events(run))[-1]["text"] == '{"n":1},alone,{"n": 3}'
