"""The model families by name, and how a provider is built from its settings.

A new family needs one module with a class and one line in `FAMILIES`; a separate package registers one under the
entry point group `weftline.providers` instead. The class takes keyword arguments, among them `transport`, `base_url`,
`api_key` and `models`; any others can be set as options.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Final, Literal, TypeAlias, cast
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from weftline.errors import Issue, WeftlineError
from weftline.net.address import at_path, with_query
from weftline.net.errors import TimeLimits
from weftline.net.transport import Transport
from weftline.plugins import entry_points
from weftline.providers.base import ModelInfo, Provider
from weftline.providers.oauth import OAuthSettings, OAuthTransport
from weftline.providers.offers import streaming
from weftline.providers.throttle import DEFAULT_CONCURRENCY, Throttle, ThrottledProvider
from weftline.text.suggestions import did_you_mean

FAMILIES: dict[str, str] = {
    "anthropic": "weftline.providers.anthropic.provider:Anthropic",
    "bedrock": "weftline.providers.anthropic.bedrock:Bedrock",
    "google": "weftline.providers.google.provider:Google",
    "openai_chat": "weftline.providers.openai.chat:OpenAIChat",
    "openai_responses": "weftline.providers.openai.responses:OpenAIResponses",
}
GROUP: Final = "weftline.providers"
SETTINGS: Final = frozenset(
    {
        "family",
        "base_url",
        "api_key",
        "oauth",
        "models",
        "any_model",
        "source",
        "max_concurrency",
        "tokens_per_minute",
    }
)
"""Settings that every family has; any other is an option of its class."""

_VERSION = re.compile(r"/v\d\w*$")

Source: TypeAlias = Literal["workspace_provider", "platform_offering"]


class ProviderSettings(Struct, frozen=True, kw_only=True):
    """One provider as it is configured. Its name is the prefix of its models' ids in the catalog.

    `api_key` is the key itself or `env:NAME`; without it the variables in `key_env` are looked at in order. A provider
    with `keyless` works without any.
    """

    name: str
    family: str
    base_url: str | None = None
    api_key: str | None = None
    key_env: tuple[str, ...] = ()
    base_url_env: str = ""
    """The variable with the address if `base_url` is not set, as the vendor's own library uses."""
    keyless: bool = False
    oauth: OAuthSettings | None = None
    """An access token that is refreshed, instead of a key."""
    models: tuple[ModelInfo, ...] = ()
    any_model: bool | None = None
    """Whether ids that are not listed are accepted; None: when no models are listed."""
    source: Source = "workspace_provider"
    max_concurrency: int = DEFAULT_CONCURRENCY
    """Concurrent calls. The number drops automatically when the provider refuses calls, and grows again."""
    tokens_per_minute: int | None = None
    options: dict[str, Any] = {}
    """Further arguments of the family's class."""
    origin: str = ""
    """The file that these settings come from, for messages."""

    def __repr__(self) -> str:
        return f"ProviderSettings(name={self.name!r}, family={self.family!r}, base_url={self.base_url!r})"


class NotAvailable(Exception):
    """A provider cannot be used; the message says why and contains no secret."""


def build_provider(settings: ProviderSettings, *, transport: Transport, environ: Mapping[str, str]) -> Provider:
    """Builds a provider.

    Raises `NotAvailable` if a key or package is missing, `WeftlineError` (`bad_config`) if settings are wrong.
    """
    if not settings.origin:
        _key(settings, environ)  # the settings are our own: without a key there is no need to load the family
    family = _family(settings)
    accepted = inspect.signature(family).parameters
    options = dict(settings.options)
    arguments: dict[str, Any] = {}
    if "limits" in accepted:
        arguments["limits"] = _limits(settings, options)
    if settings.family == "bedrock" and settings.api_key is None and settings.base_url is None:
        region = options.get("region") or environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
        if not region and not settings.origin:
            raise NotAvailable("The environment variable AWS_REGION is not set.")
        options["region"] = region
    # Before the key is looked up: without a key the provider is only unavailable, and mistakes would go unnoticed.
    _require_known(settings, options, accepted)
    if settings.oauth is not None:
        transport = OAuthTransport(transport, _oauth(settings.oauth, environ))
    arguments |= {
        "transport": transport,
        "api_key": _key(settings, environ),
        "base_url": _address(settings, environ),
        "models": settings.models,
        **options,
    }
    try:
        throttle = Throttle(settings.max_concurrency, tokens_per_minute=settings.tokens_per_minute)
        return ThrottledProvider(streaming(family(**arguments)), throttle)
    except (TypeError, ValueError) as error:
        raise bad_setting(settings.origin, f"providers.{settings.name}", str(error)) from None


def _require_known(
    settings: ProviderSettings, options: Mapping[str, Any], accepted: Mapping[str, inspect.Parameter]
) -> None:
    """Raises `WeftlineError` (`bad_config`) for an option that the family does not have, with the nearest setting."""
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values()):
        return
    known = accepted.keys() - {"transport", "limits"}
    for option in options:
        if option not in known:
            near = did_you_mean(option, sorted({*known, *SETTINGS, *(TIME_OPTIONS if "limits" in accepted else ())}))
            problem = f"is not an option of the family {settings.family!r}.{near}"
            raise bad_setting(settings.origin, f"providers.{settings.name}.{option}", problem)


