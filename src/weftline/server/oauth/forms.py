"""Form-encoded requests, client authentication, and the errors of RFC 6749."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, TypeVar

from msgspec import Struct, convert, structs
from msgspec.json import encode

from weftline.api.schemas.oauth import OAuthRefusal
from weftline.errors import TooLarge
from weftline.server.declared import Form
from weftline.server.http import Request, Response
from weftline.store.records.apps import StoredApp
from weftline.text.percent import field_text
from weftline.text.percent import fields as form_fields
from weftline.workspace.apps import authenticate_app, find_public_app
from weftline.workspace.context import Workspaces
from weftline.workspace.grants import OAuthError

T = TypeVar("T", bound=Struct)

_FIELDS_LIMIT = 50
NO_STORE = ((b"cache-control", b"no-store"), (b"pragma", b"no-cache"))


def refusal(error: OAuthError) -> Response:
    """Returns `{error, error_description}`, as in RFC 6749."""
    headers, status = NO_STORE, 400
    if error.error == "invalid_client":
        headers, status = (*headers, (b"www-authenticate", b'Basic realm="weftline"')), 401
    body = encode(OAuthRefusal(error.error, error.description))
    return Response(body, status=status, headers=headers, code=error.error)


async def read_form(request: Request, form: Form[Any]) -> dict[str, str]:
    """Returns the fields of the route's form. A field that occurs twice is ambiguous, and so an error."""
    request.require_body(form)
    kind = (request.header(b"content-type") or "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise OAuthError("invalid_request", "The body must be application/x-www-form-urlencoded.")
    try:
        body = await request.body()
        if not body.isascii():
            raise ValueError("not form-encoded")
        pairs = form_fields(body, max_fields=_FIELDS_LIMIT, errors="strict")
    except (TooLarge, ValueError):
        raise OAuthError("invalid_request", "The body is too large or not a form.") from None
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise OAuthError("invalid_request", "A field occurs more than once.")
    return {name: value for name, value in fields.items() if value}


async def read_fields(request: Request, form: Form[T]) -> T:
    """Returns the route's form as its struct."""
    return fields_of(await read_form(request, form), form.type)


def fields_of(form: Mapping[str, str], type: type[T]) -> T:
    """Converts the form to a struct of strings."""
    for field in structs.fields(type):
        if field.required and field.encode_name not in form:
            raise OAuthError("invalid_request", f"{field.encode_name} is missing.")
    return convert(form, type)


async def client(
    workspaces: Workspaces, request: Request, form: Mapping[str, str], *, public: bool = True
) -> StoredApp:
    """Authenticates the app that sends the request, by its secret in the body or as HTTP Basic.

    With `public`, an app without a secret only names itself.
    """
    basic = _basic(request)
    if basic is not None:
        if "client_secret" in form:
            raise OAuthError("invalid_request", "Send the client's secret in one place.")
        client_id, secret = basic
        if form.get("client_id", client_id) != client_id:
            raise OAuthError("invalid_request", "client_id does not match the Authorization header.")
    else:
        client_id, secret = form.get("client_id", ""), form.get("client_secret", "")
    app = None
    if client_id and not secret and public:
        app = await find_public_app(workspaces, client_id)
    elif client_id and secret:
        app = await authenticate_app(workspaces, client_id=client_id, secret=secret)
    if app is None:
        raise OAuthError("invalid_client", "The client is unknown or its secret is wrong.")
    return app


def _basic(request: Request) -> tuple[str, str] | None:
    """Returns client id and secret of an Authorization header, each form-encoded as in RFC 6749."""
    header = request.header(b"authorization")
    if header is None:
        return None
    scheme, _, value = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        client_id, _, secret = base64.b64decode(value.strip(), validate=True).partition(b":")
        return field_text(client_id, errors="strict"), field_text(secret, errors="strict")
    except (binascii.Error, ValueError):
        return "", ""
