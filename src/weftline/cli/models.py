"""`weftline models`."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weftline.cli.output import DB, Form, list_forms, show_list
from weftline.cli.terminal import is_terminal

if TYPE_CHECKING:
    from weftline.config import Config
    from weftline.net.transport import AiohttpTransport
    from weftline.providers.base import ModelInfo
    from weftline.providers.catalog import Catalog, Entry


@click.command()
@click.option("--config", type=click.Path(path_type=Path), help="Configuration (TOML) as for `serve`.")
@click.option("--scripts", envvar="WEFTLINE_SCRIPTS", type=click.Path(path_type=Path), help="Scripted models (JSON).")
@DB
@click.option("--workspace", metavar="SLUG", help="The workspace whose models to list, including its own providers.")
@click.option("--of", "provider", metavar="PROVIDER", help="Ask this provider's API for all of its models instead.")
@click.option("--search", default="", metavar="TEXT", help="With --of: only models whose id or label contains this.")
@list_forms
def command(
    config: Path | None,
    scripts: Path | None,
    db: Path,
    workspace: str | None,
    provider: str | None,
    search: str,
    form: Form,
) -> None:
    """List the models that runs can use, and the providers that are not available, with the reason.

    Reads the same configuration and environment as `serve`. The store is read only for --workspace. Without --of no
    provider is contacted.
    """
    import asyncio

    from weftline.providers.pricing import unused_price

    if provider is not None:
        _print_upstream(asyncio.run(_upstream(config, db, workspace, provider, search)), form)
        return
    catalog = asyncio.run(_catalog(_settings(config), scripts, db, workspace))
    if form == "json":
        click.echo(json.dumps(_to_json(catalog), indent=2))
    else:
        _print(catalog, form)
    for override in catalog.unused_prices():
        click.echo(f"Warning: {unused_price(override)}", err=True)
    catalog.check_default()  # last, after what is available and missing was printed


async def _upstream(config: Path | None, db: Path, workspace: str | None, name: str, search: str) -> list[ModelInfo]:
    from weftline.net.egress import egress_from
    from weftline.net.transport import AiohttpTransport
    from weftline.providers.base import ProviderError
    from weftline.providers.listing import every_model

    settings = _settings(config)
    transport = AiohttpTransport()
    # Addresses from a workspace are treated as on the server.
    tenants = AiohttpTransport(check=egress_from(settings.server, origin=settings.path).check)
    try:
        catalog = await _catalog(settings, None, db, workspace, transport=transport, tenants=tenants)
        return [model async for model in every_model(catalog.lister(name), search=search)]
    except ProviderError as error:
        raise click.ClickException(f"{name}: {error.message}") from None
    finally:
        await transport.aclose()
        await tenants.aclose()


def _print_upstream(models: list[ModelInfo], form: Form) -> None:
    import msgspec

    if form == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(models), indent=2).decode())
        return
    rows = (
        {
            "MODEL": model.vendor_id,
            "LABEL": model.label,
            "CONTEXT": _number(model.context_window_tokens),
            "OUTPUT": _number(model.max_output_tokens),
            "CAN": _abilities(model),
        }
        for model in models
    )
    show_list(rows, form, id_field="MODEL", columns=dict)


def _settings(path: Path | None) -> Config:
    from weftline.config import Config, load_config

    return load_config(path) if path is not None else Config()


async def _catalog(
    settings: Config,
    scripts: Path | None,
    db: Path,
    workspace: str | None,
    *,
    transport: AiohttpTransport | None = None,
    tenants: AiohttpTransport | None = None,
) -> Catalog:
    from weftline.net.transport import AiohttpTransport
    from weftline.providers.scripted import ScriptedProvider
    from weftline.providers.scripts import load_scripts
    from weftline.providers.workspace import WorkspaceCatalogs

    scripted = ScriptedProvider(load_scripts(scripts)) if scripts is not None else None
    # Does not open anything.
    base = settings.catalog(transport=transport or AiohttpTransport(), scripted=scripted, check_default=False)
    if workspace is None:
        return base
    from weftline.runtime.clock import SystemClock
    from weftline.store import open_for_reading
    from weftline.workspace.context import Workspaces
    from weftline.workspace.providers import own_providers
    from weftline.workspace.workspaces import find

    store = open_for_reading(db)
    try:
        at = Workspaces(store.records, store.vault, SystemClock())
        catalogs = WorkspaceCatalogs(base, own=partial(own_providers, at), transport=tenants or AiohttpTransport())
        return await catalogs.load(await find(at, workspace))
    finally:
        await store.close()


def _to_json(catalog: Catalog) -> dict[str, Any]:
    return {
        "models": [_model(entry, catalog) for entry in catalog.entries()],
        "defaultModelId": catalog.default_id,
        "unavailable": [
            {"name": one.name, "family": one.family, "reason": one.reason} for one in catalog.unavailable()
        ],
    }


def _model(entry: Entry, catalog: Catalog) -> dict[str, Any]:
    price = catalog.price(entry)
    return {
        "id": entry.id,
        "label": entry.label,
        "provider": entry.provider,
        "vendorModelId": entry.vendor_model_id,
        "source": entry.source,
        "contextWindowTokens": entry.context_window_tokens,
        "maxOutputTokens": entry.max_output_tokens,
        "capabilities": {"vision": entry.vision, "reasoning": entry.reasoning, "tools": entry.tools},
        "pricing": None
        if price is None
        else {
            "inputPer1MUsd": price.input_per_1m_usd,
            "outputPer1MUsd": price.output_per_1m_usd,
            "cacheReadPer1MUsd": price.cache_read_per_1m_usd,
            "cacheWritePer1MUsd": price.cache_write_per_1m_usd,
        },
    }


def _print(catalog: Catalog, form: Form) -> None:
    def columns(one: dict[str, Any]) -> dict[str, str]:
        entry: Entry = one["entry"]
        price = catalog.price(entry)
        return {
            "MODEL": entry.id,
            "CONTEXT": _number(entry.context_window_tokens),
            "OUTPUT": _number(entry.max_output_tokens),
            "CAN": _abilities(entry),
            "$/1M IN": _number(price.input_per_1m_usd if price else None),
            "$/1M OUT": _number(price.output_per_1m_usd if price else None),
            "SOURCE": f"{entry.source}, default" if entry.id == catalog.default_id else entry.source,
        }

    show_list(({"id": entry.id, "entry": entry} for entry in catalog.entries()), form, columns=columns)
    if form == "columns":
        for one in catalog.unavailable():
            click.echo(f"not available: {one.name} ({one.family}): {one.reason}", err=not is_terminal())


def _abilities(model: Entry | ModelInfo) -> str:
    return " ".join(name for name in ("vision", "reasoning", "tools") if getattr(model, name)) or "-"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:g}"
