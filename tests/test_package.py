"""What an index shows of the package, and what it says when an optional part is not installed."""

from __future__ import annotations

import sys
from importlib.metadata import metadata
from pathlib import Path

import pytest

from weftline import __version__
from weftline.client import AsyncClient, ClientError, local_mcp

ROOT = Path(__file__).resolve().parent.parent


def test_wheel_has_its_metadata_and_links() -> None:
    about = metadata("weftline")
    assert about["Name"] == "weftline" and about["Version"] == __version__
    assert about["Author"] and about["License-Expression"] == "Apache-2.0" and about["License-File"] == "LICENSE"
    assert about["Summary"] and "agents" in (about["Keywords"] or "")
    assert {"Homepage", "Documentation", "Source", "Issues", "Changelog"} <= {
        url.partition(",")[0] for url in about.get_all("Project-URL") or []
    }
    assert about["Description-Content-Type"] == "text/markdown"


def test_named_python_versions_are_those_tested() -> None:
    classifiers = metadata("weftline").get_all("Classifier") or []
    named = [text.rpartition(" ")[2] for text in classifiers if ":: Python :: 3." in text]
    assert named == ["3.11", "3.12", "3.13"] and metadata("weftline")["Requires-Python"] == ">=3.11"
    assert "Typing :: Typed" in classifiers and (ROOT / "src" / "weftline" / "py.typed").exists()


async def test_missing_extra_is_named_with_its_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    async with AsyncClient(api_key="k", workspace="acme", base_url="http://127.0.0.1:9") as client:
        with pytest.raises(ClientError, match=r"pip install '\.\[mcp\]'"):
            await client.run("hi", tools=[local_mcp("files", command="true")])
