"""Providers behind OAuth: tokens are refreshed in time, once, and shown to nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs

import msgspec
import pytest

from weftline import Agent, Engine, hook
from weftline.config import load_config
from weftline.errors import WeftlineError
from weftline.hooks import OAuthRefreshed
from weftline.messages import User
from weftline.net.errors import TimeLimits
from weftline.net.transport import Response
from weftline.providers.assemble import collect
from weftline.providers.base import ModelRequest, ProviderError
from weftline.providers.catalog import ResolvedModel
from weftline.testing.recordings import RecordedTransport, replay

JSON = "application/json"
CONFIG = """
[providers.claude]
family = "anthropic"
models = ["claude-sonnet-4-5"]
oauth = {token_url = "https://auth.example/token", client_id = "app", refresh_token = "env:REFRESH"}
"""
ANSWER = msgspec.json.encode(
    {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": "hi"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
)


class Stage:
    """An authorization server and a model API behind one transport. Tokens are `access-1`, `access-2`, …"""

    def __init__(self, *, expires_in: float = 3600, refusal: int | None = None, model_status: int = 200) -> None:
        self.expires_in = expires_in
        self.refusal = refusal
        self.model_status = model_status
        self.forms: list[dict[str, list[str]]] = []
        self.bearers: list[str] = []
        self.refreshing = asyncio.Event()

    @asynccontextmanager
    async def post(
        self, url: str, *, headers: Mapping[str, str], body: bytes, limits: TimeLimits
    ) -> AsyncGenerator[Response]:
        if url == "https://auth.example/token":
            self.forms.append(parse_qs(body.decode()))
            self.refreshing.set()
            number = len(self.forms)
            await asyncio.sleep(0)
            granted = {"access_token": f"access-{number}", "expires_in": self.expires_in}
            granted |= {"refresh_token": f"refresh-{number}"}
            answer = (self.refusal, JSON, b"{}") if self.refusal else (200, JSON, msgspec.json.encode(granted))
        else:
            self.bearers.append(headers["Authorization"])
            failed = b'{"error":{"type":"authentication_error","message":"bad ' + headers["Authorization"].encode()
            answer = (self.model_status, JSON, ANSWER if self.model_status == 200 else failed + b'"}}')
        async with RecordedTransport(replay(answer)).post(url, headers=headers, body=body, limits=limits) as response:
            yield response

    def get(self, url: str, *, headers: Mapping[str, str], limits: TimeLimits) -> AbstractAsyncContextManager[Response]:
        return self.post(url, headers=headers, body=b"", limits=limits)

    async def aclose(self) -> None: ...


def model(stage: Stage, tmp_path: Path, environ: dict[str, str] | None = None) -> ResolvedModel:
    path = tmp_path / "config.toml"
    path.write_text(CONFIG, encoding="utf-8")
    catalog = load_config(path).catalog(transport=stage, environ={"REFRESH": "r0"} if environ is None else environ)
    return catalog.resolve("claude:claude-sonnet-4-5")


async def ask(found: ResolvedModel) -> str:
    return (await collect(found.provider, ModelRequest(found.vendor_id, [User.of("hi")]))).text


@pytest.mark.requirement("provider.request.refresh")
async def test_token_is_fetched_once_for_concurrent_calls(tmp_path: Path) -> None:
    stage = Stage()
    claude = model(stage, tmp_path)
    assert await asyncio.gather(*(ask(claude) for _ in range(5))) == ["hi"] * 5
    assert await ask(claude) == "hi"
    assert stage.bearers == ["Bearer access-1"] * 6
    assert stage.forms == [{"grant_type": ["refresh_token"], "refresh_token": ["r0"], "client_id": ["app"]}]


@pytest.mark.requirement("provider.request.refresh")
async def test_expiring_token_is_refreshed_with_the_newest_refresh_token(tmp_path: Path) -> None:
    stage = Stage(expires_in=30)
    claude = model(stage, tmp_path)
    for _ in range(3):
        await ask(claude)
    assert stage.bearers == ["Bearer access-1", "Bearer access-2", "Bearer access-3"]
    assert [form["refresh_token"] for form in stage.forms] == [["r0"], ["refresh-1"], ["refresh-2"]]


@pytest.mark.requirement("provider.request.refresh")
async def test_failed_refresh_is_an_auth_error_for_all_who_waited(tmp_path: Path) -> None:
    stage = Stage(refusal=400)
    claude = model(stage, tmp_path)
    failures = await asyncio.gather(*(ask(claude) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(error, ProviderError) and error.cls == "auth" for error in failures)
    assert not any(isinstance(error, ProviderError) and error.retryable for error in failures)
    assert len(stage.forms) == 1 and stage.bearers == []
    stage.refusal = None
    assert await ask(claude) == "hi"


async def test_caller_that_gives_up_leaves_refresh_to_others(tmp_path: Path) -> None:
    stage = Stage()
    claude = model(stage, tmp_path)
    first, second = asyncio.create_task(ask(claude)), asyncio.create_task(ask(claude))
    await stage.refreshing.wait()
    first.cancel()
    assert await second == "hi" and len(stage.forms) == 1
    assert (await asyncio.gather(first, return_exceptions=True))[0].__class__ is asyncio.CancelledError


@pytest.mark.requirement("provider.request.key_secrecy")
async def test_a_token_that_the_api_repeats_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(ProviderError) as failure:
        await ask(model(Stage(model_status=401), tmp_path))
    assert failure.value.cls == "auth" and "access-1" not in failure.value.message
    assert "[redacted]" in failure.value.message


async def test_refresh_token_that_is_not_there_makes_provider_unavailable(tmp_path: Path) -> None:
    with pytest.raises(WeftlineError) as refused:
        model(Stage(), tmp_path, {})
    assert refused.value.code == "invalid_model"


@pytest.mark.parametrize(
    "setting",
    [
        'api_key = "k"\noauth = {token_url = "https://a/t", refresh_token = "r"}',
        'oauth = {token_url = "ftp://a/t", refresh_token = "r"}',
        'oauth = {token_url = "https://a/t"}',
        'oauth = {token_url = "https://a/t", refresh_token = "r", scope = "x"}',
    ],
)
def test_oauth_settings_that_cannot_work_are_refused(setting: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f'[providers.x]\nfamily = "anthropic"\n{setting}\n', encoding="utf-8")
    with pytest.raises(WeftlineError) as refused:
        load_config(path)
    assert refused.value.code == "bad_config" and "providers.x.oauth" in refused.value.message


@pytest.mark.requirement("loop.turn.stream_hooks")
async def test_oauth_provider_reports_only_new_tokens(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(CONFIG, encoding="utf-8")
    models = load_config(path).catalog(transport=Stage(), environ={"REFRESH": "r0"})
    providers: list[str] = []

    @hook(OAuthRefreshed)
    async def watch(point: OAuthRefreshed) -> None:
        providers.append(point.provider)

    agent = Agent("claude:claude-sonnet-4-5", hooks=[watch])
    async with Engine(models=models) as engine:
        for _ in range(2):
            assert (await agent.run("Hi.", engine=engine)).text == "hi"
    assert providers == ["anthropic"]
