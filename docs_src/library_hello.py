"""An agent with a tool, in ten lines. Here a script plays the model, so that this runs without a key."""

from weftline import Agent, tool
from weftline.testing import ScriptedModel, calls


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"{city}: sunny, 21 °C"


agent = Agent("anthropic:claude-sonnet-4-5", instructions="Be brief.", tools=[weather])

if __name__ == "__main__":
    with agent.override(model=ScriptedModel([calls("weather", city="Lyon"), "No: it is sunny."])):
        print(agent.run_sync("Do I need an umbrella in Lyon?").text)
