"""Tools stored in a workspace that send one HTTP request each, built from templates."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Literal, TypeAlias, cast
from urllib.parse import urlencode

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from weftline import prompts
from weftline.kernel.entries import Effect
from weftline.messages import Image, Text
from weftline.net.dial import Dialer
from weftline.net.errors import RequestFailed
from weftline.net.response import HttpResponse
from weftline.providers.base import ToolSpec
from weftline.text.canonical import parse
from weftline.text.characters import decoded
from weftline.text.redaction import SEALED_URL, Redactor
from weftline.tools.base import ToolContext, ToolFailed, ToolOutput
from weftline.tools.remote import RemoteTool
from weftline.tools.schema import object_schema
from weftline.tools.templates import MAX_ADDRESS_CHARS, Values, placeholders

Method: TypeAlias = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]

MAX_ANSWER_BYTES = 2 * 1024 * 1024
TIMEOUT_S = 30.0
REDIRECTS = 5
_READS = ("GET", "HEAD")
_IN_QUERY = ("GET", "HEAD", "DELETE")
_TEXTUAL = ("application/json", "application/xml", "application/javascript", "application/x-www-form-urlencoded")


class HttpSpec(Struct, frozen=True, omit_defaults=True):
    """A stored HTTP tool, without its secrets. `body` is a template: text if it is a string, otherwise JSON."""

    name: str
    url: str
    method: Method = "GET"
    description: str = ""
    parameters: Raw | UnsetType = UNSET
    headers: dict[str, str] = {}
    body: Raw | UnsetType = UNSET
    effect: Effect | None = None
    timeout_s: float = TIMEOUT_S
    secrets: tuple[str, ...] = ()
    """Their names; the values are stored separately, sealed."""


def whole_tool(spec: HttpSpec, secrets: Mapping[str, str]) -> tuple[HttpSpec, dict[str, str]]:
    """Returns a tool and its secrets, with its full address restored if that was stored as a secret."""
    kept = dict(secrets)
    return replace(spec, url=kept.pop(SEALED_URL, spec.url)), kept


class HttpTool(RemoteTool):
    """One request. Arguments that the templates do not use go into the query, or make up the JSON body.

    Methods other than GET and HEAD carry the call's `Idempotency-Key`. A status of 400 or above is an error result, and
    secrets that appear in a response are redacted.
    """

    def __init__(self, spec: HttpSpec, *, secrets: Mapping[str, str], dialer: Dialer) -> None:
        parameters = None if spec.parameters is UNSET else spec.parameters
        super().__init__(
            ToolSpec(spec.name, spec.description, object_schema(parameters)),
            redactor=Redactor.of_request(spec.url, {}, secrets=secrets.values()),
        )
        self.effect: Effect = spec.effect or ("read" if spec.method in _READS else "once")
        self.concurrent = self.effect == "read"
        # The request's own timeout comes first and gives a better error.
        self.timeout_s = spec.timeout_s + 5.0
        self._http = spec
        self._body: object = None if spec.body is UNSET else msgspec.json.decode(bytes(spec.body))
        self._secrets = secrets
        self._dialer = dialer

    async def ask(self, args: bytes, context: ToolContext) -> ToolOutput:
        try:
            url, headers, body = self._request(cast("dict[str, object]", parse(args)), context)
            async with self._dialer.request(
                self._http.method, url, headers=headers, body=body, timeout_s=self._http.timeout_s, redirects=REDIRECTS
            ) as reply:
                output = await self._read(reply)
        except RequestFailed as error:
            in_doubt = error.sent and self.effect == "once"
            message = prompts.remote.request_failed(self.name, error.message, in_doubt=in_doubt)
            return ToolOutput.of(message, is_error=True, in_doubt=in_doubt)
        except ToolFailed as error:
            return ToolOutput.of(prompts.calls.tool_failed(self.name, str(error)), is_error=True)
        return output

    def _request(self, args: dict[str, object], context: ToolContext) -> tuple[str, dict[str, str], bytes | None]:
        spec = self._http
        values = Values(args, self._secrets)
        url = values.url(spec.url)
        headers = {name: values.header(template) for name, template in spec.headers.items()}
        present = {name.lower() for name in headers}
        if spec.method not in _READS and "idempotency-key" not in present:
            headers["Idempotency-Key"] = context.idempotency_key
        body: bytes | None = None
        if self._body is not None:
            if isinstance(self._body, str):
                body, kind = values.text(self._body).encode(), "text/plain; charset=utf-8"
            else:
                body, kind = msgspec.json.encode(values.json(self._body)), "application/json"
        else:
            used = {name.partition(".")[0] for name in placeholders([spec.url, *spec.headers.values()])}
            left = {name: value for name, value in args.items() if name not in used}
            kind = "application/json"
            if spec.method not in _IN_QUERY:
                body = msgspec.json.encode(left)
            elif left:
                url += ("&" if "?" in url else "?") + urlencode(_query(left))
        if body is not None and "content-type" not in present:
            headers["Content-Type"] = kind
        return url, headers, body

    async def _read(self, reply: HttpResponse) -> ToolOutput:
        data, whole = await reply.read_up_to(MAX_ANSWER_BYTES)
        failed = reply.status >= 400
        kind = reply.media_type
        if kind.startswith("image/") and whole and not failed:
            return ToolOutput((Image(kind, data=base64.b64encode(data).decode()),))
        if data and not _is_text(kind):
            return ToolOutput.of(prompts.remote.answer_not_text(reply.status, kind, len(data)), is_error=failed)
        text = decoded(data, reply.charset)
        if not whole:
            text = prompts.remote.cut_after_bytes(text, MAX_ANSWER_BYTES)
        if failed:
            text = f"HTTP {reply.status} {reply.reason}".rstrip() + (f"\n{text}" if text else "")
        json = bool(data) and whole and not failed and (kind == "application/json" or kind.endswith("+json"))
        return ToolOutput((Text(text or f"HTTP {reply.status}"),), failed, is_json=json)


def _query(args: Mapping[str, object]) -> list[tuple[str, str]]:
    if len(msgspec.json.encode(args)) > MAX_ADDRESS_CHARS:
        raise ToolFailed(prompts.remote.request_too_large("address", MAX_ADDRESS_CHARS))
    pairs: list[tuple[str, str]] = []
    for name, value in args.items():
        if value is None:
            continue
        items = cast("list[object]", value) if isinstance(value, list) else [value]
        pairs += [(name, item if isinstance(item, str) else msgspec.json.encode(item).decode()) for item in items]
    return pairs


def _is_text(kind: str) -> bool:
    return not kind or kind.startswith("text/") or kind in _TEXTUAL or kind.endswith(("+json", "+xml"))
