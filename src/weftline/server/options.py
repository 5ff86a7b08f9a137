"""The settings of the server itself: the `[server]` table of the configuration file, overridden by flags."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from ipaddress import ip_network
from typing import Annotated, Literal, NamedTuple, cast

from msgspec import Meta, Struct, ValidationError, convert
from msgspec.structs import replace

from weftline.config import Config
from weftline.errors import WeftlineError
from weftline.net.address import InvalidAddress, parse
from weftline.runtime.fleet.holding import WorkspaceLimits
from weftline.runtime.model_calls.model_call import MODEL_RETRIES_TIMEOUT_S, MODEL_TIMEOUT_S
from weftline.runtime.public_errors import CODES
from weftline.runtime.recovery import MAX_RECOVERIES
from weftline.runtime.services import SLOW_TURN_S
from weftline.server import cors
from weftline.server.connections import ConnectionLimits, Network
from weftline.server.cors import Cors
from weftline.server.names import host_name
from weftline.server.process import default_stall_s
from weftline.server.rate_limit import DEFAULT_PER_MINUTE
from weftline.text.suggestions import did_you_mean
from weftline.tools.asking import checked_template
from weftline.workspace.apps import is_scheme_of_an_app

_EGRESS = ("allow_egress", "allow_private_egress")
_MAX_WAITS, _MAX_WAIT_S = 50, 30 * 86400


class _Range(NamedTuple):
    """The range of a numeric setting; an integer unless it is in seconds."""

    minimum: float
    maximum: float
    zero: bool = False
    """Whether 0 is allowed too, for no limit."""


_MANY = 10_000_000
_CONNECTIONS: Mapping[str, _Range] = {
    "max_connections": _Range(1, _MANY),
    "max_connections_per_address": _Range(1, _MANY, zero=True),
    "max_head_bytes": _Range(1024, 16 * 1024 * 1024),
    "head_timeout_s": _Range(0.001, 3600),
    "body_timeout_s": _Range(0.001, 86400),
    "body_pause_s": _Range(0.001, 86400),
    "max_body_bytes_held": _Range(1024, 1024**4),
    "max_body_bytes_held_per_workspace": _Range(1024, 1024**4),
    "keep_alive_s": _Range(0.001, 86400),
    "stall_timeout_s": _Range(0.001, 86400),
}
_WORKSPACES: Mapping[str, _Range] = {
    "max_runs_per_workspace": _Range(1, _MANY),
    "max_queued_runs_per_workspace": _Range(1, _MANY),
    "max_streams_per_workspace": _Range(1, _MANY),
    "max_tool_threads_per_workspace": _Range(1, 1024),
}
_RECOVERIES = _Range(1, 100)
_MAX_PUBLIC_ERROR_CHARS = 1_000
_SWITCHES = {"true": True, "1": True, "false": False, "0": False}
"""The values of an environment variable."""
SETTINGS = (
    "public_url",
    "rate_limit_per_minute",
    "webhook_retry_s",
    "model_timeout_s",
    "model_retries_timeout_s",
    "slow_turn_s",
    "max_recoveries",
    "public_errors",
    "stall_s",
    "oauth_redirect_schemes",
    "oauth_registration",
    "allowed_hosts",
    "trusted_proxies",
    "unknown_fields",
    "code_version",
    "traces",
    "metrics_token",
    "display_hints",
    *_CONNECTIONS,
    *_WORKSPACES,
    *_EGRESS,
    *cors.SETTINGS,
)


class ServerOptions(Struct, frozen=True):
    rate_limit_per_minute: int = DEFAULT_PER_MINUTE
    """Requests per minute for one credential; 0 for no limit."""
    public_url: str = ""
    """Where browsers and OAuth clients reach this server, if not at the address it listens on."""
    url: str = "http://localhost"
    """The address that it listens on."""
    oauth_redirect_schemes: frozenset[str] = frozenset()
    """App schemes allowed in redirect URIs, in addition to https and reversed domain names."""
    oauth_registration: bool = True
    """Whether clients may register themselves (RFC 7591), to ask users for access to the MCP server."""
    allowed_hosts: frozenset[str] = frozenset()
    """Host names, in addition to that of `public_url`, under which MCP clients may address this server."""
    local: bool = False
    """Whether it serves only its own machine."""
    webhook_retry_s: tuple[float, ...] = (10, 30, 120, 600, 1800, 7200, 21600, 43200)
    """Waits between attempts to deliver a webhook; after the last, the delivery has failed."""
    model_timeout_s: float = MODEL_TIMEOUT_S
    """How long one model call may take, from the request to the end of the answer."""
    model_retries_timeout_s: float = MODEL_RETRIES_TIMEOUT_S
    """How long all attempts of a turn at one model may take together; at least `model_timeout_s`."""
    slow_turn_s: float = SLOW_TURN_S
    """Model and tool calls that take longer are logged; 0 for none."""
    max_recoveries: int = MAX_RECOVERIES
    """How often a run that fails or kills the process is retried without progress before it is given up."""
    public_errors: dict[str, str] = {}
    """What clients read about runs that failed, by error code, instead of the original message."""
    stall_s: float = default_stall_s()
    """CPU time that the event loop may be stalled before the process ends itself; 0 for no limit."""
    trusted_proxies: tuple[Network, ...] = ()
    """The proxies whose `X-Forwarded-For` is trusted."""
    cors: Cors | None = None
    """The origins whose pages may use the server from a browser; None for none."""
    unknown_fields: Literal["warn", "refuse"] = "warn"
    """What to do with a request that has unknown fields."""
    code_version: str | None = None
    """Identifies the code of agents and tools when it continues a run, instead of its source."""
    traces: bool = False
    """Whether spans of all runs are emitted, for OpenTelemetry."""
    metrics_token: str = ""
    """With this, `/metrics` can be read; empty for a server that shows it only if nobody else can reach it."""
    display_hints: dict[str, str] = {}
    """By tool: what streams show for its calls instead of the tool's own hint, with arguments in braces."""
    connections: ConnectionLimits = ConnectionLimits()
    workspaces: WorkspaceLimits = WorkspaceLimits()


