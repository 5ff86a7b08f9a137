from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

import weftline.testing
from weftline.errors import WeftlineError
from weftline.messages import Assistant, Message, System, Text, Thinking, ToolCall, ToolResult, ToolResults, Usage, User
from weftline.providers.base import (
    Chunk,
    ModelRequest,
    ProviderError,
    TextDelta,
    ToolSpec,
    UsageUpdate,
)
from weftline.testing import (
    ScriptedModel,
    ScriptedProvider,
    calls,
    collect,
    load_scripts,
    parse_scripts,
)


def ask(
    *messages: Message,
    n: int = 0,
    tools: Sequence[str] = ("look",),
    disabled: bool = False,
    reasoning: int | None = None,
    model: str = "script",
    system: str | None = None,
) -> ModelRequest:
    return ModelRequest(
        model,
        messages or (User.of("hi"),),
        system=system,
        tools=tuple(ToolSpec(name, f"{name} it up", Raw(b"{}")) for name in tools),
        tools_disabled=disabled,
        call_index=n,
        reasoning=reasoning,
    )


def results(*texts: str) -> ToolResults:
    return ToolResults(tuple(ToolResult(f"c{i}", "look", (Text(text),)) for i, text in enumerate(texts)))


async def said(text: str, request: ModelRequest) -> str:
    return (await collect(ScriptedModel([{"text": text}]), request)).text


async def lists_of(model: ScriptedModel, request: ModelRequest) -> list[list[Chunk]]:
    return [list(chunks) async for chunks in model.stream(request)]


@pytest.mark.requirement("provider.family.scripted")
async def test_turns_are_played_in_order_and_the_last_one_again() -> None:
    model = ScriptedModel([{"text": "one"}, {"text": "two"}])
    assert [(await collect(model, ask(n=n))).text for n in range(4)] == ["one", "two", "two", "two"]


@pytest.mark.requirement("provider.family.scripted", "provider.stream.incremental")
async def test_turn_streams_its_parts_in_order_with_one_finish() -> None:
    model = ScriptedModel(
        [
            {
                "thinking": ["let me ", "see"],
                "deltas": ["a", "b"],
                "tool_calls": [{"name": "look", "args": {"at": [1, {"deep": None}]}}, {"name": "stop"}],
                "usage": {"input": 7, "cached": 3, "reasoning": 1, "output": 2},
            }
        ]
    )
    (chunks,) = await lists_of(model, ask(reasoning=50))
    assert [type(chunk).__name__ for chunk in chunks] == [
        *("ThinkingDelta", "ThinkingDelta", "ThinkingDone", "TextDelta", "TextDelta"),
        *("CallStart", "CallArgs", "CallDone", "CallStart", "CallArgs", "CallDone"),
        *("UsageUpdate", "Finish"),
    ]
    answer = await collect(model, ask(reasoning=50))
    assert answer.message().parts == (
        Thinking("let me see", "scripted"),
        Text("ab"),
        ToolCall("call_0_0", "look", '{"at":[1,{"deep":null}]}', "scripted"),
        ToolCall("call_0_1", "stop", "{}", "scripted"),
    )
    assert answer.finish_reason == "tool_use"
    assert answer.usage == Usage(7, 3, 1, 2)


@pytest.mark.parametrize("reasoning", [None, 0])
async def test_thinking_is_left_out_without_reasoning(reasoning: int | None) -> None:
    model = ScriptedModel([{"thinking": ["hm"], "text": "a"}])
    assert (await collect(model, ask(reasoning=reasoning))).message().parts == (Text("a"),)
    assert (await collect(model, ask(reasoning=1))).message().parts == (Thinking("hm", "scripted"), Text("a"))


async def test_usage_and_finish_reason_have_defaults() -> None:
    model = ScriptedModel(
        [{"text": "a"}, {"text": "", "finish_reason": "max_tokens"}, {"text": "", "finish_reason": None}]
    )
    answers = [await collect(model, ask(n=n)) for n in range(3)]
    assert [answer.finish_reason for answer in answers] == ["end_turn", "max_tokens", None]
    assert answers[0].usage == Usage(10, 0, 0, 5)
    assert answers[1].message() == Assistant(())


