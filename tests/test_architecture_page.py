"""`docs/architecture.md`, `docs/development.md` and the decisions name modules, functions and files; they exist."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "architecture.md"
DEVELOPMENT = DOCS / "development.md"
DECISIONS = sorted((DOCS / "decisions").glob("*.md"))
SRC = Path(__file__).resolve().parent.parent / "src" / "weftline"
TOP = sorted(path.stem for path in SRC.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists())
NAME = re.compile(rf"`((?:{'|'.join(TOP)})(?:\.(?!py`)\w+)+)`")
FILE = re.compile(r"`((?:\w+/)*\w+(?:\.py|\.sql|\.md|/))`")


def _resolve(name: str) -> object:
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module("weftline." + ".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[cut:]:
            found = getattr(found, attribute)
        return found
    raise AssertionError(f"there is no module for {name}")


@pytest.mark.parametrize("name", sorted(set(NAME.findall(PAGE.read_text(encoding="utf-8")))))
def test_a_name_of_the_architecture_page_exists(name: str) -> None:
    assert _resolve(name) is not None


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_the_names_in_a_decision_exist(page: Path) -> None:
    names = sorted(set(NAME.findall(page.read_text(encoding="utf-8"))))
    assert all(_resolve(name) is not None for name in names)


def test_architecture_page_names_many_functions_and_only_files_that_exist() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert len(set(NAME.findall(text))) > 30
    assert missing_files(text) == []


def test_development_page_names_only_files_and_modules_that_exist() -> None:
    text = DEVELOPMENT.read_text(encoding="utf-8")
    assert missing_files(text) == []
    assert all(_resolve(name) is not None for name in NAME.findall(text))
    imports = text.partition("\nImports point one way.")[2].partition("\n\n")[0]
    assert {*re.findall(r"`([a-z]\w+)`", imports)} - {*TOP} == set()


def test_development_page_lists_every_package() -> None:
    listed = re.findall(r"^  (\w+)/ ", DEVELOPMENT.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(path.parent.name for path in SRC.glob("*/__init__.py"))


def missing_files(text: str) -> list[str]:
    """Returns the paths, in the package or in the project, of which neither exists."""
    return [path for path in FILE.findall(text) if not (SRC / path).exists() and not (SRC.parents[1] / path).exists()]
