"""Which span the requests of a run's calls name: of HTTP tools, MCP servers and A2A agents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from server.tools.peers import Json, Peer, answering, serving
from weftline import Agent, Engine, ToolContext, a2a, mcp, tool
from weftline.net.dial import Dialer
from weftline.net.egress import Egress
from weftline.runs import trace
from weftline.testing import calls
from weftline.tools.http import HttpSpec, HttpTool

from .small import model
from .test_a2a_peer import polite

PATIENCE_S = 60
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def page(request: web.Request) -> web.Response:
    return web.Response(text="a page")


async def listed(request: web.Request, params: Json) -> Json:
    return {"tools": [{"name": "look", "inputSchema": {"type": "object"}}]}


async def called(request: web.Request, params: Json) -> Json:
    return {"content": [{"type": "text", "text": "seen"}]}


class World:
    """An agent with a tool of each kind, and what their peers were asked."""

    def __init__(self, site: Peer, server: Peer, helper: Peer, dialer: Dialer) -> None:
        self._site, self._server, self._helper = site, server, helper
        self.own: list[str | None] = []

        @tool(effect="read")
        def note(context: ToolContext) -> str:
            """Notes its span."""
            self.own.append(context.traceparent)
            return "noted"

        get = HttpTool(HttpSpec("get_page", f"{site.url}/page"), secrets={}, dialer=dialer)
        fixed = HttpSpec("get_fixed", f"{site.url}/fixed", headers={"TraceParent": "mine"})
        tools: list[Any] = [get, HttpTool(fixed, secrets={}, dialer=dialer), note]
        tools += [mcp(server.url, name="facts"), a2a(helper.url, name="helper")]
        nothing = dict[str, Any]()
        asked = [(name, nothing) for name in ("get_page", "get_fixed", "note", "facts__look")]
        self.agent = Agent(model(calls(*asked, ("helper", {"message": "Hi."}))), name="caller", tools=tools)

    @property
    def carried(self) -> dict[str, str | None]:
        """What the calls of each tool have named."""
        (looked,) = [one.json["params"] for one in self._server.requests if b"tools/call" in one.body]
        (asked,) = [one for one in self._helper.requests if one.method == "POST"]
        pages = {one.path: one.headers.get("traceparent") for one in self._site.requests}
        return {
            "get_page": pages["/page"],
            "get_fixed": pages["/fixed"],
            "note": self.own[0],
            "facts__look": looked.get("_meta", {}).get("traceparent"),
            "helper": asked.headers.get("traceparent"),
        }


@asynccontextmanager
async def world() -> AsyncGenerator[World]:
    async with AsyncExitStack() as stack:
        enter, dialer = stack.enter_async_context, Dialer(Egress("private"))
        stack.push_async_callback(dialer.aclose)
        server = await enter(serving(answering({"tools/list": listed, "tools/call": called})))
        yield World(await enter(serving(page)), server, await enter(serving(polite)), dialer)


class Traces:
    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    def calls(self) -> dict[str, str]:
        """The `traceparent` of each call's span, by its tool."""
        found: dict[str, str] = {}
        for span in self.spans:
            name = dict(span.attributes or {}).get("gen_ai.tool.name")
            if isinstance(name, str) and span.context is not None:
                found[name] = f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-01"
        return found


@pytest.mark.requirement("run.trace.context")
@pytest.mark.parametrize("begun", ["by itself", "with a traceparent", "in a span"])
async def test_calls_carry_their_span_in_the_callers_trace(begun: str) -> None:
    traces = Traces()
    async with asyncio.timeout(PATIENCE_S), world() as here, Engine() as engine:
        trace(here.agent, tracer_provider=traces.provider)
        above = ""
        options: Any = {}
        if begun == "with a traceparent":
            above, options = PARENT, {"metadata": {"traceparent": PARENT}}
        if begun == "in a span":
            with traces.provider.get_tracer("test").start_as_current_span("mine") as mine:
                context = mine.get_span_context()
                above = f"00-{context.trace_id:032x}-{context.span_id:016x}-01"
                run = await engine.start(here.agent, "Go.")
        else:
            run = await engine.start(here.agent, "Go.", **options)
        result = await run.result()
        assert all(call.ok for call in result.calls), [call.result for call in result.calls]
        spans, carried = traces.calls(), here.carried
    assert carried.pop("get_fixed") == "mine", "what the tool says itself holds"
    del spans["get_fixed"]
    assert carried == spans and len(set(spans.values())) == 4
    (root,) = [span for span in traces.spans if span.name == "invoke_agent caller"]
    parent = "" if root.parent is None else f"00-{root.parent.trace_id:032x}-{root.parent.span_id:016x}-01"
    assert parent == above


@pytest.mark.requirement("run.trace.context")
async def test_calls_of_an_untraced_run_forward_its_trace() -> None:
    async with asyncio.timeout(PATIENCE_S), world() as here, Engine() as engine:
        await here.agent.run("Go.", engine=engine, metadata={"traceparent": PARENT})
        carried = here.carried
    assert carried.pop("get_fixed") == "mine" and set(carried.values()) == {PARENT}


async def test_calls_of_a_run_that_nobody_traces_carry_nothing() -> None:
    async with asyncio.timeout(PATIENCE_S), world() as here, Engine() as engine:
        await here.agent.run("Go.", engine=engine, metadata={"traceparent": "not one"})
        carried = here.carried
    assert carried.pop("get_fixed") == "mine" and set(carried.values()) == {None}
