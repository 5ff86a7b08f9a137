"""Durable runs in code without an event loop."""

from weftline import Agent, Engine
from weftline.testing import ScriptedModel

# A script plays the model here; yours would be "openai:gpt-5".
agent = Agent(ScriptedModel(["{{user_messages}} / {{message_count}}"]), name="notes")

with Engine("./data", agents=[agent]) as engine:
    print(agent.run_sync("Remember the milk.", engine=engine, thread="shopping").text)
    print(agent.run_sync("What was it?", engine=engine, thread="shopping").text)
