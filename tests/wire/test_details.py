"""Every type of event that a run can have: each with its documented fields, and with what it is about."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw
from msgspec.json import decode

from kernel.histories import History, lived
from weftline.events.frames import ProfiledFrames
from weftline.events.project_details import DetailProjection, RunFacts
from weftline.events.wire import TYPES
from weftline.failure import Clarification
from weftline.kernel import bodies
from weftline.kernel.entries import AwaitOpened
from weftline.kernel.notes import (
    ARGS_DELTA,
    CHILD_NOTE,
    PROMPT_NOTE,
    RUN_NOTE,
    TOOL_NOTE,
    ArgsDelta,
    ChildNote,
    PromptNote,
    RunNote,
)
from weftline.net.sse import SseParser

WANTED = {
    *("run_paused", "run_resumed", "await_clarification", "await_questions", "await_confirmation"),
    *("await_external_tools", "tool_authorization", "child_run_linked", "tool_call_updated", "run_phase_changed"),
    *("policy_decision", "tool_call_args_delta", "tool_output_delta", "planner_note", "prompt_rendered", "usage"),
}
ABOUT = {"runId", "agent", "sessionId", "turnId", "at", "key"}
OBSERVED = {
    TOOL_NOTE: bodies.ToolNote("c1", "dig", "output", Raw(b'{"stream":"out","delta":"x"}')),
    RUN_NOTE: RunNote("Hm.", {"a": "b"}, 1),
    PROMPT_NOTE: PromptNote("tone", "v1", "ses_1", {"a": "b"}),
    CHILD_NOTE: ChildNote("call_0_0", "helper", 3),
    ARGS_DELTA: ArgsDelta("c1", "dig", '{"a', 0, 1),
}

LACKING = AwaitOpened(0, 0, "w9", "clarification", "d")
LACKS = bodies.AwaitBody(
    "Where?", "c1", "dig", Raw(b"{}"), clarification=Clarification(("where",), "dig", {"where": 1})
)


def events(seed: int) -> list[tuple[str, dict[str, Any]]]:
    """What a stream with the profile `all` has of a run's log, with everything that can be observed at its end."""
    frames = ProfiledFrames(DetailProjection(RunFacts("run_1", "ann", "ses_1", "turn-1")), TYPES)
    entries, sent = lived(History(seed, 600)).entries, list[bytes]()
    for seq, entry in enumerate(entries, 1):
        sent.append(frames.of_fact(entry.head, entry.body, seq=seq, at=entry.at))
    sent.append(frames.of_fact(LACKING, bodies.encode(LACKS), seq=len(entries) + 1, at=1))
    for seq, (kind, body) in enumerate(OBSERVED.items(), len(entries) + 2):
        sent.append(frames.of_observations(seq, kind, bodies.encode(body), at=1, after=0, upto=seq))
    return [(one.event, decode(one.data)["data"]) for one in SseParser().feed(b"".join(sent))]


def documented(root: Path) -> dict[str, set[str]]:
    text = (root / "docs" / "events.md").read_text(encoding="utf-8")
    sections = re.findall(r"^### `(\w+)`$(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)
    found: dict[str, set[str]] = {}
    for kind, said in sections:
        found[kind] = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (.*?) \|", said, re.MULTILINE))))
    table = text.partition("<!-- details -->")[2].partition("<!-- /details -->")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", table, re.MULTILINE)
    return found | {kind: set(re.findall(r"`(\w+)`", fields)) for kind, fields in rows}


@pytest.mark.requirement("run.event.types")
def test_run_has_every_event_type_with_its_documented_fields(project_root: Path) -> None:
    page, found = documented(project_root), dict[str, set[str]]()
    for seed in range(2000):
        seen = events(seed)
        keys = [payload["key"] for _, payload in seen]
        assert len(set(keys)) == len(keys)
        for kind, payload in seen:
            assert payload.keys() >= ABOUT, kind
            about = [payload[name] for name in ("runId", "agent", "sessionId", "turnId")]
            assert about == ["run_1", "ann", "ses_1", "turn-1"]
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", payload["at"])
            found[kind] = found.get(kind, set()) | (payload.keys() - ABOUT)
        if found.keys() >= WANTED:
            break
    assert found.keys() >= WANTED, WANTED - found.keys()
    assert page.keys() >= TYPES
    undocumented = {kind: fields - page[kind] for kind, fields in found.items() if fields - page[kind]}
    assert {kind: fields for kind, fields in undocumented.items() if kind in WANTED} == {}
