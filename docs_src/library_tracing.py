"""The spans of an agent's run, printed as OpenTelemetry exports them."""

from __future__ import annotations

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from weftline import Agent, tool
from weftline.runs import trace
from weftline.testing import ScriptedModel, calls


@tool(effect="read")
def weather(city: str) -> str:
    """The weather in a city."""
    return f"{city}: sunny, 21 °C"


exporter = InMemorySpanExporter()  # a program has one that sends them somewhere
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))

agent = Agent("openai:gpt-5", name="forecast", tools=[weather])
trace(agent, tracer_provider=provider)

if __name__ == "__main__":
    with agent.override(model=ScriptedModel([calls("weather", city="Lyon"), "No umbrella."])):
        agent.run_sync("Do I need an umbrella in Lyon?")
    for span in exporter.get_finished_spans():
        print(span.name, dict(span.attributes or {}).get("weftline.output_bytes", ""))
