import logging
import sys
from pathlib import Path

import pytest

from weftline.errors import WeftlineError
from weftline.messages import joined_text
from weftline.tools.base import ToolContext
from weftline.tools.loader import installed_tools, load_tools

GOOD = '''
from __future__ import annotations
from dataclasses import dataclass
import weftline

@dataclass
class Order:
    sku: str
    count: int = 1

@weftline.tool(effect="idempotent")
def order(item: Order) -> str:
    """Orders an item."""
    return f"{item.count} x {item.sku}"

@weftline.tool
def cancel(number: int) -> None:
    """Cancels an order."""

alias = order
'''


def written(directory: Path, text: str, name: str = "my_tools.py") -> Path:
    file = directory / name
    file.write_text(text, encoding="utf-8")
    return file


def refused(file: Path) -> str:
    before = set(sys.modules)
    with pytest.raises(WeftlineError) as caught:
        load_tools(file)
    assert caught.value.code == "bad_tools_file"
    assert not {name for name in set(sys.modules) - before if name.startswith("_weftline_tools_")}
    assert str(file) in caught.value.message
    assert "\n" not in caught.value.message
    return caught.value.message


async def test_a_tools_file_gives_its_tools_in_order(tmp_path: Path) -> None:
    tools = load_tools(written(tmp_path, GOOD))
    assert list(tools) == ["order", "cancel"]
    assert [tool.effect for tool in tools.values()] == ["idempotent", "once"]
    order = tools["order"]
    context = ToolContext("r", "0.0", "k", "order", "default")
    output = await order.invoke(await order.prepare('{"item":{"sku":"x","count":"2"}}'), context)
    assert joined_text(output.parts) == "2 x x"


def test_same_named_file_is_read_afresh(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    here, there = written(tmp_path, GOOD), written(tmp_path / "other", GOOD.replace("order", "buy"))
    assert list(load_tools(here)) == ["order", "cancel"]
    assert list(load_tools(str(there))) == ["buy", "cancel"]
    written(tmp_path, GOOD.replace("cancel(", "refund("))
    assert list(load_tools(here)) == ["order", "refund"]
    assert "my_tools" not in sys.modules
    assert not list(tmp_path.rglob("__pycache__"))


def test_a_missing_file_or_a_directory_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere.py")
    refused(tmp_path)


def test_a_syntax_error_is_told_with_its_line(tmp_path: Path) -> None:
    assert "line 3" in refused(written(tmp_path, "import weftline\n\ndef broken(:\n    pass\n"))
    refused(written(tmp_path, "x = '\x00'"))
    file = tmp_path / "latin.py"
    file.write_bytes(b"x = '\xff'\n")
    refused(file)


def test_an_exception_while_importing_is_told_with_its_line(tmp_path: Path) -> None:
    message = refused(written(tmp_path, "import weftline\nraise KeyError('API_KEY')\n"))
    assert "line 2" in message
    assert "API_KEY" in message
    assert "not_a_module" in refused(written(tmp_path, "import not_a_module\n"))
    refused(written(tmp_path, "import sys\nsys.exit(3)\n"))
    message = refused(written(tmp_path, "import weftline\n\n@weftline.tool\ndef f(*args): ...\n"))
    assert "line 3" in message


def test_a_file_without_tools_is_refused(tmp_path: Path) -> None:
    refused(written(tmp_path, "def order(): ...\n"))
    refused(written(tmp_path, ""))


def test_two_tools_of_one_name_are_refused(tmp_path: Path) -> None:
    message = refused(written(tmp_path, GOOD + "\n@weftline.tool(name='order')\ndef second(): ...\n"))
    assert "order" in message


def test_a_type_hint_without_a_schema_is_refused(tmp_path: Path) -> None:
    text = "import weftline\nclass Opaque: ...\n@weftline.tool\ndef f(x: Opaque): ...\n"
    assert "'f'" in refused(written(tmp_path, text))


def installed(directory: Path, package: str, entries: dict[str, str], **modules: str) -> None:
    info = directory / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", encoding="utf-8")
    lines = [f"{name} = {value}" for name, value in entries.items()]
    (info / "entry_points.txt").write_text("[weftline.tools]\n" + "\n".join(lines) + "\n", encoding="utf-8")
    for name, text in modules.items():
        (directory / f"{name}.py").write_text(text, encoding="utf-8")


def test_installed_packages_offer_their_tools_by_qualified_and_bare_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    search = "import weftline\n@weftline.tool\ndef search(q: str): ...\n"
    more = search + "@weftline.tool\ndef fetch_page(url: str): ...\n"
    installed(tmp_path, "Acme_Web.Tools", {"all": "wl_acme_tools"}, wl_acme_tools=more)
    installed(tmp_path, "other", {"s": "wl_other_tools:search"}, wl_other_tools=search)
    broken = {"a": "wl_broken_tools", "b": "wl_missing_tools", "c": "wl_plain_tools:x"}
    installed(tmp_path, "broken", broken, wl_broken_tools="1/0\n", wl_plain_tools="x = 1\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with caplog.at_level(logging.ERROR, logger="weftline.tools"):
        tools = installed_tools()
    assert tools["@acme-web-tools/fetch_page"] is tools["fetch_page"]
    assert tools["@acme-web-tools/search"] is not tools["@other/search"]
    assert "search" not in tools
    assert not [name for name in tools if name.startswith("@broken/")]
    assert all(f"wl_{name}_tools" in caplog.text for name in ("broken", "missing", "plain"))
