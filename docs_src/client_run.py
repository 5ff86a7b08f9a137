"""The synchronous client: a run with a local tool, its events, structured output, and what failures look like."""

from __future__ import annotations

import tempfile
from pathlib import Path

from pydantic import BaseModel

from weftline.client import ApiError, Attachment, Client, RunFailed, ToolError, tool
from weftline.events import TextDelta
from weftline.testing import ServerProcess

SCRIPTS = {
    "weather": {
        "turns": [
            {"tool_calls": [{"name": "weather", "args": {"city": "Oslo"}}]},
            {"deltas": ["It is ", "{{tool_results.0}}", " in Oslo."]},
        ]
    },
    "report": {"turns": [{"text": '{"city": "Oslo", "degrees": 4}'}]},
    "look": {"turns": [{"text": "I see {{attachments}}."}]},
    "cut": {"turns": [{"text": "It is the", "finish_reason": "max_tokens"}]},
}


PNG = bytes.fromhex("89504e470d0a1a0a")
"""The beginning of a picture: enough for a model that only pretends to look."""


class Report(BaseModel):
    city: str
    degrees: int


@tool
def weather(city: str, days: int = 1) -> str:
    """The weather of a city.

    Args:
        city: Its name.
        days: How many days ahead.
    """
    if not city:
        raise ToolError("Name a city.")
    return "sunny" if days < 3 else "unknown"


def ask(client: Client) -> None:
    result = client.run("How is the weather in Oslo?", model_id="scripted:weather", tools=[weather])
    print(result.text, result.turns, result.tokens)


def follow(client: Client) -> None:
    with client.start("How is the weather in Oslo?", model_id="scripted:weather", tools=[weather]) as run:
        print("following", run.id)
        for event in run:
            if isinstance(event, TextDelta):
                print(event.text, end="")
        print()


def structured(client: Client) -> None:
    result = client.run("Report.", model_id="scripted:report", output_type=Report)
    print(repr(result.output))


def attached(client: Client) -> None:
    picture = Attachment(data=PNG, name="dot.png")
    result = client.run("What is this?", model_id="scripted:look", attachments=[picture, "https://example.com/a.pdf"])
    print(result.text, result.cost_usd)


def failures(client: Client) -> None:
    try:
        client.run("Go on.", model_id="scripted:cut")
    except RunFailed as error:
        print(error.error_class, error.finish_reason, repr(error.partial_text))
    try:
        client.run("Go on.", model_id="no such model")
    except ApiError as error:
        print(error.status, error.code, error.candidates)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, ServerProcess(Path(folder), scripts=SCRIPTS) as server:
        key = server.create_key("acme")
        with Client(api_key=key, workspace="acme", base_url=server.url) as client:
            ask(client)
            follow(client)
            structured(client)
            attached(client)
            failures(client)


if __name__ == "__main__":
    main()
