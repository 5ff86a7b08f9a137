"""`/metrics` is what Prometheus reads, and tells strangers nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from weftline.testing import ServerProcess

from .conftest import new_key
from .kit import Api, check_error, local_tool
from .scripts import SCRIPTS, TOOLS

TOKEN = "scrape-me"


def samples(page: bytes) -> dict[str, float]:
    """Every value by its name and labels, as Prometheus' own parser reads them."""
    return {
        sample.name + "".join(f" {name}={value}" for name, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


async def scrape(api: Api) -> dict[str, float]:
    reply = await api.get("/metrics", key=None)
    assert reply.status == 200 and reply.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert all(family.type != "unknown" for family in text_string_to_metric_families(reply.body.decode()))
    return samples(reply.body)


async def test_metrics_count_the_work_of_runs(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, scripts=SCRIPTS, tools=TOOLS) as server:
        async with aiohttp.ClientSession() as http:
            api = Api(http, server.url, "acme", new_key(server))
            await api.play("echo", tools=[{"kind": "server", "name": "echo"}])
            waiting = await api.start("mixed", tools=[local_tool()])
            async with api.stream(waiting) as stream:
                await stream.until("local_tool_call")
                now = await scrape(api)
    assert now["weftline_runs_created_total"] == 2
    assert now["weftline_runs_ended_total status=succeeded"] == now["weftline_run_duration_seconds_count"] == 1
    assert now["weftline_runs_unfinished status=running"] == 1
    assert now["weftline_runs_active"] + now["weftline_runs_parked"] == 1
    assert now["weftline_turns_total"] == now["weftline_model_calls_total outcome=completed"] == 3
    assert now["weftline_tool_calls_total outcome=ok"] == 1
    assert now["weftline_tokens_total kind=output"] > 0
    assert now["weftline_streams_open"] == 1
    assert now["weftline_store_flush_duration_seconds_count"] > 0
    assert (
        now["weftline_store_flush_duration_seconds_bucket le=+Inf"]
        == now["weftline_store_flush_duration_seconds_count"]
    )
    assert now["weftline_store_bytes file=database"] > 0 and now["weftline_store_writable"] == 1


async def test_labels_have_no_values_of_tenants(api: Api) -> None:
    await api.play("hello")
    page = (await api.get("/metrics", key=None)).body.decode()
    labels = {name for family in text_string_to_metric_families(page) for one in family.samples for name in one.labels}
    assert labels == {"status", "outcome", "kind", "file", "le", "version"} and api.slug not in page


async def test_public_server_shows_metrics_only_with_its_token(tmp_path: Path) -> None:
    config = '[server]\npublic_url = "https://agents.example.com"\n'
    with ServerProcess(tmp_path, scripts=SCRIPTS, config=config) as server:
        async with aiohttp.ClientSession() as http:
            api = Api(http, server.url, "acme", new_key(server))
            check_error(await api.get("/metrics", key=None), 403, "forbidden")
            check_error(await api.get("/metrics"), 403, "forbidden")
            await asyncio.to_thread(server.terminate)
            await asyncio.to_thread(server.start, env={"WEFTLINE_METRICS_TOKEN": TOKEN})
            check_error(await api.get("/metrics", key=None), 401, "unauthorized")
            check_error(await api.get("/metrics"), 401, "unauthorized")
            assert "weftline_runs_created_total" in samples((await api.get("/metrics", key=TOKEN)).body)
