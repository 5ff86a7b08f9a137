"""The configuration file: providers, the default model, prices and server settings.

    default_model = "claude:claude-sonnet-4-5"

    [providers.claude]
    family = "anthropic"
    api_key = "env:ANTHROPIC_API_KEY"
    models = ["claude-sonnet-4-5", {id = "claude-opus-4-5", label = "Opus"}]

Without a file, or with one that names no providers, the usual environment variables decide which providers exist.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from weftline.errors import WeftlineError
from weftline.net.transport import Transport
from weftline.providers.base import ModelInfo, Provider
from weftline.providers.catalog import Catalog, build_catalog, usual_providers
from weftline.providers.families import SETTINGS, ProviderSettings, bad_setting, known_families
from weftline.providers.oauth import OAuthSettings
from weftline.providers.openai.profiles import PROFILES
from weftline.providers.pricing import Price, PriceOverride, Prices
from weftline.providers.throttle import DEFAULT_CONCURRENCY
from weftline.text.suggestions import did_you_mean

Table: TypeAlias = Mapping[str, Any]
T = TypeVar("T", bound=Struct)

_TOP = ("default_model", "providers", "prices", "server")
_SOURCES = ("workspace_provider", "platform_offering")
_RESERVED = ("platform", "provider", "scripted")
_FAMILY_KEYS: dict[str, tuple[str, ...]] = {
    "bedrock": ("AWS_BEARER_TOKEN_BEDROCK",),
    "anthropic": ("ANTHROPIC_API_KEY",),
    "google": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    "openai_responses": ("OPENAI_API_KEY",),
}


_FAMILY_ADDRESSES = {
    "anthropic": "ANTHROPIC_BASE_URL",
    "google": "GOOGLE_GEMINI_BASE_URL",
    "openai_chat": "OPENAI_BASE_URL",
    "openai_responses": "OPENAI_BASE_URL",
}
"""The variables in which the vendors' own libraries look for another address."""


class Config(Struct, frozen=True, kw_only=True):
    """The checked contents of a configuration file."""

    path: str = ""
    default_model: str | None = None
    providers: tuple[ProviderSettings, ...] = ()
    prices: tuple[PriceOverride, ...] = ()
    server: dict[str, Any] = {}

    def catalog(
        self,
        *,
        transport: Transport,
        scripted: Provider | None = None,
        environ: Mapping[str, str] | None = None,
        check_default: bool = True,
    ) -> Catalog:
        """Returns the catalog of these providers, or of the usual ones if none are configured.

        Raises `WeftlineError` for invalid settings; with `check_default`, also for an unavailable default model.
        """
        return build_catalog(
            self.providers or usual_providers(),
            transport=transport,
            default_model=self.default_model,
            prices=Prices(self.prices),
            scripted=scripted,
            environ=environ,
            check_default=check_default,
        )


def load_config(path: Path | str) -> Config:
    """Reads a TOML file. Raises `WeftlineError` (`bad_config`) that names the file and the setting at fault."""
    origin = str(path)
    try:
        document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise WeftlineError(f"{origin}: {error.strerror}", code="bad_config", file=origin) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise WeftlineError(f"{origin}: {error}", code="bad_config", file=origin) from None
    return _Reader(origin).config(document)


def provider_settings(name: str, table: Table) -> ProviderSettings:
    """Returns one provider from a table of the configuration file. Raises `WeftlineError` (`bad_config`)."""
    return _Reader("").provider(name, table)


def _or_gateway(settings: ProviderSettings) -> ProviderSettings:
    """Applies the environment's address to a provider without one. File and environment both belong to the operator."""
    if settings.base_url is not None or settings.options.get("profile", "openai") != "openai":
        return settings
    return replace(settings, base_url_env=_FAMILY_ADDRESSES.get(settings.family, ""))


