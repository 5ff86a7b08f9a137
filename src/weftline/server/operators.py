"""The operator: a user of this machine who may connect to the store's own socket, which is for the server's user only.

The operator may do everything in every workspace, without scopes, allow-lists or limits. A request over that socket
that carries a credential is that credential's, and never more.
"""

from __future__ import annotations

from weftline.api.principal import Principal
from weftline.cases import keys
from weftline.errors import Forbidden, NotFound, Unauthorized
from weftline.replay.refusing import find_run
from weftline.runtime.reads.reading import StoredRuns
from weftline.server.http import PEER, Request
from weftline.server.router import Route
from weftline.workspace import apps, workspaces
from weftline.workspace.context import Workspaces

PATHS = "/api/v1/operator/"
"""The beginning of the paths that exist for the operator only."""
EVERY = "-"
"""Stands for a slug in paths that identify something by its id, and for all workspaces in some lists."""

_CREDENTIALS = frozenset({b"authorization", b"x-api-key"})
_OF_PROXIES_AND_PAGES = frozenset({b"forwarded", b"origin", b"via"})


def peer_of(request: Request) -> str:
    """Returns the user who has sent this request over the store's own socket; empty if it carries a credential.

    Raises `Forbidden` for what a proxy passes on: whoever put one in front of the socket gives nobody authority.
    """
    names = {name for name, _ in request.scope["headers"]}
    if names & _OF_PROXIES_AND_PAGES or any(name.startswith(b"x-forwarded-") for name in names):
        raise Forbidden("The store's own socket takes no requests that somebody else passes on.")
    return "" if names & _CREDENTIALS else request.scope[PEER]


async def operator(at: Workspaces, runs: StoredRuns, request: Request, route: Route) -> Principal:
    """Returns the operator in the workspace that the path names, or in that of the run, key or app that it names.

    Raises `NotFound` for one that does not exist.
    """
    if not request.path.startswith("/api/v1/") or "developer_api" not in route.usages:
        raise Unauthorized("This takes a credential: the operator uses the API, and no other protocol.")
    user, params = request.operator, request.params
    slug = params.get("slug")
    if slug is None or route.access == "operator":
        return Principal(user, 0, "", operator=True)
    named = None if slug == EVERY else slug
    key = None if named is None else await workspaces.find(at, named)
    if (run_id := params.get("runId")) is not None:
        key = (await find_run(runs.logs, run_id, workspace=key)).workspace
    elif key is None and (key_id := params.get("keyId")) is not None:
        key = (await keys.find(at, key_id)).workspace
    elif key is None and (client_id := params.get("clientId")) is not None:
        owner = (await apps.show_app(at, client_id=client_id)).slug
        if not owner:  # it has registered itself
            return Principal(user, 0, "", operator=True)
        key = await workspaces.find(at, owner)
    if key is None:
        if not route.every_workspace:
            raise NotFound(f"There is no workspace {slug!r}.")
        return Principal(user, 0, EVERY, operator=True)
    return Principal(user, key, named or await workspaces.slug_of(at, key) or "", operator=True)
