"""The command that runs the public A2A kit, without the kit: which agent gets what, and what counts as known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from weftline.testing import ServerProcess

from .a2a import Kit, Outcome, Proxy, read_report, tell

REPORT = """<testsuites><testsuite>
<testcase classname="tests.mandatory.test_one" name="test_a"/>
<testcase classname="tests.mandatory.test_one" name="test_b[x]"><failure message="no&#10;more">…</failure></testcase>
<testcase classname="tests.mandatory.test_two.TestClass" name="test_c"><error message="broke">…</error></testcase>
<testcase classname="tests.mandatory.test_two" name="test_d"><skipped message="not here"/></testcase>
</testsuite></testsuites>"""


@pytest.mark.parametrize(("folder", "version"), [("tests/mandatory", "0.3"), ("tests/compatibility", "1.0")])
def test_a_checkout_tells_which_version_it_tests(tmp_path: Path, folder: str, version: str) -> None:
    (tmp_path / folder).mkdir(parents=True)
    assert Kit.at(tmp_path).version == version


def test_folder_without_a_checkout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="not a checkout of a2a-tck"):
        Kit.at(tmp_path)


def test_a_failure_that_is_not_known_fails_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "report.xml").write_text(REPORT, encoding="utf-8")
    outcome = read_report(tmp_path / "report.xml")
    failed = {"test_one::test_b[x]": "no", "TestClass::test_c": "broke"}
    assert outcome == Outcome(["test_one::test_a"], ["test_two::test_d"], failed)
    kit = Kit(tmp_path, "0.3")
    assert tell(kit, outcome, dict.fromkeys(failed, "because")) is True
    assert tell(kit, outcome, {"TestClass::test_c": "because"}) is False
    assert "NEW    test_one::test_b[x]: no" in capsys.readouterr().out


def test_message_goes_to_the_suitable_agent_with_its_own_id(tmp_path: Path) -> None:
    proxy = Proxy(Kit(tmp_path, "1.0"), ServerProcess(tmp_path), "key")

    def routed(params: Any) -> tuple[str, Any]:
        agent, body = proxy.routed(json.dumps({"id": 1, "params": params}).encode())
        return agent, json.loads(body)["params"]

    asks = {"message": {"messageId": "tck-input-required-7"}}
    (agent, first), (_, second) = routed(asks), routed(asks)
    assert agent == "asks-once"
    assert first["message"]["messageId"] != second["message"]["messageId"]
    assert routed({"message": {"messageId": "tck-complete-task-7"}})[0] == "answers"
    proxy.tasks["run_1"] = "asks-once"
    assert routed({"id": "run_1"}) == ("asks-once", {"id": "run_1"})
    assert routed({"message": {"messageId": "tck-complete-task-7", "taskId": "run_1"}})[0] == "asks-once"
    assert proxy.routed(b"{broken") == ("answers", b"{broken")
