"""A store with a workspace and a key in it, made once and copied for every server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NamedTuple

import pytest

from weftline.store import open_store
from weftline.testing import ServerProcess


class Template(NamedTuple):
    store: Path
    key: str


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    process = ServerProcess(tmp_path_factory.mktemp("template"))
    asyncio.run(open_store(process.db).close())
    key = process.create_key("acme")
    return Template(process.db, key)
