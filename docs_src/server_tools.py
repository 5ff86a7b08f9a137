"""A tools file, and a run that names the tool in it: `weftline serve --tools server_tools.py`."""

from __future__ import annotations

import weftline


@weftline.tool(effect="read")
def opening_hours(day: str) -> str:
    """When the shop is open on a day of the week."""
    return "closed" if day.lower() == "sunday" else "9 to 18"


def main() -> None:
    import tempfile
    from pathlib import Path

    from weftline.client import Client, server_tool
    from weftline.testing import ServerProcess

    call = {"name": "opening_hours", "args": {"day": "Sunday"}}
    script = {"turns": [{"tool_calls": [call]}, {"text": "On Sunday: {{tool_results.0}}."}]}
    with (
        tempfile.TemporaryDirectory() as folder,
        ServerProcess(Path(folder), scripts={"shop": script}, arguments=("--tools", __file__)) as server,
        Client(api_key=server.create_key("acme"), workspace="acme", base_url=server.url) as client,
    ):
        result = client.run(
            "When are you open on Sunday?", model_id="scripted:shop", tools=[server_tool("opening_hours")]
        )
        print(result.text)
        assert result.text == "On Sunday: closed."


if __name__ == "__main__":
    main()
