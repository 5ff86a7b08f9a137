from __future__ import annotations

import inspect
import re
from pathlib import Path

from weftline.tools.builtin.fetch import fetch
from weftline.tools.builtin.files import files
from weftline.tools.builtin.shell import shell
from weftline.tools.builtin.todo import todo

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "builtin-tools.md").read_text(encoding="utf-8")


def test_code_on_page_is_code_of_examples() -> None:
    examples = [ROOT / "docs_src" / name for name in ("builtin_tools.py", "execution_contexts.py")]
    code = "".join(path.read_text(encoding="utf-8") for path in examples)
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert blocks
    assert all(block in code for block in blocks)


async def test_every_tool_is_on_the_page_with_its_effect() -> None:
    pages = fetch()
    fetching = await pages.open()
    await pages.close()
    rows = dict(re.findall(r"^\| `(\w+)` \| `([a-z]+)` \|", PAGE, re.MULTILINE))
    assert rows == {tool.spec.name: tool.effect for tool in (*files().tools, *shell().tools, *fetching, todo())}


def test_every_option_is_on_the_page() -> None:
    for made in (files, shell, fetch):
        section = PAGE.partition(f"## Options of `{made.__name__}`\n")[2].partition("\n## ")[0]
        named = {
            name
            for row in re.findall(r"^\| (`[^|]+) \|", section, re.MULTILINE)
            for name in re.findall(r"`(\w+)`", row)
        }
        assert named == set(inspect.signature(made).parameters)
