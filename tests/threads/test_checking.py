"""What `check` says of a folder whose files are right, each for itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from weftline.threads import ProjectError, Report, check, load_project
from weftline.threads.argument_rules import schema_problems, strict_schema

from .folders import AGENT, FIND, MODEL, SMALL, TONE, read, said, write


def checked(root: Path, files: dict[str, str]) -> Report:
    return check(read(root, {**SMALL, **files}))


def prompt(name: str, **fields: str) -> str:
    given = {"model": '"fast"', "tool_description": '"What it is for."', "prompt": '"Be kind."', **fields}
    return (
        f'prompt = define_prompt(name="{name}", ' + ", ".join(f"{key}={value}" for key, value in given.items()) + ")\n"
    )


def tool(name: str, args: str, before: str = "") -> str:
    return f"{before}\n@define_tool(effect='read')\ndef {name}({args}) -> str:\n    '''A tool.'''\n    return ''\n"


DUAL = (
    'agent = define_agent(name="review", type="dual_ai", expose_as_tool=True, tool_description="Reviews.",\n'
    '    side_a=SideConfig(prompt="tone"{}), side_b=SideConfig(prompt="tone"))\n'
)
FINDS = {"agents/tools/find_order.py": FIND}
TRIAGE = "agents/prompts/triage.py"
MISTAKES: list[tuple[dict[str, str], str]] = [
    (
        {**FINDS, TRIAGE: prompt("triage", tools='[\n"find_order",\n"find_ordr"]')},
        f'{TRIAGE}:4: prompt "triage": tools[1]: there is no tool, prompt or agent "find_ordr". Did you mean'
        ' "find_order"?',
    ),
    (
        {TRIAGE: prompt("triage", model='"fats"')},
        f'{TRIAGE}:2: prompt "triage": model: there is no model "fats". Did you mean "fast"?',
    ),
    ({TRIAGE: prompt("triage", hooks='["keep"]')}, f'{TRIAGE}:2: prompt "triage": hooks[0]: there is no hook "keep".'),
    (
        {TRIAGE: prompt("triage", prompt='["a", PromptIncludePart("tonne")]')},
        f'{TRIAGE}:2: prompt "triage": prompt[1]: there is no prompt "tonne". Did you mean "tone"?',
    ),
    (
        {TRIAGE: prompt("triage", tools='["tone", "tone"]')},
        f'{TRIAGE}:2: prompt "triage": tools[1]: "tone" is listed twice',
    ),
    (
        {
            TRIAGE: prompt("triage", tools='[PromptToolConfig("tone")]').replace("tone", "manner"),
            "agents/prompts/manner.py": prompt("manner"),
        },
        f'{TRIAGE}:2: prompt "triage": tools[0]: "manner" is a prompt: use SubpromptConfig for it, or its name alone',
    ),
    (
        {**FINDS, TRIAGE: prompt("triage", tools='[SubagentToolConfig("find_order")]')},
        f'{TRIAGE}:2: prompt "triage": tools[0]: "find_order" is a tool, not an agent: SubagentToolConfig is for'
        " agents",
    ),
    (
        {TRIAGE: prompt("triage", tools='[SubagentToolConfig("tone")]')},
        f'{TRIAGE}:2: prompt "triage": tools[0]: "tone" is an ai_human agent, which takes the thread over:'
        " subagents are dual_ai agents",
    ),
    (
        {
            "agents/agents/review.py": DUAL.format("").replace("expose_as_tool=True", "expose_as_tool=False"),
            TRIAGE: prompt("triage", tools='["review"]'),
        },
        f'{TRIAGE}:2: prompt "triage": tools[0]: the agent "review" is not offered as a tool: it needs'
        " expose_as_tool=True",
    ),
    (
        {
            "agents/agents/review.py": DUAL.format("").replace('"tone")', '"triage")'),
            TRIAGE: prompt("triage", tools='["tone"]'),
        },
        f'{TRIAGE}:2: prompt "triage": tools[0]: "tone" would take the thread over, but this is the prompt of an'
        " agent with"
        " two sides",
    ),
    (
        {
            "agents/prompts/judge.py": prompt(
                "judge", required_schema='{"type": "object", "properties": {"case": {"type": "string"}}}'
            ),
            TRIAGE: prompt("triage", tools='[SubpromptConfig(\n"judge", init_user_message_property="cases")]'),
        },
        f'{TRIAGE}:3: prompt "triage": tools[0].init_user_message_property: the prompt "judge" has no argument "cases".'
        ' Did you mean "case"?',
    ),
    (
        {
            TRIAGE: prompt("triage", prompt='["a", PromptEnvPart("KEY")]'),
            "agents/prompts/tone.py": TONE.replace("model=", 'variables=[VariableDefinition("KEY", "secret")], model='),
        },
        f'{TRIAGE}:2: prompt "triage": prompt[1]: the variable "KEY" is a secret, which no model may read',
    ),
    (
        {
            TRIAGE: prompt("triage", prompt='[PromptIncludePart("other")]'),
            "agents/prompts/other.py": prompt("other", prompt='[PromptIncludePart("triage")]'),
        },
        'agents/prompts/other.py:2: prompt "other": prompt: includes itself: other → triage → other',
    ),
    (
        {
            TRIAGE: prompt("triage", tools='["other"]'),
            "agents/prompts/other.py": prompt("other", tools='["triage"]'),
        },
        'agents/prompts/other.py:2: prompt "other": tools: calls itself: other → triage → other',
    ),
    (
        {"agents/agents/tone.py": AGENT.replace('prompt="tone"', 'prompt="tune"')},
        'agents/agents/tone.py:2: agent "tone": side_a.prompt: there is no prompt "tune". Did you mean "tone"?',
    ),
    (
        {"agents/agents/review.py": DUAL.format(', session_stop="verdict"')},
        'agents/agents/review.py:3: agent "review": side_a.session_stop: there is no tool "verdict".',
    ),
    (
        {**FINDS, "agents/agents/review.py": DUAL.format(', stop_tool="find_order"')},
        'agents/agents/review.py:3: agent "review": side_a.stop_tool: "find_order" is not among the tools of the prompt'
        ' "tone", which so cannot call it',
    ),
    (
        {
            **FINDS,
            "agents/prompts/tone.py": TONE.replace("model=", 'tools=["find_order"], model='),
            "agents/agents/review.py": DUAL.format(
                ', session_stop=SessionToolBinding("find_order", message_property="no")'
            ),
        },
        'agents/agents/review.py:3: agent "review": side_a.session_stop: the tool "find_order" has no argument "no".',
    ),
    (
        {"agents/models/fast.py": MODEL.replace('"test"', '"opnai"')},
        'agents/models/fast.py:2: model "fast": provider: there is no provider "opnai". Did you mean "openai" or'
        ' "openai_chat"?',
    ),
    (
        {"agents/models/fast.py": MODEL.replace("model=", 'fallbacks=["slow"], model=')},
        'agents/models/fast.py:2: model "fast": fallbacks[0]: there is no model "slow".',
    ),
    (
        {"agents/tools/x.py": tool("x", "state: SyncThreadState").replace("effect=", "uses=['tonne'], effect=")},
        'agents/tools/x.py:3: tool "x": uses[0]: there is no tool, prompt or agent "tonne". Did you mean "tone"?',
    ),
    (
        {"agents/tools/x.py": tool("x", "what: 'Nothing'")},
        'agents/tools/x.py:4: tool "x": args: a type hint names something that is not defined',
    ),
    (
        {"agents/tools/x.py": tool("x", "\n    pair: tuple[int, int],\n")},
        'agents/tools/x.py:5: tool "x": args.pair: is a tuple; give a list of one type, or an object',
    ),
    (
        {"agents/tools/x.py": tool("x", "order: str").replace("effect=", "confirm='Pay {ordr}?', effect=")},
        "agents/tools/x.py:3: tool \"x\": confirm: names {ordr}, which is not an argument of it. Did you mean 'order'?",
    ),
    (
        {"agents/tools/tone.py": tool("tone", "")},
        'agents/tools/tone.py:4: tool "tone": name: there is an agent of this name too'
        " (agents/agents/tone.py:2), and both"
        " can be called",
    ),
    (
        {"agents/hooks/short.py": '@define_hook("filter_messages", id="short")\ndef short(messages): ...\n'},
        'agents/hooks/short.py:3: hook "short": its function is called with (state, messages), which it does not take',
    ),
    (
        {"agents/api/files/x.py": "@define_thread_endpoint\ndef x(request, state): ...\n"},
        'agents/api/files/x.py:3: endpoint "GET /files/x": its function is called with (request, state, params),'
        " which it"
        " does not take",
    ),
    (
        {"agents/api/values/x.py": "@define_thread_endpoint\ndef x(request, state, params): ...\n"},
        "agents/api/values/x.py:3: endpoint \"GET /values/x\": every thread has a route 'values' already: give the file"
        " another name",
    ),
]


@pytest.mark.parametrize(("files", "words"), MISTAKES, ids=[words.split(": ", 1)[1][:60] for _, words in MISTAKES])
@pytest.mark.requirement(
    "thread.define.check", "thread.prompt.include_cycle", "thread.prompt.env_part_secret", "thread.agent.checks"
)
def test_mistake_between_definitions_is_told(files: dict[str, str], words: str, tmp_path: Path) -> None:
    problems = said(tmp_path, checked(tmp_path, files).problems)
    assert words in problems
    assert len([one for one in problems if "tools/tone.py" not in one]) <= 2


def test_scripted_model_needs_its_script(tmp_path: Path) -> None:
    report = checked(tmp_path, {"scripts.json": '{"dusk": {"turns": [{"text": "Hello."}]}}'})
    assert [one.replace(str(tmp_path), "") for one in said(tmp_path, report.problems)] == [
        'agents/models/fast.py:2: model "fast": model: there is no script "desk" in scripts.json. Did you mean "dusk"?'
    ]
    (problem,) = said(tmp_path, checked(tmp_path, {"scripts.json": "{"}).problems)
    assert problem.startswith("scripts.json:1: ") and "not valid JSON" in problem


def test_two_names_with_one_alias_are_told(tmp_path: Path) -> None:
    files = {f"agents/tools/{name}.py": tool("x", "") for name in ("find-it", "find_it")}
    (problem,) = said(tmp_path, checked(tmp_path, files).problems)
    assert problem.endswith('tool "find_it": name: models would see it as "find_it", and "find-it" too')


@pytest.mark.requirement("thread.define.prefixes")
def test_external_tools_and_those_of_the_server_need_no_file(tmp_path: Path) -> None:
    files = {TRIAGE: prompt("triage", tools='["provider:web_search", "mcp:search", "fetch", "@pkg/tool", "mine"]')}
    project = read(tmp_path, {**SMALL, **files})
    assert check(project, tools=["fetch", "mine"]).problems == ()
    assert len(check(project).problems) == 1


def test_all_problems_are_found_at_once(tmp_path: Path) -> None:
    files = {
        "agents/tools/broken.py": "1 / 0\n",
        TRIAGE: prompt("triage", model='"slow"', tools='["a"]', hooks='["b"]'),
        "agents/models/fast.py": MODEL.replace('"test"', '"nobody"'),
    }
    assert len(checked(tmp_path, files).problems) == 5
    with pytest.raises(ProjectError, match="has 5 problems"):
        load_project(tmp_path / "desk")


def test_folder_without_problems_is_loaded(tmp_path: Path) -> None:
    assert load_project(write(tmp_path / "desk", SMALL)).registry.agent("tone").name == "tone"


WARNINGS = [
    ({"agents/prompts/lone.py": prompt("lone")}, 'agents/prompts/lone.py:2: prompt "lone": is not used'),
    (
        {"agents/tools/x.py": "@define_tool\ndef x():\n    'X.'\n", TRIAGE: prompt("triage", tools='["x"]')},
        'agents/tools/x.py:3: tool "x": effect: declares no effect: is it "read", "idempotent" or "once"? A call that a'
        " crash cuts off stays in doubt",
    ),
    (
        {"agents/api/x.py": "@define_thread_endpoint(public=True)\ndef x(request, state, params): ...\n"},
        'agents/api/x.py:2: endpoint "GET /x": public: is open to everybody who knows the id of a thread',
    ),
    (
        {"agents/agents/tone.py": AGENT.replace("side_a", 'env={"COMPANY": "Tea & Co"}, side_a')},
        "agents/agents/tone.py:2: agent \"tone\": env.COMPANY: 'Tea & Co' is kept secret, as all defaults are,"
        " and so is cut out"
        " of every result that has it: set it as a text of the thread, account or workspace, or show it in a prompt",
    ),
    (
        {
            "agents/agents/other.py": AGENT.replace('"tone"', '"other"'),
            "agents/prompts/other.py": prompt("other", tools='["tone"]'),
            "agents/prompts/tone.py": TONE.replace("model=", 'tools=["other"], model='),
        },
        'agents/agents/other.py:2: agent "other": can be called in a circle, which only limits end: other → tone'
        " → other",
    ),
]


@pytest.mark.parametrize(("files", "words"), WARNINGS, ids=[words.split(": ", 1)[1][:60] for _, words in WARNINGS])
@pytest.mark.requirement("thread.define.check")
def test_author_is_warned(files: dict[str, str], words: str, tmp_path: Path) -> None:
    report = checked(tmp_path, files)
    assert report.problems == ()
    assert words in said(tmp_path, report.warnings)


def test_default_that_a_prompt_shows_is_not_warned_of(tmp_path: Path) -> None:
    files = {
        "agents/agents/tone.py": AGENT.replace("side_a", 'env={"COMPANY": "Tea & Co"}, side_a'),
        "agents/prompts/tone.py": prompt("tone", prompt='["For ", PromptEnvPart("COMPANY")]'),
    }
    assert checked(tmp_path, files).warnings == ()


def test_effect_that_code_names_is_used(tmp_path: Path) -> None:
    remind = "@define_effect\ndef remind(state: SyncThreadState):\n    '''Reminds.'''\n"
    lone = checked(tmp_path, {"agents/effects/remind.py": remind})
    assert said(tmp_path, lone.warnings) == ['agents/effects/remind.py:3: effect "remind": is not used']
    assert checked(tmp_path, {"shared/later.py": 'WHAT = "remind"\n'}).warnings == ()


def nested(levels: int) -> dict[str, object]:
    node: dict[str, object] = {"type": "string"}
    for _ in range(levels):
        node = {"type": "array", "items": node}
    return {"type": "object", "properties": {"x": node}, "required": ["x"]}


@pytest.mark.requirement("thread.tool.arg_depth")
def test_seven_levels_are_allowed_and_ten_at_most() -> None:
    assert list(schema_problems(nested(7))) == []
    assert list(schema_problems(nested(8))) == [("x" + "[]" * 8, "is nested too deeply")]
    assert list(schema_problems(nested(10), depth=10)) == []
    assert list(schema_problems(nested(11), depth=50)) != []
    optional: dict[str, object] = {**nested(7), "required": []}
    assert list(schema_problems(optional)) != []  # a wrapper takes a level


FINE = {
    "text": {"type": "string", "format": "date", "pattern": "^x"},
    "count": {"type": "integer"},
    "on": {"type": "boolean"},
    "nothing": {"type": "null"},
    "literal": {"const": 1},
    "choice": {"enum": ["a", "b"]},
    "anything": {},
    "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
    "many": {"type": "array", "items": {"$ref": "#/$defs/Order"}},
    "record": {"type": "object", "additionalProperties": {"type": "number"}},
    "either": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/Order"}]},
}
ORDER = {"type": "object", "properties": {"number": {"type": "string"}}, "required": ["number"]}
WRONG: list[tuple[dict[str, object], str, str]] = [
    ({"type": "array", "prefixItems": [{}]}, "x", "is a tuple"),
    ({"allOf": [{"type": "object"}, {"type": "object"}]}, "x", "is an intersection"),
    ({"$ref": "#/$defs/Loop"}, "x.child", "is recursive: Loop contains itself"),
    ({"not": {"type": "string"}}, "x", "is a negation"),
    ({"type": "object", "patternProperties": {}}, "x", "has names by pattern"),
    ({"enum": [["a"]]}, "x", "has a literal"),
    ({"type": "array", "items": {"type": "date"}}, "x[]", "which JSON does not have"),
]
LOOP = {"type": "object", "properties": {"child": {"$ref": "#/$defs/Loop"}}}


@pytest.mark.requirement("thread.tool.arg_nodes")
def test_arguments_may_have_these_nodes() -> None:
    schema = {"type": "object", "properties": FINE, "required": list(FINE), "$defs": {"Order": ORDER}}
    assert list(schema_problems(schema)) == []


@pytest.mark.parametrize(("node", "path", "words"), WRONG, ids=[words for *_, words in WRONG])
@pytest.mark.requirement("thread.tool.arg_nodes")
def test_argument_of_another_kind_is_told_with_its_path(node: dict[str, object], path: str, words: str) -> None:
    schema = {"type": "object", "properties": {"x": node}, "required": ["x"], "$defs": {"Loop": LOOP}}
    ((where, problem),) = schema_problems(schema)
    assert (where, words in problem) == (path, True)
    assert list(schema_problems({"type": "string"})) == [("", "must be an object")]


def test_models_see_objects_that_take_nothing_else() -> None:
    schema = {
        "type": "object",
        "properties": {
            "orders": {"type": "array", "items": ORDER},
            "prices": {"type": "object", "additionalProperties": {"type": "number"}},
            "either": {"anyOf": [ORDER, {"type": "null"}], "default": {"type": "object"}},
            "free": {"type": "object", "additionalProperties": True},
        },
        "$defs": {"Order": ORDER},
    }
    strict = strict_schema(schema)
    assert strict["additionalProperties"] is False
    assert strict["properties"]["orders"]["items"]["additionalProperties"] is False
    assert strict["$defs"]["Order"]["additionalProperties"] is False
    assert strict["properties"]["prices"]["additionalProperties"] == {"type": "number"}
    assert strict["properties"]["either"]["anyOf"][0]["additionalProperties"] is False
    assert strict["properties"]["either"]["default"] == {"type": "object"}
    assert strict["properties"]["free"]["additionalProperties"] == {}
