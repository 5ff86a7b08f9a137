"""What the runs of the bench do: scripts, tools and request bodies."""

from __future__ import annotations

import json
from typing import Any

WORKSPACE = "bench"

TOOLS = '''
import weftline


@weftline.tool(effect="idempotent", blocking=False)
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@weftline.tool(effect="once", blocking=False, confirm="Pay {amount}?")
def pay(amount: int) -> str:
    """Pays."""
    return "paid"
'''

_WORDS = [f"word{number:02} " for number in range(20)]
_CALL: dict[str, Any] = {"name": "add", "args": {"a": 2, "b": 3}}
_ASK: dict[str, Any] = {"name": "ask", "args": {"question": "how many?"}}
_ANSWER: dict[str, Any] = {"deltas": _WORDS}

REPLAY_EVENTS = 10_000
MANY_DELTAS = 500
TICKS = 200
TICK_MS = 5
STREAM_CHUNKS = 50
STREAM_PACE_MS = 20

SCRIPTS: dict[str, Any] = {
    "none": {"turns": [_ANSWER]},
    "one": {"turns": [{**_ANSWER, "tool_calls": [_CALL]}, _ANSWER]},
    "ten": {
        "turns": [
            *({**_ANSWER, "tool_calls": [{"name": "add", "args": {"a": number, "b": 3}}]} for number in range(10)),
            _ANSWER,
        ]
    },
    "client": {"turns": [{**_ANSWER, "tool_calls": [_ASK]}, _ANSWER]},
    "person": {"turns": [{"tool_calls": [{"name": "pay", "args": {"amount": 5}}]}, {"text": "x"}]},
    "empty": {"turns": [{"text": "x"}]},
    "many": {"turns": [{"deltas": ["word "] * MANY_DELTAS}]},
    "long": {"turns": [{"deltas": ["word "] * REPLAY_EVENTS}]},
    "paced": {"turns": [{"deltas": ["word "] * STREAM_CHUNKS, "delay_ms": STREAM_PACE_MS}]},
    "stuck": {"turns": [{"deltas": ["a", "b"], "delay_ms": 600_000}]},
    "ticks": {"turns": [{"tool_calls": [_ASK]}, {"deltas": ["word "] * TICKS, "delay_ms": TICK_MS}]},
    "drip": {"turns": [{"deltas": ["word "] * 400, "delay_ms": 500}]},
    "tiny": {"turns": [{"deltas": ["word "] * 85_000}]},
    "large": {"turns": [{"deltas": ["word " * 200_000] * 5}]},
    "loop": {"turns": [{**_ANSWER, "tool_calls": [_CALL], "loop": True}]},
}

SERVER_TOOL: dict[str, Any] = {"kind": "server", "name": "add"}
ASKING_TOOL: dict[str, Any] = {"kind": "server", "name": "pay"}
CLIENT_TOOL: dict[str, Any] = {
    "kind": "local",
    "name": "ask",
    "description": "Asks the client.",
    "parameters": {"type": "object", "properties": {"question": {"type": "string"}}, "required": ["question"]},
}


def body(
    model: str,
    *,
    tools: tuple[dict[str, Any], ...] = (),
    history: int = 0,
    prompt: str = "How much is two and three?",
) -> str:
    """The request that creates a run; with `history`, that many messages come before the last one."""
    spec: dict[str, Any] = {"modelId": model, "tools": list(tools), "loopDetection": False}
    if history:
        filler = "The quick brown fox jumps over the lazy dog. " * 4
        spec["messages"] = [
            {"role": ("user", "assistant")[index % 2], "content": f"{index} {filler}"} for index in range(history)
        ]
        spec["messages"].append({"role": "user", "content": "Go on."})
    else:
        spec["prompt"] = prompt
    return json.dumps(spec, separators=(",", ":"))


def config(model_port: int) -> str:
    """A configuration file whose provider `fake` is the stand-in at `model_port`; one credential makes all requests."""
    return (
        f'[providers.fake]\nfamily = "openai_chat"\nbase_url = "http://127.0.0.1:{model_port}/v1"\n'
        'models = ["tool", "loop", "paced"]\n'
        "[server]\nrate_limit_per_minute = 0\nmax_queued_runs_per_workspace = 10_000_000\n"
    )
