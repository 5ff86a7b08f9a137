"""Packages: what an installed distribution brings, under which names, and who can see it."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Generator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from weftline.errors import NotFound
from weftline.testing import ServerProcess
from weftline.threads import (
    DefinitionError,
    GlobalNamespaceContext,
    PackedExports,
    PackedMeta,
    PackedNamespaceContext,
    PromptIncludePart,
    Registry,
    SideConfig,
    ThreadState,
    belongs_to_package,
    check,
    define_agent,
    define_effect,
    define_hook,
    define_model,
    define_prompt,
    define_thread_endpoint,
    define_tool,
    from_json,
    is_packed,
    is_visible_in_namespace,
    to_json,
)
from weftline.threads.checking import check_registry
from weftline.threads.definitions.base import Kind

from .folders import SMALL, read, said, write
from .test_serving import call, joined, thread, turns
from .test_serving import said as answer


def handler(state: ThreadState) -> str:
    """Does it."""
    return ""


def filters(state: ThreadState, messages: list[Any]) -> None: ...


def answers(request: Any, state: ThreadState, params: dict[str, str]) -> None: ...


def tea(package: str = "tea", **more: Any) -> PackedExports:
    """A package with one of each, which name each other by their own names."""
    meta = more.pop("meta", PackedMeta(package_id=package, version="1.2", agents=("desk",)))
    given: dict[str, Any] = {
        "models": {"fast": define_model(name="fast", provider="test", model="tea", fallbacks=["slow"])},
        "prompts": {
            "desk": define_prompt(
                name="desk",
                model="fast",
                tool_description="Sells tea.",
                prompt=["Be kind. ", PromptIncludePart("tone")],
                tools=["brew", "fetch", "helper"],
                hooks=["keep"],
            ),
            "tone": define_prompt(name="tone", model="fast", tool_description="Tone.", prompt="Be brief."),
        },
        "agents": {
            "desk": define_agent(name="desk", side_a=SideConfig(prompt="desk", stop_tool="brew"), hooks=["keep"]),
            "helper": define_agent(name="helper", side_a=SideConfig(prompt="tone")),
        },
        "tools": {"brew": define_tool(effect="read", uses=["desk", "pour"])(handler)},
        "hooks": {"keep": define_hook("filter_messages", id="keep", execute=filters)},
        "effects": {"remind": define_effect(handler)},
        "thread_endpoints": {"status.get": define_thread_endpoint(answers)},
    }
    given["models"]["slow"] = define_model(name="slow", provider="test", model="slow")
    return PackedExports(meta=meta, **{**given, **more})


NAMED: list[tuple[Kind, str]] = [
    *(("model", "fast"), ("prompt", "desk"), ("agent", "desk"), ("tool", "brew"), ("hook", "keep")),
    ("effect", "remind"),
]


@pytest.mark.requirement("thread.package.load")
def test_definitions_of_a_package_refer_to_each_other_by_whole_names() -> None:
    registry = Registry.of(packages=[tea()])
    desk = registry.prompt("tea/desk")
    assert (desk.model, desk.hooks) == ("tea/fast", ("tea/keep",))
    assert desk.parts[1] == PromptIncludePart("tea/tone")
    assert desk.entries == ("tea/brew", "fetch", "tea/helper")
    assert registry.model("tea/fast").fallbacks == ("tea/slow",)
    assert registry.agent("tea/desk").side_a == SideConfig("tea/desk", stop_tool="tea/brew")
    assert registry.agent("tea/desk").hooks == ("tea/keep",)
    assert registry.tool("tea/brew").uses == ("tea/desk", "pour")
    for kind, name in NAMED:
        packed = registry.find(kind, f"tea/{name}").packed
        assert (packed.package_id, packed.version) == ("tea", "1.2")
    assert registry.endpoints["status.get"].packed == registry.tool("tea/brew").packed


def test_packed_definition_survives_its_json() -> None:
    desk = Registry.of(packages=[tea()]).agent("tea/desk")
    assert from_json(to_json(desk), type(desk)) == desk


@pytest.mark.requirement("thread.package.visibility")
def test_lookups_and_helpers_agree_on_what_is_visible() -> None:
    own = define_tool(effect="read", name="own")(handler)
    kept = define_tool(effect="read", name="kept")(handler)
    meta = PackedMeta(package_id="milk", requires=("own", "tea/desk", "tea/helper"))
    milk = tea("milk", meta=meta, thread_endpoints={})
    registry = Registry.of(tools=[own, kept], packages=[tea(), milk])
    contexts = {
        "": GlobalNamespaceContext(),
        "tea": PackedNamespaceContext(package_id="tea"),
        "milk": PackedNamespaceContext(package_id="milk", requires=("own", "tea/desk", "tea/helper")),
    }
    names = {
        "": {("agent", "tea/desk"), ("tool", "own"), ("tool", "kept")},
        "milk": {("agent", "tea/desk"), ("tool", "own")},
        "tea": set[tuple[str, str]](),
    }
    for namespace, context in contexts.items():
        seen = registry.seen_from(namespace)
        visible: set[tuple[str, str]] = set()
        for kind, _ in NAMED:
            for name, one in registry.table(kind).items():
                assert (seen.find(kind, name) is not None) == is_visible_in_namespace(one, context), (namespace, name)
                assert (name in seen.names(kind)) == is_visible_in_namespace(one, context)
                if is_visible_in_namespace(one, context) and not belongs_to_package(one, namespace):
                    visible.add((kind, name))
        assert visible == names[namespace]
    assert is_packed(registry.tool("tea/brew")) and not is_packed(own)
    assert not belongs_to_package(own, "tea") and not belongs_to_package(own, "")


@pytest.mark.requirement("thread.package.visibility")
def test_packages_own_definitions_come_first() -> None:
    own = define_tool(effect="read", name="brew")(handler)
    registry = Registry.of(tools=[own], packages=[tea(), tea("milk", thread_endpoints={})])
    assert registry.seen_from("tea").tool("brew").packed == registry.tool("tea/brew").packed
    assert registry.seen_from("milk").effect("remind") is registry.effect("milk/remind")
    assert registry.seen_from("").tool("brew") is own
    with pytest.raises(NotFound, match="There is no tool 'tea/brew'"):
        registry.seen_from("").tool("tea/brew")


def place(kind: str, name: str, field: str) -> tuple[str, int]:
    return "f", 1


@pytest.mark.requirement("thread.package.visibility")
def test_check_knows_what_each_definition_can_see() -> None:
    names = define_prompt(
        name="p", model="tea/fast", tool_description="x", prompt="x", tools=["tea/desk", "tea/helper", "tea/brew"]
    )
    own = define_tool(effect="read", name="pour")(handler)
    report = check_registry(Registry.of(prompts=[names], tools=[own], packages=[tea()]), place)
    assert [f"{one.about}: {one.field}: {one.message}" for one in report.problems] == [
        'prompt "p": model: there is no model "tea/fast". The package "tea" keeps it to itself.',
        'prompt "p": tools[1]: there is no tool, prompt or agent "tea/helper". The package "tea" keeps it to itself.',
        'prompt "p": tools[2]: there is no tool, prompt or agent "tea/brew". The package "tea" keeps it to itself.',
        'tool "tea/brew": uses[1]: there is no tool, prompt or agent "pour". The package "tea" does not require it.',
    ]
    meta = PackedMeta(package_id="tea", requires=("pour",))
    assert check_registry(Registry.of(tools=[own], packages=[tea(meta=meta)]), place).problems == ()


def refused(*packages: PackedExports) -> str:
    with pytest.raises(DefinitionError) as error:
        Registry.of(packages=packages)
    return str(error.value)


@pytest.mark.requirement("thread.package.route_clash")
def test_packages_that_clash_are_named() -> None:
    one = define_thread_endpoint(answers)
    routes = [
        PackedExports(meta=PackedMeta(package_id=id), thread_endpoints={key: one})
        for id, key in (("tea", "notes/[id].put"), ("milk", "notes/[key].put"))
    ]
    assert "the packages 'tea' and 'milk' both have an endpoint PUT /notes/[key]" in refused(*routes)
    tool = define_tool(effect="read")(handler)
    named = [
        PackedExports(meta=PackedMeta(package_id=id), tools={name: tool})
        for id, name in (("tea", "milk__brew"), ("tea__milk", "brew"))
    ]
    assert "'tea' and 'tea__milk' both have what models would see as 'tea__milk__brew'" in refused(*named)
    assert "two packages have the id 'tea': 1.2 and 1.2" in refused(tea(), tea())


def test_package_that_is_wrong_is_named() -> None:
    tool = define_tool(effect="read", name="other")(handler)
    said = refused(PackedExports(meta=PackedMeta(package_id="tea"), tools={"brew": tool}))
    assert "packages['tea'].tools['brew']: is 'other': its name and its key must be the same" in said
    long = PackedExports(meta=PackedMeta(package_id="tea"), tools={"b" * 60: define_tool(effect="read")(handler)})
    assert ": more than 64 characters" in refused(long)
    assert "must begin with a letter" in refused(PackedExports(meta=PackedMeta(package_id="a/b")))


@pytest.mark.requirement("thread.endpoint.packed")
def test_endpoint_of_the_folder_goes_before_that_of_a_package() -> None:
    own, packed = define_thread_endpoint(answers), define_thread_endpoint(answers)
    exports = PackedExports(
        meta=PackedMeta(package_id="tea"), thread_endpoints={"status.get": packed, "notes/[id].put": packed}
    )
    registry = Registry.of(endpoints={"notes/[key].put": own}, packages=[exports])
    assert {key: is_packed(one) for key, one in registry.endpoints.items()} == {
        "notes/[key].put": False,
        "status.get": True,
    }


CODE = """
from weftline.threads import *