class _Reader:
    def __init__(self, origin: str) -> None:
        self._origin = origin

    def config(self, document: Table) -> Config:
        for key in document:
            if key not in _TOP:
                raise self._bad(key, f"is not a setting; use one of {', '.join(_TOP)}.{did_you_mean(key, _TOP)}")
        providers = self._table(document, "providers", "providers")
        prices = document.get("prices", [])
        if not isinstance(prices, list):
            raise self._bad("prices", "must be a list of tables ([[prices]])")
        rows = enumerate(cast("list[Any]", prices))
        return Config(
            path=self._origin,
            default_model=self._text(document, "default_model", "default_model"),
            providers=tuple(_or_gateway(self.provider(name, value)) for name, value in providers.items()),
            prices=tuple(self._price(f"prices[{index}]", row) for index, row in rows),
            server=dict(self._table(document, "server", "server")),
        )

    def provider(self, name: str, value: Any) -> ProviderSettings:
        at = f"providers.{name}"
        if not name or ":" in name or name in _RESERVED:
            raise self._bad(at, "is not a name for a provider: it may not be empty, reserved or contain a colon")
        if not isinstance(value, dict):
            raise self._bad(at, "must be a table")
        table = dict(cast("dict[str, Any]", value))
        family = self._text(table, "family", f"{at}.family")
        families = ", ".join(known_families())
        if family is None:
            raise self._bad(f"{at}.family", f"is missing; use one of {families}")
        if family not in known_families():
            raise self._bad(f"{at}.family", f"{family!r} is not a family; use one of {families}")
        base_url = self._text(table, "base_url", f"{at}.base_url")
        if base_url is not None and not _is_http(base_url):
            raise self._bad(f"{at}.base_url", "must be an http or https address")
        api_key = self._text(table, "api_key", f"{at}.api_key")
        if api_key in ("", "env:"):
            raise self._bad(f"{at}.api_key", "is empty; give the key or env:NAME")
        source = table.get("source", "workspace_provider")
        if source not in _SOURCES:
            raise self._bad(f"{at}.source", f"must be one of {', '.join(_SOURCES)}")
        options = {key: item for key, item in table.items() if key not in SETTINGS}
        if family == "openai_chat" and base_url is not None and "profile" not in options:
            # A self-hosted server is not OpenAI: its quirks, key and prices do not apply.
            options["profile"] = "compatible"
        if options.get("profile") == "compatible":
            options.setdefault("name", name)
        key_env, keyless = self._key_source(f"{at}.profile", family, base_url, options)
        return ProviderSettings(
            name=name,
            family=family,
            base_url=base_url,
            api_key=api_key,
            key_env=key_env,
            keyless=keyless,
            oauth=self._oauth(table, at, api_key),
            models=self._models(f"{at}.models", table.get("models", [])),
            any_model=self._flag(table, "any_model", f"{at}.any_model"),
            source=source,
            max_concurrency=self._count(table, "max_concurrency", at) or DEFAULT_CONCURRENCY,
            tokens_per_minute=self._count(table, "tokens_per_minute", at),
            options=options,
            origin=self._origin,
        )

    def _oauth(self, table: Table, at: str, api_key: str | None) -> OAuthSettings | None:
        if "oauth" not in table:
            return None
        settings = self._converted(f"{at}.oauth", self._table(table, "oauth", f"{at}.oauth"), OAuthSettings)
        if api_key is not None:
            raise self._bad(f"{at}.oauth", "and api_key cannot be combined")
        if not _is_http(settings.token_url):
            raise self._bad(f"{at}.oauth.token_url", "must be an http or https address")
        return settings

    def _key_source(self, at: str, family: str, base_url: str | None, options: Table) -> tuple[tuple[str, ...], bool]:
        """Returns where the key comes from if none is given, and whether the provider works without one.

        A custom address never gets a key from the environment unless asked to: that key belongs to another service.
        """
        if family not in ("openai_chat", "openai_responses"):
            return (() if base_url else _FAMILY_KEYS.get(family, ())), base_url is not None
        profile = PROFILES.get(options.get("profile", "openai"))
        if profile is None:
            raise self._bad(at, f"is not a profile; use one of {', '.join(PROFILES)}")
        address = base_url or profile.base_url
        if address is None:
            raise self._bad(at.replace(".profile", ".base_url"), f"is missing; the profile {profile.name!r} needs it")
        local = urlsplit(address).hostname in ("localhost", "127.0.0.1", "::1")
        names = () if base_url or profile.key_env is None else (profile.key_env,)
        return names, base_url is not None or local

    def _models(self, at: str, value: Any) -> tuple[ModelInfo, ...]:
        if not isinstance(value, list):
            raise self._bad(at, "must be a list of ids or of tables")
        models: list[ModelInfo] = []
        for index, item in enumerate(cast("list[Any]", value)):
            if isinstance(item, str) and item:
                models.append(ModelInfo(item))
                continue
            here = f"{at}[{index}]"
            if not isinstance(item, dict) or not isinstance(cast("Table", item).get("id"), str):
                raise self._bad(here, "must be an id or a table with an id")
            fields = dict(cast("dict[str, Any]", item))
            fields["vendor_id"] = fields.pop("id")
            models.append(self._converted(here, fields, ModelInfo))
        return tuple(models)

    def _price(self, at: str, value: Any) -> PriceOverride:
        if not isinstance(value, dict):
            raise self._bad(at, "must be a table")
        fields = dict(cast("dict[str, Any]", value))
        names: list[str] = []
        for key in ("provider", "model"):
            name = self._text(fields, key, f"{at}.{key}")
            if not name:
                raise self._bad(f"{at}.{key}", "is missing")
            names.append(name)
            del fields[key]
        price = self._converted(at, fields, Price)
        for key in fields:
            if getattr(price, key) < 0:
                raise self._bad(f"{at}.{key}", "must be 0 or more")
        return PriceOverride(names[0], names[1], price)

    def _converted(self, at: str, fields: Table, kind: type[T]) -> T:
        allowed = {field.name for field in msgspec.structs.fields(kind)}
        for key in fields:
            if key not in allowed:
                choices = f"use one of {', '.join(sorted(allowed))}.{did_you_mean(key, allowed)}"
                raise self._bad(f"{at}.{key}", f"is not a setting; {choices}")
        try:
            return msgspec.convert(fields, kind)
        except msgspec.ValidationError as error:
            raise self._bad(at, str(error)) from None

    def _table(self, table: Table, key: str, at: str) -> Table:
        value = table.get(key, {})
        if not isinstance(value, dict):
            raise self._bad(at, "must be a table")
        return cast("Table", value)

    def _text(self, table: Table, key: str, at: str) -> str | None:
        value = table.get(key)
        if value is not None and not isinstance(value, str):
            raise self._bad(at, "must be text")
        return value

    def _count(self, table: Table, key: str, at: str) -> int | None:
        value = table.get(key)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self._bad(f"{at}.{key}", "must be a whole number above 0")
        return value

    def _flag(self, table: Table, key: str, at: str) -> bool | None:
        value = table.get(key)
        if value is not None and not isinstance(value, bool):
            raise self._bad(at, "must be true or false")
        return value

    def _bad(self, key: str, problem: str) -> WeftlineError:
        return bad_setting(self._origin, key, problem)


def _is_http(address: str) -> bool:
    try:
        return urlsplit(address).scheme in ("http", "https")
    except ValueError:  # an unbalanced bracket, or a lookalike character
        return False