def metrics_token(environ: Mapping[str, str]) -> str:
    """The token that the environment sets for `/metrics`."""
    return environ.get("WEFTLINE_METRICS_TOKEN", "").strip()


def server_options(
    config: Config, *, rate_limit_per_minute: int | None = None, environ: Mapping[str, str] | None = None
) -> ServerOptions:
    """Reads the settings, which the environment overrides.

    Raises a `WeftlineError` (`bad_config`) that names the offending setting.
    """
    environ = os.environ if environ is None else environ
    options = ServerOptions()
    for name, value in config.server.items():
        if name not in SETTINGS:
            near = did_you_mean(name, SETTINGS)
            raise _bad(config, name, f"is not a setting; use one of {', '.join(SETTINGS)}.{near}")
        if name in _EGRESS or name in cors.SETTINGS:
            continue  # `egress_from` and `cors_from` read and check these
        if name == "public_url":
            options = replace(options, public_url=_address(config, value))
        elif name == "oauth_redirect_schemes":
            options = replace(options, oauth_redirect_schemes=_schemes(config, value))
        elif name == "oauth_registration":
            options = replace(options, oauth_registration=_switch(config, name, value))
        elif name == "allowed_hosts":
            options = replace(options, allowed_hosts=_hosts(config, value))
        elif name == "model_timeout_s":
            options = replace(options, model_timeout_s=_seconds(config, name, value))
        elif name == "model_retries_timeout_s":
            options = replace(options, model_retries_timeout_s=_seconds(config, name, value))
        elif name == "stall_s":
            options = replace(options, stall_s=0.0 if value == 0 else _seconds(config, name, value))
        elif name == "slow_turn_s":
            options = replace(options, slow_turn_s=0.0 if value == 0 else _seconds(config, name, value))
        elif name == "max_recoveries":
            options = replace(options, max_recoveries=int(_number(config, name, value, _RECOVERIES)))
        elif name == "public_errors":
            options = replace(options, public_errors=_public_errors(config, value))
        elif name == "webhook_retry_s":
            options = replace(options, webhook_retry_s=_waits(config, value))
        elif name == "trusted_proxies":
            options = replace(options, trusted_proxies=_networks(config, value))
        elif name == "unknown_fields":
            options = replace(options, unknown_fields=_unknown_fields(config, value))
        elif name == "code_version":
            options = replace(options, code_version=_version(config, value))
        elif name == "traces":
            options = replace(options, traces=_switch(config, name, value))
        elif name == "metrics_token":
            options = replace(options, metrics_token=_token(config, value))
        elif name == "display_hints":
            options = replace(options, display_hints=_hints(config, value))
        elif name in _CONNECTIONS:
            limits = replace(options.connections, **{name: _number(config, name, value, _CONNECTIONS[name])})
            options = replace(options, connections=limits)
        elif name in _WORKSPACES:
            caps = replace(options.workspaces, **{name: _number(config, name, value, _WORKSPACES[name])})
            options = replace(options, workspaces=caps)
        else:
            options = replace(options, rate_limit_per_minute=_count(config, value))
    options = replace(options, cors=cors.cors_from(config.server, origin=config.path))
    if rate_limit_per_minute is not None:
        options = replace(options, rate_limit_per_minute=rate_limit_per_minute)
    if (traces := environ.get("WEFTLINE_TRACES", "").strip().lower()) != "":
        if traces not in _SWITCHES:
            raise WeftlineError(f"WEFTLINE_TRACES: must be true or false, not {traces!r}", code="bad_config")
        options = replace(options, traces=_SWITCHES[traces])
    if token := metrics_token(environ):
        options = replace(options, metrics_token=token)
    return options