async def test_a_count_that_usage_leaves_out_keeps_its_default() -> None:
    model = ScriptedModel([{"text": "a", "usage": {"input": 99}}])
    assert (await collect(model, ask())).usage == Usage(99, 0, 0, 5)


@pytest.mark.requirement("provider.family.scripted")
async def test_deltas_come_one_by_one_with_the_pause_between_them() -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    model = ScriptedModel([{"deltas": ["a", "b", "c"], "delay_ms": 250}], sleep=sleep)
    lists = await lists_of(model, ask())
    assert [[chunk.text for chunk in chunks if isinstance(chunk, TextDelta)] for chunks in lists] == [
        ["a"],
        ["b"],
        ["c"],
    ]
    assert pauses == [0.25, 0.25]


async def test_without_a_delay_the_whole_turn_is_one_list() -> None:
    async def sleep(seconds: float) -> None:
        raise AssertionError("nothing to wait for")

    model = ScriptedModel([{"deltas": ["a", "b", "c"]}], sleep=sleep)
    assert len(await lists_of(model, ask())) == 1


async def test_call_ids_differ_within_a_turn_and_between_turns() -> None:
    model = ScriptedModel([{"tool_calls": [{"name": "look"}, {"name": "look"}], "loop": True}])
    ids = [call.id for n in range(3) for call in (await collect(model, ask(n=n))).message().calls]
    assert len(set(ids)) == 6


@pytest.mark.requirement("provider.family.scripted")
async def test_an_error_turn_fails_as_the_script_says() -> None:
    model = ScriptedModel(
        [
            {"error": {"class": "overloaded", "message": "busy"}},
            {"error": {"class": "server", "message": "gone", "retryable": False}},
            {"error": {"class": "auth", "retryable": True}},
        ]
    )
    failures: list[ProviderError] = []
    for n in range(3):
        with pytest.raises(ProviderError) as caught:
            await collect(model, ask(n=n))
        failures.append(caught.value)
    assert [(f.cls, f.retryable) for f in failures] == [("overloaded", True), ("server", False), ("auth", True)]
    assert [f.message for f in failures[:2]] == ["busy", "gone"]


async def test_an_error_comes_after_what_the_turn_streams_first() -> None:
    error = {"class": "server", "message": "cut"}
    model = ScriptedModel(
        [{"deltas": ["a", "b"], "error": error}, {"text": "c", "usage": {"input": 4}, "error": error}]
    )
    for n, expected in enumerate([[TextDelta("a"), TextDelta("b")], [TextDelta("c"), UsageUpdate(Usage(4, 0, 0, 5))]]):
        stream = model.stream(ask(n=n))
        assert list(await anext(stream)) == expected
        with pytest.raises(ProviderError):
            await anext(stream)


async def test_with_tools_disabled_the_final_turn_is_played() -> None:
    model = ScriptedModel({"turns": [{"tool_calls": [{"name": "look"}]}], "finalize": {"text": "done at {{n}}"}})
    answer = await collect(model, ask(n=4, disabled=True, tools=()))
    assert (answer.text, answer.finish_reason, answer.message().calls) == ("done at 4", "end_turn", ())


@pytest.mark.parametrize(("text", "expected"), [({"text": "so far"}, "so far"), ({}, "")])
async def test_without_final_turn_turns_text_is_said_and_nothing_called(text: dict[str, str], expected: str) -> None:
    model = ScriptedModel([{**text, "tool_calls": [{"name": "look"}]}])
    answer = await collect(model, ask(disabled=True))
    assert (answer.text, answer.finish_reason, answer.message().calls) == (expected, "end_turn", ())


async def test_a_loop_goes_on_while_tools_are_offered() -> None:
    looping = {"text": "again", "tool_calls": [{"name": "look"}], "loop": True}
    model = ScriptedModel({"turns": [{"text": "first"}, looping, {"text": "never"}], "finalize": {"text": "enough"}})
    texts = [(await collect(model, ask(n=n))).text for n in range(5)]
    assert texts == ["first", "again", "again", "again", "again"]
    assert (await collect(model, ask(n=5, disabled=True))).text == "enough"
    assert (await collect(model, ask(n=5, tools=()))).text == "enough"


