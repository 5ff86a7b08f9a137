"""OAuth apps, grants and tokens as JSON. Fields that an RFC defines keep their snake_case names."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import asdict

from weftline.store.records.apps import StoredApp
from weftline.store.records.grants import Grant, Token
from weftline.wire.responses import Time, iso
from weftline.workspace.grants import ACCESS_S, Issued
from weftline.workspace.registration import Registered


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
    created_at: Time


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
    created_at: Time


class OAuthGrants(Struct, frozen=True):
    grants: list[OAuthGrant]


class _ClientForm(Struct, frozen=True, kw_only=True):
    """The client's id and secret, unless they come as HTTP Basic."""

    client_id: str | None = None
    client_secret: str | None = None


class CodeForm(_ClientForm, frozen=True, kw_only=True, tag_field="grant_type", tag="authorization_code"):
    code: str
    redirect_uri: str
    code_verifier: str
    resource: str = ""


class RefreshForm(_ClientForm, frozen=True, kw_only=True, tag_field="grant_type", tag="refresh_token"):
    refresh_token: str
    scope: str = ""
    resource: str = ""


class AppForm(_ClientForm, frozen=True, kw_only=True, tag_field="grant_type", tag="client_credentials"):
    scope: str = ""
    resource: str = ""


TokenForm: TypeAlias = CodeForm | RefreshForm | AppForm
GRANT_TYPES: dict[str, type[TokenForm]] = {
    "authorization_code": CodeForm,
    "refresh_token": RefreshForm,
    "client_credentials": AppForm,
}


class OneTokenForm(_ClientForm, frozen=True, kw_only=True):
    """Revokes or introspects a token."""

    token: str


class SignInForm(Struct, frozen=True):
    """`token` is the page's hidden field."""

    token: str = ""
    email: str = ""
    password: str = ""


class TokenResponse(Struct, frozen=True):
    """RFC 6749, section 5.1."""

    access_token: str
    token_type: Literal["Bearer"]
    expires_in: int
    refresh_token: str | UnsetType
    scope: str


class Nothing(Struct, frozen=True):
    """The empty response to a revocation, as in RFC 7009."""


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
    aud: str | UnsetType = UNSET
    """The only address that the token is valid for, if it is limited to one."""


class OAuthRefusal(Struct, frozen=True):
    """RFC 6749, section 5.2."""

    error: str
    error_description: str


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
    authorization_response_iss_parameter_supported: bool
    registration_endpoint: str | UnsetType = UNSET
    client_id_metadata_document_supported: bool = False


class ClientDocument(Struct, frozen=True):
    """RFC 7591, section 2, with the document's own address as `client_id`."""

    client_id: str
    client_uri: str
    client_name: str = "Weftline"
    redirect_uris: tuple[str, ...] = ("http://127.0.0.1/callback", "http://localhost/callback")
    """On any port, chosen when the client starts."""
    grant_types: tuple[str, ...] = ("authorization_code", "refresh_token")
    response_types: tuple[str, ...] = ("code",)
    token_endpoint_auth_method: str = "none"
    software_id: str = "weftline"


class ProtectedResource(Struct, frozen=True):
    """RFC 9728, section 2."""

    resource: str
    authorization_servers: list[str]
    scopes_supported: list[str]
    bearer_methods_supported: list[str]
    resource_name: str


class NewClient(Struct, frozen=True):
    """RFC 7591, section 2. Fields that are not listed are ignored."""

    redirect_uris: list[str] | None = None
    token_endpoint_auth_method: str | None = None
    grant_types: list[str] | None = None
    response_types: list[str] | None = None
    client_name: str | None = None


class RegisteredClient(Struct, frozen=True, omit_defaults=True):
    """RFC 7591, section 3.2.1: the client as it is registered, which is not always as it asked."""

    client_id: str
    client_id_issued_at: int
    client_name: str
    redirect_uris: tuple[str, ...]
    token_endpoint_auth_method: str
    grant_types: tuple[str, ...]
    response_types: tuple[str, ...]
    scope: str
    client_secret: str | UnsetType = UNSET
    client_secret_expires_at: int | UnsetType = UNSET


def app_json(app: StoredApp) -> OAuthApp:
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


def created_app_json(app: StoredApp, secret: str) -> CreatedOAuthApp:
    return CreatedOAuthApp(**asdict(app_json(app)), client_secret=secret)


def registered_json(made: Registered) -> RegisteredClient:
    app = made.app
    return RegisteredClient(
        app.client_id,
        app.created_at // 1_000_000,
        app.name,
        app.redirect_uris,
        made.auth,
        ("authorization_code", "refresh_token"),
        ("code",),
        " ".join(app.scopes),
        UNSET if made.secret is None else made.secret,
        UNSET if made.secret is None else 0,  # means never
    )


def grant_json(grant: Grant) -> OAuthGrant:
    return OAuthGrant(
        grant.id,
        GrantedApp(grant.client_id, grant.app_name),
        grant.slug,
        grant.scopes,
        grant.agents,
        iso(grant.created_at),
    )


def token_json(issued: Issued) -> TokenResponse:
    refresh = UNSET if issued.refresh is None else issued.refresh
    return TokenResponse(issued.access, "Bearer", ACCESS_S, refresh, " ".join(issued.scopes))


def introspection_json(found: Token | Grant | None, *, now: int, base: str) -> Introspection:
    """Returns everything to the app that a token was issued to, and nothing to others.

    `base` is this server's address.
    """
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
                f"{base}{found.resource}" if found.resource else UNSET,
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
