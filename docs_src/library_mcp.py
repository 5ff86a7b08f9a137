"""An agent with the tools of an MCP server, which is this file as well: `python library_mcp.py serve`."""

from __future__ import annotations

import sys

from weftline import Agent, mcp
from weftline.hooks import McpError, McpToolGate
from weftline.testing import ScriptedModel, calls

shop = mcp([sys.executable, __file__, "serve"], name="shop")
agent = Agent("openai:gpt-5", instructions="Sell cakes.", tools=[shop])


@agent.on(McpToolGate)
def small_orders(gate: McpToolGate) -> None:
    if gate.tool == "shop__order" and gate.args["count"] > 10:
        gate.block("more than ten cakes need a person")


@agent.on(McpError)
def told(failed: McpError) -> None:
    print(f"{failed.server} is out of reach: {failed.error}")


def serve() -> None:
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("shop", log_level="ERROR")

    @server.tool(structured_output=False)
    def order(count: int) -> str:
        """Orders cakes."""
        return f"{count} ordered"

    server.run()


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve()
    else:
        # A scripted model plays the real one here, so that the example needs no key.
        model = ScriptedModel([calls("shop__order", count=2), calls("shop__order", count=20), "Two are on their way."])
        with agent.override(model=model):
            result = agent.run_sync("Two cakes, please, or twenty.")
        assert [call.result for call in result.calls] == [
            "2 ordered",
            "Blocked: more than ten cakes need a person",
        ]
        print(result.text)
