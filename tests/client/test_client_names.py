from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import weftline.client


@pytest.mark.parametrize("name", weftline.client.__all__)
def test_a_public_name_can_be_imported(name: str) -> None:
    assert getattr(weftline.client, name) is not None
    assert name in dir(weftline.client)


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        getattr(weftline.client, "no_such_name")  # noqa: B009  (a plain attribute would be refused by the type checker)


def test_making_client_loads_no_http_library_and_nothing_of_server() -> None:
    program = (
        "import sys\n"
        "from weftline.client import Client, tool, local_mcp, local_a2a\n"
        "client = Client(api_key='k', workspace='w')\n"
        "print(*sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert {name.partition(".")[0] for name in loaded} & {
        "aiohttp",
        "httpx",
        "httpx2",
        "pydantic",
        "mcp",
        "a2a",
    } == set()
    ours = {name for name in loaded if name.startswith("weftline.")}
    assert {".".join(name.split(".")[:2]) for name in ours} <= {
        "weftline._version",
        "weftline.peer_responses",
        "weftline.work",
        "weftline.text",
        "weftline.client",
        "weftline.events",
        "weftline.failure",
        "weftline.messages",
        "weftline.net",
        "weftline.prompts",
        "weftline.tools",
        "weftline.trace_context",
        "weftline.wire",
    }
    assert {name for name in ours if name.startswith(("weftline.net.", "weftline.tools."))} <= {
        "weftline.net.errors",
        "weftline.net.sse",
        "weftline.tools.arguments",
        "weftline.tools.schema",
        "weftline.tools.secret_types",
        "weftline.tools.signature",
        "weftline.tools.stored_form",
        "weftline.tools.validation_work",
    }


def test_code_on_page_is_code_of_examples(project_root: Path) -> None:
    page = (project_root / "docs" / "client.md").read_text(encoding="utf-8")
    examples = "".join(path.read_text(encoding="utf-8") for path in (project_root / "docs_src").glob("client_*.py"))
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) > 5
    assert [block for block in blocks if block not in examples] == []


def test_every_public_name_is_on_the_page(project_root: Path) -> None:
    page = (project_root / "docs" / "client.md").read_text(encoding="utf-8")
    told = set(re.findall(r"\w+", page))
    by_their_makers = {"LocalTool", "ServerTool", "AsyncRun", "AsyncSession", "Run", "Session", "TokenSource"}
    answers = {
        "AuthorizationRequest",
        "CancelReceipt",
        "ChatMessage",
        "ModelUsed",
        "Models",
        "OAuthTokens",
        "Pricing",
        "RunSnapshot",
        "SessionInfo",
        "Tokens",
        "Totals",
    }
    assert set(weftline.client.__all__) - told - by_their_makers - answers == set()
