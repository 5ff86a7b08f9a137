"""Requests and responses of the OAuth endpoints. Those that an RFC defines keep its snake_case names."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType


class NewOAuthApp(Struct, rename="camel"):
    """Registers an OAuth app."""

    name: str
    redirect_uris: list[str] | None = None
    allowed_scopes: list[str] | None = None
    visibility: str | None = None
    allows_client_credentials: bool | None = None
    description: str | None = None
    logo: str | None = None


class OAuthApp(Struct, frozen=True, rename="camel"):
    client_id: str
    workspace: str
    name: str
    description: str
    logo: str | None
    visibility: str
    redirect_uris: tuple[str, ...]
    allowed_scopes: tuple[str, ...]
    allows_client_credentials: bool
    created_at: str


class CreatedOAuthApp(OAuthApp, frozen=True, rename="camel"):
    """An app with its client secret, which is shown this once."""

    client_secret: str


class OAuthApps(Struct, frozen=True):
    apps: list[OAuthApp]


class GrantedApp(Struct, frozen=True, rename="camel"):
    client_id: str
    name: str


class OAuthGrant(Struct, frozen=True, rename="camel"):
    id: str
    app: GrantedApp
    workspace: str
    scopes: tuple[str, ...]
    agent_ids: tuple[str, ...]
    created_at: str


class OAuthGrants(Struct, frozen=True):
    grants: list[OAuthGrant]


class TokenResponse(Struct, frozen=True):
    """RFC 6749, section 5.1."""

    access_token: str
    token_type: Literal["Bearer"]
    expires_in: int
    refresh_token: str | UnsetType
    scope: str


class Introspection(Struct, frozen=True, omit_defaults=True):
    """RFC 7662, section 2.2. A token that is not active has no other field."""

    active: bool
    scope: str | UnsetType = UNSET
    client_id: str | UnsetType = UNSET
    token_type: Literal["Bearer"] | UnsetType = UNSET
    exp: int | UnsetType = UNSET
    iat: int | UnsetType = UNSET
    sub: str | UnsetType = UNSET
    username: str | UnsetType = UNSET


class UserInfoWorkspace(Struct, frozen=True):
    id: str
    slug: str
    name: str


class UserInfo(Struct, frozen=True):
    sub: str
    email: str | None
    workspace: UserInfoWorkspace


class OAuthMetadata(Struct, frozen=True):
    """RFC 8414, section 2."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    revocation_endpoint: str
    introspection_endpoint: str
    userinfo_endpoint: str
    scopes_supported: list[str]
    response_types_supported: list[str]
    response_modes_supported: list[str]
    grant_types_supported: list[str]
    code_challenge_methods_supported: list[str]
    token_endpoint_auth_methods_supported: list[str]
    revocation_endpoint_auth_methods_supported: list[str]
    introspection_endpoint_auth_methods_supported: list[str]


class UserProfile(Struct, frozen=True, rename="camel"):
    """A user, as an administrator sees them."""

    id: str
    email: str
    workspaces: tuple[str, ...]
    created_at: str
