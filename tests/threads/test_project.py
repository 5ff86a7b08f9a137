"""Folders of agents: what is found, imported and named, and what is said of mistakes in files."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from weftline.errors import NotFound
from weftline.threads import (
    DefinitionError,
    ProjectError,
    Registry,
    SideConfig,
    define_agent,
    define_model,
    define_prompt,
    load_project,
    read_project,
)

from .folders import AGENT, FIND, MODEL, SMALL, TONE, read, said, write

ENDPOINT = "@define_thread_endpoint\nasync def answer(request, state, params): ...\n"
EVERYTHING = {
    **SMALL,
    "agents/tools/find_order.py": FIND,
    "agents/hooks/keep_short.py": '@define_hook("filter_messages", id="keep_short")\ndef keep(state, messages): ...\n',
    "agents/effects/remind.py": "@define_effect\ndef remind(state: SyncThreadState):\n    '''Reminds.'''\n",
    "agents/api/status.py": ENDPOINT,
    "agents/api/notes/[id].PUT.py": ENDPOINT,
    "agents/api/notes/index.post.py": ENDPOINT,
    "agents/api/files/[*].py": ENDPOINT,
    "agents/api/index.py": ENDPOINT,
    "agents/api/hello.py": "@define_controller\nasync def hello(context): ...\n",
}


@pytest.mark.requirement("thread.define.discovery", "thread.endpoint.routes")
def test_definitions_of_all_folders_are_found(tmp_path: Path) -> None:
    project = read(tmp_path, EVERYTHING)
    assert (project.problems, project.warnings) == ((), ())
    registry = project.registry
    assert [list(one) for one in (registry.models, registry.prompts, registry.agents)] == [["fast"], ["tone"], ["tone"]]
    assert [list(one) for one in (registry.tools, registry.hooks, registry.effects)] == [
        ["find_order"],
        ["keep_short"],
        ["remind"],
    ]
    assert list(registry.endpoints) == ["files/[*].get", "index.get", "notes.post", "notes/[id].put", "status.get"]
    assert list(registry.controllers) == ["hello.get"]
    assert registry.tool("find_order").name == "find_order"


@pytest.mark.requirement("thread.define.discovery")
def test_registry_in_code_equals_that_of_the_folder(tmp_path: Path) -> None:
    found = read(tmp_path, EVERYTHING).registry
    made = Registry.of(
        models=[define_model(name="fast", provider="test", model="desk")],
        prompts=[define_prompt(name="tone", model="fast", tool_description="How we write.", prompt="Be kind.")],
        agents=[define_agent(name="tone", side_a=SideConfig(prompt="tone"))],
        tools=found.tools.values(),
        hooks=found.hooks.values(),
        effects=found.effects.values(),
        endpoints=found.endpoints,
        controllers=found.controllers,
    )
    assert made == found
    assert Registry.of() != found


def test_registry_in_code_refuses_what_is_there_twice() -> None:
    one = define_model(name="fast", provider="test", model="desk")
    with pytest.raises(DefinitionError, match=r"models\[1\]: 'fast' is defined twice"):
        Registry.of(models=[one, one])


def test_lookup_suggests_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"There is no prompt 'tones'\. Did you mean 'tone'\?"):
        read(tmp_path, SMALL).registry.prompt("tones")


MISTAKES = [
    (
        {"agents/tools/x.py": "y = 1\n"},
        "agents/tools/x.py:1: defines nothing: it must have a tool, made by define_tool",
    ),
    (
        {"agents/models/fast.py": MODEL + MODEL.replace("model =", "other =")},
        "agents/models/fast.py:3: defines 2 things (model, other); a file has one",
    ),
    (
        {"agents/models/quick.py": "\n" + MODEL},
        "agents/models/quick.py:3: model \"fast\": name: is 'fast', but the file is quick.py: they must be the same",
    ),
    (
        {"agents/tools/tone.py": TONE},
        "agents/tools/tone.py:2: defines a prompt, which belongs in agents/prompts; here is a tool",
    ),
    ({"agents/tools/x.py": "def broken(:\n"}, "agents/tools/x.py:2: syntax error: invalid syntax"),
    (
        {"agents/tools/x.py": "\nimport nothing_here\n"},
        "agents/tools/x.py:3: failed to import: ModuleNotFoundError: No module named 'nothing_here'",
    ),
    ({"agents/tools/x.py": "raise SystemExit(3)\n"}, "agents/tools/x.py:2: failed to import: SystemExit: 3"),
    (
        {"agents/models/fast.py": MODEL.replace("model=", "modle=")},
        "agents/models/fast.py:2: there is no field 'modle'. Did you mean 'model'?",
    ),
    (
        {"agents/models/fast.py": 'model = define_model(\n    name="fast",\n    provider="test",\n    model="",\n)\n'},
        'agents/models/fast.py:5: model "fast": model: is missing',
    ),
    (
        {"agents/tools/x.py": "@define_tool(\n    effect='red',\n)\ndef x():\n    'X.'\n"},
        "agents/tools/x.py:3: tool \"x\": effect: 'red' is not one of 'read', 'idempotent', 'reconcile', 'once'."
        " Did you mean 'read'?",
    ),
    (
        {"agents/models/fast.py": 'model = define_model(name="fast")\n'},
        "agents/models/fast.py:2: 'provider' and 'model' are missing",
    ),
    (
        {"agents/agents/tone.py": 'agent = define_agent(\n    name="tone",\n    side_a=SideConfig(),\n)\n'},
        "agents/agents/tone.py:4: 'prompt' is missing",
    ),
    (
        {"agents/tools/find order.py": FIND},
        "agents/tools/find order.py:4: tool \"find order\": name: 'find order' must begin with a letter or _ and have"
        " at most 64 letters, digits, _ and -; rename the file",
    ),
    (
        {"agents/api/notes/[id].head.py": ENDPOINT},
        'agents/api/notes/[id].head.py:3: endpoint "notes/[id].head": the name of the file ends in .head, which is not'
        " one of .get, .post, .put, .patch, .delete",
    ),
    (
        {"agents/api/[*]/x.py": ENDPOINT},
        'agents/api/[*]/x.py:3: endpoint "[*]/x": the name of the file has [*] before its last segment',
    ),
]


@pytest.mark.parametrize(("files", "words"), MISTAKES, ids=[words[:50] for _, words in MISTAKES])
@pytest.mark.requirement("thread.define.one_per_file")
def test_mistake_is_told_with_file_and_line(files: dict[str, str], words: str, tmp_path: Path) -> None:
    project = read(tmp_path, {**SMALL, **files})
    assert said(tmp_path, project.problems) == [words]
    assert "tone" in project.registry.prompts


def test_equal_routes_are_told_with_both_files(tmp_path: Path) -> None:
    project = read(tmp_path, {**SMALL, "agents/api/a/[x].py": ENDPOINT, "agents/api/a/[y].get.py": ENDPOINT})
    (problem,) = said(tmp_path, project.problems)
    assert problem == 'agents/api/a/[y].get.py:3: endpoint "GET /a/[y]": is the same route as agents/api/a/[x].py'


def test_private_files_and_folders_are_not_read(tmp_path: Path) -> None:
    broken = "raise RuntimeError\n"
    files = {"agents/tools/_draft.py": broken, "agents/_old/x.py": broken, "agents/api/_x/y.py": broken}
    assert read(tmp_path, {**SMALL, **files}).problems == ()


def test_folder_that_is_misspelled_is_warned_of(tmp_path: Path) -> None:
    project = read(tmp_path, {**SMALL, "agents/tool/x.py": FIND})
    assert said(tmp_path, project.warnings) == ["agents/tool:1: this folder is not read. Did you mean 'tools'?"]


@pytest.mark.requirement("thread.define.import_isolation")
def test_files_import_each_other_and_the_shared_folder(tmp_path: Path) -> None:
    files = {
        **SMALL,
        "shared/orders.py": "from . import names\nCOUNT = names.COUNT\n",
        "shared/names.py": "COUNT = 7\n",
        "agents/tools/find_order.py": f"from ...shared import orders\n{FIND}    # {{orders.COUNT}}\n",
        "agents/tools/again.py": (
            "from .find_order import find_order\n@define_tool\ndef again():\n    'Again.'\n    return find_order\n"
        ),
        "agents/api/notes/[id].py": f"from ....shared.orders import COUNT\n{ENDPOINT}",
    }
    project = read(tmp_path, files)
    assert project.problems == ()
    tools = project.registry.tools
    assert tools["again"]().execute is tools["find_order"].execute
    assert project.registry.endpoints["notes/[id].get"].handler.__globals__["COUNT"] == 7


@pytest.mark.requirement("thread.define.import_isolation")
def test_files_whose_names_differ_in_a_dash_are_two_modules(tmp_path: Path) -> None:
    files = {
        "agents/tools/find-it.py": f"WHICH = 'dash'\n{FIND}",
        "agents/tools/find_it.py": f"WHICH = 'line'\n{FIND}",
        "agents/tools/user.py": f"from .find_it import WHICH\n{FIND}",
    }
    tools = read(tmp_path, {**SMALL, **files}).registry.tools
    assert [tools[name].execute.__globals__["WHICH"] for name in ("find-it", "find_it", "user")] == [
        "dash",
        "line",
        "line",
    ]


@pytest.mark.requirement("thread.define.import_isolation")
def test_two_generations_do_not_see_each_other(tmp_path: Path) -> None:
    files = {
        **SMALL,
        "shared/orders.py": "COUNT = 1\n",
        "agents/tools/find_order.py": f"from ...shared import orders\n{FIND}",
    }
    first = read(tmp_path, files)
    write(tmp_path / "desk", {"shared/orders.py": "COUNT = 2\n"})
    second = read_project(tmp_path / "desk")
    counts = [one.registry.tools["find_order"].execute.__globals__["orders"].COUNT for one in (first, second)]
    assert counts == [1, 2]
    second.generation.forget()
    assert not [name for name in sys.modules if name.startswith(second.generation.package)]


@pytest.mark.requirement("thread.define.import_isolation")
def test_folder_does_not_hide_installed_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = write(tmp_path / "site", {"tools/__init__.py": "WHO = 'installed'\n"})
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    monkeypatch.delitem(sys.modules, "tools", raising=False)
    project = read(tmp_path, {**SMALL, "agents/tools/find_order.py": f"import tools\n{FIND}"})
    assert project.registry.tools["find_order"].execute.__globals__["tools"].WHO == "installed"
    assert not any("desk" in one for one in sys.path)


def test_code_can_tell_that_it_is_only_checked(tmp_path: Path) -> None:
    files = {**SMALL, "agents/tools/find_order.py": f"import os\nCHECKED = os.environ.get('WEFTLINE_CHECK')\n{FIND}"}
    root = write(tmp_path / "desk", files)
    for only_checking, seen in ((True, "1"), (False, None)):
        project = read_project(root, only_checking=only_checking)
        assert project.registry.tools["find_order"].execute.__globals__["CHECKED"] == seen
    assert "WEFTLINE_CHECK" not in os.environ


@pytest.mark.requirement("thread.define.deprecated")
def test_old_spelling_is_warned_of_with_its_line(tmp_path: Path) -> None:
    old = "agent = define_agent(\n    name='tone',\n    side_a=SideConfig('tone', status_tool='x'),\n)\n"
    tool = "def _x(state): ...\n\nx = define_tool('Does it.', None, _x)\n"
    root = write(tmp_path / "desk", {**SMALL, "agents/agents/tone.py": old, "agents/tools/x.py": tool})
    project = read_project(root, only_checking=True)
    assert said(tmp_path, project.warnings) == [
        "agents/agents/tone.py:4: status_tool is deprecated: write session_status",
        "agents/tools/x.py:4: define_tool(description, args, fn) is deprecated: decorate fn",
    ]


def test_error_below_a_file_names_both_places(tmp_path: Path) -> None:
    files = {"shared/orders.py": "\n1 / 0\n", "agents/tools/find_order.py": f"\nfrom ...shared import orders\n{FIND}"}
    (problem,) = said(tmp_path, read(tmp_path, {**SMALL, **files}).problems)
    words = "agents/tools/find_order.py:3: failed to import: ZeroDivisionError: division by zero"
    assert problem.startswith(words) and problem.endswith("shared/orders.py:2)")


def test_loading_raises_all_problems(tmp_path: Path) -> None:
    root = write(tmp_path / "desk", {**SMALL, "agents/tools/x.py": "y = 1", "agents/hooks/z.py": "1 / 0"})
    with pytest.raises(ProjectError, match="has 2 problems") as wrong:
        load_project(root)
    assert [Path(one.file).name for one in wrong.value.problems] == ["z.py", "x.py"]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("nowhere", "there is no such folder"),
        ("empty", "there is no folder agents in it"),
        ("desk/agents", r"this is the agents of a folder: give .*desk$"),
    ],
)
def test_what_is_no_folder_of_agents_is_told(path: str, words: str, tmp_path: Path) -> None:
    write(tmp_path / "desk", {**SMALL, "agents/agents/tone.py": AGENT})
    (tmp_path / "empty").mkdir()
    with pytest.raises(ProjectError, match=words):
        read_project(tmp_path / path)
