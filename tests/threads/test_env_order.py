"""Which of the places that have a variable gives a thread its value, and of which type it is."""

from __future__ import annotations

from itertools import product
from typing import Any, cast

import pytest

from weftline.agent.context import Entered
from weftline.errors import InvalidRequest
from weftline.store.records.thread_state import WORKSPACE, of_account
from weftline.threads.definitions.agents import AgentDefinition, SideConfig
from weftline.threads.definitions.prompts import define_prompt
from weftline.threads.registry import Registry
from weftline.threads.speakers import Speaker
from weftline.threads.state import LiveThread
from weftline.workspace import threads, workspaces
from weftline.workspace.context import Workspaces
from weftline.workspace.thread_state import put_env
from weftline.workspace.threads import ThreadDraft

PLACES = ("thread", "agent", "prompt", "account", "workspace")
EVERY = [frozenset([one for one, has in zip(PLACES, bits, strict=True) if has]) for bits in product((1, 0), repeat=5)]


@pytest.mark.requirement("thread.env.order")
async def test_first_place_that_has_a_variable_counts(at: Workspaces) -> None:
    names = {has: f"V{index}" for index, has in enumerate(EVERY)}
    of = {place: {name: place for has, name in names.items() if place in has} for place in PLACES}
    agent = AgentDefinition(name="a", side_a=SideConfig(prompt="a"), env=of["agent"])
    prompt = define_prompt(name="a", model="m", tool_description="A.", prompt="Be.", env=of["prompt"])
    speaker = Speaker("a/a", agent, prompt, agent.side_a)
    workspace = await workspaces.ensure(at, "acme")
    row = await threads.create(at, workspace, ThreadDraft(name="t", agent=None, spec=b"{}", user="ann"))
    state = LiveThread(
        at, row, Registry(), speakers={speaker.name: speaker}, entered=Entered(), engine=cast("Any", None)
    )
    for owner, place in ((of_account("ann"), "account"), (WORKSPACE, "workspace")):
        for name, value in of[place].items():
            await at.records.write(put_env(at, workspace, owner, name, value, type="text"))
    for name, value in of["thread"].items():
        await state.set_env(name, value, type="text")
    for has, name in names.items():
        first = next((place for place in PLACES if place in has), None)
        if first is None:
            with pytest.raises(Exception, match=name):
                await state.env(name)
            assert await state.env_type(name) == "secret"
        else:
            assert await state.env(name) == first
            assert await state.env_type(name) == ("secret" if first in ("agent", "prompt") else "text")


@pytest.mark.requirement("thread.env.set_type")
async def test_variable_keeps_its_type_until_it_is_given_another(state: LiveThread) -> None:
    await state.set_env("X", "1")
    assert await state.env_type("X") == "secret"
    await state.set_env("X", "2", type="text")
    await state.set_env("X", "3")
    assert (await state.env("X"), await state.env_type("X")) == ("3", "text")
    for value, type in ((5, None), (None, "text"), ("4", "number")):
        with pytest.raises(InvalidRequest):
            await state.set_env("X", cast("Any", value), type=cast("Any", type))
    assert await state.env("X") == "3"
