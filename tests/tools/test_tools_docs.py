import re
from pathlib import Path

from forked import run_python
from weftline.tools.builtin import builtin_tools
from weftline.tools.loader import load_tools

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs_src" / "function_tools.py"
MORE = tuple(EXAMPLE.with_name(f"{name}.py") for name in ("server_tools", "external_tools", "toolsets"))
PAGE = ROOT / "docs" / "tools.md"


def test_the_example_of_the_page_runs() -> None:
    done = run_python(str(EXAMPLE))
    assert done.stdout.splitlines() == [
        '{"cents":250,"order":7}',
        "(Text(text='Order 7 is paid.'),)",
        "119",
        "WillNotHappen()",
        "Happened(result='Box 3 is moved.')",
    ]


def test_the_example_is_a_tools_file() -> None:
    assert list(load_tools(EXAMPLE)) == ["stock", "pay", "invoices", "move", "gross"]


def test_code_on_page_is_code_of_examples() -> None:
    example = "".join(path.read_text(encoding="utf-8") for path in (EXAMPLE, *MORE))
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    assert all(re.sub(r"^(from .*\n)+\n+", "", block) in example for block in blocks)


def test_every_builtin_tool_is_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in builtin_tools())
