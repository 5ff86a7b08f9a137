"""A small MCP server on stdio, without the official package: it starts in a moment.

Its journal, the first argument, has a line for each start and each call. `DIE_AT` names a tool whose call kills the
server before it answers, once: a file next to the journal says that it has happened. `TOOLS` names its tools.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

JOURNAL = Path(sys.argv[1])
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
ASKED: dict[str, Any] = {}


def note(line: str) -> None:
    with JOURNAL.open("a", encoding="utf-8") as journal:
        journal.write(f"{line}\n")


def send(**message: Any) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def tool(name: str) -> dict[str, Any]:
    hints = {"look": {"readOnlyHint": True}, "wonder": {"readOnlyHint": True}, "put": {"idempotentHint": True}}.get(
        name, {}
    )
    schema = {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]}
    return {"name": name, "description": f"Does {name}.", "inputSchema": schema, "annotations": hints}


def call(number: object, name: str, args: dict[str, Any]) -> None:
    note(f"call {name} {args.get('what')}")
    if os.environ.get("DIE_AT") == name and not JOURNAL.with_suffix(".died").exists():
        JOURNAL.with_suffix(".died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    match name:
        case "picture":
            content = [{"type": "text", "text": "one pixel"}, {"type": "image", "data": PIXEL, "mimeType": "image/png"}]
        case "secret":
            content = [{"type": "text", "text": f"the token is {os.environ.get('API_TOKEN')}"}]
        case "pid":
            content = [{"type": "text", "text": str(os.getpid())}]
        case "ask" | "wonder":
            ASKED[f"q{number}"] = number
            form = json.loads(os.environ.get("FORM", '{"type": "object", "properties": {"name": {"type": "string"}}}'))
            params = {"message": "Who are you?", "requestedSchema": form}
            send(id=f"q{number}", method="elicitation/create", params=params)
            return
        case "think":
            ASKED[f"q{number}"] = number
            said = {"role": "user", "content": {"type": "text", "text": "Why?"}}
            send(id=f"q{number}", method="sampling/createMessage", params={"messages": [said], "maxTokens": 10})
            return
        case _:
            content = [{"type": "text", "text": f"{name}: {args.get('what')}"}]
    send(id=number, result={"content": content})


def answered(message: dict[str, Any]) -> None:
    number = ASKED.pop(message["id"])
    text = json.dumps(message.get("result") or message.get("error"), sort_keys=True)
    send(id=number, result={"content": [{"type": "text", "text": text}]})


def serve() -> None:
    note(f"start {os.getpid()}")
    if "BANNER" in os.environ:
        print(os.environ["BANNER"], flush=True)
    if "GATE" in os.environ:
        # All servers that share the gate have to be there before any of them answers.
        gate = Path(os.environ["GATE"])
        (gate / str(os.getpid())).touch()
        while len(list(gate.iterdir())) < int(os.environ["TOGETHER"]):
            pass
    for line in sys.stdin:
        message = json.loads(line)
        number = message.get("id")
        if "method" not in message:
            answered(message)
            continue
        match message["method"]:
            case "initialize":
                able: dict[str, Any] = {"tools": {}, "resources": {}, "prompts": {}}
                about = {"name": "small", "version": "1"}
                send(
                    id=number,
                    result={"protocolVersion": "2025-06-18", "capabilities": able, "serverInfo": about},
                )
            case "tools/list":
                names = os.environ.get("TOOLS", "look put once picture secret pid ask wonder think").split()
                send(id=number, result={"tools": [tool(name) for name in names]})
            case "tools/call":
                note(f"key {message['params'].get('_meta', {}).get('weftline/idempotency-key')}")
                call(number, message["params"]["name"], message["params"].get("arguments", {}))
            case "resources/list":
                send(id=number, result={"resources": [{"uri": "note://1", "name": "one", "mimeType": "text/plain"}]})
            case "resources/read":
                held = {"uri": message["params"]["uri"], "text": f"held {os.environ.get('API_TOKEN')}"}
                send(id=number, result={"contents": [held]})
            case "prompts/list":
                send(id=number, result={"prompts": [{"name": "greet", "arguments": [{"name": "who"}]}]})
            case "prompts/get":
                said = f"Greet {message['params']['arguments']['who']}."
                send(
                    id=number,
                    result={"messages": [{"role": "user", "content": {"type": "text", "text": said}}]},
                )
            case _ if number is not None:
                send(id=number, error={"code": -32601, "message": "no such method"})
            case _:
                pass
    note("end")


serve()
