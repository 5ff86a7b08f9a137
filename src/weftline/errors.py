"""The error table: every failure a caller can see, by stable code.

    WeftlineError
    ├── InvalidRequest      400  the request itself is wrong; `path` names the field
    ├── Unauthorized        401  no credential, or one that is invalid or has expired
    ├── Forbidden           403  a valid credential that is not allowed to do this
    ├── NotFound            404  unknown, or in another workspace (indistinguishable)
    ├── Conflict            409  right request, wrong moment: the run has ended, the key was used for something else
    ├── TooLarge            413  the body is over its limit, or a thread keeps as much as it may
    ├── RateLimited         429  try again after `retry_after_s`
    ├── Unavailable         503  the store refuses writes or the server is stopping; try again
    └── StoreError          –    the store cannot be opened: in use, newer, not a store, read-only

Callers match on the class or on `code`, never on the message. For each code, `TABLE` gives the HTTP status, whether the
same request may succeed later, and what to do.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, ClassVar, Final, NamedTuple


class Row(NamedTuple):
    status: int
    retryable: bool
    remedy: str


LOG_DAMAGED = "log_damaged"

TABLE: dict[str, Row] = {
    "invalid_request": Row(400, False, "Correct the field that the message names and send the request again."),
    "invalid_model": Row(400, False, "Name one of `candidates`, or ask GET …/models for the catalog."),
    "unpriced_model": Row(400, False, "Use a model whose price is known, or give the server its price."),
    "blank_thread": Row(400, False, "Name the thread or session, or leave it out."),
    "thread_not_allowed": Row(400, False, "Send a message to the session, or run the agent on an `Engine`."),
    "missing_variable": Row(400, False, "Give the thread, its account or the workspace a value for the variable."),
    "missing_labels": Row(400, False, "Start the run with the labels in `missing`."),
    "invalid_plugin": Row(400, False, "Name a tool that this server has installed."),
    "unauthorized": Row(401, False, "Send an API key or access token in Authorization: Bearer or X-API-Key."),
    "forbidden": Row(403, False, "Use a credential that is allowed to do this."),
    "insufficient_scope": Row(403, False, "Ask for a token with the scopes in `required`."),
    "api_keys_plan": Row(403, False, "Enable API keys for this workspace."),
    "oauth_apps_plan": Row(403, False, "Enable OAuth applications for this workspace."),
    "not_found": Row(404, False, "Check the id and the workspace; ids of other workspaces are not shown."),
    "method_not_allowed": Row(405, False, "Use one of the methods in the Allow header."),
    "unknown_call": Row(404, False, "The call was already answered or never existed; there is nothing left to do."),
    "unknown_turn": Row(404, False, "Turns count from 0; `last` is the latest."),
    "unknown_message": Row(404, False, "Check the id; GET …/messages lists the messages of a thread."),
    "history_edited": Row(409, False, "Read the run's log; what it read of its thread is not there any more."),
    "message_in_use": Row(409, True, "Change it when the turn it belongs to is over."),
    "unknown_await": Row(404, False, "Check the run and the id; GET …/awaits lists what is open."),
    "invalid_answer": Row(400, False, "Correct the answer as the message says; the run still waits for it."),
    "await_closed": Row(409, False, "Read the run's log to see who answered and how."),
    "await_expired": Row(409, False, "The run continued without the answer; read its snapshot."),
    "interrupts_not_allowed": Row(403, False, "Let the run end, or cancel it."),
    "four_eyes": Row(403, False, "Let somebody else approve it."),
    "not_approver": Row(403, False, "Ask one of the people in `approvers` to decide."),
    "unknown_run": Row(404, False, "Check the run id."),
    "unknown_skill": Row(404, False, "Name one of the skills in `names`."),
    "registration_closed": Row(409, False, "Register the agent with the engine before opening it."),
    "run_terminal": Row(409, False, "Read its snapshot to see how it ended."),
    "run_exists": Row(409, False, "Use another id, or none; the existing run is unchanged."),
    "thread_ended": Row(409, False, "Create a new one."),
    "agent_unavailable": Row(409, False, "Serve the agent again, under its name; the thread is as it was."),
    "lease_held": Row(409, False, "Leave the call to the client that has it, or claim it after `leaseEndsAt`."),
    "lease_lost": Row(409, False, "Drop the result: another client, or the server, has the call now."),
    "idempotency_conflict": Row(409, False, "Use a new Idempotency-Key for a different request."),
    "conflict": Row(409, False, "Read the current state and decide again."),
    "too_many_active_skills": Row(409, False, "Deactivate a skill first, or raise max_active."),
    "unsupported_run": Row(409, False, "Use the version of Weftline that wrote the run, or a newer one."),
    "run_unfinished": Row(409, False, "Wait until the run has ended, or cancel it."),
    "run_trimmed": Row(409, False, "Its log is gone; use a run that retention has not removed, or an export."),
    "bad_export": Row(400, False, "Export the run again; the message names the line that is wrong."),
    "import_conflict": Row(409, False, "Import the file into a store that has no other run with this number."),
    "not_paused": Row(409, False, "There is nothing to resume."),
    "request_timeout": Row(408, True, "Send the whole request without pauses."),
    "body_too_large": Row(413, False, "Send a smaller body."),
    "quota_exceeded": Row(413, False, "Remove something first, or raise the limit that `limit` names."),
    "unsupported_encoding": Row(415, False, "Send the body without a Content-Encoding."),
    "expectation_failed": Row(417, False, "Send `Expect: 100-continue`, or no Expect header."),
    "head_too_large": Row(431, False, "Send fewer or shorter headers."),
    "rate_limited": Row(429, True, "Wait for the time in Retry-After."),
    "too_many_runs": Row(429, True, "Wait until some of the workspace's runs begin; at most `limit` may be queued."),
    "too_many_streams": Row(429, True, "Close unused streams of the workspace; at most `limit` may be open."),
    "too_many_large_responses": Row(429, True, "Finish reading the open large responses, then try again."),
    "too_many_large_bodies": Row(429, True, "Send the workspace's large bodies one at a time."),
    "internal_error": Row(500, True, "Try again; the server's log has the details under the request id."),
    "not_implemented": Row(501, False, "Use another method; `chunked` is the only transfer coding that is supported."),
    "handler_timeout": Row(504, True, "The folder's code took too long to answer; make it faster, or stream."),
    "unavailable": Row(503, True, "The server or its store cannot do this now; try again after Retry-After."),
    LOG_DAMAGED: Row(500, False, "Restore a backup; the message says what cannot be read."),
    "worker_error": Row(500, False, "The run could not continue; the server's log has the details."),
    "context_unavailable": Row(503, False, "Install or allow what the message names, or use another context."),
    "context_destroyed": Row(409, False, "Spawn a new context and use its handle."),
    "sandbox_unavailable": Row(503, False, "Install or allow what the message names."),
    "location_unavailable": Row(502, True, "Check the file's location; the message says why it cannot be read."),
    "store_in_use": Row(503, False, "Stop the process that owns the store, or send the request to it."),
    "store_newer": Row(503, False, "Upgrade Weftline to the version that wrote the store."),
    "store_unusable": Row(503, False, "Check the path, its permissions and the disk."),
    "bad_script": Row(400, False, "Correct the script file at the place that the message names."),
    "bad_tools_file": Row(400, False, "Correct the tools file; it must be importable, with @weftline.tool functions."),
    "bad_definition": Row(
        400, False, "Correct the definitions that it names; `weftline check FOLDER` lists all problems."
    ),
    "bad_config": Row(400, False, "Correct the setting that the message names."),
}


class Issue(NamedTuple):
    """A problem with one field, named as the caller names it."""

    path: str
    message: str


class WeftlineError(Exception):
    """Anything Weftline refuses or cannot do. `details` become extra fields of the HTTP error body."""

    default_code: ClassVar[str] = "internal_error"
    issues: tuple[Issue, ...] = ()
    """The fields that are to blame; the message quotes the first few."""

    def __init__(self, message: str, *, code: str | None = None, hint: str | None = None, **details: Any) -> None:
        super().__init__(message)
        self.code = code or self.default_code
        self.message = message
        self.hint = hint
        self.details: dict[str, Any] = details

    @property
    def status(self) -> int:
        return TABLE[self.code].status

    @property
    def retryable(self) -> bool:
        return TABLE[self.code].retryable


class InvalidRequest(WeftlineError):
    default_code = "invalid_request"


class Unauthorized(WeftlineError):
    default_code = "unauthorized"


class Forbidden(WeftlineError):
    default_code = "forbidden"


class NotFound(WeftlineError):
    """It does not exist, or belongs to another workspace."""

    default_code = "not_found"


class Conflict(WeftlineError):
    """Not possible in the current state; `code` says why."""

    default_code = "conflict"


class TooLarge(WeftlineError):
    default_code = "body_too_large"


class QuotaExceeded(TooLarge):
    """More than a thread may keep; nothing was written."""

    default_code = "quota_exceeded"


class RateLimited(WeftlineError):
    default_code = "rate_limited"


class Unavailable(WeftlineError):
    default_code = "unavailable"


class StoreError(WeftlineError):
    default_code = "store_unusable"


def no_such_run() -> NotFound:
    """Returns the same error for an unknown run and for somebody else's."""
    return NotFound("There is no such run.", reason="unknown_run")