@pytest.mark.requirement("provider.family.scripted")
async def test_requests_are_recorded_as_they_were() -> None:
    model = ScriptedModel([{"text": "a"}])
    messages: list[Message] = [User.of("one")]
    await collect(model, ModelRequest("m", messages, system="be kind"))
    messages.append(User.of("two"))
    await collect(model, ModelRequest("m", messages, call_index=1))
    assert [len(request.messages) for request in model.requests] == [1, 2]
    assert model.requests[0].system == "be kind"


@pytest.mark.requirement("provider.family.scripted")
async def test_strict_script_fails_beyond_its_turns() -> None:
    model = ScriptedModel([{"text": "only"}], strict=True)
    await collect(model, ask())
    with pytest.raises(ProviderError) as caught:
        await collect(model, ask(n=1))
    assert (caught.value.cls, caught.value.code, caught.value.retryable) == (
        "invalid_request",
        "script_exhausted",
        False,
    )
    with pytest.raises(AssertionError):
        model.assert_played()


async def test_a_strict_script_may_loop_and_may_finalize() -> None:
    with ScriptedModel(
        {"turns": [{"tool_calls": [{"name": "look"}], "loop": True}], "finalize": {"text": "end"}}, strict=True
    ) as model:
        for n in range(3):
            await collect(model, ask(n=n))
        await collect(model, ask(n=3, disabled=True))


async def test_script_that_was_not_fully_played_fails_at_end() -> None:
    model = ScriptedModel({"turns": [{"text": "a"}, {"text": "b"}], "finalize": {"text": "c"}}, strict=True)
    with pytest.raises(AssertionError, match=r"turns\[1\], finalize"), model:
        await collect(model, ask())


def test_failing_test_shows_its_own_error_and_not_scripts() -> None:
    with pytest.raises(ZeroDivisionError), ScriptedModel([{"text": "a"}], strict=True):
        _ = 1 / 0


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("{{n}}", "2"),
        ("{{tool_results.0}}/{{tool_results.1}}", "three/vier ü"),
        ("{{len_tool_results.1}}", "6"),
        ("{{all_tool_results}}", "one || three || vier ü"),
        ("{{user_messages}}", "hi | and\n?"),
        ("{{message_count}}", "5"),
        ("{{tools}}", "find,look"),
        ("{{tool_desc.find}}", "find it up"),
        ("{{system}}", "be kind\n\nand brief"),
        ("{{reasoning}}", "30"),
        ("a{{n}}b{{n}}c", "a2b2c"),
        ("}} { {n} {{tool_results.7}}", "}} { {n} "),
        ("{{tool_desc.missing}}", ""),
    ],
)
async def test_a_template_stands_for_what_the_model_sees(template: str, value: str) -> None:
    request = ask(
        System("and brief"),
        User.of("hi"),
        Assistant(()),
        results("one"),
        User((Text("stop that"),), injected=True),
        Assistant(()),
        results("three", "vier ü"),
        User((Text("and"), Text("?"))),
        n=2,
        tools=("look", "find"),
        reasoning=30,
        system="be kind",
    )
    assert await said(template, request) == value


async def test_results_of_earlier_runs_are_not_included() -> None:
    earlier = (User.of("a"), Assistant(()), results("old"), Assistant((Text("x"),)))
    request = ask(*earlier, User.of("b"), Assistant(()), results("new"), n=1)
    assert await said("{{all_tool_results}}", request) == "new"


async def test_templates_without_anything_behind_them_are_plain() -> None:
    request = ModelRequest("m", [User.of("{{n}}")])
    assert await said("{{reasoning}},{{tools}},{{system}},{{user_messages}}", request) == "none,,,{{n}}"


async def test_templates_are_filled_in_every_string_value_of_the_arguments() -> None:
    args = {"a": "{{n}}", "{{n}}": ["x{{tool_results.0}}", {"b": "{{tools}}", "c": 1.5}], "d": True}
    model = ScriptedModel([{"tool_calls": [{"name": "look", "args": args}]}])
    answer = await collect(model, ask(Assistant(()), results('say "hi"'), n=3))
    assert json.loads(answer.message().calls[0].args) == {
        "a": "3",
        "{{n}}": ['xsay "hi"', {"b": "look", "c": 1.5}],
        "d": True,
    }


