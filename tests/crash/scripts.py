"""What the scripted models of the crash tests say, and the tools that they call."""

from __future__ import annotations

from typing import Any

TOOLS = '''
import asyncio, json, os
import weftline
from weftline.tools import Happened, Unknown, WillNotHappen
from weftline.runtime import trials
from weftline.runtime.model_calls import model_call

trials.TRIAL_S = 0.05  # the last control of a run that died alone lasts twenty times as long
model_call.RETRY_FIRST_S = 0.05


def note(context, kind, args):
    """One line per execution; what is written is on the disk before the tool goes on."""
    line = json.dumps({"kind": kind, "tool": context.tool_name, "run": context.run_id, "call": context.call_id,
                       "turn": context.turn, "key": context.idempotency_key, "args": args})
    file = os.open(os.environ["CRASH_NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, line.encode() + b"\\n")
    os.fsync(file)
    os.close(file)

@weftline.tool(effect="read")
def look(where: str, context: weftline.ToolContext) -> str:
    note(context, "ran", {"where": where})
    return f"looked at {where}"

@weftline.tool(effect="idempotent")
def put(what: str, context: weftline.ToolContext) -> str:
    note(context, "ran", {"what": what})
    return f"put {what}"

@weftline.tool
def pay(cents: int, context: weftline.ToolContext) -> str:
    note(context, "ran", {"cents": cents})
    return f"paid {cents}"

def booked(seat: int, context: weftline.ToolContext):
    """The notes are the booking system: a booking under this key is there or is not."""
    note(context, "asked", {"seat": seat})
    with open(os.environ["CRASH_NOTES"]) as file:
        lines = [json.loads(line) for line in file]
    if any(line["kind"] == "ran" and line["key"] == context.idempotency_key for line in lines):
        return Happened(f"booked {seat}")
    return WillNotHappen()

@weftline.tool(effect="reconcile", reconcile=booked)
def book(seat: int, context: weftline.ToolContext) -> str:
    note(context, "ran", {"seat": seat})
    return f"booked {seat}"

async def no_idea(context: weftline.ToolContext):
    note(context, "asked", {})
    if context.tool_name == "lend_raises":
        raise RuntimeError("the ledger is closed")
    if context.tool_name == "lend_times_out":
        await asyncio.Event().wait()
    return Unknown()

lending, all_lending = set(), asyncio.Event()

def lend(name):
    async def lend_it(context: weftline.ToolContext) -> str:
        note(context, "ran", {})
        lending.add(name)
        if len(lending) == 3:
            all_lending.set()
        await all_lending.wait()
        return "lent"
    return weftline.tool(name=name, effect="reconcile", reconcile=no_idea, concurrent=True, timeout_s=2)(lend_it)

lend_unknown, lend_raises, lend_times_out = lend("lend_unknown"), lend("lend_raises"), lend("lend_times_out")

@weftline.tool
async def pay_slowly(cents: int, context: weftline.ToolContext) -> str:
    note(context, "ran", {"cents": cents})
    while not os.path.exists(os.environ["CRASH_NOTES"] + ".go"):  # the test says when it has taken long enough
        await asyncio.sleep(0.005)
    note(context, "done", {"cents": cents})
    return f"paid {cents}"
'''


def call(name: str, **args: Any) -> dict[str, Any]:
    return {"name": name, "args": args}


SCRIPTS: dict[str, Any] = {
    "tools": {
        # `look` is last of the server tools: it alone may begin before its start is durable, and its entries may
        # share a commit with those of the next turn. So every hit of a point falls on the same call each time.
        "turns": [
            {"deltas": ["I ", "put ", "first."], "delay_ms": 2, "tool_calls": [call("put", what="a cup")]},
            {"error": {"class": "rate_limit", "message": "slow down"}},
            {"text": "Now I pay. ", "tool_calls": [call("pay", cents=5)]},
            {"tool_calls": [call("book", seat=7)]},
            {"tool_calls": [call("look", where="here")]},
            {"tool_calls": [call("ask", question="Well?")]},
            {"deltas": ["All: ", "{{all_tool_results}}"], "delay_ms": 2},
        ]
    },
    "short": {"turns": [{"deltas": ["You said: ", "{{user_messages}}"], "delay_ms": 2}]},
    "ask": {"turns": [{"tool_calls": [call("ask", question="Well?")]}, {"text": "{{all_tool_results}}"}]},
    "guards": {
        "turns": [
            {"tool_calls": [call("put", what="too much")]},
            {"tool_calls": [call("look", where="here")], "loop": True},
        ],
        "finalize": {"text": "I stop here."},
    },
    "output": {"turns": [{"text": "no JSON"}, {"text": '{"ok": true}'}]},
    "doubtful": {
        "turns": [
            {"tool_calls": [call("lend_unknown"), call("lend_raises"), call("lend_times_out")]},
            {"text": "I do not know."},
        ]
    },
    "stream": {
        "turns": [
            {"deltas": [f"{n} " for n in range(60)], "delay_ms": 25, "tool_calls": [call("look", where="here")]},
            {"text": "Done: {{tool_results.0}}"},
        ]
    },
    "slow_tool": {
        "turns": [
            {"tool_calls": [call("pay_slowly", cents=9), call("look", where="later")]},
            {"text": "{{all_tool_results}}"},
        ]
    },
    "steered": {
        "turns": [
            {"tool_calls": [call("ask", question="Well?")]},
            {"delay_ms": 50, "deltas": ["{{user_messages}}", ": {{all_tool_results}}"]},
        ]
    },
}

ASK = {"kind": "local", "name": "ask", "parameters": {"type": "object", "properties": {"question": {"type": "string"}}}}
_NAMES = ("look", "put", "pay", "book", "pay_slowly", "lend_unknown", "lend_raises", "lend_times_out")
SERVER_TOOLS = [{"kind": "mantyx_plugin", "name": name} for name in _NAMES]


def spec(script: str, **more: Any) -> dict[str, Any]:
    return {"modelId": f"scripted:{script}", "prompt": "Go.", "tools": [*SERVER_TOOLS, ASK], **more}
