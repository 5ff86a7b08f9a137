"""A small MCP server on stdio as an agent's, with its journal; see `stdio_server.py`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from weftline import mcp
from weftline.testing import ScriptedModel
from weftline.tools.mcp.toolset import McpServer

SERVER = Path(__file__).with_name("stdio_server.py")


class Small:
    def __init__(self, folder: Path, name: str = "small", **options: Any) -> None:
        self._journal = folder / f"{name}.journal"
        command = [sys.executable, "-S", str(SERVER), str(self._journal)]
        self.tools: McpServer = mcp(command, name=name, **options)

    @property
    def journal(self) -> list[str]:
        return self._journal.read_text().split("\n")[:-1] if self._journal.exists() else []

    @property
    def calls(self) -> list[str]:
        return [line.removeprefix("call ") for line in self.journal if line.startswith("call ")]

    @property
    def keys(self) -> list[str]:
        """The idempotency keys of the calls."""
        return [line.removeprefix("key ") for line in self.journal if line.startswith("key ")]

    @property
    def starts(self) -> list[int]:
        return [int(line.removeprefix("start ")) for line in self.journal if line.startswith("start ")]


def model(*turns: Any) -> ScriptedModel:
    return ScriptedModel([*turns, "Done."])


def offered(by: ScriptedModel) -> list[str]:
    return [tool.name for tool in by.requests[0].tools]
