"""The log of a server that has started: what it offers, and what to do first if something is missing."""

from __future__ import annotations

import logging
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path

from weftline._version import __version__
from weftline.cases.keys import has_credentials
from weftline.providers.catalog import Catalog
from weftline.providers.pricing import unused_price
from weftline.tools.base import Tool
from weftline.tools.loader import tool_names
from weftline.workspace.context import Workspaces

logger = logging.getLogger(__name__)

_MAX_LISTED = 8
"""How many models and tools are named; the rest are counted."""


def report_start(
    address: str,
    *,
    db: Path,
    models: Catalog,
    tools: Mapping[str, Tool],
    agents: Iterable[str] = (),
    public: Iterable[str] = (),
) -> None:
    served, opened = _listed(agents), ", ".join(public)
    logger.info(
        "weftline %s is listening on %s; store %s; models: %s; tools: %s%s%s",
        __version__,
        address,
        db.absolute(),
        _listed(entry.id for entry in models.entries()),
        _listed(names[0] for names in tool_names(tools)),
        "" if served == "none" else f"; agents: {served}",
        f"; open without a credential: {opened}" if opened else "",
    )


async def advise(at: Workspaces, *, db: Path, models: Catalog) -> None:
    """Logs what to do first if the server is not usable yet."""
    if not models.entries():
        logger.warning(
            "this server has no models of its own yet: set ANTHROPIC_API_KEY, OPENAI_API_KEY or GEMINI_API_KEY, or name"
            " providers in a --config file, and start again; `%s models` says what is missing",
            program(),
        )
    elif find_spec("genai_prices") is None and (unpriced := _unpriced(models)):
        logger.info(
            "the prices of these models are not known, so their runs show no cost: %s; name them under [[prices]] in"
            " the configuration, or pip install '.[prices]' in a checkout of Weftline",
            _listed(unpriced),
        )
    for override in models.unused_prices():
        logger.warning("%s", unused_price(override))
    if not await has_credentials(at):
        logger.warning("there is no API key yet; create one with: %s", key_command(db))


def _unpriced(models: Catalog) -> list[str]:
    return [entry.id for entry in models.entries() if entry.provider != "scripted" and models.price(entry) is None]


def key_command(db: Path) -> str:
    return f"{program()} keys create --workspace acme --db {shlex.quote(str(db.absolute()))}"


def program() -> str:
    """Returns how to call this command from a shell."""
    if shutil.which("weftline"):
        return "weftline"
    called = Path(sys.argv[0])
    if called.name == "weftline":
        return shlex.quote(str(called.absolute()))
    return f"{shlex.quote(sys.executable)} -m weftline"


def _listed(names: Iterable[str]) -> str:
    known = list(names)
    more = len(known) - _MAX_LISTED
    text = ", ".join(known[:_MAX_LISTED]) or "none"
    return f"{text} and {more} more" if more > 0 else text
