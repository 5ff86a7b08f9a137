"""An agent for clients over HTTP: `weftline serve library_serving.py`, or mounted in an application of your own."""

from starlette.applications import Starlette
from starlette.routing import Mount

from weftline import Agent, Engine, asgi, tool
from weftline.testing import ScriptedModel, calls


@tool(effect="read")
def opening_hours(day: str) -> str:
    """When the shop is open."""
    return f"{day}: 9 to 5"


# A script plays the model here; yours would be "anthropic:claude-sonnet-4-5".
model = ScriptedModel([calls("opening_hours", day="Monday"), "On {{tool_results.0}}."])
support = Agent(model, name="support", instructions="Be brief.", tools=[opening_hours])

engine = Engine("./data", agents=[support])
app = Starlette(routes=[Mount("/agents", asgi(engine))], lifespan=engine.lifespan)  # a mounted app's own is not run


if __name__ == "__main__":
    from starlette.testclient import TestClient

    with TestClient(app) as client:
        print(client.get("/agents/healthz").json())
