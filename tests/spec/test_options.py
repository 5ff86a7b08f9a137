"""The options of the client and the library are written by a script; what is checked in is what it writes."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import msgspec
import pytest

from weftline.client._options import MessageOptions, RunOptions, SessionOptions
from weftline.client.options import body_of
from weftline.spec.door import RUN
from weftline.spec.fields import RunSpec, fields_of

_SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "options.py"))


def test_options_match_the_fields_of_a_run() -> None:
    written: dict[Path, str] = _SCRIPT["written"]()
    for target, source in written.items():
        assert target.read_text(encoding="utf-8") == source, "run `make options`"


@pytest.mark.parametrize("options", [RunOptions, MessageOptions, SessionOptions])
def test_the_client_sends_every_option_under_its_name_in_json(options: Any) -> None:
    wire = {one.name: one.wire for one in fields_of(RunSpec) if one.opt.client}
    given: dict[str, Any] = {name: {} for name in options.__annotations__ if name in wire and name != "messages"}
    body = msgspec.json.decode(body_of(given, prompt="hi"))
    assert body == {"prompt": "hi", **{wire[name]: {} for name in given}}


def test_model_fallbacks_and_streamed_arguments_can_be_sent() -> None:
    body = body_of({"model_fallbacks": ["a:b"], "stream_arguments": True}, prompt="hi")
    assert RUN.read(body).spec == b'{"prompt":"hi","modelFallbacks":["a:b"],"streamArguments":true}'
