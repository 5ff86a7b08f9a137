"""Weftline: a self-hosted, durable runtime for LLM agents.

The names in `__all__` are public and stable; everything else may change. Each name is imported on first use, so `import
weftline` costs next to nothing.
"""

from typing import TYPE_CHECKING

from weftline._version import __version__

__all__ = [
    "Engine",
    "Happened",
    "ToolContext",
    "ToolFailed",
    "ToolInDoubt",
    "ToolOutput",
    "Unknown",
    "WeftlineError",
    "WillNotHappen",
    "__version__",
    "tool",
]

if TYPE_CHECKING:
    from weftline.errors import WeftlineError
    from weftline.runtime.embedded import EmbeddedEngine as Engine
    from weftline.tools.base import Happened, ToolContext, ToolFailed, ToolInDoubt, ToolOutput, Unknown, WillNotHappen
    from weftline.tools.function import tool
else:
    # Hidden from type checkers, which take a module `__getattr__` to mean that every name exists.
    _HOMES = {
        "Engine": ("weftline.runtime.embedded", "EmbeddedEngine"),
        "Happened": ("weftline.tools.base", "Happened"),
        "ToolContext": ("weftline.tools.base", "ToolContext"),
        "ToolFailed": ("weftline.tools.base", "ToolFailed"),
        "ToolInDoubt": ("weftline.tools.base", "ToolInDoubt"),
        "ToolOutput": ("weftline.tools.base", "ToolOutput"),
        "Unknown": ("weftline.tools.base", "Unknown"),
        "WeftlineError": ("weftline.errors", "WeftlineError"),
        "WillNotHappen": ("weftline.tools.base", "WillNotHappen"),
        "tool": ("weftline.tools.function", "tool"),
    }

    def __getattr__(name):
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        module, attribute = _HOMES[name]
        value = globals()[name] = getattr(import_module(module), attribute)
        return value

    def __dir__():
        return sorted(__all__)
