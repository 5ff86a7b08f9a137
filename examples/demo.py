"""`make demo`: an agent with a server tool and a client tool, a SIGKILL, and the proof that nothing was repeated.

Everything is real but the model, which is scripted: a server process on a temporary store, HTTP and SSE, a tool that
moves money, a client that answers a question. No key and no network are needed. `--keep` leaves the store behind.
"""

from __future__ import annotations

import http.client
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from weftline.testing import ServerProcess

WORKSPACE = "demo"
PATIENCE_S = 120.0
"""No single wait of the demo lasts longer."""
PAUSE_S = 0.8
"""For people: how long the customer thinks."""
WORD_MS = 70
TURNS = 3
TERMINAL = {"result", "error", "cancelled"}
STYLES = {
    "started": "cyan",
    "assistant_message": "blue",
    "tool_call": "magenta",
    "tool_result": "magenta",
    "local_tool_call": "yellow",
    "local_tool_result_in": "yellow",
    "result": "bold green",
    "error": "bold red",
    "cancelled": "bold red",
}


class PromiseBroken(Exception):
    """Something that Weftline promises did not hold."""


class Event(NamedTuple):
    seq: int
    type: str
    data: dict[str, Any]
    raw: str


def words(text: str) -> list[str]:
    """One delta per word, as a model would stream it."""
    return [word + " " for word in text.split()]


def script(cake: str, euros: float, person: str) -> dict[str, Any]:
    pay = {"name": "pay_baker", "args": {"cake": cake, "euros": euros}}
    ask = {"name": "ask_customer", "args": {"question": f"What should the icing say to {person}?"}}
    return {
        "turns": [
            {
                "deltas": words(f"A {cake} cake for {person}. I pay the baker first."),
                "delay_ms": WORD_MS,
                "tool_calls": [pay],
            },
            {"deltas": words("That is paid. One question before I order:"), "delay_ms": WORD_MS, "tool_calls": [ask]},
            {
                "deltas": words('Ordered. The icing will say "{{tool_results.0}}" and it is paid for.'),
                "delay_ms": WORD_MS,
            },
        ]
    }


class Api:
    """The few requests that the demo makes, with the standard library alone."""

    def __init__(self, server: ServerProcess, key: str) -> None:
        self._server = server
        self._headers = {"authorization": f"Bearer {key}"}
        self._runs = f"/api/v1/workspaces/{WORKSPACE}/agent-runs"

    def create(self, spec: dict[str, Any]) -> str:
        return self._post(self._runs, spec)["runId"]

    def answer(self, run: str, tool_use_id: str, result: str) -> None:
        self._post(f"{self._runs}/{run}/tool-results", {"toolUseId": tool_use_id, "result": result})

    def events(self, run: str, *, after: int = 0) -> Iterator[Event]:
        """The run's events, until the server closes the stream or the connection breaks."""
        connection = self._connect()
        try:
            headers = {**self._headers, "last-event-id": str(after)}
            connection.request("GET", f"{self._runs}/{run}/stream", headers=headers)
            response = connection.getresponse()
            if response.status != 200:
                raise PromiseBroken(f"The stream was refused: {response.status} {response.read().decode()}")
            for line in response:
                if line.startswith(b"data: "):
                    raw = line[6:].decode().rstrip("\n")
                    event = json.loads(raw)
                    yield Event(event["seq"], event["type"], event["data"], raw)
        except (ConnectionError, http.client.IncompleteRead):
            return
        finally:
            connection.close()

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        connection = self._connect()
        try:
            connection.request("POST", path, body=json.dumps(body), headers=self._headers)
            response = connection.getresponse()
            answer = json.loads(response.read())
        finally:
            connection.close()
        if response.status >= 300:
            raise PromiseBroken(f"POST {path} was refused: {answer.get('message', answer)}")
        return answer

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=PATIENCE_S)