def run_has_ended() -> Conflict:
    return Conflict("The run has ended.", code="run_terminal", reason="completed_run")


def entry_damaged(run_id: str, seq: int) -> StoreError:
    return StoreError(f"The log of run {run_id} is damaged: entry {seq} cannot be read.", code=LOG_DAMAGED)


def of_newer_code(run_id: str) -> Conflict:
    return Conflict(f"Only a newer version of Weftline can read run {run_id}.", code="unsupported_run")


def end_of_newer_code(run_id: str) -> Conflict:
    """Returns the error for a run that has ended, if this version cannot read how."""
    return Conflict(f"Only a newer version of Weftline can read how run {run_id} ended.", code="unsupported_run")


MAX_ISSUES = 100
"""Issues listed in one error; any more are left out."""
_ISSUES_IN_MESSAGE = 3


def invalid(issues: Sequence[Issue], *, code: str | None = None) -> InvalidRequest:
    """Returns one error for all these issues; its message quotes the first few, and its details list them."""
    quoted = "; ".join(f"{path}: {text}" if path else text for path, text in issues[:_ISSUES_IN_MESSAGE])
    more = len(issues) - _ISSUES_IN_MESSAGE
    listed = [{"path": path, "message": text} for path, text in issues[:MAX_ISSUES]]
    error = InvalidRequest(f"{quoted} (and {more:,} more)" if more > 0 else quoted, code=code, issues=listed)
    error.issues = tuple(issues)
    return error


