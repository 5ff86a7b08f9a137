"""Stored users, apps and grants as the JSON of the API and of the commands."""

from __future__ import annotations

from msgspec import UNSET
from msgspec.structs import asdict

from weftline.store.records.apps import App
from weftline.store.records.grants import Grant, Token
from weftline.wire.oauth import (
    CreatedOAuthApp,
    GrantedApp,
    Introspection,
    OAuthApp,
    OAuthGrant,
    TokenResponse,
    UserProfile,
)
from weftline.wire.responses import iso
from weftline.workspace.grants import ACCESS_S, Issued
from weftline.workspace.users import Profile


def app_view(app: App) -> OAuthApp:
    return OAuthApp(
        app.client_id,
        app.slug,
        app.name,
        app.description,
        app.logo or None,
        app.visibility,
        app.redirect_uris,
        app.scopes,
        app.client_credentials,
        iso(app.created_at),
    )


def created_app_view(app: App, secret: str) -> CreatedOAuthApp:
    return CreatedOAuthApp(**asdict(app_view(app)), client_secret=secret)


def grant_view(grant: Grant) -> OAuthGrant:
    return OAuthGrant(
        grant.id,
        GrantedApp(grant.client_id, grant.app_name),
        grant.slug,
        grant.scopes,
        grant.agents,
        iso(grant.created_at),
    )


def token_view(issued: Issued) -> TokenResponse:
    refresh = UNSET if issued.refresh is None else issued.refresh
    return TokenResponse(issued.access, "Bearer", ACCESS_S, refresh, " ".join(issued.scopes))


def introspection_view(found: Token | Grant | None, *, now: int) -> Introspection:
    """Everything to the app that a token was issued to, and nothing about others."""
    match found:
        case Token() if found.expires_at > now:
            return Introspection(
                True,
                " ".join(found.scopes),
                found.client_id,
                "Bearer",
                found.expires_at // 1_000_000,
                found.created_at // 1_000_000,
                found.user or found.client_id,
                found.email or UNSET,
            )
        case Grant():
            return Introspection(
                True,
                " ".join(found.scopes),
                found.client_id,
                iat=found.created_at // 1_000_000,
                sub=found.user,
                username=found.email,
            )
        case _:
            return Introspection(False)


def user_view(profile: Profile) -> UserProfile:
    return UserProfile(profile.user.id, profile.user.email, profile.workspaces, iso(profile.user.created_at))