_AWS_KEYS: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
TIME_OPTIONS: Final = {
    "timeout_s": "total_s",
    "connect_timeout_s": "connect_s",
    "first_byte_timeout_s": "first_byte_s",
    "idle_timeout_s": "idle_s",
}
"""The options that all our families have, and the limits that they set."""


def _limits(settings: ProviderSettings, options: dict[str, Any]) -> TimeLimits:
    """Removes the time limits from the options and returns them."""
    given: dict[str, float] = {}
    for option in TIME_OPTIONS.keys() & options.keys():
        seconds = options.pop(option)
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < float("inf"):
            problem = f"must be a number of seconds above 0, not {seconds!r}"
            raise bad_setting(settings.origin, f"providers.{settings.name}.{option}", problem)
        given[TIME_OPTIONS[option]] = float(seconds)
    return TimeLimits(**given)


def known_families() -> Sequence[str]:
    return sorted({*FAMILIES, *(point.name for point in entry_points(GROUP))})


def bad_setting(origin: str, key: str, problem: str) -> WeftlineError:
    where = f"{origin}: " if origin else ""
    error = WeftlineError(f"{where}{key}: {problem}", code="bad_config", file=origin, key=key)
    error.issues = (Issue(key, problem),)
    return error


def _family(settings: ProviderSettings) -> Callable[..., Provider]:
    target = FAMILIES.get(settings.family)
    try:
        if target is not None:
            module, _, name = target.partition(":")
            return cast("Callable[..., Provider]", getattr(import_module(module), name))
        for point in entry_points(GROUP):
            if point.name == settings.family:
                return cast("Callable[..., Provider]", point.load())
    except ImportError as error:
        missing = error.name or str(error)
        raise NotAvailable(f"The family {settings.family!r} needs {missing!r}, which is not installed.") from None
    raise bad_setting(
        settings.origin,
        f"providers.{settings.name}.family",
        f"{settings.family!r} is not a family; use one of {', '.join(known_families())}",
    )


def _oauth(settings: OAuthSettings, environ: Mapping[str, str]) -> OAuthSettings:
    def value(text: str) -> str:
        if not text.startswith("env:"):
            return text
        name = text.removeprefix("env:")
        if not environ.get(name):
            raise NotAvailable(f"The environment variable {name} is not set.")
        return environ[name]

    return replace(settings, refresh_token=value(settings.refresh_token), client_secret=value(settings.client_secret))


def _address(settings: ProviderSettings, environ: Mapping[str, str]) -> str | None:
    """Returns the address of the settings or of the environment; None for the vendor's own."""
    url = environ.get(settings.base_url_env, "").strip().rstrip("/") if settings.base_url_env else ""
    profile = settings.options.get("profile")
    if profile == "ollama" and not url and settings.base_url_env:
        url = _of_ollama(environ.get("OLLAMA_HOST", "").strip().rstrip("/"))
    if settings.base_url is not None or not url:
        if settings.base_url is None and settings.base_url_env and profile in _ADDRESS_NEEDED:
            raise NotAvailable(_ADDRESS_NEEDED[str(profile)])
        return settings.base_url
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise bad_setting("", settings.base_url_env, "must be an http or https address")
    if profile == "azure":
        return azure_address(url, environ.get("OPENAI_API_VERSION", "") or environ.get("AZURE_OPENAI_API_VERSION", ""))
    if profile in ("ollama", "vllm") and not _VERSION.search(parts.path):
        return at_path(url, "v1")
    return url


_ADDRESS_NEEDED: Final = {
    "azure": "The environment variable AZURE_OPENAI_ENDPOINT is not set.",
    "ollama": "Set OLLAMA_HOST or OLLAMA_BASE_URL to its address, such as http://localhost:11434.",
    "vllm": "Set VLLM_BASE_URL to its address, such as http://localhost:8000.",
}


def azure_address(endpoint: str, version: str) -> str:
    """Returns where models are called. A dated version belongs to the older paths, which contain the deployment."""
    if version[:1].isdigit():
        return with_query(at_path(endpoint, "openai/deployments/{model}"), {"api-version": version})
    return at_path(endpoint, "openai/v1")


def _of_ollama(host: str) -> str:
    """Returns the address in `OLLAMA_HOST`, which may lack the scheme and the port, or be what a server listens on."""
    if not host:
        return ""
    if "://" not in host:
        host = f"http://{host}" if re.search(r":\d+(/|$)", host) else f"http://{host}:11434"
    return host.replace("//0.0.0.0", "//127.0.0.1", 1)


def _key(settings: ProviderSettings, environ: Mapping[str, str]) -> str:
    if settings.api_key is not None and not settings.api_key.startswith("env:"):
        return settings.api_key
    names = settings.key_env if settings.api_key is None else (settings.api_key.removeprefix("env:"),)
    for name in names:
        if environ.get(name):
            return environ[name]
    if settings.family == "bedrock" and settings.api_key is None and names:
        pieces = [environ.get(name, "") for name in _AWS_KEYS]
        if pieces[0] and pieces[1]:
            return ":".join(pieces).rstrip(":")
        names = (*names, " with ".join(_AWS_KEYS[:2]))
    if (settings.keyless or settings.oauth is not None) and settings.api_key is None:
        return ""
    if not names:
        raise NotAvailable("There is no API key: give one, or the address of a server that needs none.")
    variables = " or ".join(names)
    raise NotAvailable(f"The environment variable {variables} is not set.")
