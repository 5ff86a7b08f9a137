"""The Python client: `Client` for synchronous code, `AsyncClient` for asyncio.

Each name is loaded on first use, so that the import itself is cheap.
"""

from typing import TYPE_CHECKING

__all__ = [
    "Answered",
    "ApiError",
    "AsyncBudgets",
    "AsyncClient",
    "AsyncOAuthClient",
    "AsyncRun",
    "AsyncSchedules",
    "AsyncSession",
    "Attachment",
    "AttachmentInfo",
    "AuthError",
    "AuthorizationRequest",
    "Await",
    "BadRequest",
    "Budget",
    "BudgetLimit",
    "Budgets",
    "CallName",
    "CancelReceipt",
    "ChatMessage",
    "Client",
    "ClientError",
    "ClientEvent",
    "Conflict",
    "DeadlineExceeded",
    "Forbidden",
    "Frame",
    "InvalidSignature",
    "InvalidSpec",
    "LocalTool",
    "LoggedCall",
    "LoggedGrant",
    "ModelInfo",
    "ModelUsed",
    "Models",
    "NetworkError",
    "NotFound",
    "OAuthClient",
    "OAuthError",
    "OAuthTokens",
    "Page",
    "ParseError",
    "Pricing",
    "RateLimited",
    "Retry",
    "Run",
    "RunCancelled",
    "RunFailed",
    "RunResult",
    "RunSnapshot",
    "Schedule",
    "Schedules",
    "ScopeError",
    "ServerError",
    "ServerTool",
    "Session",
    "SessionInfo",
    "SessionUsage",
    "TokenSource",
    "Tokens",
    "ToolContext",
    "ToolDeliveryError",
    "ToolDeliveryFailed",
    "ToolError",
    "Totals",
    "Unreachable",
    "a2a_agent",
    "local_a2a",
    "local_mcp",
    "mcp_server",
    "parse_output",
    "plugin_tool",
    "server_tool",
    "stored_tool",
    "tool",
    "verify_webhook",
]

if TYPE_CHECKING:
    from weftline.client._sync import Budgets, Client, OAuthClient, Run, Schedules, Session
    from weftline.client.a2a import local_a2a
    from weftline.client.attachments import Attachment
    from weftline.client.awaits import Answered, Await
    from weftline.client.budgets import AsyncBudgets, Budget, BudgetLimit
    from weftline.client.context import ToolContext
    from weftline.client.core import AsyncClient
    from weftline.client.credentials import TokenSource
    from weftline.client.ended import LoggedCall, LoggedGrant
    from weftline.client.errors import (
        ApiError,
        AuthError,
        BadRequest,
        ClientError,
        Conflict,
        DeadlineExceeded,
        Forbidden,
        InvalidSignature,
        InvalidSpec,
        NetworkError,
        NotFound,
        OAuthError,
        ParseError,
        RateLimited,
        RunCancelled,
        RunFailed,
        ScopeError,
        ServerError,
        ToolDeliveryError,
        ToolError,
        Unreachable,
    )
    from weftline.client.events import ClientEvent, Frame, ToolDeliveryFailed
    from weftline.client.mcp import local_mcp
    from weftline.client.oauth import AsyncOAuthClient, AuthorizationRequest, OAuthTokens
    from weftline.client.output import parse_output
    from weftline.client.results import (
        AttachmentInfo,
        ChatMessage,
        ModelInfo,
        Models,
        ModelUsed,
        Page,
        Pricing,
        RunResult,
        RunSnapshot,
        SessionInfo,
        SessionUsage,
        Tokens,
        Totals,
    )
    from weftline.client.retry import Retry
    from weftline.client.run import AsyncRun
    from weftline.client.schedules import AsyncSchedules, Schedule
    from weftline.client.session import AsyncSession
    from weftline.client.tools import (
        LocalTool,
        ServerTool,
        a2a_agent,
        mcp_server,
        plugin_tool,
        server_tool,
        stored_tool,
        tool,
    )
    from weftline.client.usage import CallName, CancelReceipt
    from weftline.client.webhooks import verify_webhook
else:
    # Hidden from type checkers, which would assume from a module `__getattr__` that every name exists.
    _HOMES = {
        "Answered": "awaits",
        "ApiError": "errors",
        "AsyncBudgets": "budgets",
        "AsyncClient": "core",
        "AsyncOAuthClient": "oauth",
        "AsyncRun": "run",
        "AsyncSchedules": "schedules",
        "AsyncSession": "session",
        "Attachment": "attachments",
        "AttachmentInfo": "results",
        "AuthError": "errors",
        "AuthorizationRequest": "oauth",
        "Await": "awaits",
        "BadRequest": "errors",
        "Budget": "budgets",
        "BudgetLimit": "budgets",
        "Budgets": "_sync",
        "CallName": "usage",
        "CancelReceipt": "usage",
        "ChatMessage": "results",
        "Client": "_sync",
        "ClientError": "errors",
        "ClientEvent": "events",
        "Conflict": "errors",
        "DeadlineExceeded": "errors",
        "Forbidden": "errors",
        "Frame": "events",
        "InvalidSignature": "errors",
        "InvalidSpec": "errors",
        "LocalTool": "tools",
        "LoggedCall": "ended",
        "LoggedGrant": "ended",
        "ModelInfo": "results",
        "ModelUsed": "results",
        "Models": "results",
        "NetworkError": "errors",
        "NotFound": "errors",
        "OAuthClient": "_sync",
        "OAuthError": "errors",
        "OAuthTokens": "oauth",
        "Page": "results",
        "ParseError": "errors",
        "Pricing": "results",
        "RateLimited": "errors",
        "Retry": "retry",
        "Run": "_sync",
        "RunCancelled": "errors",
        "RunFailed": "errors",
        "RunResult": "results",
        "RunSnapshot": "results",
        "Schedule": "schedules",
        "Schedules": "_sync",
        "ScopeError": "errors",
        "ServerError": "errors",
        "ServerTool": "tools",
        "Session": "_sync",
        "SessionInfo": "results",
        "SessionUsage": "results",
        "TokenSource": "credentials",
        "Tokens": "results",
        "ToolContext": "context",
        "ToolDeliveryError": "errors",
        "ToolDeliveryFailed": "events",
        "ToolError": "errors",
        "Totals": "results",
        "Unreachable": "errors",
        "a2a_agent": "tools",
        "local_a2a": "a2a",
        "local_mcp": "mcp",
        "mcp_server": "tools",
        "parse_output": "output",
        "plugin_tool": "tools",
        "server_tool": "tools",
        "stored_tool": "tools",
        "tool": "tools",
        "verify_webhook": "webhooks",
    }

    def __getattr__(name):
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        value = globals()[name] = getattr(import_module(f"weftline.client.{_HOMES[name]}"), name)
        return value

    def __dir__():
        return sorted(__all__)
