"""`import weftline`, its client and an agent's definition are cheap: what is heavy is loaded when it is first used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from weftline.testing import ServerProcess

HEAVY = {
    "a2a",
    "aiohttp",
    "anthropic",
    "apsw",
    "click",
    "cryptography",
    "genai_prices",
    "google",
    "httptools",
    "httpx",
    "httpx2",
    "jsonschema_rs",
    "mcp",
    "openai",
    "opentelemetry",
    "pydantic",
    "requests",
    "rich",
    "sqlite3",
    "starlette",
    "uvicorn",
    "uvloop",
    "yaml",
}


def loaded_by(statement: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after `statement` and had not before."""
    program = f"import sys; before = set(sys.modules); {statement}; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


LATER = {
    "importlib.metadata",
    "weftline.agent.planning.sources",
    "weftline.server.routes.operator",
    "weftline.providers.anthropic",
    "weftline.server.routes.every",
}
"""Loaded after a server listens, or if it needs them."""
AT_START = """
import asyncio, os, signal, sys
from pathlib import Path
from weftline.server.serve import Settings, serve

def ready(address):
    print(*sys.modules)
    os.kill(os.getpid(), signal.SIGTERM)

sys.exit(asyncio.run(serve(Settings(Path(sys.argv[1]), port=0), ready=ready)))
"""


BY_COMMAND = """
import sys
from pathlib import Path
import weftline.cli.keys
from weftline.cli.reach import reach

with reach(Path(sys.argv[1])) as at:
    assert at.slugs() == []
print(*sys.modules)
"""


def roots(modules: set[str]) -> set[str]:
    return {module.partition(".")[0] for module in modules}


@pytest.mark.parametrize("statement", ["import weftline", "import weftline.client"])
def test_importing_the_package_or_its_client_loads_no_heavy_library(statement: str) -> None:
    modules = loaded_by(statement)
    assert "weftline" in modules
    assert roots(modules) & HEAVY == set()


def test_importing_the_package_loads_nothing_but_the_standard_library() -> None:
    modules = loaded_by("import weftline")
    assert roots(modules) - sys.stdlib_module_names == {"weftline"}
    assert "asyncio" not in modules


def test_defining_an_agent_loads_nothing_of_what_runs_it() -> None:
    modules = loaded_by("from weftline import Agent; Agent('openai:gpt-5', name='a', instructions='Be brief.')")
    assert roots(modules) & HEAVY == set()
    assert "asyncio" not in modules
    rooms = {".".join(module.split(".")[:2]) for module in modules if module.startswith("weftline.")}
    assert rooms & {"weftline.net", "weftline.runtime", "weftline.store", "weftline.server"} == set()


def test_files_of_a_folder_load_nothing_of_what_runs_them() -> None:
    names = "define_agent, define_hook, define_model, define_prompt, define_thread_endpoint, define_tool, ThreadState"
    modules = loaded_by(f"from weftline.threads import {names}")
    assert roots(modules) & HEAVY == set()
    assert "asyncio" not in modules
    rooms = {".".join(module.split(".")[:2]) for module in modules if module.startswith("weftline.")}
    assert rooms & {"weftline.agent", "weftline.net", "weftline.runtime", "weftline.store", "weftline.server"} == set()


@pytest.mark.parametrize("module", ["weftline.events", "weftline.details", "weftline.events.decode"])
def test_events_are_loaded_without_what_makes_them(module: str) -> None:
    modules = loaded_by(f"import {module}")
    assert roots(modules) & HEAVY == set()
    assert not {one for one in modules if one.startswith(("weftline.kernel", "weftline.plan", "weftline.runtime"))}


def test_command_for_a_running_server_loads_nothing_of_the_server(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "w") as server:
        command = [sys.executable, "-c", BY_COMMAND, str(server.db)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    modules = set(done.stdout.split())
    assert roots(modules) & HEAVY == {"click"}
    assert "asyncio" not in modules
    assert [one for one in modules if one.startswith(("weftline.server", "weftline.api", "weftline.runtime"))] == []


def test_listening_server_has_loaded_only_its_first_needs(tmp_path: Path) -> None:
    program = [sys.executable, "-c", AT_START, str(tmp_path / "store")]
    done = subprocess.run(program, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    modules = set(done.stdout.split())
    assert roots(modules) & HEAVY == {"apsw", "click", "httptools", "uvicorn"}
    assert {"weftline.server.routes.runs", "weftline.server.routes.health"} <= modules
    assert modules & LATER == set()


def test_a_heavy_library_would_be_noticed() -> None:
    assert "msgspec" in roots(loaded_by("import weftline; weftline.ToolFailed"))
