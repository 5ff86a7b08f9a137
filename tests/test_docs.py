"""The documentation is held to the code: its examples run, its links lead somewhere, its tables are complete."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict, fields

from forked import run_python
from kits.a2a_known import KNOWN
from weftline import client
from weftline.errors import TABLE
from weftline.server.options import SETTINGS, ServerOptions
from weftline.spec.fields import RunModel
from weftline.tools.builtin import builtin_tools
from weftline.wire.errors import wire_code
from weftline.wire.run_responses import ListedRun, Run

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "docs_src").glob("*.py"))
PAGES = sorted((ROOT / "docs").rglob("*.md"))
LINKING = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "examples" / "README.md"]

LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)(?:#[^)]*)?\)")
SECTION_LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*\.md|)#([^)\s]+)\)")
EXAMPLE = re.compile(r"docs_src/(\w+\.py)")
ERROR_ROW = re.compile(r"^\| `(\w+)` \| (\d+) \| (yes|no) \| (.+) \|$", re.MULTILINE)

FIELD_CELL = re.compile(r"^\| (`[^|]+) \|", re.MULTILINE)
SETTING_ROW = re.compile(r"^\| `(\w+)` \| ([^|]+) \| .+ \|$", re.MULTILINE)


def offline_environment() -> dict[str, str]:
    """Examples need no key; without one they cannot reach a paid API by mistake."""
    return {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_of_the_docs_runs(example: Path, tmp_path: Path) -> None:
    done = run_python(str(example), cwd=tmp_path, env=offline_environment())
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_docs_show_every_example_and_no_other() -> None:
    shown = {name for page in PAGES for name in EXAMPLE.findall(page.read_text(encoding="utf-8"))}
    assert shown == {example.name for example in EXAMPLES}


@pytest.mark.parametrize("page", [*LINKING, *PAGES], ids=lambda path: path.name)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


def _anchors(page: Path) -> set[str]:
    """The ids that a Markdown page's headings get: lower case, without punctuation, with dashes for spaces."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_to_a_section_lead_to_one() -> None:
    wrong = [
        f"{page.name}: {target}#{anchor}"
        for page in [*LINKING, *PAGES]
        for target, anchor in SECTION_LINK.findall(page.read_text(encoding="utf-8"))
        if anchor not in _anchors(page.parent / target if target else page)
    ]
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_items_of_a_list_do_not_run_together(page: Path) -> None:
    assert re.findall(r"[.:] \d+\.\s", page.read_text(encoding="utf-8")) == []


def test_every_page_can_be_reached_from_the_index() -> None:
    index = ROOT / "docs" / "index.md"
    reached: set[Path] = set()
    waiting = [index]
    while waiting:
        page = waiting.pop()
        if page in reached:
            continue
        reached.add(page)
        targets = LINK.findall(page.read_text(encoding="utf-8"))
        waiting += [(page.parent / target).resolve() for target in targets if target.endswith(".md")]
    assert [page.name for page in PAGES if page not in reached] == []


def test_page_of_a2a_kit_lists_what_command_lets_pass() -> None:
    text = (ROOT / "docs" / "a2a-kit.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\* `(.+)`: (.+)$", text, re.MULTILINE)
    assert dict(listed) == {name: why for known in KNOWN.values() for name, why in known.items()}


def test_error_table_of_docs_is_that_of_code() -> None:
    text = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    documented = {
        code: (int(status), retryable == "yes", remedy) for code, status, retryable, remedy in ERROR_ROW.findall(text)
    }
    assert documented == {wire_code(code): tuple(row) for code, row in TABLE.items()}
    others = {code: wire_code(code) for code in TABLE if wire_code(code) != code}
    assert all(f"`{code}` for `{other}`" in text for code, other in others.items()) and others


def test_page_of_client_lists_every_error_that_it_exports() -> None:
    text = (ROOT / "docs" / "client.md").read_text(encoding="utf-8")
    named = {name for cell in FIELD_CELL.findall(text) for name in re.findall(r"`(\w+)`", cell)}
    exported = {name for name in client.__all__ if issubclass(_class(name), client.ClientError)}
    assert "Unreachable" in exported and exported <= named


def _class(name: str) -> type[Any]:
    value = getattr(client, name)
    return value if isinstance(value, type) else object


def test_the_page_of_tools_lists_those_that_are_built_in() -> None:
    text = (ROOT / "docs" / "tools.md").read_text(encoding="utf-8").partition("## Built-in tools\n")[2]
    named = {name for cell in FIELD_CELL.findall(text) for name in re.findall(r"`(\w+)`", cell)}
    assert named == {*builtin_tools(), "fetch"}


def test_lists_in_the_docs_are_not_joined_into_paragraphs() -> None:
    joined = {page.name: found for page in PAGES if (found := re.findall(r"\S 2\. .* 3\. ", page.read_text("utf-8")))}
    assert joined == {}


def _written(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:g}"


def test_the_settings_of_the_docs_are_those_of_the_server() -> None:
    rows = SETTING_ROW.findall((ROOT / "docs" / "settings.md").read_text(encoding="utf-8"))
    assert sorted(name for name, _ in rows) == sorted(SETTINGS)
    options = ServerOptions()
    values = {**asdict(options), **asdict(options.connections), **asdict(options.workspaces)}
    wrong = {
        name: (default, values[name])
        for name, default in rows
        if type(values.get(name)) in (int, float) and name != "stall_s" and default != _written(values[name])
    }
    assert wrong == {}


def test_page_of_protocol_has_fields_that_run_may_have() -> None:
    text = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    table = text.partition("## The spec of a run\n")[2].partition("\n### ")[0]
    named = {name for cell in FIELD_CELL.findall(table) for name in re.findall(r"`(\w+)`", cell)}
    assert named == {*RunModel.__struct_encode_fields__}


def test_page_of_snapshot_has_fields_that_runs_have() -> None:
    text = (ROOT / "docs" / "http.md").read_text(encoding="utf-8")
    section = text.partition("## The snapshot")[2].partition("\n## ")[0]
    documented = [name for cell in FIELD_CELL.findall(section) for name in re.findall(r"`(\w+)`", cell)]
    of_a_run = {field.encode_name for field in fields(Run)}
    assert sorted(documented) == sorted(of_a_run)
    of_a_listed_run = {field.encode_name for field in fields(ListedRun)}
    assert of_a_run - of_a_listed_run == {"spec", "agentSpec", "cancelReceipt", "awaits", "forkedFrom", "labels"}
    assert of_a_listed_run - of_a_run == {"agentId"}
