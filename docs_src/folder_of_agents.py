"""A folder of agents, written, checked, read and run."""

import asyncio
from pathlib import Path

from weftline import Engine
from weftline.threads import check, load_project, read_project

FILES = {
    "agents/helper.md": """---
description: Answers questions about orders.
model: fast
tools: find_order
---

You answer customers of Tea & Co. Look an order up before you speak of it, and be brief.
""",
    "agents/models/fast.py": """
from weftline.threads import define_model

model = define_model(name="fast", provider="test", model="desk")
""",
    "agents/prompts/triage.py": """
from weftline.threads import PromptEnvPart, PromptToolConfig, define_prompt

prompt = define_prompt(
    name="triage",
    model="fast",
    tool_description="Sorts a customer's request.",
    prompt=["You answer for ", PromptEnvPart("COMPANY"), ". Be brief."],
    tools=["find_order", PromptToolConfig("find_order2", options={"currency": "EUR"})],
)
""",
    "agents/agents/triage.py": """
from weftline.threads import SideConfig, define_agent

agent = define_agent(name="triage", side_a=SideConfig(prompt="triage"), env={"COMPANY": "Tea & Co"})
""",
    "agents/tools/find_order.py": '''
from weftline.threads import ThreadState, define_tool

from ...shared import orders


@define_tool(effect="read")
async def find_order(state: ThreadState, number: str) -> str:
    """Finds an order by its number."""
    return orders.find(number)
''',
    "scripts.json": """
{"desk": {"turns": [{"tool_calls": [{"name": "find_order", "args": {"number": "7"}}]}, {"text": "{{tool_results.0}}"}]}}
""",
    "shared/orders.py": """
def find(number: str) -> str:
    return f"Order {number} is on its way."
""",
}

for name, text in FILES.items():
    file = Path("desk", name)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)

(problem,) = check(read_project("desk")).problems
print(problem)
assert (problem.line, problem.field) == (9, "tools[1]")
assert problem.message == 'there is no tool, prompt or agent "find_order2". Did you mean "find_order"?'

triage = Path("desk/agents/prompts/triage.py")
triage.write_text(triage.read_text().replace('PromptToolConfig("find_order2", options={"currency": "EUR"})', '"fetch"'))

project = load_project("desk")
print(sorted(project.registry.agents))
assert sorted(project.registry.agents) == ["helper", "triage"]
assert project.registry.tool("find_order").takes_state == "state"


async def main() -> None:
    async with Engine("data", project=project) as engine:
        thread = await engine.create_thread("triage", user="ann", values={"plan": "pro"})
        run = await engine.start(engine.agents["triage"], "Where is order 7?", thread=thread.name)
        assert (await run.result()).text == "Order 7 is on its way."


asyncio.run(main())