def invalid_field(path: str, fault: str, *, code: str | None = None) -> InvalidRequest:
    """Returns an error about one field; `fault` is a sentence. Its details do not list it."""
    error = InvalidRequest(f"{path}: {fault}", code=code)
    error.issues = (Issue(path, fault),)
    return error


def renamed(error: InvalidRequest, rename: Callable[[str], str]) -> InvalidRequest:
    """Returns the error with other names for the fields of its issues."""
    named = tuple(Issue(rename(path), text) for path, text in error.issues)
    if named == error.issues:
        return error
    made = invalid(named) if "issues" in error.details else invalid_field(*named[0])
    made.code, made.hint, made.details = error.code, error.hint, error.details | made.details
    return made


FULL_TRACEBACKS: Final = "WEFTLINE_FULL_TRACEBACKS"
"""The environment variable that keeps our own frames in tracebacks."""
_PLUMBING: Final = ("weftline", "asyncio", "concurrent", "contextlib")


class _ShortTraceback:
    """In a `with` block, errors that we raise on purpose end at the line of the user's code that led to them.

    Anything else, such as a defect of ours or an error of the user's own code, keeps its traceback. Leaving the block
    adds no frame, so the one with the block is not there either.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is not None and not os.environ.get(FULL_TRACEBACKS):
            _shorten(error)


short_traceback: Final = _ShortTraceback()


def _shorten(error: BaseException) -> None:
    frames = _frames(error.__traceback__)
    last_foreign = max((at for at, one in enumerate(frames) if not _is_plumbing(one)), default=-1)
    if not _is_raised_by_us(error, frames):
        return
    if last_foreign < 0:
        error.__traceback__ = None
    else:
        frames[last_foreign].tb_next = None
    error.__dict__[_SHORTENED] = True
    cause = error.__cause__
    if cause is not None:
        _shorten(cause)
        # Of an error of the user's own code, what comes after our call of it.
        frames = _frames(cause.__traceback__)
        cause.__traceback__ = next((one for one in frames if not _is_plumbing(one)), cause.__traceback__)
    elif error.__context__ is not None and all(map(_is_plumbing, _frames(error.__context__.__traceback__))):
        error.__suppress_context__ = True


_SHORTENED: Final = "_weftline_shortened"


def _is_raised_by_us(error: BaseException, frames: Sequence[TracebackType]) -> bool:
    if isinstance(error, WeftlineError) or _SHORTENED in error.__dict__:
        return True
    if not frames or not frames[-1].tb_frame.f_globals.get("__name__", "").startswith("weftline."):
        return False
    # A `raise` of ours, not a statement that failed.
    from linecache import getline  # only an error of a user needs it

    line = getline(frames[-1].tb_frame.f_code.co_filename, frames[-1].tb_lineno)
    return isinstance(error, Exception) and line.lstrip().startswith("raise ")


def _frames(tb: TracebackType | None) -> list[TracebackType]:
    found: list[TracebackType] = []
    while tb is not None:
        found.append(tb)
        tb = tb.tb_next
    return found


def _is_plumbing(one: TracebackType) -> bool:
    return one.tb_frame.f_globals.get("__name__", "").partition(".")[0] in _PLUMBING
