"""An option of a run is added in two lines: one that says what may be asked, one that says what is stored."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from weftline.spec.fields import RunSpec
from weftline.spec.plan import CONVERTED, COPIED, NOT_STORED

ROOT = Path(__file__).parents[2]
ASKED = '''    seed: Annotated[Annotated[int, Meta(ge=0)] | None, opt()] = None
    """Where the model's chance begins."""
'''
STORED = "    seed: int | None = None\n"
EVERYWHERE = """
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

run = parse_run(body_of({"seed": 7}, prompt="hi")).spec
plan = plan_from_spec(run)
assert plan.seed == decode_plan(encode_plan(plan), plan.limits).seed == 7
try:
    parse_run(b'{"prompt":"hi","seed":-1}')
except InvalidRequest as error:
    assert error.details["issues"] == [{"path": "seed", "message": "must be at least 0"}]
else:
    raise AssertionError("not refused")

session, message = parse_session(b'{"seed":3}').spec, parse_message(b'{"prompt":"hi"}').spec
assert plan_from_spec(with_session(session, message)).seed == 3
assert plan_from_spec(with_session(session, parse_message(b'{"prompt":"hi","seed":4}').spec)).seed == 4
assert plan_from_spec(with_agent(session, b'{"prompt":"hi"}')).seed == 3
assert plan_from_spec(with_agent(session, run)).seed == 7
assert plan_from_spec(forked(run, b'{"seed":5}', in_session=False)).seed == 5

agent = Agent(ScriptedModel(["done"]), name="lucky")
assert plan_of(agent, LocalSpec(seed=9), code="lucky", model="m").seed == 9
assert client_plan(agent, read_spec(run), code="lucky", model="m").seed == 7
assert asyncio.run(agent.run("Go.", seed=9)).output == "done"

for options in (SpecOptions, MessageOptions, RunOptions, SessionOptions):
    assert "seed" in options.__annotations__
schemas = document(ROUTES)["components"]["schemas"]
for name in ("RunModel", "SessionModel", "MessageModel", "ForkModel"):
    assert schemas[name]["properties"]["seed"]["anyOf"][0] == {"type": "integer", "minimum": 0}
"""


def insert(file: Path, before: str, lines: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert text.count(before) == 1
    file.write_text(text.replace(before, lines + before), encoding="utf-8")


def test_a_run_option_is_two_lines_and_its_documentation(tmp_path: Path) -> None:
    package = tmp_path / "weftline"
    shutil.copytree(ROOT / "src" / "weftline", package, ignore=shutil.ignore_patterns("__pycache__"))
    insert(package / "spec" / "fields.py", "    metadata: Annotated[Words", ASKED)
    insert(package / "plan.py", "\n    @property\n    def thread_keeps_all", STORED)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    for command in ([str(ROOT / "scripts" / "options.py")], ["-c", EVERYWHERE]):
        done = subprocess.run([sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_field_is_in_the_plan_or_on_the_list_of_those_that_are_not() -> None:
    assert CONVERTED.isdisjoint(NOT_STORED) and NOT_STORED.isdisjoint(COPIED)
    assert {*RunSpec.__struct_fields__} == {*CONVERTED, *NOT_STORED, *COPIED}
