"""The public modules: names are imported on first use, and a name that one does not have is answered with help."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from opcode import opmap
from typing import cast

PAGES = (
    "weftline",
    "weftline.events",
    "weftline.messages",
    "weftline.tools",
    "weftline.hooks",
    "weftline.policies",
    "weftline.behaviors",
    "weftline.runs",
    "weftline.errors",
    "weftline.testing",
    "weftline.sandbox",
    "weftline.threads",
    "weftline.client",
)
"""In the order in which a name is looked for: what is in several is rarely meant for the client."""
MODELS = {
    "Anthropic": "weftline.providers.anthropic.provider",
    "Catalog": "weftline.providers.catalog",
    "ModelRequest": "weftline.providers.base",
    "OpenAIChat": "weftline.providers.openai.chat",
    "OpenAIResponses": "weftline.providers.openai.responses",
    "Price": "weftline.providers.pricing",
    "PriceOverride": "weftline.providers.pricing",
    "Prices": "weftline.providers.pricing",
}
"""The modules of models, each for its own use, and what the documentation imports from them."""


def lazy_names(page: str, homes: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Returns the `__getattr__` and the `__dir__` of a public module. `homes` has the module of each of its names."""

    def get(name: str) -> object:
        if name not in homes:
            raise missing_name(page, name)
        value = getattr(import_module(homes[name]), name)
        setattr(sys.modules[page], name, value)
        return value

    return get, lambda: sorted(public_names(page))


def helping(page: str) -> Callable[[str], object]:
    """Returns the `__getattr__` of a public module that has imported all its names."""

    def get(name: str) -> object:
        raise missing_name(page, name)

    return get


def public_names(page: str) -> Iterable[str]:
    module = import_module(page)
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return cast("Iterable[str]", listed)
    # A module without a list: its own classes.
    classes = {name: value for name, value in vars(module).items() if isinstance(value, type) and name[0] != "_"}
    return [name for name, value in classes.items() if value.__module__.startswith(page)]


def missing_name(page: str, name: str) -> AttributeError | ImportError:
    """Returns the error for a name that a public module does not have, for its `__getattr__`.

    `from … import` drops the sentence of an `AttributeError`, but not of an `ImportError`; `hasattr` is false for the
    first, and passes the second on. So it depends on who asks.
    """
    plain = f"module {page!r} has no attribute {name!r}"
    if name.startswith("_") or (hasattr(sys.modules[page], "__path__") and find_spec(f"{page}.{name}") is not None):
        return AttributeError(plain)  # Python asks for these itself, for one before it imports a submodule
    sentence = _help(page, name)
    if not sentence:
        return AttributeError(plain)
    asking = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    imports = asking.f_globals.get("__name__") in ("importlib._bootstrap", "_frozen_importlib")
    imports = imports or asking.f_code.co_code[asking.f_lasti] == opmap["IMPORT_FROM"]
    # Without a name, Python adds no guess of its own.
    return ImportError(sentence, name=page) if imports else AttributeError(sentence, name=None, obj=None)


def _help(page: str, name: str) -> str:
    from weftline.text.suggestions import did_you_mean, our_name  # they are rarely needed

    if sentence := our_name(page, name):
        return sentence
    known = {one: public_names(one) for one in PAGES}
    if homes := [other for other, names in known.items() if name in names]:
        found = [f"`from {home} import {name}`" for home in homes if len(homes) == 1 or home != "weftline.client"]
        return f"{page} has no {name}: {' or '.join(found)}"
    if name in MODELS:
        return f"{page} has no {name}: `from {MODELS[name]} import {name}`"
    for other in PAGES:
        if sentence := our_name(other, name):
            return sentence
    if near := did_you_mean(name, known.get(page, ()), cutoff=_CLOSE):
        return f"{page} has no {name}.{near}"
    for other, names in known.items():
        if near := did_you_mean(name, names, cutoff=_CLOSE):
            return f"{page} has no {name}.{near.removesuffix('?')}, in {other}?"
    return ""


_CLOSE = 0.75
