"""What an operator has streams show of calls."""

from __future__ import annotations

import pytest
from msgspec import Raw

from weftline.events import CallOpened as Opened
from weftline.events.project import STORED, project
from weftline.kernel.bodies import OpenedBody, encode
from weftline.kernel.entries import CallOpened
from weftline.server.sse import shown_with

from .kit import Api, of_type
from .test_profiles import bodies, frames

PAY = {"kind": "server", "name": "pay"}


@pytest.mark.requirement("run.call.display_hint")
async def test_an_operators_template_changes_what_streams_show(api: Api) -> None:
    run = await api.start("pay", tools=[PAY])
    async with api.stream(run) as stream:
        asked = await stream.until("await_opened")
        await api.post(f"agent-runs/{run}/awaits/{asked['awaitId']}", {"outcome": "approved"})
        plain = await stream.rest()
    [call] = of_type(plain, "tool_call")
    assert call["displayHint"] == "Paying Ann"
    assert call["data"]["displayHint"] == "Paying Ann"
    told, _end = bodies(await frames(api, run, "tool_call"))
    assert told["displayHint"] == "Paying Ann"
    looked = await api.start("lookup", tools=[{"kind": "local", "name": "lookup"}])
    async with api.stream(looked) as stream:
        assert (await stream.until("local_tool_call"))["displayHint"] == "Lookup"


@pytest.mark.requirement("run.call.display_hint")
def test_failing_template_changes_nothing_in_the_log() -> None:
    head, body = CallOpened(0, 0, "c", "pay", "d"), encode(OpenedBody(Raw(b'{"n":1}'), hint="Pays"))
    event = project(head, body, form=STORED)
    assert event is not None
    before = bytes(body)

    def hint(templates: dict[str, str]) -> str:
        show = shown_with(templates)
        assert show is not None
        shown = show(event)
        assert isinstance(shown, Opened)
        return shown.display_hint

    assert hint({"pay": "Paying {n}"}) == "Paying 1" and body == before
    assert hint({"pay": "Paying {nobody}"}) == hint({"look": "Looking"}) == "Pays"
    assert shown_with({}) is None
