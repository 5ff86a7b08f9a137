"""Refusals in the words of the client: use cases name fields as Python does, and the protocol has its own names."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Final

from weftline.errors import Forbidden, InvalidRequest, WeftlineError, renamed
from weftline.spec.declare import fields_of
from weftline.spec.fields import RunSpec
from weftline.wire.unknown_fields import UnknownField, with_typos

_FIELDS: Final = {one.name: one.wire for one in fields_of(RunSpec)} | {
    "agent_ids": "agentIds",
    "api_key": "apiKey",
    "base_url": "baseUrl",
    "catch_up": "catchUp",
    "client_credentials": "allowsClientCredentials",
    "redirect_uris": "redirectUris",
    "scopes": "allowedScopes",
    "stop": "stopSequences",
    "timeout_s": "timeoutMs",
}
"""Our names of fields, where the protocol has others."""
_FIRST_NAME = re.compile(r"\w+")
_NAME_IN_HINT = re.compile(r"\b[a-z]+_[a-z_]+\b")


@contextmanager
def client_names(unknown: Sequence[UnknownField] = ()) -> Generator[None]:
    """Whatever is refused inside is refused with the names of the client's fields, as by `as_sent`."""
    try:
        yield
    except (InvalidRequest, Forbidden) as error:
        raise as_sent(error, unknown) from None


def as_sent(error: WeftlineError, unknown: Sequence[UnknownField] = ()) -> WeftlineError:
    """Returns the refusal with the names of the client's fields, and with unknown fields that may be its cause."""
    if error.hint:
        error.hint = _NAME_IN_HINT.sub(_wire_name, error.hint)
    if not isinstance(error, InvalidRequest):
        return error
    return with_typos(renamed(error, _wire_path), unknown)


def _wire_path(path: str) -> str:
    return _FIRST_NAME.sub(_wire_name, path, count=1)


def _wire_name(found: re.Match[str]) -> str:
    return _FIELDS.get(found[0], found[0])
