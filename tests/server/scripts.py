"""The scripted models and server tools of the shared server."""

from __future__ import annotations

from typing import Any

DELTAS = [f"piece {number} " for number in range(40)]
LOOKUP = {"name": "lookup", "args": {"q": "one"}}
ECHO = {"name": "echo", "args": {"text": "said"}}


def calls(*asked: dict[str, Any], **turn: Any) -> dict[str, Any]:
    return {"tool_calls": list(asked), **turn}


def local(name: str, **args: Any) -> dict[str, Any]:
    return {"name": name, "args": args}


def failing(cls: str, **error: Any) -> dict[str, Any]:
    return {"turns": [{"error": {"class": cls, "message": f"the model says {cls}", **error}}]}


def deep(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {"leaf": 1}
    for _ in range(levels):
        value = {"a": value}
    return value


SCRIPTS: dict[str, Any] = {
    "attached": {"turns": [{"text": "{{user_messages}}: {{attachments}}"}]},
    "settings": {"turns": [{"text": "{{sampling}}"}]},
    "hello": {"turns": [{"deltas": ["Hel", "lo ", "wörld"]}]},
    "seen": {"turns": [{"text": "{{user_messages}} / {{message_count}}"}]},
    "inside": {"turns": [{"text": "{{system}}|{{tools}}|{{reasoning}}"}]},
    "described": {"turns": [{"text": "{{tool_desc.lookup}}"}]},
    "drip": {"turns": [{"deltas": DELTAS, "delay_ms": 3}]},
    "stuck": {"turns": [{"deltas": ["begun", "never"], "delay_ms": 600_000}]},
    "thoughts": {"turns": [{"thinking": ["hm", "aha"], "text": "done"}]},
    "nothing": {"turns": [{"text": ""}]},
    # Server tools.
    "echo": {"turns": [calls(ECHO, text="let me see"), {"text": "heard {{tool_results.0}}"}]},
    "echo_stuck": {"turns": [calls(ECHO, text="let me see"), {"deltas": ["begun", "never"], "delay_ms": 600_000}]},
    "quiet_end": {"turns": [calls(ECHO, text="let me see"), {"text": ""}]},
    "boom": {"turns": [calls(local("boom")), {"text": "heard {{tool_results.0}}"}]},
    "hold": {"turns": [calls(ECHO), calls(local("hold")), {"text": "never"}]},
    "peek": {"turns": [calls(ECHO), calls(local("peek")), {"text": "never"}]},
    "big": {"turns": [calls(local("big", size=250_000)), {"text": "{{len_tool_results.0}}"}]},
    "ghost": {"turns": [calls(local("ghost", a=1)), {"text": "heard {{tool_results.0}}"}]},
    "mixed": {"turns": [calls(ECHO, LOOKUP), {"text": "{{all_tool_results}}"}]},
    # People.
    "pay": {"turns": [calls(local("pay", amount=5, payee="Ann")), {"text": "{{tool_results.0}}"}]},
    "pay_twice": {
        "turns": [
            calls(local("pay", amount=5, payee="Ann")),
            calls(local("pay", amount=6, payee="Ann")),
            {"text": "{{all_tool_results}}"},
        ]
    },
    "pay_two": {
        "turns": [
            calls(local("pay", amount=1, payee="Ann"), local("pay", amount=2, payee="Ben"), ECHO),
            {"text": "{{all_tool_results}}"},
        ]
    },
    "ask": {
        "turns": [
            calls(local("ask_user", question="Which one?", options=["red", "blue"])),
            {"text": "heard {{tool_results.0}}"},
        ]
    },
    "ask_beside": {
        "turns": [calls(local("ask_user", question="Why?"), local("peer")), {"text": "{{all_tool_results}}"}]
    },
    "ask_and_pay": {
        "turns": [
            calls(local("pay", amount=1, payee="Ann"), local("ask_user", question="Why?"), ECHO),
            {"text": "{{all_tool_results}}"},
        ]
    },
    "ask_two": {
        "turns": [
            calls(local("ask_user", question="One?"), local("ask_user", question="Two?")),
            {"text": "{{all_tool_results}}"},
        ]
    },
    "ask_several": {
        "turns": [
            calls(local("ask_user", question="Which?", options=["a", "b", "c"], multiple=True)),
            {"text": "heard {{tool_results.0}}"},
        ]
    },
    "pay_then_ask": {
        "turns": [
            calls(local("pay", amount=5, payee="Ann")),
            calls(local("ask_user", question="Then what?")),
            {"text": "{{user_messages}}"},
        ]
    },
    "plan": {"turns": [calls(local("present_plan", plan="1. Go.")), {"text": "heard {{tool_results.0}}"}]},
    # Client tools.
    "lookup": {"turns": [calls(LOOKUP), {"text": "found {{tool_results.0}}"}]},
    "lookup_files": {"turns": [calls(LOOKUP), {"text": "{{tool_results.0}}: {{attachments}}"}]},
    "lookup_size": {"turns": [calls(LOOKUP), {"text": "{{len_tool_results.0}}"}]},
    "three": {
        "turns": [
            calls(local("lookup", q="a"), local("lookup", q="b"), local("lookup", q="c")),
            {"text": "{{tool_results.0}},{{tool_results.1}},{{tool_results.2}}"},
        ]
    },
    "twice": {
        "turns": [calls(local("lookup", q="a")), calls(local("lookup", q="b")), {"text": "{{all_tool_results}}"}]
    },
    "wrong_args": {
        "turns": [calls(local("lookup", q=7)), calls(local("lookup", q="right")), {"text": "{{all_tool_results}}"}]
    },
    "delegate": {"turns": [calls(local("peer", message="do it")), {"text": "peer: {{tool_results.0}}"}]},
    "steered": {"turns": [calls(local("peer", message="do it")), {"text": "{{user_messages}}"}]},
    "silent": {"turns": [calls(local("peer", message="do it"), text="let me see"), {"text": ""}]},
    "mcp": {"turns": [calls(local("files_read", path="/etc/motd")), {"text": "file: {{tool_results.0}}"}]},
    "foreign_name": {"turns": [calls(local("my-server_fs/get-weather.v2")), {"text": "heard {{tool_results.0}}"}]},
    "peer_desc": {"turns": [{"text": "{{tool_desc.peer}}"}]},
    # Guards.
    "looper": {"turns": [calls(LOOKUP, loop=True)], "finalize": {"text": "I give up after {{n}}"}},
    "echo_loop": {"turns": [calls(ECHO, loop=True)], "finalize": {"text": "I give up after {{n}}"}},
    "restreak": {
        "turns": [
            calls(ECHO),
            calls(ECHO),
            calls(ECHO),
            calls(local("echo", text="other")),
            calls(ECHO),
            {"text": "ok"},
        ]
    },
    "greedy": {
        "turns": [
            calls(local("echo", text="1"), local("echo", text="2"), local("echo", text="3")),
            calls(local("echo", text="4")),
            {"text": "{{all_tool_results}}"},
        ]
    },
    "greedy_local": {"turns": [calls(local("lookup", q="1"), local("lookup", q="2")), {"text": "{{tool_results.1}}"}]},
    "recaller": {
        "turns": [
            *[calls(local("recall", q=str(number))) for number in range(6)],
            {"text": "{{all_tool_results}}"},
        ]
    },
    "busy": {
        "turns": [calls(local("echo", text="{{n}}"), loop=True)],
        "finalize": {"text": "stopped after {{n}}"},
    },
    # Endings.
    "cut": {"turns": [{"deltas": ["so far ", "so good"], "finish_reason": "max_tokens"}]},
    "refused": {"turns": [{"text": "I would rather not", "finish_reason": "refusal"}]},
    "flaky": {
        "turns": [
            {
                "deltas": ["half an"],
                "error": {"class": "overloaded", "message": "busy"},
                "usage": {"input": 7, "output": 3},
            },
            {"deltas": ["whole ", "answer"]},
        ]
    },
    "counted": {
        "turns": [
            calls(ECHO, usage={"input": 100, "cached": 40, "reasoning": 5, "output": 20}),
            {"text": "ok", "usage": {"input": 150, "cached": 90, "reasoning": 0, "output": 8}},
        ]
    },
    "broken_off": {
        "turns": [calls(ECHO), {"deltas": ["half an ", "answer"], "error": {"class": "auth", "message": "no more"}}]
    },
    "broken_off_twice": {
        "turns": [{"text": "half of it", "error": {"class": "overloaded"}}, {"error": {"class": "auth"}}]
    },
    "cut_as_error": {"turns": [calls(ECHO), {"text": "cut of", "error": {"class": "truncation"}}]},
    "late_failure": {"turns": [calls(ECHO), {"error": {"class": "auth", "message": "the key is bad"}}]},
    "json_answer": {"turns": [{"text": '{"n": 4}'}]},
    "deep_answer": {"turns": [{"text": '{"a":' * 60 + '{"leaf":1}' + "}" * 60}]},
    "deep_args": {"turns": [calls({"name": "lookup", "args": deep(60)}), {"text": "heard {{tool_results.0}}"}]},
    "long_args": {"turns": [calls(local("lookup", q="a" * 60 + "!")), {"text": "heard {{tool_results.0}}"}]},
    **{f"fails_{cls}": failing(cls) for cls in ("context_window", "invalid_request", "auth", "unknown")},
    **{f"fails_{cls}": failing(cls, retryable=False) for cls in ("rate_limit", "overloaded", "server", "timeout")},
}

LARGE_SCRIPTS: dict[str, Any] = {
    "many_args": {"turns": [calls(local("lookup", q=[[]] * 250_000)), {"text": "heard {{tool_results.0}}"}]},
    "edge_numbers": {"turns": [calls(local("lookup", q=[1e300] * 6_000)), {"text": "heard {{tool_results.0}}"}]},
    "long_numbers": {"turns": [calls(local("lookup", q=[10**4_000] * 20)), {"text": "heard {{tool_results.0}}"}]},
}
"""Apart from the others: to read them takes a server as long as the rest of its start."""

TOOLS = '''
"""Server tools for the tests of the server."""

import asyncio

import weftline
from weftline.tools import Injected
from weftline.work import processes

processes.CPU_S = 0.5  # what takes longer takes for ever


@weftline.tool(effect="read", concurrent=True)
async def echo(text: str) -> str:
    """Says it again."""
    return f"echo {text}"


@weftline.tool(effect="read")
async def tenancy(tenant: Injected[str]) -> str:
    """Whose run it is."""
    return tenant


@weftline.tool(effect="read")
async def recall(q: str) -> str:
    """Remembers."""
    return f"recalled {q}"


@weftline.tool(effect="read")
async def big(size: int) -> str:
    """Says a lot."""
    return "x" * size


@weftline.tool
async def boom() -> str:
    """Fails."""
    raise weftline.ToolFailed("there was a fire")


@weftline.tool
async def hold() -> str:
    """Never comes back."""
    return await asyncio.Event().wait()


@weftline.tool(effect="read")
async def peek() -> str:
    """Never comes back, and changes nothing."""
    return await asyncio.Event().wait()


@weftline.tool(effect="once", confirm="Pay {amount} to {payee}?")
async def pay(amount: int, payee: str) -> str:
    """Pays."""
    return f"paid {amount} to {payee}"


@weftline.tool
async def record(path: str) -> str:
    """Writes one line."""
    with open(path, "a") as file:
        file.write("ran\\n")
    return "recorded"
'''
