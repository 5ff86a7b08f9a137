"""Weftline's own test tools, for testing your own agents, tools and model families."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weftline.text.public_pages import lazy_names

if TYPE_CHECKING:
    from weftline.providers.assemble import Assembler, collect
    from weftline.providers.scripted import Script, ScriptedModel, ScriptedProvider, calls, load_scripts, parse_scripts
    from weftline.testing.process import ServerProcess
    from weftline.testing.providers import Aborted, Answered, Failed, check_provider
    from weftline.testing.replays import replay

__all__ = [
    "Aborted",
    "Answered",
    "Assembler",
    "Failed",
    "Script",
    "ScriptedModel",
    "ScriptedProvider",
    "ServerProcess",
    "calls",
    "check_provider",
    "collect",
    "load_scripts",
    "parse_scripts",
    "replay",
]

_HOME = {
    "Aborted": "weftline.testing.providers",
    "Answered": "weftline.testing.providers",
    "Assembler": "weftline.providers.assemble",
    "Failed": "weftline.testing.providers",
    "Script": "weftline.providers.scripted",
    "ScriptedModel": "weftline.providers.scripted",
    "ScriptedProvider": "weftline.providers.scripted",
    "ServerProcess": "weftline.testing.process",
    "calls": "weftline.providers.scripted",
    "check_provider": "weftline.testing.providers",
    "collect": "weftline.providers.assemble",
    "load_scripts": "weftline.providers.scripted",
    "parse_scripts": "weftline.providers.scripted",
    "replay": "weftline.testing.replays",
}

__getattr__, __dir__ = lazy_names(__name__, _HOME)
