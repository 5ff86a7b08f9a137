"""Two clients on one run: each call is carried out by the one that has claimed it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from weftline.client import Client, tool
from weftline.testing import ServerProcess

SCRIPTS = {
    "stock": {"turns": [{"tool_calls": [{"name": "stock", "args": {"item": "tea"}}]}, {"text": "Tea is there."}]}
}
looked_up: list[str] = []


@tool
def stock(item: str) -> str:
    """How much there is of an item."""
    looked_up.append(item)
    return "12 boxes"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, ServerProcess(Path(folder), scripts=SCRIPTS) as server:
        key = server.create_key("acme")
        with Client(api_key=key, workspace="acme", base_url=server.url) as client:
            one = client.start("Is there tea?", model_id="scripted:stock", tools=[stock], lease_s=10)
            other = client.attach(one.id, tools=[stock], lease_s=10)
            print(one.result().text, other.result().text, looked_up)


if __name__ == "__main__":
    main()
