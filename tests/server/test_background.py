"""What goes on beside requests is attached to an app in one place."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from weftline.net.dial import Dialer
from weftline.net.egress import egress_from
from weftline.server.background import attach
from weftline.workspace.context import ChangeKind

from .auth.worlds import new_world

BY_APP = {"budgets", "credentials", "providers"}
"""What the app itself passes on."""
OF_FOLDERS = {"effects"}
"""Only who serves a folder listens to these."""


async def test_every_kind_of_change_reaches_somebody(tmp_path: Path) -> None:
    async with new_world(tmp_path / "store") as world:
        attach(world.app, dialer=Dialer(egress_from({})), webhook_retry_s=())
        assert {*world.app.listeners, *BY_APP} == {*get_args(ChangeKind)} - OF_FOLDERS
