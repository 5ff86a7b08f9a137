"""Prices: overrides first, then the price table, and None for what nobody knows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from weftline.config import load_config
from weftline.messages import Usage
from weftline.providers.catalog import Catalog
from weftline.providers.openai.chat import OpenAIChat
from weftline.providers.pricing import Price, PriceOverride, Prices
from weftline.runtime.clock import SystemClock
from weftline.server.starting import advise
from weftline.store import open_store
from weftline.testing.recordings import RecordedTransport
from weftline.workspace.context import Workspaces

USAGE = Usage(input=1_000_000, cached=400_000, cache_write=100_000, output=200_000, reasoning=50_000)


def test_cached_and_written_tokens_have_their_own_price() -> None:
    price = Price(input_per_1m_usd=2.0, output_per_1m_usd=10.0, cache_read_per_1m_usd=0.5, cache_write_per_1m_usd=2.5)
    assert price.cost_usd(USAGE) == pytest.approx(0.5 * 2 + 0.4 * 0.5 + 0.1 * 2.5 + 0.2 * 10)
    plain = Price(input_per_1m_usd=2.0, output_per_1m_usd=10.0)
    assert plain.cost_usd(USAGE) == pytest.approx(1.0 * 2 + 0.2 * 10)


def test_price_that_usage_needs_and_nobody_knows_makes_cost_unknown() -> None:
    assert Price(input_per_1m_usd=2.0).cost_usd(USAGE) is None
    assert Price(input_per_1m_usd=2.0).cost_usd(Usage(input=10)) == pytest.approx(0.00002)


def test_override_comes_before_table_and_price_of_zero_is_price() -> None:
    free = Price(input_per_1m_usd=0.0, output_per_1m_usd=0.0)
    prices = Prices([PriceOverride("Google", "gemini-2.5-pro", free)])
    assert prices.price(provider="google", model="gemini-2.5-pro") == free
    assert prices.cost_usd(USAGE, provider="google", model="gemini-2.5-pro") == 0.0
    other = prices.cost_usd(USAGE, provider="google", model="gemini-2.5-flash")
    assert other is not None
    assert other > 0


@pytest.mark.parametrize(
    ("provider", "model"),
    [
        ("anthropic", "claude-sonnet-4-5"),
        ("openai", "gpt-5"),
        ("google", "gemini-2.5-pro"),
        ("xai", "grok-4"),
        ("groq", "openai/gpt-oss-120b"),
    ],
)
def test_the_usual_providers_have_prices(provider: str, model: str) -> None:
    prices = Prices()
    price = prices.price(provider=provider, model=model)
    assert price is not None
    assert price.input_per_1m_usd
    assert price.output_per_1m_usd
    small = Usage(input=1_000, cached=400, output=100)
    assert prices.cost_usd(small, provider=provider, model=model) == pytest.approx(price.cost_usd(small))


def test_a_long_prompt_costs_what_its_tier_costs() -> None:
    prices = Prices()
    listed = prices.price(provider="google", model="gemini-2.5-pro")
    assert listed is not None
    lowest = listed.cost_usd(Usage(input=1_000_000))
    cost = prices.cost_usd(Usage(input=1_000_000), provider="google", model="gemini-2.5-pro")
    assert lowest is not None
    assert cost is not None
    assert cost > lowest


@pytest.mark.parametrize(
    ("provider", "model"),
    [("google", "no-such-model-1"), ("lab", "gemini-2.5-pro"), ("scripted", "hello"), ("google", "")],
)
def test_unknown_model_has_no_price_and_no_cost(provider: str, model: str) -> None:
    assert Prices().price(provider=provider, model=model) is None
    assert Prices().cost_usd(USAGE, provider=provider, model=model) is None


async def test_the_table_can_be_loaded_ahead() -> None:
    catalog = Catalog()
    catalog.add(OpenAIChat(profile="groq", api_key="k"))
    await catalog.preload()
    assert "genai_prices.data" in sys.modules


def test_missing_extra_leaves_only_overrides() -> None:
    code = """
import sys
from weftline.messages import Usage
from weftline.providers.catalog import Catalog
from weftline.providers.openai.chat import OpenAIChat
from weftline.providers.pricing import Price, PriceOverride, Prices
from weftline.runtime.clock import SystemClock
from weftline.server.starting import advise
from weftline.store import open_store
from weftline.testing.recordings import RecordedTransport
from weftline.workspace.context import Workspaces
assert not any(name.partition(".")[0] in ("genai_prices", "httpx", "httpx2", "pydantic") for name in sys.modules)
import asyncio
from weftline.providers.catalog import Catalog
from weftline.providers.scripted import ScriptedProvider, parse_scripts
catalog = Catalog()
catalog.add(ScriptedProvider(parse_scripts(b'{"hello": {"turns": [{"text": "x"}]}}')))
asyncio.run(catalog.preload())  # a script has no price
assert "genai_prices" not in sys.modules
sys.modules["genai_prices"] = None
prices = Prices([PriceOverride("lab", "m", Price(input_per_1m_usd=1.0))])
assert prices.price(provider="openai", model="gpt-5") is None
assert prices.cost_usd(Usage(input=5), provider="openai", model="gpt-5") is None
assert prices.cost_usd(Usage(input=1_000_000), provider="lab", model="m") == 1.0
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("priced", [True, False])
async def test_start_complains_about_unknown_prices_only_if_there_are_some(
    priced: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for module in ("genai_prices", "genai_prices.data_snapshot"):
        monkeypatch.setitem(sys.modules, module, None)  # as if the extra were not installed
    price = '[[prices]]\nprovider = "lab"\nmodel = "llama"\ninput_per_1m_usd = 0.2\noutput_per_1m_usd = 0.4\n'
    config = tmp_path / "weftline.toml"
    lab = '[providers.lab]\nfamily = "openai_chat"\nbase_url = "http://lab.test/v1"\nmodels = ["llama"]\n'
    config.write_text(lab + (price if priced else ""))
    models = load_config(config).catalog(transport=RecordedTransport([]))
    store = open_store(tmp_path / "store")
    caplog.set_level("INFO")
    await advise(Workspaces(store.records, store.vault, SystemClock()), db=tmp_path, models=models)
    await store.close()
    assert ("lab:llama" in caplog.text) is not priced
    assert ("not known" in caplog.text) is not priced
