"""Settings that the environment can give too, for secrets and where another program owns `--config`."""

from __future__ import annotations

import pytest

from weftline.config import Config
from weftline.errors import WeftlineError
from weftline.server.options import server_options

TOKEN = "scrape-me"


def test_the_environment_overrides_the_token_of_the_file() -> None:
    config = Config(server={"metrics_token": "of-the-file"})
    assert server_options(config, environ={}).metrics_token == "of-the-file"
    assert server_options(config, environ={"WEFTLINE_METRICS_TOKEN": TOKEN}).metrics_token == TOKEN
    with pytest.raises(WeftlineError, match="metrics_token"):
        server_options(Config(server={"metrics_token": "two words"}), environ={})


@pytest.mark.parametrize(
    ("variable", "setting", "traces"),
    [("true", None, True), ("1", False, True), ("False", True, False), ("", True, True), (None, True, True)],
)
def test_the_environment_overrides_whether_spans_are_emitted(
    variable: str | None, setting: bool | None, traces: bool
) -> None:
    config = Config(server={} if setting is None else {"traces": setting})
    environ = {} if variable is None else {"WEFTLINE_TRACES": variable}
    assert server_options(config, environ=environ).traces is traces


def test_a_wrong_word_for_traces_stops_the_start() -> None:
    with pytest.raises(WeftlineError, match="WEFTLINE_TRACES: must be true or false") as refused:
        server_options(Config(), environ={"WEFTLINE_TRACES": "maybe"})
    assert refused.value.code == "bad_config"
