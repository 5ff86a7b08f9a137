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


async def test_unfitting_result_set_is_refused_and_the_run_waits(api: Api) -> None:
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
    no_list: list[Json] = [{}, {"results": {}}, {"results": [1] * 1001}]
    for body in no_list:
        assert "results: " in check_error(await api.post(path, body), 400, "invalid_request")["message"]
    odd: Json = {
        "results": [
            {"toolUseId": first, "error": "x" * 9000, "failure": {"kind": "odd"}, "bounds": {"returned": 1}},
            {"toolUseId": second, "result": {"n": "two"}, "failure": {"kind": 3}, "name": "look"},
            {"toolUseId": third, "result": {"n": 3}, "name": 3, "leaseToken": 4},
            {"result": 1},
            7,
        ]
    }
    error = check_error(await api.post(path, odd), 400, "invalid_answer")
    assert [(issue["path"], issue["message"]) for issue in error["issues"]] == [
        ("results[0].error", "must not be larger than 8,192 bytes"),
        ("results[0].failure.kind", "Invalid enum value 'odd'"),
        ("results[0].bounds", "it has bounds although it failed"),
        ("results[1].name", f"the call '{second}' is a call of 'lookup'"),
        ("results[1].failure.kind", "Expected `string | null`, got `integer`"),
        ("results[1].result", 'n: "two" is not of type "integer"'),
        ("results[2].name", "must be a string"),
        ("results[2].leaseToken", "must be a string"),
        ("results[3].toolUseId", "Field required"),
        ("results[4]", "must be a JSON object"),
    ]
    lost: Json = {"results": [{"toolUseId": first, "result": 1, "failure": {}}]}
    error = check_error(await api.post(path, lost), 400, "invalid_answer")
    assert [issue["path"] for issue in error["issues"]] == [
        *("results[0].failure", "results[0].result", "results", "results"),
    ]
    check_error(await api.post(f"agent-runs/{run}/tool-results/external_1", some(ids)), 404, "unknown_await")
    await api.answer(run, second, result="alone")
    lacking = check_error(await api.post(path, {"results": [{"toolUseId": first, **n}]}), 400, "invalid_answer")
    assert lacking["issues"] == [{"path": "results", "message": f"the call '{third}' of 'lookup' has no result here"}]
    rest = [{"toolUseId": first, **n}, {"toolUseId": third, "name": "lookup", "result": '{"n": 3}'}]
    assert (await api.post(path, {"results": rest})).status == 200
    assert (await api.events(run))[-1]["text"] == '{"n":1},alone,{"n": 3}'