class Printer:
    """Prints events as they come: one line each, and the model's words one after another."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()
        self._in_text = False

    def say(self, text: str, style: str = "") -> None:
        self._end_text()
        self._console.print(Text(text, style=style))

    def heading(self, text: str) -> None:
        self._end_text()
        self._console.print()
        self._console.rule(Text(text, style="bold"), align="left", style="dim")

    def event(self, event: Event) -> None:
        if event.type == "assistant_delta":
            if not self._in_text:
                self._console.print(self._margin(event, "assistant_delta", "dim"), end="")
                self._in_text = True
            self._console.print(Text(event.data["text"], style="bold"), end="", soft_wrap=True)
            self._console.file.flush()
            return
        self._end_text()
        style = STYLES.get(event.type, "white")
        line = self._margin(event, event.type, style)
        line.append(describe(event), style=style if event.type in TERMINAL else "")
        self._console.print(line, soft_wrap=True)

    def _margin(self, event: Event, name: str, style: str) -> Text:
        elapsed = f"{time.monotonic() - self._began:5.2f}s "
        return Text.assemble((elapsed, "dim"), (f"{event.seq:>4} ", "dim cyan"), (f"{name:<21}", style))

    def _end_text(self) -> None:
        if self._in_text:
            self._console.print()
            self._in_text = False


def describe(event: Event) -> str:
    data = event.data
    match event.type:
        case "started":
            return data["runId"]
        case "assistant_message":
            asked = ", ".join(call["name"] for call in data.get("toolCalls", ()))
            return f"turn {data['turn']} is complete" + (f", it asks for {asked}" if asked else "")
        case "tool_call":
            return f"{data['name']}({arguments(data['args'])})  effect: once"
        case "local_tool_call":
            return f"{data['name']}({arguments(data['args'])})  your turn"
        case "tool_result":
            return ("-> " if data["ok"] else "failed: ") + data["summary"]
        case "local_tool_result_in":
            return f"-> {data.get('output', data.get('error'))}"
        case "result":
            return f"{data['subtype']} after {data['turns']} model calls, {data['tokens']['outputTokens']} tokens out"
        case _:
            return json.dumps(data)


def arguments(args: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in args.items())


def follow(api: Api, run: str, show: Printer, on_offer: Callable[[Event], None]) -> tuple[list[Event], int]:
    """Follows a run to its end over as many connections as that takes; returns what was seen, and over how many."""
    seen: list[Event] = []
    connections = 0
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        connections += 1
        for event in api.events(run, after=seen[-1].seq if seen else 0):
            seen.append(event)
            show.event(event)
            if event.type in TERMINAL:
                return seen, connections
            if event.type == "local_tool_call":
                on_offer(event)
    raise PromiseBroken(f"Run {run} did not end within {PATIENCE_S:g} seconds.")


def check(run: str, seen: list[Event], replay: list[Event], payments: list[str], keys: list[str]) -> list[list[str]]:
    """One line per promise: what was promised and what was counted. Raises at the first that was broken."""
    types = Counter(event.type for event in seen)
    seqs = [event.seq for event in seen]
    facts = [
        ("the baker was paid", payments.count(run), 1),
        ("the customer was asked", types["local_tool_call"], 1),
        ("model calls, as the run counts them", seen[-1].data.get("turns"), TURNS),
        ("model turns that completed", types["assistant_message"], TURNS),
        ("model turns begun again", types["turn_restarted"], 0),
        ("terminal events", sum(types[name] for name in TERMINAL), 1),
        ("events seen twice or out of order", len(seqs) - len(set(seqs)) + (seqs != sorted(seqs)), 0),
        ("events in the log that this client missed", len({event.seq for event in replay} - set(seqs)), 0),
        (
            "events that a replay shows differently",
            len({event.raw for event in seen} - {event.raw for event in replay}),
            0,
        ),
        ("payments that share an idempotency key", len(keys) - len(set(keys)), 0),
    ]
    if seen[-1].type != "result" or not seen[-1].data["ok"]:
        raise PromiseBroken(f"Run {run} ended as {seen[-1].type}: {seen[-1].data}")
    for what, counted, promised in facts:
        if counted != promised:
            raise PromiseBroken(f"Run {run}: {what}: {counted}, which should be {promised}.")
    return [[what, str(counted)] for what, counted, _ in facts]


def demo(folder: Path, console: Console) -> None:
    show = Printer(console)
    ledger = folder / "ledger.txt"
    server = ServerProcess(
        folder,
        scripts={"lemon": script("lemon", 24.5, "Ada"), "chocolate": script("chocolate", 31.0, "Grace")},
        arguments=("--tools", str(Path(__file__).with_name("demo_tools.py"))),
        env={"WEFTLINE_DEMO_LEDGER": str(ledger)},
    )
    with server:
        api = Api(server, server.create_key(WORKSPACE))
        show.heading("A server")
        show.say(f"address  {server.url}   (process {server.pid})")
        show.say(f"store    {server.db}")
        show.say("model    scripted: no key, no network")

        show.heading("First run: a server tool, then a question to this client")
        first = api.create(spec("lemon", ask(show, "Order a lemon cake for Ada.")))

        def answer(offer: Event) -> None:
            time.sleep(PAUSE_S)
            api.answer(first, offer.data["toolUseId"], "Happy birthday, Ada!")

        told, _ = follow(api, first, show, answer)

        show.heading("Second run: the same, but the server is killed in the middle")
        second = api.create(spec("chocolate", ask(show, "Order a chocolate cake for Grace.")))

        def kill_then_answer(offer: Event) -> None:
            killed = server.pid
            time.sleep(PAUSE_S)
            server.kill()
            show.say(f"       SIGKILL  process {killed} is gone, the baker is paid, the customer thinks", "bold red")
            time.sleep(PAUSE_S)
            server.start()
            show.say(f"       RESTART  process {server.pid} on the same store; the answer goes there", "bold green")
            api.answer(second, offer.data["toolUseId"], "Ship it, Grace!")

        seen, connections = follow(api, second, show, kill_then_answer)

        paid = [line.split() for line in ledger.read_text().splitlines()]
        runs, keys = [run for run, _ in paid], [key for _, key in paid]
        check(first, told, list(api.events(first)), runs, keys)
        facts = check(second, seen, list(api.events(second)), runs, keys)
        show.heading("What was counted in the second run")
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        for what, counted in facts:
            table.add_row(Text("ok", style="bold green"), what, Text(counted, style="bold"))
        console.print(table)
        show.say(
            f"\nNothing was repeated and nothing is missing: {len(seen)} events over {connections} connections.",
            "bold green",
        )


def ask(show: Printer, prompt: str) -> str:
    show.say(f"{'you':>10}  {prompt}", "italic")
    return prompt


def spec(name: str, prompt: str) -> dict[str, Any]:
    return {
        "name": f"{name}-cake",
        "modelId": f"scripted:{name}",
        "prompt": prompt,
        "tools": [
            {"kind": "server", "name": "pay_baker"},
            {
                "kind": "local",
                "name": "ask_customer",
                "description": "Asks the person in front of the screen.",
                "parameters": {"type": "object", "properties": {"question": {"type": "string"}}},
            },
        ],
    }


def main(arguments: list[str]) -> int:
    console = Console(highlight=False)
    keep = arguments == ["--keep"]
    if arguments and not keep:
        console.print("usage: demo.py [--keep]", style="red")
        return 2
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="weftline-demo-"))
    try:
        demo(folder, console)
    except (PromiseBroken, OSError, http.client.HTTPException, RuntimeError) as error:
        console.print(f"\nThe demo failed: {error}", style="bold red", markup=False)
        return 1
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    kept = f"The store stays in {folder}." if keep else "The store was temporary and is removed."
    console.print(f"{time.monotonic() - began:.1f} s. {kept} More: docs/index.md", style="dim", markup=False)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
