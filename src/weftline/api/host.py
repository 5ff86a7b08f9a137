"""The server, as use cases need it."""

from __future__ import annotations

from typing import Protocol

from weftline.runtime.engine import Engine
from weftline.workspace.context import Workspaces


class Host(Protocol):
    @property
    def engine(self) -> Engine: ...
    @property
    def workspaces(self) -> Workspaces: ...
    @property
    def read_sessions(self) -> set[int]:
        """Sessions whose messages are known to be readable."""
        ...
