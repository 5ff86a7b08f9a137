"""Use cases name fields as Python does; only the edge knows the protocol's names."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

import weftline.workspace
from weftline.cases import keys, tools
from weftline.cases.firing import Timing
from weftline.errors import InvalidRequest
from weftline.tools.stored_code import TIMEOUT_S, CodeSpec
from weftline.workspace import apps
from weftline.workspace.context import Workspaces
from weftline.workspace.workspaces import FEATURES

_OF_THE_PROTOCOL = re.compile(r"\b[a-z]+[A-Z][A-Za-z]*\b")
_FEATURES = frozenset(FEATURES)
"""Values that are stored and that commands take, not fields."""


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"visibility": "public", "client_credentials": True}, "client_credentials"),
        ({"scopes": ["all"]}, "scopes"),
        ({"scopes": []}, "scopes"),
        ({"redirect_uris": ["ftp://x"]}, "redirect_uris"),
        ({"redirect_uris": []}, "redirect_uris"),
        ({"redirect_uris": ["https://a.example"] * 51}, "redirect_uris"),
    ],
)
def test_an_app_is_refused_by_the_name_of_the_argument(fields: dict[str, Any], named: str) -> None:
    good: dict[str, Any] = {"name": "Notes", "redirect_uris": ["https://app.example"], "scopes": ["runs:read"]}
    with pytest.raises(InvalidRequest, match=f"^{named}: "):
        apps.checked_app(**{**good, **fields})


async def test_invalid_times_tools_and_keys_have_python_names(at: Workspaces, acme: int) -> None:
    with pytest.raises(InvalidRequest, match=r"^catch_up: must be one of skip, once, all\.$"):
        Timing(cron="0 0 1 1 *", catch_up="never").check(now=0)
    slow = CodeSpec(name="slow", source="", language="python", timeout_s=TIMEOUT_S + 1)
    with pytest.raises(InvalidRequest) as refused:
        await tools.add(at, acme, slow, values={})
    assert refused.value.details["issues"][-1]["path"] == "timeout_s"
    with pytest.raises(InvalidRequest, match=r"^agent_ids: there is no agent 'gone'$"):
        await keys.add(at, "acme", agents=["gone"], agents_exist=True)


def test_no_use_case_writes_a_field_of_the_protocol() -> None:
    (folder,) = weftline.workspace.__path__
    found: set[str] = set()
    for file in Path(folder).glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                names = set(_OF_THE_PROTOCOL.findall(node.value)) - _FEATURES
                found |= {f"{file.name}: {name}" for name in names}
            elif isinstance(node, ast.keyword) and node.arg and _OF_THE_PROTOCOL.fullmatch(node.arg):
                found.add(f"{file.name}: {node.arg}")
    assert found == set()
