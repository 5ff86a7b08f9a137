"""The operations of administration by name, for the command line and for the owner's control socket."""

from __future__ import annotations

from weftline.server import administration, credentials, stored_providers, stored_tools
from weftline.server.control import Operation
from weftline.server.oauth import apps
from weftline.store.sqlite import keys, users

OPERATIONS: dict[str, Operation] = {
    "keys.create": keys.create_api_key,
    "keys.import": keys.import_api_key,
    "keys.list": credentials.list_keys,
    "keys.show": credentials.show_key,
    "keys.delete": credentials.delete_key,
    "workspaces.list": keys.list_workspaces,
    "workspaces.features": keys.features,
    "workspaces.set_feature": keys.set_feature,
    "users.create": users.create_user,
    "users.list": credentials.list_users,
    "users.show": credentials.show_user,
    "users.join": users.join_workspace,
    "users.leave": users.leave_workspace,
    "users.set_password": users.set_password,
    "users.delete": users.delete_user,
    "oauth.apps.create": apps.create,
    "oauth.apps.list": apps.listed,
    "oauth.apps.show": apps.show,
    "oauth.apps.delete": apps.delete,
    "oauth.grants.list": credentials.list_grants,
    "oauth.grants.delete": credentials.delete_grant,
    **administration.OPERATIONS,
    "providers.create": stored_providers.create,
    "providers.list": stored_providers.listed,
    "providers.show": stored_providers.show,
    "providers.delete": stored_providers.delete,
    "tools.create": stored_tools.create,
    "tools.list": stored_tools.listed,
    "tools.show": stored_tools.show,
    "tools.delete": stored_tools.delete,
}
