"""What `define_…` accept, what they refuse, and their JSON."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from weftline.threads import (
    AgentDefinition,
    DefinitionError,
    Immediate,
    ModelCapabilities,
    ModelDefinition,
    PromptDefinition,
    PromptEnvPart,
    PromptIncludePart,
    PromptToolConfig,
    ReasoningConfig,
    Resumable,
    SessionToolBinding,
    SideConfig,
    SubagentToolConfig,
    SubpromptConfig,
    ThreadState,
    VariableDefinition,
    define_agent,
    define_controller,
    define_effect,
    define_hook,
    define_model,
    define_prompt,
    define_thread_endpoint,
    define_tool,
    from_json,
    is_thread_endpoint,
    to_json,
    validate_tool_name,
)
from weftline.threads.definitions.handlers import HOOK_POINTS


def model(**fields: Any) -> ModelDefinition:
    given: dict[str, Any] = {"name": "fast", "provider": "openai", "model": "gpt-5-mini", **fields}
    return define_model(**given)


def prompt(**fields: Any) -> PromptDefinition:
    given: dict[str, Any] = {"name": "p", "tool_description": "What it does.", "prompt": "Be kind.", "model": "fast"}
    return define_prompt(**{**given, **fields})


def problems(wrong: pytest.ExceptionInfo[DefinitionError]) -> dict[str, str]:
    return {one.path: one.message for one in wrong.value.issues}


@pytest.mark.requirement("thread.model.checks")
def test_model_names_all_its_wrong_fields_at_once() -> None:
    with pytest.raises(DefinitionError) as wrong:
        model(name="", model="", provider=7, input_price=-1, output_price=True, cached_price=float("nan"))
    assert list(problems(wrong)) == ["name", "model", "provider", "input_price", "output_price", "cached_price"]
    assert model(input_price=0, cached_price=0.5).input_price == 0


@pytest.mark.requirement("thread.model.provider_options")
def test_options_are_checked_against_the_factory_schema() -> None:
    class Options(BaseModel):
        region: str
        retries: int = 0

    def provider() -> None: ...

    provider.provider_options = Options  # pyright: ignore[reportFunctionMemberAccess]
    assert model(provider=provider, provider_options={"region": "eu"}).provider_options == {"region": "eu"}
    with pytest.raises(DefinitionError, match='model "fast"') as wrong:
        model(provider=provider, provider_options={"retries": "many"})
    assert list(problems(wrong)) == ["provider_options.region", "provider_options.retries"]
    assert model(provider_options={"anything": 1}).provider_options == {"anything": 1}


@pytest.mark.requirement("thread.prompt.checks")
def test_prompt_has_these_defaults() -> None:
    made = prompt()
    assert made.include_chat is None  # true for a side's prompt, false for one that is called
    assert (made.include_past_tools, made.parallel_tool_calls, made.tool_choice) == (False, False, "auto")
    assert made.recent_image_threshold == 10


@pytest.mark.parametrize(
    ("fields", "where", "what"),
    [
        ({"name": ""}, "name", "is missing"),
        ({"tool_description": " "}, "tool_description", "must be text"),
        ({"prompt": []}, "prompt", "is missing"),
        ({"model": ""}, "model", "is missing"),
        ({"tool_choice": "sometimes"}, "tool_choice", "'auto', 'none', 'required'"),
        ({"recent_image_threshold": -1}, "recent_image_threshold", "whole number"),
        ({"tools": "find_order"}, "tools", "must be a list"),
        ({"tools": ["a", 7]}, "tools[1]", "must be a name"),
        ({"tools": ["provider:"]}, "tools[0]", "has no name after 'provider:'"),
        ({"hooks": "keep_short"}, "hooks", "must be a list of names"),
        ({"env": {"COMPANY": 7}}, "env.COMPANY", "must be text"),
        ({"env": {"NO SPACE": "x"}}, "env", "name of a variable"),
        ({"reasoning": ReasoningConfig(level=101)}, "reasoning.level", "from 0 to 100"),
        ({"reasoning": ReasoningConfig(effort="huge")}, "reasoning.effort", "'low', 'medium', 'high'"),  # type: ignore[arg-type]
        ({"variables": [VariableDefinition("A"), VariableDefinition("A")]}, "variables[1]", "declared twice"),
        ({"variables": [VariableDefinition("A", type="hidden")]}, "variables[0].type", "'text', 'secret'"),  # type: ignore[arg-type]
        ({"prompt": ["a", PromptEnvPart("not a name")]}, "prompt[1]", "name of a variable"),
        ({"required_schema": {"type": "string"}}, "required_schema", "must describe an object"),
        (
            {"tools": [SubagentToolConfig("r", resumable=Resumable("side_bb"))]},  # type: ignore[arg-type]
            "tools[0].resumable.receives_messages",
            "Did you mean 'side_b'",
        ),
        ({"tools": [PromptToolConfig("t", env={"A": 1})]}, "tools[0].env.A", "must be text"),  # type: ignore[dict-item]
    ],
)
@pytest.mark.requirement("thread.prompt.checks", "thread.define.prefixes")
def test_wrong_field_of_a_prompt_is_named(fields: dict[str, Any], where: str, what: str) -> None:
    with pytest.raises(DefinitionError, match="prompt") as wrong:
        prompt(**fields)
    assert what in problems(wrong)[where]


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"type": "dual_ai"}, "side_b"),
        ({"side_b": SideConfig(prompt="p")}, "side_b"),
        ({"expose_as_tool": True}, "tool_description"),
        ({"name": "a/b"}, "name"),
        ({"type": "triple"}, "type"),
        ({"side_a": "p"}, "side_a"),
        ({"side_a": SideConfig(prompt="")}, "side_a.prompt"),
        ({"side_a": SideConfig(prompt="p", max_steps=0)}, "side_a.max_steps"),
        ({"side_a": SideConfig(prompt="p", stop_tool_response_property="x")}, "side_a.stop_tool_response_property"),
        ({"max_session_turns": 0}, "max_session_turns"),
    ],
)
def test_wrong_field_of_an_agent_is_named(fields: dict[str, Any], where: str) -> None:
    given: dict[str, Any] = {"name": "a", "side_a": SideConfig(prompt="p"), **fields}
    with pytest.raises(DefinitionError, match="agent") as wrong:
        define_agent(**given)
    assert where in problems(wrong)


def test_session_turns_never_exceed_250() -> None:
    assert define_agent(name="a", side_a=SideConfig(prompt="p")).turns_at_most == 250
    assert define_agent(name="a", side_a=SideConfig(prompt="p"), max_session_turns=900).turns_at_most == 250
    assert define_agent(name="a", side_a=SideConfig(prompt="p"), max_session_turns=8).turns_at_most == 8


class Order(BaseModel):
    number: str
    cents: int = 0


@pytest.mark.requirement("thread.tool.checks")
def test_tool_takes_its_schema_and_description_from_the_function() -> None:
    @define_tool(effect="read", uses=[])
    async def find(state: ThreadState, number: str) -> str:
        """Finds an order.

        Args:
            number: As printed on the bill.
        """
        return number

    @define_tool
    def now(state: ThreadState) -> str:
        """Tells the time."""
        return ""

    @define_tool(args=Order)
    def pay(state: ThreadState, args: Order) -> str:
        """Pays."""
        return args.number

    schema = msgspec.json.decode(find.parameters.schema)
    assert schema["properties"] == {"number": {"type": "string", "description": "As printed on the bill."}}
    assert (find.description, find.takes_state, find.effect, find.uses) == ("Finds an order.", "state", "read", ())
    assert msgspec.json.decode(now.parameters.schema)["properties"] == {}
    assert (now.effect, now.uses) == ("once", None)
    assert set(msgspec.json.decode(pay.parameters.schema)["properties"]) == {"number", "cents"}


@pytest.mark.requirement("thread.tool.checks")
def test_tool_without_description_or_function_is_refused() -> None:
    def silent(state: ThreadState) -> None: ...

    with pytest.raises(DefinitionError, match="description: is missing"):
        define_tool(silent)
    with pytest.raises(DefinitionError, match="execute: must be a function"):
        define_tool(execute=7, description="x")  # type: ignore[call-overload]
    with pytest.raises(DefinitionError, match="args: must be a type that describes an object"):
        define_tool(execute=silent, description="x", args="string")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"no option 'efect'\. Did you mean 'effect'"):
        define_tool(efect="read")(silent)  # type: ignore[call-overload]
    with pytest.raises(DefinitionError, match="go together"):
        define_tool(effect="reconcile", description="x")(silent)


@pytest.mark.parametrize("name", ["a", "_find", "find_order2", "find-order", "x" * 64])
@pytest.mark.requirement("thread.define.tool_name")
def test_tool_may_have_this_name(name: str) -> None:
    validate_tool_name(name)


@pytest.mark.parametrize(
    "name", ["", "2nd", "a b", "a.b", "x" * 65, "subagent_create", "subagent_message", "provider:x", "mcp:x", "é"]
)
@pytest.mark.requirement("thread.define.tool_name")
def test_tool_may_not_have_this_name(name: str) -> None:
    with pytest.raises(DefinitionError, match="name"):
        validate_tool_name(name)


@pytest.mark.requirement("thread.hook.define")
def test_hooks_have_exactly_twelve_points() -> None:
    def run(*args: object) -> None: ...

    assert len(HOOK_POINTS) == 12
    for point in HOOK_POINTS:
        assert define_hook(hook=point, id="one", execute=run).hook == point
    with pytest.raises(DefinitionError, match="Did you mean 'filter_messages'"):
        define_hook("filter_message", id="one", execute=run)  # type: ignore[arg-type]
    for id in ("Upper", "2nd", "with-dash", "", "_x"):
        with pytest.raises(DefinitionError, match="beginning with a letter"):
            define_hook("filter_messages", id=id, execute=run)


def test_effects_need_a_description() -> None:
    def remind(state: ThreadState, order: str) -> None: ...

    with pytest.raises(DefinitionError, match='effect "remind": description'):
        define_effect(remind)
    assert define_effect(description="Asks again.")(remind).parameters.context == "state"


def test_thread_endpoint_is_what_its_decorator_made() -> None:
    def handler(*args: object) -> None: ...

    assert is_thread_endpoint(define_thread_endpoint(handler))
    assert define_thread_endpoint(public=True)(handler).public
    assert not is_thread_endpoint(define_controller(handler))
    assert not is_thread_endpoint(handler)


DEFINITIONS = [
    model(fallbacks=["careful"], input_price=0.1, capabilities=ModelCapabilities(reasoning_levels={30: "low"})),
    prompt(
        prompt=["You answer for ", PromptEnvPart("COMPANY"), PromptIncludePart("tone")],
        tools=[
            "find",
            "provider:search",
            PromptToolConfig("refund", env={"LIMIT": "5"}, options={"currency": "EUR"}),
            PromptToolConfig("plain"),
            SubpromptConfig("tone", include_errors=False),
            SubagentToolConfig("review", blocking=False, resumable=Resumable("side_a", max_instances=2)),
            SubagentToolConfig("watch", immediate=Immediate(name_env="NAME", scoped_env=("KEY",)), optional="WATCH"),
        ],
        required_schema=Order,
        reasoning=ReasoningConfig(effort="high"),
        variables=[VariableDefinition("KEY", type="secret", required=True, scoped=True)],
        hooks=[],
    ),
    define_agent(
        name="review",
        type="dual_ai",
        expose_as_tool=True,
        tool_description="Settles a case.",
        side_a=SideConfig(prompt="a", session_stop=SessionToolBinding("verdict", message_property="text")),
        side_b=SideConfig(prompt="b", stop_on_response=False, session_fail="give_up"),
    ),
]


@pytest.mark.requirement("thread.define.spelling")
@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda one: type(one).__name__)
def test_definition_survives_its_json(definition: ModelDefinition | PromptDefinition | AgentDefinition) -> None:
    text = msgspec.json.encode(to_json(definition))
    assert from_json(msgspec.json.decode(text), type(definition)) == definition


@pytest.mark.requirement("thread.define.spelling")
def test_json_has_the_spelling_of_the_specification() -> None:
    written = to_json(DEFINITIONS[1])
    assert {"toolDescription", "includeChat", "recentImageThreshold", "requiredSchema"} <= set(written)
    assert written["tools"][2] == {"name": "refund", "env": {"LIMIT": "5"}, "options": {"currency": "EUR"}}
    assert written["prompt"][1] == {"type": "env", "property": "COMPANY"}


@pytest.mark.requirement("thread.tool.entries")
def test_unknown_field_of_an_entry_in_json_is_named() -> None:
    given: dict[str, Any] = {**to_json(prompt()), "tools": [{"name": "refund", "enviroment": {}}]}
    with pytest.raises(DefinitionError, match=r'prompt "p": tools\[0\]: has unknown fields: enviroment'):
        from_json(given, PromptDefinition)


@pytest.mark.requirement("thread.define.deprecated")
def test_old_names_still_work_and_warn() -> None:
    def execute(state: ThreadState, args: Order) -> str:
        return args.number

    with pytest.warns(DeprecationWarning, match="end_session_tool is deprecated: write session_stop"):
        side = SideConfig(prompt="p", end_session_tool="done")
    assert side.bindings == {"session_stop": SessionToolBinding("done")}
    with pytest.warns(DeprecationWarning, match=r"define_tool\(description, args, fn\)"):
        tool = define_tool("Pays.", Order, execute)
    assert (tool.description, tool.args) == ("Pays.", Order)
    with pytest.warns(DeprecationWarning, match="tenvs"):
        tool = define_tool(description="x", tenvs={"KEY": "secret"})(execute)
    assert tool.variables == (VariableDefinition("KEY", type="secret", required=True),)


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"tools": 5}, "tools"),
        ({"prompt": 5}, "prompt"),
        ({"env": ["a"]}, "env"),
        ({"variables": 5}, "variables"),
        ({"hooks": 5}, "hooks"),
        ({"provider_options": 5}, "provider_options"),
        ({"name": 5}, "name"),
        ({"name": "two words"}, "name"),
        ({"name": "subagent_create"}, "name"),
    ],
)
def test_field_of_a_wrong_type_is_named(fields: dict[str, Any], where: str) -> None:
    with pytest.raises(DefinitionError) as wrong:
        prompt(**fields)
    assert where in problems(wrong)