async def test_a_strict_script_refuses_a_template_without_a_value() -> None:
    with pytest.raises(ProviderError) as caught:
        await collect(ScriptedModel([{"text": "{{tool_results.0}}"}], strict=True), ask())
    assert caught.value.code == "script_template"


async def test_a_file_of_scripts_is_a_family_of_models(tmp_path: Path) -> None:
    path = tmp_path / "scripts.json"
    path.write_text(
        json.dumps({"_note": 1, "a": {"_why": "", "turns": [{"text": "A", "_": 0}]}, "b": {"turns": [{"text": "B"}]}})
    )
    family = ScriptedProvider(load_scripts(path), record=True)
    assert family.name == "scripted"
    assert [model.vendor_id for model in family.models()] == ["a", "b"]
    assert [(await collect(family, ask(model=name))).text for name in ("b", "a")] == ["B", "A"]
    assert [request.model for request in family.requests] == ["b", "a"]
    await family.aclose()


async def test_an_unknown_script_is_an_invalid_request() -> None:
    family = ScriptedProvider(parse_scripts(b'{"a": {"turns": [{"text": "A"}]}}'))
    with pytest.raises(ProviderError) as caught:
        await collect(family, ask(model="z"))
    assert (caught.value.cls, caught.value.code) == ("invalid_request", "unknown_script")
    assert family.requests == []


def test_a_file_that_cannot_be_read_is_a_bad_script(tmp_path: Path) -> None:
    with pytest.raises(WeftlineError) as caught:
        load_scripts(tmp_path / "none.json")
    assert caught.value.code == "bad_script"
    assert "none.json" in caught.value.message


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{",
        b'{"a": NaN}',
        b'{"a": 1e999}',
        b"\xff\xfe",
        b'{"a": {"turns": [{"text": "x"}]}, "a": {"turns": [{"text": "y"}]}}',
        b"[" * 100_000,
        b'{"": {"turns": [{"text": "x"}]}}',
    ],
)
def test_a_file_that_is_no_object_of_scripts_is_refused(data: bytes) -> None:
    with pytest.raises(WeftlineError) as caught:
        parse_scripts(data, source="demo.json")
    assert caught.value.code == "bad_script"
    assert caught.value.message.startswith("demo.json: ")


@pytest.mark.parametrize(
    "script",
    ["[]", "{}", '{"turns": []}', '{"turns": {}}', '{"turns": [{"text": "x"}], "final": {"text": "x"}}'],
)
def test_a_malformed_script_is_refused_by_name(script: str) -> None:
    with pytest.raises(WeftlineError) as caught:
        parse_scripts(f'{{"demo": {script}}}'.encode())
    assert caught.value.code == "bad_script"
    assert caught.value.details == {"script": "demo", "turn": None}
    assert "'demo'" in caught.value.message


