"""Model families from outside: a package of one's own, a provider that offers the least, a classifier of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from weftline.kernel import bodies
from weftline.providers.base import Chunk, Finish, ModelRequest, ProviderError, TextDelta
from weftline.providers.catalog import Catalog
from weftline.runtime.engine import OwnedEngine
from weftline.runtime.new_engine import new_engine
from weftline.store.memory import MemoryStore
from weftline.testing import ServerProcess

from .playing import played

FAMILY = """
from weftline.providers.base import Finish, ModelInfo, TextDelta, UsageUpdate
from weftline.messages import Usage

class Parrot:
    name = "parrot"

    def __init__(self, *, transport, base_url, api_key, models, shout=False):
        self._models = models or (ModelInfo("grey", tools=False),)
        self._shout = shout

    def models(self):
        return self._models

    async def stream(self, request):
        said = request.messages[-1].text
        yield [TextDelta(said.upper() if self._shout else said)]
        yield [UsageUpdate(Usage(input=1, output=1)), Finish("end_turn")]
"""
CONFIG = """
[providers.bird]
family = "parrot"
base_url = "http://127.0.0.1:9"
shout = true
"""


def install(folder: Path) -> dict[str, str]:
    """A package with an entry point, as an installer would have left it; the environment that finds it."""
    (folder / "parrot_models.py").write_text(FAMILY, encoding="utf-8")
    info = folder / "parrot_models-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: parrot-models\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[weftline.providers]\nparrot = parrot_models:Parrot\n", encoding="utf-8")
    return {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


def test_family_of_installed_package_is_configured_listed_and_used(tmp_path: Path) -> None:
    package = tmp_path / "site"
    package.mkdir()
    environment = install(package)
    with ServerProcess(tmp_path, config=CONFIG, env=environment) as server:
        key = server.create_key("acme")
        catalog = _call(f"{server.url}/api/v1/workspaces/acme/models", key)
        entry = next(model for model in catalog["models"] if model["id"] == "bird:grey")
        assert entry["provider"] == "parrot" and entry["capabilities"] == {"tools": False}
        runs = f"{server.url}/api/v1/workspaces/acme/agent-runs"
        run = _call(runs, key, {"modelId": "bird:grey", "prompt": "polly"})
        stream = _read(f"{runs}/{run['runId']}/stream", key)
        assert '"subtype":"success"' in stream and "POLLY" in stream
        # A workspace may bring one of it too.
        own = {"name": "own", "family": "parrot", "apiKey": "k"}
        assert _call(f"{server.url}/api/v1/workspaces/acme/providers", key, own)["family"] == "parrot"
    listed = subprocess.run(
        [sys.executable, "-m", "weftline", "models", "--config", str(tmp_path / "config.toml"), "--json"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(listed.stdout)["defaultModelId"] == "bird:grey"


def _call(url: str, key: str, body: Any = None) -> Any:
    return json.loads(_read(url, key, body))


def _read(url: str, key: str, body: Any = None) -> str:
    from urllib.request import Request, urlopen

    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(url, data=data, headers={"Authorization": f"Bearer {key}"}), timeout=120) as response:
        return response.read().decode()


class Least:
    """Nothing but a name and a stream."""

    name = "least"

    def __init__(self, *answers: str | Exception) -> None:
        self._answers = list(answers)
        self.asked = 0

    async def stream(self, request: ModelRequest) -> AsyncIterator[Sequence[Chunk]]:
        self.asked += 1
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        yield [TextDelta(answer), Finish("end_turn")]


class Own(Least):
    """With a classifier of its own."""

    name = "own"

    def classify_error(self, error: BaseException) -> ProviderError | None:
        match error:
            case KeyError():
                return ProviderError("overloaded", "come back", code="E_BUSY")
            case ValueError():
                return ProviderError("context_window", "too long", code="E_LONG", retryable=False)
            case ArithmeticError():
                raise RuntimeError("the classifier is broken")
            case _:
                return None


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def catalog(store: MemoryStore) -> AsyncGenerator[tuple[OwnedEngine, Catalog, int]]:
    catalog = Catalog()
    async with new_engine(store, models=catalog) as engine:
        workspace = await engine.workspace("acme")
        yield engine, catalog, workspace
    await catalog.aclose()


async def finished(engine: OwnedEngine, workspace: int, model: str) -> tuple[str, list[bodies.FailedBody], Any]:
    """Runs `model` to its end: its status, the failures of its attempts, and its terminal entry."""
    row = await played(engine, workspace, model)
    entries = [await engine.stored.logs.entry(row.key, seq) for seq in range(1, row.next_seq)]
    failed = [entry.body for entry in entries if entry is not None and entry.kind == "attempt.failed"]
    last = entries[-1]
    assert last is not None and last.kind == "run.ended"
    return row.status, [bodies.decode_failed(body) for body in failed], json.loads(last.head)


async def test_provider_that_offers_only_name_and_stream_works(catalog: tuple[OwnedEngine, Catalog, int]) -> None:
    engine, models, workspace = catalog
    models.add(Least("hello"), any_model=True)  # pyright: ignore[reportArgumentType]  # that it is less is the point
    status, _, _ = await finished(engine, workspace, "least:any")
    assert status == "succeeded" and models.entries() == []


@pytest.mark.requirement("provider.error.classifier")
async def test_a_providers_own_classifier_decides_on_its_failures(catalog: tuple[OwnedEngine, Catalog, int]) -> None:
    engine, models, workspace = catalog
    for number, (answers, asked, code, provider_code) in enumerate(
        (
            ((KeyError("x"), "hello"), 2, "", "E_BUSY"),
            ((ValueError("x"),), 1, "context_window", "E_LONG"),
            ((OSError("x"),), 1, "unknown", None),
            ((ArithmeticError("x"),), 1, "unknown", None),
        )
    ):
        provider = Own(*answers)
        models.add(provider, name=f"own{number}", any_model=True)  # pyright: ignore[reportArgumentType]  # as above
        status, failures, ended = await finished(engine, workspace, f"own{number}:m")
        assert provider.asked == asked
        assert (status, ended.get("code", "")) == ("failed" if code else "succeeded", code)
        assert failures[0].code == provider_code and "x" not in failures[0].message.split()
