"""Runs and sessions that a caller may access: those of another workspace or agent do not exist for it.

docs/auth.md has the rule, which holds for every way in; `weftline.workspace.agents` has its part for agents.
"""

from __future__ import annotations

from weftline.api.sessions import find_thread
from weftline.errors import Conflict, InvalidRequest, NotFound, no_such_run
from weftline.server.app import App
from weftline.server.auth import Principal
from weftline.server.http import Request
from weftline.store.records.threads import ThreadRow
from weftline.store.rows import RunRow
from weftline.workspace.agents import owns


async def find_run(app: App, request: Request, principal: Principal) -> RunRow:
    """Returns the run in the path. Raises `NotFound` if it does not exist or belongs to somebody else."""
    row = await app.engine.stored.find(request.params["runId"], workspace=principal.workspace)
    if not owns(principal, row.agent):
        raise no_such_run()
    return row


async def locate_run(app: App, request: Request, principal: Principal) -> int:
    """Returns the key of the run in the path, without reading its row unless necessary."""
    if principal.agents:
        return (await find_run(app, request, principal)).key
    return await app.engine.locate(request.params["runId"], workspace=principal.workspace)


async def hide_run(app: App, principal: Principal, error: Conflict) -> None:
    """Hides the run with which a new one collides, if the caller may not see it.

    Raises `NotFound` for an id that the caller chose, as at any other route; otherwise the error loses the run's id.
    """
    run_id = error.details.get("run_id")
    if run_id is None:
        return
    try:
        row = await app.engine.stored.find(run_id, workspace=principal.workspace)
        if owns(principal, row.agent):
            return
    except NotFound:
        pass
    if error.code == "run_exists":
        raise no_such_run() from None
    del error.details["run_id"]


async def find_session(app: App, request: Request, principal: Principal) -> ThreadRow:
    """Returns the session in the path. Raises `NotFound` as `find_run` does."""
    asked = request.params["sessionId"]
    if not asked.strip():
        raise InvalidRequest("The id of the session is blank.", code="blank_thread")
    return await find_thread(app.workspaces, principal, asked, called="session")
