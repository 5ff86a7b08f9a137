"""Starting runs, and what they leave: failures by class, questions, messages, traces. See docs/library.md.

Each name is imported on first use.
"""

from typing import TYPE_CHECKING

__all__ = [
    "AgentFailed",
    "Await",
    "CallRecord",
    "ContextExceeded",
    "InvalidOutput",
    "ListedRun",
    "ListedThread",
    "OutputTruncated",
    "Provided",
    "ProviderFailed",
    "RunInfo",
    "SavedMessage",
    "trace",
]

if TYPE_CHECKING:
    from weftline.agent.context import RunInfo
    from weftline.agent.engine.logs import ListedRun, ListedThread
    from weftline.agent.results import (
        AgentFailed,
        CallRecord,
        ContextExceeded,
        InvalidOutput,
        OutputTruncated,
        ProviderFailed,
    )
    from weftline.agent.running.asking import Await
    from weftline.agent.stored_messages import SavedMessage
    from weftline.agent.tracing import trace
    from weftline.runtime.tool_calls.provided import Provided
else:
    # Hidden from type checkers, which would assume from a module `__getattr__` that every name exists.
    from weftline.text.public_pages import lazy_names

    _HOMES = {
        "AgentFailed": "weftline.agent.results",
        "Await": "weftline.agent.running.asking",
        "CallRecord": "weftline.agent.results",
        "ContextExceeded": "weftline.agent.results",
        "InvalidOutput": "weftline.agent.results",
        "ListedRun": "weftline.agent.engine.logs",
        "ListedThread": "weftline.agent.engine.logs",
        "OutputTruncated": "weftline.agent.results",
        "Provided": "weftline.runtime.tool_calls.provided",
        "ProviderFailed": "weftline.agent.results",
        "RunInfo": "weftline.agent.context",
        "SavedMessage": "weftline.agent.stored_messages",
        "trace": "weftline.agent.tracing",
    }

    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