def _address(config: Config, value: object) -> str:
    if isinstance(value, str) and not any(char in value for char in "?#@"):
        with suppress(InvalidAddress):
            return parse(value).url.rstrip("/")
    raise _bad(config, "public_url", "must be an http or https address")


def _schemes(config: Config, value: object) -> frozenset[str]:
    try:
        schemes = convert(value, frozenset[str])
    except ValidationError:
        raise _bad(config, "oauth_redirect_schemes", "must be a list of schemes") from None
    for scheme in schemes:
        if not is_scheme_of_an_app(scheme):
            raise _bad(config, "oauth_redirect_schemes", f"{scheme!r} cannot be an app's scheme")
    return schemes


def _unknown_fields(config: Config, value: object) -> Literal["warn", "refuse"]:
    try:
        return convert(value, Literal["warn", "refuse"])
    except ValidationError:
        raise _bad(config, "unknown_fields", 'must be "warn" or "refuse"') from None


def _version(config: Config, value: object) -> str:
    if isinstance(value, str) and value.strip():
        return value
    raise _bad(config, "code_version", "must be a string, such as a commit")


def _token(config: Config, value: object) -> str:
    if isinstance(value, str) and value and value.isascii() and value.isprintable() and " " not in value:
        return value
    raise _bad(config, "metrics_token", "must be a string of printable ASCII characters without spaces")


def _hints(config: Config, value: object) -> dict[str, str]:
    try:
        hints = convert(value, dict[str, str])
    except ValidationError:
        raise _bad(config, "display_hints", "must be a table of strings by tool") from None
    for tool, template in hints.items():
        try:
            checked_template(template, tool=tool, what="display_hints")
        except ValueError as error:
            raise _bad(config, "display_hints", str(error)) from None
    return hints


def _public_errors(config: Config, value: object) -> dict[str, str]:
    texts = cast("dict[str, object]", value) if isinstance(value, dict) else None
    if texts is None:
        raise _bad(config, "public_errors", 'must be a table of strings by error code, such as {auth = "Call us."}')
    for code, text in texts.items():
        if code not in CODES:
            near = did_you_mean(code, CODES)
            raise _bad(
                config, f"public_errors.{code}", f"is not an error code; use one of {', '.join(sorted(CODES))}.{near}"
            )
        if not isinstance(text, str) or not 0 < len(text.strip()) <= _MAX_PUBLIC_ERROR_CHARS:
            raise _bad(
                config, f"public_errors.{code}", f"must be a string of 1 to {_MAX_PUBLIC_ERROR_CHARS} characters"
            )
    return cast("dict[str, str]", texts)


def _switch(config: Config, name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise _bad(config, name, "must be true or false")


def _hosts(config: Config, value: object) -> frozenset[str]:
    try:
        hosts = convert(value, list[str])
    except ValidationError:
        raise _bad(config, "allowed_hosts", "must be a list of names") from None
    known: set[str] = set()
    for host in hosts:
        name = host_name(host)
        if name is None:
            raise _bad(config, "allowed_hosts", f"{host!r} is not a host name")
        known.add(name)
    return frozenset(known)


def _waits(config: Config, value: object) -> tuple[float, ...]:
    try:
        waits = convert(value, tuple[Annotated[float, Meta(ge=0, le=_MAX_WAIT_S)], ...])
    except ValidationError:
        raise _bad(config, "webhook_retry_s", "must be a list of seconds") from None
    if len(waits) > _MAX_WAITS:
        raise _bad(config, "webhook_retry_s", f"may have at most {_MAX_WAITS} waits")
    return waits


def _seconds(config: Config, name: str, value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= _MAX_WAIT_S:
        return float(value)
    raise _bad(config, name, "must be a number of seconds above 0")


def _count(config: Config, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise _bad(config, "rate_limit_per_minute", "must be a whole number, 0 for no limit")


def _number(config: Config, name: str, value: object, allowed: _Range) -> float:
    seconds = name.endswith("_s")
    meta = Meta(ge=allowed.minimum, le=allowed.maximum)
    try:
        if allowed.zero and value == 0:
            return convert(value, int)
        return convert(value, Annotated[float, meta] if seconds else Annotated[int, meta])
    except ValidationError:
        kind = "a number of seconds" if seconds else "a whole number"
        zero = ", or 0 for no limit" if allowed.zero else ""
        problem = f"must be {kind} from {allowed.minimum:,} to {allowed.maximum:,}{zero}"
        raise _bad(config, name, problem) from None


def _networks(config: Config, value: object) -> tuple[Network, ...]:
    try:
        return tuple(ip_network(text) for text in convert(value, list[str]))
    except (ValidationError, ValueError):
        raise _bad(config, "trusted_proxies", "must be a list of addresses or networks") from None


def _bad(config: Config, name: str, problem: str) -> WeftlineError:
    key = f"server.{name}"
    return WeftlineError(f"{config.path}: {key}: {problem}", code="bad_config", file=config.path, key=key)