@define_tool(effect="idempotent", description="Brews.")
async def brew(state: ThreadState) -> dict[str, object]:
    return {
        "tools": [type(state).__name__, state.get_prompt_names(), (await state.load_prompt("desk")).name],
        "host": state.host, "agents": state.get_agent_names(),
    }

@define_tool(effect="idempotent", description="Plans.")
async def plan(state: ThreadState) -> str:
    id = await state.schedule_effect("remind", {"what": "tea"}, delay_ms=0)
    [listed] = await state.get_scheduled_effects("remind")
    return f"{listed.name} {listed.id == id}"

@define_effect(description="Reminds.")
async def remind(state: ThreadState, what: str) -> None:
    await state.set_value("reminded", [what, state.get_prompt_names()])

@define_thread_endpoint
async def status(request, state, params): ...

exports = PackedExports(
    meta=PackedMeta(package_id="tea", version="1.2", agents=("desk", "planner")),
    models={
        "fast": define_model(name="fast", provider="test", model="tea"),
        "plans": define_model(name="plans", provider="test", model="plans"),
    },
    prompts={
        "desk": define_prompt(name="desk", model="fast", tool_description="x", prompt="Sell.", tools=["brew"]),
        "planner": define_prompt(name="planner", model="plans", tool_description="x", prompt="Plan.", tools=["plan"]),
    },
    agents={
        "desk": define_agent(name="desk", side_a=SideConfig(prompt="desk")),
        "planner": define_agent(name="planner", side_a=SideConfig(prompt="planner")),
    },
    tools={"brew": brew, "plan": plan},
    effects={"remind": remind},
    thread_endpoints={"status.get": status},
)
"""


def install(folder: Path, code: str = CODE, *, name: str = "tea_desk", entry: str = "exports") -> Path:
    """Writes a distribution as pip installs it, with an entry point."""
    info = folder / f"{name}-1.2.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.py").write_text(code, encoding="utf-8")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[weftline.packages]\n{name} = {name}:{entry}\n", encoding="utf-8")
    return folder


@pytest.mark.requirement("thread.package.load")
def test_installed_package_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(install(tmp_path / "site", name="tea_found"))])
    project = read(tmp_path, SMALL)
    assert check(project).problems == ()
    assert project.registry.packages["tea"].version == "1.2"
    assert project.registry.tool("tea/brew").packed is not None
    assert project.line_of("tool", "tea/brew", "uses") == (str(tmp_path / "site" / "tea_found.py"), 1)


@pytest.mark.parametrize(
    ("name", "code", "entry", "problem"),
    [
        ("tea_broken", "import nowhere", "exports", "failed to import: ModuleNotFoundError: No module named 'nowhere'"),
        ("tea_other", "exports = 5", "exports", "exports is not a PackedExports, but 5"),
        (
            "tea_absent",
            "x = 5",
            "gone",
            "failed to import: AttributeError: module 'tea_absent'",
        ),
    ],
)
def test_package_that_cannot_be_loaded_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: str, entry: str, problem: str
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(install(tmp_path / "site", code, name=name, entry=entry))])
    [found] = said(tmp_path, check(read(tmp_path, SMALL)).problems)
    assert name in found and problem in found


FILES: Mapping[str, str] = {
    "scripts.json": json.dumps(
        {
            "tea": turns(call("tea__brew"), "{{tool_results.0}}"),
            "plans": turns(call("tea__plan"), "{{tool_results.0}}"),
        }
    ),
    "agents/helper.md": "---\nmodel: scripted:tea\n---\nHelp.\n",
    "agents/tools/unseen.py": "@define_tool(effect='read', description='x')\ndef unseen(): ...\n",
}


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Generator[ServerProcess]:
    folder = tmp_path_factory.mktemp("packed")
    site = install(folder / "site")
    with ServerProcess(
        folder, arguments=(str(write(folder / "desk", FILES)),), env={"PYTHONPATH": str(site)}
    ) as running:
        yield running


@pytest.fixture
async def http() -> AsyncGenerator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.mark.requirement("thread.package.load", "thread.package.visibility")
async def test_agent_of_a_package_is_served(serving: ServerProcess, http: aiohttp.ClientSession) -> None:
    api = joined(serving, http, "acme")
    assert [one["id"] for one in (await api.get("agents")).json["agents"]] == [
        "helper",
        "tea__desk",
        "tea__planner",
    ]
    for name in ("tea__desk", "tea/desk"):
        assert json.loads(await answer(api, await thread(api, name))) == {
            "tools": ["LiveThread", ["tea/desk", "tea/planner"], "tea/desk"],
            "host": None,
            "agents": ["tea/desk", "tea/planner"],
        }


@pytest.mark.requirement("thread.package.visibility")
async def test_code_of_a_package_schedules_its_effects_by_their_own_names(
    serving: ServerProcess, http: aiohttp.ClientSession
) -> None:
    api = joined(serving, http, "acme")
    made = await thread(api, "tea/planner")
    assert await answer(api, made) == "tea/remind True"
    async with asyncio.timeout(120):
        while (kept := await api.get(f"threads/{made}/values/reminded")).status == 404:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert kept.json["value"] == ["tea", ["tea/desk", "tea/planner"]]
