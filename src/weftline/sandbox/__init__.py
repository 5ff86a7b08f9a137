"""A sandbox for code: TypeScript, JavaScript and Python that can access nothing but what it is given."""

from __future__ import annotations

from weftline.sandbox.base import (
    Code,
    CodeEngine,
    CodeError,
    CodeLog,
    CodeResult,
    Failed,
    Host,
    HostFunction,
    Language,
    Outcome,
    SandboxUnavailable,
    Succeeded,
)
from weftline.sandbox.execution import CodeExecution
from weftline.sandbox.sandbox import Sandbox

__all__ = [
    "Code",
    "CodeEngine",
    "CodeError",
    "CodeExecution",
    "CodeLog",
    "CodeResult",
    "Failed",
    "Host",
    "HostFunction",
    "Language",
    "Outcome",
    "Sandbox",
    "SandboxUnavailable",
    "Succeeded",
]
