"""Providers that a workspace brings: their secrets never follow them to another address."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from weftline.cases import providers
from weftline.cases.providers import ProviderChanges
from weftline.errors import Conflict, InvalidRequest, NotFound
from weftline.store.records import providers as rows
from weftline.store.sealing import Vault
from weftline.workspace.context import Change, Workspaces
from weftline.workspace.providers import OfferedModel, ProviderSecrets, ProviderSpec, own_providers, spec_of

SPEC = ProviderSpec(
    family="openai_chat",
    base_url="https://api.example/v1",
    models=("small", OfferedModel("large", vision=None, max_output_tokens=64)),
)
SECRETS = ProviderSecrets("sk-1", {"X-Org": "acme"})


async def test_a_stored_provider_is_ready_to_be_built(at: Workspaces, acme: int, changes: list[Change]) -> None:
    row = await providers.add(at, acme, "mine", SPEC, SECRETS)
    assert spec_of(row) == replace(SPEC, has_api_key=True, header_names=("X-Org",))
    assert b"sk-1" not in row.spec + (row.secrets or b"")
    (own,) = await own_providers(at, acme)
    assert (own.id, own.version, own.problem) == (row.id, 1, "")
    assert own.settings.name == "mine" and own.settings.api_key == "sk-1"
    assert own.settings.options["headers"] == {"X-Org": "acme"}
    assert [model.vendor_id for model in own.settings.models] == ["small", "large"]
    await providers.amend(at, acme, "mine", ProviderChanges(any_model=True))
    (own,) = await own_providers(at, acme)
    assert own.version == 2 and own.settings.any_model is True and own.settings.api_key == "sk-1"
    assert await providers.remove(at, acme, "mine") == row.id
    assert changes == [Change("providers", acme)] * 3


async def test_another_address_asks_for_the_secrets_again(at: Workspaces, acme: int) -> None:
    row = await providers.add(at, acme, "mine", SPEC, SECRETS)
    for moved in (
        ProviderChanges(base_url="https://evil.example"),
        ProviderChanges(base_url="https://evil.example", api_key="sk-2"),
        ProviderChanges(family="openai_responses", headers={}),
    ):
        with pytest.raises(InvalidRequest) as refused:
            await providers.amend(at, acme, row.id, moved)
        assert {issue["path"] for issue in refused.value.details["issues"]} <= {"api_key", "headers"}
    sent = ProviderChanges(base_url="https://proxy.example", api_key="sk-2", headers={})
    changed = await providers.amend(at, acme, row.id, sent)
    assert spec_of(changed).base_url == "https://proxy.example" and spec_of(changed).header_names == ()


async def test_unworkable_settings_are_refused_at_their_field(at: Workspaces, acme: int) -> None:
    wrong = {
        "family": (replace(SPEC, family="nonsense"), SECRETS),
        "api_key": (ProviderSpec(family="anthropic"), ProviderSecrets()),
        "options.transport": (replace(SPEC, options={"transport": 1}), SECRETS),
        "base_url": (replace(SPEC, base_url="nowhere"), SECRETS),
        "headers.Host": (SPEC, replace(SECRETS, headers={"Host": "other.example"})),
    }
    for field, (spec, values) in wrong.items():
        with pytest.raises(InvalidRequest) as refused:
            await providers.add(at, acme, "mine", spec, values)
        assert [issue["path"] for issue in refused.value.details["issues"]] == [field]
    with pytest.raises(InvalidRequest):
        await providers.add(at, acme, "mine", SPEC, ProviderSecrets("env:OPENAI_API_KEY"))
    assert (await at.records.read(rows.page(workspace=acme, after=0, limit=9))).rows == []


async def test_a_provider_whose_key_cannot_be_read_says_so(at: Workspaces, acme: int, tmp_path: Path) -> None:
    await providers.add(at, acme, "mine", SPEC, SECRETS)
    elsewhere = Workspaces(at.records, Vault(tmp_path, environ={}), at.clock)
    (own,) = await own_providers(elsewhere, acme)
    assert own.problem and own.settings.api_key is None


async def test_a_name_is_had_once_in_a_workspace(at: Workspaces, acme: int, globex: int) -> None:
    await providers.add(at, acme, "mine", SPEC, SECRETS)
    other = await providers.add(at, acme, "other", SPEC, SECRETS)
    await providers.add(at, globex, "mine", SPEC, SECRETS)
    with pytest.raises(Conflict):
        await providers.add(at, acme, "mine", SPEC, SECRETS)
    with pytest.raises(Conflict):
        await providers.amend(at, acme, other.id, ProviderChanges(name="mine"))
    with pytest.raises(NotFound):
        await providers.find(at, globex, "other")


async def test_a_workspace_has_so_many_providers_and_models(
    at: Workspaces, acme: int, globex: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(providers, "MAX_PER_WORKSPACE", 3)
    monkeypatch.setattr(providers, "MAX_MODELS_PER_WORKSPACE", 4)
    for name in ("one", "two"):
        await providers.add(at, acme, name, SPEC, SECRETS)
    with pytest.raises(InvalidRequest, match="at most 4 models together"):
        await providers.add(at, acme, "three", SPEC, SECRETS)
    await providers.add(at, acme, "three", replace(SPEC, models=(), any_model=True), SECRETS)
    with pytest.raises(InvalidRequest, match="at most 4 models together"):
        await providers.amend(at, acme, "three", ProviderChanges(models=("small",)))
    await providers.amend(at, acme, "one", ProviderChanges(models=("other",)))
    await providers.amend(at, acme, "three", ProviderChanges(models=("small",)))
    with pytest.raises(InvalidRequest, match="at most 3 providers"):
        await providers.add(at, acme, "four", replace(SPEC, models=(), any_model=True), SECRETS)
    await providers.add(at, globex, "one", SPEC, SECRETS)
    page = await at.records.read(rows.page(workspace=acme, after=0, limit=2))
    assert [row.name for row in page.rows] == ["one", "two"] and page.more_after == page.rows[-1].key