MALFORMED: list[tuple[object, str]] = [
    (1, "object"),
    ({}, "empty"),
    ({"loop": True}, "empty"),
    ({"txt": "a"}, "'txt'"),
    ({"text": "a", "deltas": ["b"]}, "both"),
    ({"text": 1}, "'text'"),
    ({"text": None}, "'text'"),
    ({"text": "\ud800"}, "surrogate"),
    ({"deltas": "ab"}, "'deltas'"),
    ({"deltas": ["a", 1]}, "'deltas'"),
    ({"text": "a", "delay_ms": -1}, "delay_ms"),
    ({"text": "a", "delay_ms": "1"}, "delay_ms"),
    ({"text": "a", "delay_ms": True}, "delay_ms"),
    ({"thinking": "hm"}, "'thinking'"),
    ({"thinking": [1]}, "'thinking'"),
    ({"tool_calls": {}}, "'tool_calls'"),
    ({"tool_calls": [1]}, "tool_calls[0]"),
    ({"tool_calls": [{"name": "a"}, {"args": {}}]}, "tool_calls[1].name"),
    ({"tool_calls": [{"name": ""}]}, "tool_calls[0].name"),
    ({"tool_calls": [{"name": "a", "id": "x"}]}, "'id'"),
    ({"tool_calls": [{"name": "a", "args": {"x": ["{{nope}}"]}}]}, "{{nope}}"),
    ({"tool_calls": [{"name": "a", "args": {"x": "\ud800"}}]}, "surrogate"),
    ({"tool_calls": [{"name": "a", "args": {"\ud800": 1}}]}, "tool_calls[0].args"),
    ({"text": "a", "finish_reason": 3}, "finish_reason"),
    ({"text": "a", "finish_reason": ""}, "finish_reason"),
    ({"error": "boom"}, "'error'"),
    ({"error": {}}, "error.class"),
    ({"error": {"class": "oops"}}, "'oops'"),
    ({"error": {"class": "server", "message": 1}}, "error.message"),
    ({"error": {"class": "server", "retryable": "no"}}, "error.retryable"),
    ({"error": {"class": "server", "status": 500}}, "'status'"),
    ({"text": "a", "usage": [1]}, "'usage'"),
    ({"text": "a", "usage": {"input": -1}}, "usage.input"),
    ({"text": "a", "usage": {"output": 1.5}}, "usage.output"),
    ({"text": "a", "usage": {"output": True}}, "usage.output"),
    ({"text": "a", "usage": {"total": 1}}, "'total'"),
    ({"text": "a", "loop": 1}, "'loop'"),
    ({"text": "{{nope}}"}, "{{nope}}"),
    ({"text": "{{tool_results}}"}, "{{tool_results}}"),
    ({"text": "{{tool_results.x}}"}, "{{tool_results.x}}"),
    ({"text": "{{tool_results.-1}}"}, "{{tool_results.-1}}"),
    ({"text": "{{tool_desc.}}"}, "{{tool_desc.}}"),
    ({"deltas": ["{{n}"]}, "'deltas'"),
]


@pytest.mark.parametrize(("turn", "fault"), MALFORMED, ids=[repr(turn) for turn, _ in MALFORMED])
def test_a_malformed_turn_is_refused_with_script_turn_and_fault(turn: object, fault: str) -> None:
    data = json.dumps({"fine": {"turns": [{"text": "x"}]}, "demo": {"turns": [{"text": "x"}, turn]}}).encode()
    with pytest.raises(WeftlineError) as caught:
        parse_scripts(data, source="demo.json")
    assert caught.value.code == "bad_script"
    assert caught.value.details == {"script": "demo", "turn": "turns[1]"}
    assert caught.value.message.startswith("demo.json: script 'demo', turns[1]: ")
    assert fault in caught.value.message


@pytest.mark.parametrize("finalize", [None, {"text": "a", "deltas": []}])
def test_a_malformed_final_turn_is_refused(finalize: object) -> None:
    with pytest.raises(WeftlineError) as caught:
        parse_scripts(json.dumps({"demo": {"turns": [{"text": "x"}], "finalize": finalize}}).encode())
    assert caught.value.details["turn"] == "finalize"


def test_turns_given_in_python_are_held_to_the_same_rules() -> None:
    with pytest.raises(WeftlineError) as caught:
        ScriptedModel([{"tool_calls": [{"name": "a", "args": {"x": object()}}]}])
    assert caught.value.code == "bad_script"


@pytest.mark.parametrize("name", weftline.testing.__all__)
def test_a_public_name_of_testing_can_be_imported(name: str) -> None:
    assert name in dir(weftline.testing)
    assert getattr(weftline.testing, name) is not None


def test_an_unknown_name_of_testing_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        getattr(weftline.testing, "no_such_name")  # noqa: B009


def test_a_turn_may_have_several_calls() -> None:
    assert calls(("order", {"cake": "lemon"}), ("pay", {"amount": 5})) == {
        "tool_calls": [{"name": "order", "args": {"cake": "lemon"}}, {"name": "pay", "args": {"amount": 5}}]
    }
    wrong: Any = calls
    for attempt in (lambda: wrong(), lambda: wrong(("order", {}), cake="lemon")):
        with pytest.raises(TypeError, match=r"calls\('order', cake='lemon'\)"):
            attempt()
