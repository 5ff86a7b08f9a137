"""The catalog, and how a run finds its model."""

from __future__ import annotations

import pytest

from .kit import Api, check_error


@pytest.mark.requirement("wire.models.list")
async def test_the_catalog_lists_every_script_with_all_fields(api: Api) -> None:
    catalog = (await api.get("models")).json
    assert set(catalog) == {"models", "defaultModelId"}
    assert catalog["defaultModelId"] is None or isinstance(catalog["defaultModelId"], str)
    entries = {entry["id"]: entry for entry in catalog["models"]}
    entry = entries["scripted:hello"]
    expected = {
        "id": "scripted:hello",
        "label": "hello",
        "provider": "scripted",
        "vendorModelId": "hello",
        "source": "workspace_provider",
        "contextWindowTokens": None,
        "pricing": None,
        "capabilities": {"reasoning": True, "tools": True},
    }
    assert {field: entry[field] for field in expected} == expected


@pytest.mark.requirement("wire.models.invalid")
async def test_unknown_model_is_refused_when_run_or_session_is_created(api: Api) -> None:
    for path, spec in (("agent-runs", {"prompt": "hi"}), ("agent-sessions", {})):
        body = check_error(await api.post(path, {"modelId": "scripted:nobody", **spec}), 400, "invalid_model")
        assert "scripted:hello" in body["candidates"]
        assert all(isinstance(candidate, str) for candidate in body["candidates"])
