"""An agent that refunds customers, and asks a person about everything over 100 €.

    python examples/refund.py

serves this very file (`weftline serve examples/refund.py`), kills the server while a refund waits for approval, has
somebody else approve it from another process, and prints who did what from the run's log. The model is scripted;
everything else is real. No key and no network are needed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from weftline import Agent, Limits, tool
from weftline.client import Client, Forbidden, Run
from weftline.events import AwaitClosed, AwaitOpened, CallFinished
from weftline.testing import ScriptedModel, ServerProcess

LEDGER = Path(os.environ.get("REFUND_LEDGER", "ledger.txt"))
FREE_HAND_EUR = 100


def needs_approval(customer: str, amount_eur: int) -> str | None:
    """What a person is asked; None if the refund may be made at once."""
    return f"Refund {amount_eur} € to {customer}?" if amount_eur > FREE_HAND_EUR else None


@tool(effect="once", confirm=needs_approval)
def refund(customer: str, amount_eur: int) -> str:
    """Pay money back to a customer."""
    with LEDGER.open("a", encoding="utf-8") as ledger:
        ledger.write(f"{customer} {amount_eur}\n")
    return f"{amount_eur} € refunded to {customer}."


refunds = Agent(
    ScriptedModel(
        [
            {
                "tool_calls": [
                    {"name": "refund", "args": {"customer": "Ann", "amount_eur": 40}},
                    {"name": "refund", "args": {"customer": "Ben", "amount_eur": 250}},
                ]
            },
            "{{all_tool_results}}",
        ]
    ),
    name="refunds",
    instructions="Refund customers as support asks you to.",
    tools=[refund],
    limits=Limits(four_eyes=True),  # whoever asked for the run may not approve it
)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        ledger = Path(folder, "ledger.txt")
        env = {"REFUND_LEDGER": str(ledger)}
        with ServerProcess(Path(folder), arguments=(__file__,), env=env) as server:
            support, boss = (new_key(server, name) for name in ("support", "boss"))
            with Client(api_key=support, workspace="shop", base_url=server.url) as client:
                run = client.start("Ann wants 40 € back, Ben 250 €.", agent_id="refunds")
                asked = until_asked(run)
                print(f"waiting   {asked.question}")
                server.kill()
                print("killed    the server, in the middle of it")
                server.start()
                try:
                    run.approve(asked.id)
                except Forbidden as error:
                    print(f"refused   support approves: {error.message}")
                approve_elsewhere(server, run.id, key=boss)
                run.result()
                audit(client, run)
        print("ledger    " + ", ".join(ledger.read_text(encoding="utf-8").splitlines()))


def new_key(server: ServerProcess, name: str) -> str:
    return server.create_key("shop", "--name", name)


def until_asked(run: Run) -> AwaitOpened:
    """The question about Ben's refund, when Ann's has been made and nothing else is left to do."""
    events = run.events()
    seen = [next(event for event in events if isinstance(event, AwaitOpened | CallFinished)) for _ in range(2)]
    return next(event for event in seen if isinstance(event, AwaitOpened))


def approve_elsewhere(server: ServerProcess, run_id: str, *, key: str) -> None:
    """The boss, at another terminal."""
    approve = ["approve", run_id, "--url", server.url]
    env = {**os.environ, "WEFTLINE_API_KEY": key}
    done = subprocess.run(
        [sys.executable, "-m", "weftline", *approve], env=env, capture_output=True, text=True, check=True
    )
    print(f"boss      weftline approve …: {done.stdout.strip()}")


def audit(client: Client, run: Run) -> None:
    """Who, what and when, from the run's log: `weftline runs follow` shows the same."""
    for frame in run.frames():
        match frame.event:
            case AwaitOpened() as asked:
                print(f"log {frame.seq:>4}  asked {asked.question} {asked.args} digest {frame.data['digest'][:8]}")
            case AwaitClosed(outcome=outcome, by=by):
                print(f"log {frame.seq:>4}  {outcome} by {by} digest {frame.data['digest'][:8]}")
            case CallFinished() as call:
                print(f"log {frame.seq:>4}  {call.name}: {call.result}")
            case _:
                pass
    for grant in client.grants(run.id):
        print(f"grant     {grant.name} {grant.args} by {grant.by_name}, began {len(grant.used)} call")


if __name__ == "__main__":
    main()
