"""The server's tools: each records every execution, with its idempotency key, in a file outside the store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from weftline.kernel.entries import Effect

EFFECTS: dict[str, Effect] = {"look": "read", "put": "idempotent", "book": "reconcile", "pay": "once"}

SOURCE = '''
import asyncio, itertools, json, os, time
import weftline
from weftline.tools.base import Happened, ToolOutput, WillNotHappen

counter = itertools.count(1)
life = int(os.environ["TORTURE_LIFE"])

def path(context):
    """One small file for each run."""
    return os.path.join(os.environ["TORTURE_NOTES"], context.run_id)

def note(context, kind, result, args):
    line = json.dumps({"kind": kind, "run": context.run_id, "call": context.call_id, "tool": context.tool_name,
                       "key": context.idempotency_key, "args": args, "result": result, "life": life,
                       "at_us": time.time_ns() // 1000})
    file = os.open(path(context), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line.encode() + b"\\n")
    finally:
        os.close(file)

def begin(context, **args):
    """Every execution has a result of its own, so that it can be told which one the model has read."""
    result = f"{context.tool_name} {args} by {life}.{next(counter)}"
    note(context, "began", result, args)
    return result

@weftline.tool(effect="read")
def look(order: int, turn: int, index: int, ms: int, context: weftline.ToolContext) -> str:
    result = begin(context, order=order, turn=turn, index=index, ms=ms)
    time.sleep(ms / 1000)
    return result

@weftline.tool(effect="idempotent")
async def put(order: int, turn: int, index: int, ms: int, context: weftline.ToolContext) -> str:
    result = begin(context, order=order, turn=turn, index=index, ms=ms)
    await asyncio.sleep(ms / 1000)
    return result

@weftline.tool
async def pay(order: int, turn: int, index: int, ms: int, context: weftline.ToolContext) -> str:
    result = begin(context, order=order, turn=turn, index=index, ms=ms)
    await asyncio.sleep(ms / 1000)
    return result

def booked(order: int, turn: int, index: int, ms: int, context: weftline.ToolContext):
    """The notes are the booking system: a booking under this key is there or is not."""
    try:
        with open(path(context)) as file:
            lines = [json.loads(line) for line in file]
    except FileNotFoundError:
        return WillNotHappen()
    for line in lines:
        if line["key"] == context.idempotency_key:
            return Happened(ToolOutput.of(line["result"]))
    return WillNotHappen()

@weftline.tool(effect="reconcile", reconcile=booked)
async def book(order: int, turn: int, index: int, ms: int, context: weftline.ToolContext) -> str:
    result = begin(context, order=order, turn=turn, index=index, ms=ms)
    await asyncio.sleep(ms / 1000)
    return result
'''

ASK = {
    "kind": "local",
    "name": "ask",
    "parameters": {"type": "object", "properties": {name: {"type": "integer"} for name in ("order", "turn", "index")}},
}
TOOL_REFS: list[dict[str, Any]] = [*({"kind": "server", "name": name} for name in EFFECTS), ASK]


class Execution(Struct, frozen=True):
    """One line of the notes."""

    kind: Literal["began"]
    run: str
    call: str
    tool: str
    key: str
    args: dict[str, int]
    result: str
    life: int
    at_us: int


def executions(folder: Path) -> list[Execution]:
    """A line that a kill cut short does not count: the tool had not got past it."""
    lines = [line for file in sorted(folder.iterdir()) for line in file.read_bytes().split(b"\n")[:-1]]
    return [Execution(**json.loads(line)) for line in lines]
