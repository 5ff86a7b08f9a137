"""An option of a run is added in two lines: one that says what may be asked, one that says what is stored."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

from weftline.agent.planning.plans import AGENTS, PLANNED, WITHIN
from weftline.kernel.entries import Limits
from weftline.spec.fields import RunSpec
from weftline.spec.plan import CONVERTED, COPIED, COPIED_LIMITS, IN_LIMITS, NOT_STORED, limits_asked, to_plan

ROOT = Path(__file__).parents[2]


class Added(NamedTuple):
    """An option: its line in `RunSpec`, where a line of the same name is stored, and what is special about it."""

    asked: str
    file: str
    before: str
    stored: str
    about: str


SEED = Added(
    '''    seed: Annotated[Annotated[int, Meta(ge=0)] | None, opt()] = None
    """Where the model's chance begins."""
''',
    "plan.py",
    "\n    @property\n    def thread_keeps_all",
    "    seed: int | None = None\n",
    """
name, value, other, wrong, problem = "seed", 7, 3, -1, "must be at least 0"
stored = lambda plan: plan.seed
merged = other  # the request's wins
schema = {"type": "integer", "minimum": 0}
above = {}
""",
)
CARE = Added(
    '''    care: Annotated[Literal["low", "high"] | None, opt(merge=strictest_word("low", "high"))] = None
    """How much the run is to be on its guard."""
''',
    "kernel/limits.py",
    "    budget: BudgetRule | None = None\n",
    '    care: Literal["low", "high"] = "low"\n',
    """
name, value, other, wrong, problem = "care", "high", "low", "none", "must be 'high' or 'low'"
stored = lambda plan: plan.limits.care
merged = value  # the stricter one holds
schema = {"enum": ["high", "low"]}
from weftline.kernel.entries import Limits
from weftline.spec.merge import copies_within
assert copies_within(read_spec(b'{"care":"low"}'), Limits(care="high"), ("care",)) == {"care": "high"}
assert copies_within(read_spec(b'{"care":"high"}'), Limits(care="low"), ("care",)) == {"care": "high"}
assert copies_within(read_spec(b'{}'), Limits(care="high"), ("care",)) == {}
""",
)
BEFORE = """
import asyncio, json
from weftline import Agent
from weftline.agent._options import SpecOptions
from weftline.agent.options import LocalSpec
from weftline.agent.planning.plans import client_plan, plan_of
from weftline.client._options import MessageOptions, RunOptions, SessionOptions
from weftline.client.options import body_of
from weftline.errors import InvalidRequest
from weftline.plan import decode_plan, encode_plan
from weftline.server.openapi import document
from weftline.server.routes.every import ROUTES
from weftline.spec.door import parse_message, parse_run, parse_session
from weftline.spec.merge import forked, with_agent, with_session
from weftline.spec.plan import plan_from_spec, read_spec
from weftline.testing import ScriptedModel
"""
EVERYWHERE = """
def sent(value, **more):
    return json.dumps({name: value, **more}).encode()

run = parse_run(body_of({name: value}, prompt="hi")).spec
plan = plan_from_spec(run)
assert stored(plan) == stored(decode_plan(encode_plan(plan), plan.limits)) == value
try:
    parse_run(sent(wrong, prompt="hi"))
except InvalidRequest as error:
    assert error.details["issues"] == [{"path": name, "message": problem}], error.details
else:
    raise AssertionError("not refused")

session, message = parse_session(sent(value)).spec, parse_message(b'{"prompt":"hi"}').spec
assert stored(plan_from_spec(with_session(session, message))) == value
assert stored(plan_from_spec(with_session(session, parse_message(sent(other, prompt="hi")).spec))) == merged
assert stored(plan_from_spec(with_agent(session, b'{"prompt":"hi"}'))) == value
assert stored(plan_from_spec(with_agent(session, sent(other, prompt="hi")))) == merged
assert stored(plan_from_spec(forked(run, sent(other), in_session=False))) == merged

agent = Agent(ScriptedModel(["done"]), name="lucky")
assert stored(plan_of(agent, LocalSpec(**{name: value}), code="lucky", model="m")) == value
assert stored(client_plan(agent, read_spec(run), code="lucky", model="m")) == value
assert asyncio.run(agent.run("Go.", **{name: value})).output == "done"

for options in (SpecOptions, MessageOptions, RunOptions, SessionOptions):
    assert name in options.__annotations__
schemas = document(ROUTES)["components"]["schemas"]
for model in ("RunModel", "SessionModel", "MessageModel", "ForkModel"):
    assert schemas[model]["properties"][name]["anyOf"][0] == schema, schemas[model]["properties"][name]
"""


def insert(file: Path, before: str, lines: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert text.count(before) == 1
    file.write_text(text.replace(before, lines + before), encoding="utf-8")


@pytest.mark.parametrize("option", [SEED, CARE], ids=["in_the_plan", "in_its_limits"])
def test_a_run_option_is_two_lines_and_its_documentation(option: Added, tmp_path: Path) -> None:
    package = tmp_path / "weftline"
    shutil.copytree(ROOT / "src" / "weftline", package, ignore=shutil.ignore_patterns("__pycache__"))
    insert(package / "spec" / "fields.py", "    metadata: Annotated[Words", option.asked)
    insert(package / option.file, option.before, option.stored)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    for command in ([str(ROOT / "scripts" / "options.py")], ["-c", BEFORE + option.about + EVERYWHERE]):
        done = subprocess.run([sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_field_is_in_the_plan_or_on_the_list_of_those_that_are_not() -> None:
    groups = [*CONVERTED, *NOT_STORED, *COPIED, *COPIED_LIMITS]
    assert sorted(groups) == sorted(RunSpec.__struct_fields__)


def test_the_plan_reads_every_field_that_it_converts() -> None:
    asked = Recorder(prompt="hi")
    to_plan(cast("Any", asked))
    assert {"messages"} | asked.read == {*CONVERTED, *COPIED, *COPIED_LIMITS}


def test_limits_are_not_the_usual_ones_if_anything_that_they_hold_was_asked() -> None:
    asked = Recorder()
    limits_asked(cast("Any", asked), ())
    assert asked.read == {*IN_LIMITS}


def test_every_limit_has_a_rule_or_is_the_agents_own() -> None:
    assert sorted([*WITHIN, *COPIED_LIMITS, *AGENTS, *PLANNED]) == sorted(Limits.__struct_fields__)


class Recorder:
    """A spec without anything but what is given, which records what is asked of it."""

    def __init__(self, **given: object) -> None:
        self.given, self.read = given, set[str]()

    def __getattr__(self, name: str) -> object:
        self.read.add(name)
        return self.given.get(name)
