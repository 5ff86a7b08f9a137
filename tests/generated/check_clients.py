"""Clients that generators make of the OpenAPI page: they compile, and they work against a real server.

Run by `make clients`: the generators are fetched with npm and pip into a temporary folder.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.request
import venv
from collections.abc import Generator
from pathlib import Path

import pytest

from weftline.testing import ServerProcess

pytestmark = pytest.mark.timeout(900)

HERE = Path(__file__).parent
NPM = ("openapi-typescript@7", "typescript@5", "openapi-fetch", "@types/node@20")
PYPI = ("openapi-python-client", "openapi-spec-validator")
COMPILER = {
    "target": "es2022",
    "module": "nodenext",
    "moduleResolution": "nodenext",
    "strict": True,
    "exactOptionalPropertyTypes": True,
    "noUncheckedIndexedAccess": True,
    "types": ["node"],
    "outDir": "out",
}


def run(*command: str | Path, folder: Path, path: Path | None = None) -> str:
    """What a command says; it must end well."""
    environment = None if path is None else {"PATH": f"{path}:/usr/bin:/bin"}
    done = subprocess.run(
        [str(one) for one in command], cwd=folder, env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, f"{command[0]}: {done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[ServerProcess]:
    scripts = {"hello": {"turns": [{"text": "hi"}]}}
    with ServerProcess(tmp_path_factory.mktemp("server"), scripts=scripts) as running:
        yield running


@pytest.fixture(scope="module")
def page(server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "openapi.json"
    with urllib.request.urlopen(f"{server.url}/openapi.json", timeout=120) as answer:
        file.write_bytes(answer.read())
    return file


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the Python tools' commands."""
    folder = tmp_path_factory.mktemp("tools")
    venv.create(folder, with_pip=True)
    run(folder / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PYPI, folder=folder)
    return folder / "bin"


def test_the_page_is_valid_openapi(page: Path, tools: Path) -> None:
    assert "OK" in run(tools / "openapi-spec-validator", page, folder=page.parent)


def test_a_generated_typescript_client_compiles_under_strict_and_works(
    server: ServerProcess, page: Path, tmp_path: Path
) -> None:
    assert shutil.which("npm"), "npm is not installed; it comes with Node.js"
    (tmp_path / "package.json").write_text('{"type": "module"}', encoding="utf-8")
    (tmp_path / "tsconfig.json").write_text(
        json.dumps({"compilerOptions": COMPILER, "include": ["*.ts"]}), encoding="utf-8"
    )
    shutil.copy(HERE / "client.ts", tmp_path)
    run("npm", "install", "--no-audit", "--no-fund", *NPM, folder=tmp_path)
    run("npx", "openapi-typescript", page, "-o", "api.d.ts", folder=tmp_path)
    run("npx", "tsc", folder=tmp_path)
    said = run("node", "out/client.js", server.url, "typed", server.create_key("typed"), folder=tmp_path)
    assert "all is well" in said


def test_a_generated_python_client_is_complete_and_works(
    server: ServerProcess, page: Path, tools: Path, tmp_path: Path
) -> None:
    command = ("generate", "--path", page, "--output-path", tmp_path / "made", "--meta", "none")
    # It formats what it makes with ruff, which is among our own tools.
    said = run(tools / "openapi-python-client", *command, folder=tmp_path, path=Path(sys.executable).parent)
    assert "WARNING" not in said and "Unable" not in said, said
    shutil.copy(HERE / "client.py", tmp_path)
    said = run(tools / "python", "client.py", server.url, "typed-py", server.create_key("typed-py"), folder=tmp_path)
    assert "all is well" in said
