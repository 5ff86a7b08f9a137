"""The authenticated caller of a request."""

from __future__ import annotations

from msgspec import Struct

from weftline.store.sealing import SecretHash

_NEVER = 2**63


class Principal(Struct, frozen=True):
    """An authenticated caller, bound to one workspace. `agents` is its allow-list; empty means all."""

    id: str
    """The id of the API key, the grant, or the app that acts for itself. Requests are counted under it."""
    workspace: int
    slug: str
    usage: str = "developer_api"
    agents: tuple[str, ...] = ()
    scopes: frozenset[str] | None = None
    """None for API keys, which have no scopes."""
    user: str | None = None
    email: str | None = None
    gated: bool = False
    """Whether the workspace has disabled this kind of credential."""
    expires_us: int = _NEVER
    resource: str = ""
    """The one path that an access token is valid for; empty for all that its scopes allow."""
    digest: bytes = b""
    """The digest of the credential."""
    stored: SecretHash | None = None
    """The key under which an access token is stored; None for API keys."""
    operator: bool = False
    """Whether this is the operator, who may do everything in every workspace; `id` is then a user of this machine."""

    @property
    def may_change_agents(self) -> bool:
        """Whether it may change the agents of its workspace, and so override their policies."""
        return not self.agents and not self.resource and (self.scopes is None or "agents:write" in self.scopes)

    @property
    def who(self) -> str:
        """The caller's name in logs: that of its key, its user or its app, or of the operator."""
        if self.operator:
            return operator_name(self.id)
        if self.scopes is None:
            return f"key:{self.id}"
        return f"app:{self.id}" if self.user is None else f"user:{self.user}"


def operator_name(user: str) -> str:
    """Returns the name in logs of an operator who is this user of the machine."""
    return f"operator:{user}"


NOBODY = Principal("", 0, "")
