"""Threads: their messages and values, and the variables of threads, accounts and the workspace."""

from __future__ import annotations

from functools import partial

from weftline.cases import effects, thread_messages, threads
from weftline.server.case import case
from weftline.server.router import Route
from weftline.workspace.thread_messages import MAX_MESSAGE_BYTES
from weftline.workspace.thread_state import MAX_ENV_BYTES, MAX_VALUE_BYTES

PATH = "/api/v1/workspaces/{slug}/threads"
_ONE = f"{PATH}/{{threadId}}"
_MESSAGE = f"{_ONE}/messages/{{messageId}}"
_VALUE = f"{_ONE}/values/{{key}}"
_ENV = f"{_ONE}/env"
_EFFECT = f"{_ONE}/effects/{{effectId}}"
_ACCOUNT = "/api/v1/workspaces/{slug}/accounts/{userId}/env"
_WORKSPACE = "/api/v1/workspaces/{slug}/env"
_MOST_MESSAGE_BYTES = 6 * MAX_MESSAGE_BYTES
_MOST_VALUE_BYTES = MAX_VALUE_BYTES + 1024
_MOST_ENV_BYTES = 6 * MAX_ENV_BYTES + 1024  # a character may be escaped

_read = partial(Route, scopes=("sessions:read",), narrowed="its agents")
_write = partial(Route, scopes=("sessions:write",), narrowed="its agents")
_read_all = partial(Route, scopes=("sessions:read",))
_write_all = partial(Route, scopes=("sessions:write",))
"""Environment values of accounts and workspaces reach all agents."""
_env = partial(case, limit_bytes=_MOST_ENV_BYTES)

ROUTES = (
    _write("POST", PATH, **case(threads.create, status=201), summary="Create a thread", errors=(409, 413)),
    _read("GET", PATH, **case(threads.index), summary="List the threads"),
    _read("GET", _ONE, **case(threads.read), summary="Read a thread"),
    _write("DELETE", _ONE, **case(threads.delete), summary="Terminate a thread"),
    _read("GET", f"{_ONE}/runs", **case(thread_messages.index_runs), summary="List the runs of a thread"),
    _read("GET", f"{_ONE}/messages", **case(thread_messages.index), summary="List the messages of a thread"),
    _read("GET", _MESSAGE, **case(thread_messages.read), summary="Read a message of a thread"),
    _write(
        "PATCH",
        _MESSAGE,
        **case(thread_messages.change, limit_bytes=_MOST_MESSAGE_BYTES),
        summary="Change a message of a thread",
        errors=(409, 413),
    ),
    _write("DELETE", _MESSAGE, **case(thread_messages.delete), summary="Remove a message of a thread", errors=(409,)),
    _read("GET", f"{_ONE}/values", **case(threads.index_values), summary="List the values of a thread"),
    _read("GET", _VALUE, **case(threads.read_value), summary="Read a value"),
    _write(
        "PUT",
        _VALUE,
        **case(threads.change_value, limit_bytes=_MOST_VALUE_BYTES),
        summary="Set a value",
        errors=(409, 413),
    ),
    _write("DELETE", _VALUE, **case(threads.delete_value), summary="Remove a value", errors=(409,)),
    _read("GET", _ENV, **case(threads.index_env), summary="List the variables of a thread"),
    _write(
        "PUT",
        f"{_ENV}/{{name}}",
        **_env(threads.change_env),
        summary="Set an variable of a thread",
        errors=(409, 413),
    ),
    _write(
        "DELETE",
        f"{_ENV}/{{name}}",
        **case(threads.delete_env),
        summary="Remove an variable of a thread",
        errors=(409,),
    ),
    _write(
        "POST",
        f"{_ONE}/effects",
        **case(effects.create, status=201),
        summary="Schedule an effect of a thread",
        errors=(409, 413),
    ),
    _read("GET", f"{_ONE}/effects", **case(effects.index), summary="List the effects of a thread"),
    _read("GET", _EFFECT, **case(effects.read), summary="Read an effect"),
    _write("DELETE", _EFFECT, **case(effects.delete), summary="Cancel an effect"),
    _read_all("GET", _ACCOUNT, **case(threads.index_account_env), summary="List the variables of an account"),
    _write_all(
        "PUT",
        f"{_ACCOUNT}/{{name}}",
        **_env(threads.change_account_env),
        summary="Set an variable of an account",
        errors=(413,),
    ),
    _write_all(
        "DELETE",
        f"{_ACCOUNT}/{{name}}",
        **case(threads.delete_account_env),
        summary="Remove an variable of an account",
    ),
    _read_all("GET", _WORKSPACE, **case(threads.index_workspace_env), summary="List the variables of a workspace"),
    _write_all(
        "PUT",
        f"{_WORKSPACE}/{{name}}",
        **_env(threads.change_workspace_env),
        summary="Set an variable of a workspace",
        errors=(413,),
    ),
    _write_all(
        "DELETE",
        f"{_WORKSPACE}/{{name}}",
        **case(threads.delete_workspace_env),
        summary="Remove an variable of a workspace",
    ),
)
