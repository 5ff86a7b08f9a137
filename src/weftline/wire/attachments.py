"""Images and files that come with a prompt or a message: their shape, their limits, and where their content goes.

A client sends content in base64, or an address that the model's provider fetches. Content leaves the request here: the
stored spec and the plan name it by its SHA-256, and the store keeps it once.
"""

from __future__ import annotations

import mimetypes
import re
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Sequence
from hashlib import sha256
from ipaddress import ip_address
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

from msgspec import Raw, Struct, ValidationError, convert
from msgspec.json import decode

from weftline.errors import Issue, invalid
from weftline.messages import Blob, File, Image
from weftline.text.percent import decoded_up_to
from weftline.text.redaction import redact_url
from weftline.wire.json_text import decode_fields, decode_items, encode
from weftline.wire.limits import (
    FILE_TYPES,
    IMAGE_TYPES,
    MAX_ATTACHMENT_BYTES,
    MAX_ATTACHMENT_NAME_CHARS,
    MAX_ATTACHMENTS,
    MAX_RESULT_FILES_BYTES,
    MAX_URL_CHARS,
)

_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
)
_MAX_DATA_HEAD_CHARS = 1024
"""The length of a data URL before its content: its media type and parameters."""
_OWN = ("sha256", "sizeBytes")
"""Fields that the server writes instead of content; ignored if a client sends them."""


def take_attachments(raw: dict[str, Raw], fields: dict[str, Any]) -> tuple[Blob, ...]:
    """Moves the contents out of a valid request; its `raw` fields then refer to them.

    Raises `InvalidRequest` with each invalid attachment, by its path.
    """
    taking = _AttachmentReader()
    if fields.get("attachments"):
        raw["attachments"] = taking.rewritten(raw["attachments"], fields["attachments"], "attachments")
    messages: list[dict[str, Any]] = fields.get("messages") or []
    if any(message.get("attachments") for message in messages):
        items = decode_items(raw["messages"])
        for index, message in enumerate(messages):
            if message.get("attachments"):
                at = f"messages[{index}].attachments"
                if message["role"] != "user":
                    taking.issues.append(Issue(at, "only user messages can have attachments"))
                    continue
                inside = decode_fields(items[index])
                inside["attachments"] = taking.rewritten(inside["attachments"], message["attachments"], at)
                items[index] = Raw(encode(inside))
        raw["messages"] = Raw(encode(items))
    return taking.done()


class _AttachmentReader:
    """Reads the attachments of one request."""

    def __init__(self) -> None:
        self.issues: list[Issue] = []
        self._blobs: dict[str, Blob] = {}
        self._count = 0

    def rewritten(self, raw: Raw, sent: list[dict[str, Any]], at: str) -> Raw:
        self._count += len(sent)
        if self._count > MAX_ATTACHMENTS:
            return raw
        items = decode_items(raw)
        for index, attachment in enumerate(sent):
            try:
                items[index] = self._stored(items[index], attachment)
            except AttachmentRefused as refused:
                path = f"{at}[{index}]"
                self.issues.append(Issue(f"{path}.{refused.field}" if refused.field else path, refused.message))
        return Raw(encode(items))

    def done(self) -> tuple[Blob, ...]:
        if self._count > MAX_ATTACHMENTS:
            self.issues.append(Issue("attachments", f"a request can have at most {MAX_ATTACHMENTS} of them"))
        if self.issues:
            raise invalid(self.issues)
        return tuple(self._blobs.values())

    def _stored(self, raw: Raw, sent: dict[str, Any]) -> Raw:
        """Returns one attachment for the stored spec."""
        called: str | None = sent.get("name") or sent.get("filename")
        _check_name(called)
        fields: dict[str, Any] = {**decode_fields(raw)}
        for name in (*_OWN, "mimeType", "filename"):
            fields.pop(name, None)
        if called is not None:
            fields["name"] = called
        media_type, data = _content(sent)
        fields["mediaType"] = media_type
        if data is not None:
            blob = Blob(sha256(data).hexdigest(), data)
            self._blobs[blob.id] = blob
            fields.pop("data", None)
            fields.pop("url", None)
            fields |= _in_place_of(blob)
        return Raw(encode(fields))


class TakenAttachment(NamedTuple):
    """One attachment for a stored spec, and its content."""

    stored: Raw
    blob: Blob


def take_content(data: str, *, media_type: str | None, name: str | None) -> TakenAttachment:
    """Returns an attachment whose base64 content did not come in a run request. Raises `AttachmentRefused`."""
    kind, content = _checked(data, media_type=media_type, name=name)
    blob = Blob(sha256(content).hexdigest(), content)
    named = {} if name is None else {"name": name}
    return TakenAttachment(Raw(encode({"mediaType": kind, **named, **_in_place_of(blob)})), blob)


class SentFile(Struct, rename="camel"):
    """An image or a file in a tool's result, in base64. `mediaType` and `name` are the same as the other two."""

    data: str
    mime_type: str | None = None
    filename: str | None = None
    media_type: str | None = None
    name: str | None = None


def is_files(sent: object) -> bool:
    try:
        convert(sent, list[SentFile])
    except ValidationError:
        return False
    return True


def parts_of(files: Sequence[SentFile]) -> tuple[Image | File, ...] | None:
    """Returns what the model gets, or None if it is more than a result may hold.

    Raises `InvalidRequest` with each invalid file, by its path.
    """
    most = MAX_RESULT_FILES_BYTES
    if len(files) > MAX_ATTACHMENTS or sum([len(one.data) // 4 * 3 for one in files]) > most + 3 * len(files):
        return None
    parts: list[Image | File] = []
    issues: list[Issue] = []
    for index, sent in enumerate(files):
        name = sent.name if sent.filename is None else sent.filename
        try:
            kind, content = _checked(sent.data, media_type=sent.media_type or sent.mime_type, name=name)
        except AttachmentRefused as refused:
            issues.append(Issue(f"files[{index}].{refused.field}", refused.message))
            continue
        most -= len(content)
        parts.append((Image if kind in IMAGE_TYPES else File)(kind, data=sent.data, name=name))
    if issues:
        raise invalid(issues)
    return None if most < 0 else tuple(parts)


def _checked(data: str, *, media_type: str | None, name: str | None) -> tuple[str, bytes]:
    """Returns the media type and the content."""
    if name is not None and len(name) > MAX_ATTACHMENT_NAME_CHARS:
        raise AttachmentRefused("name", f"has more than {MAX_ATTACHMENT_NAME_CHARS} characters")
    _check_name(name)
    content = _decoded(data, "data")
    return _type_of_content(content, media_type, "data"), content


def _in_place_of(blob: Blob) -> dict[str, Any]:
    return {"sha256": blob.id, "sizeBytes": len(blob.data)}


class AttachmentRefused(Exception):
    """An attachment was refused. `field` is what is wrong: `data`, `mediaType`, …; empty for the whole."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field
        self.message = message


def _content(sent: dict[str, Any]) -> tuple[str, bytes | None]:
    """Returns the media type, and the content unless it is at an address."""
    given: str | None = sent.get("mediaType") or sent.get("mimeType")
    text: str | None = sent.get("data")
    url: str | None = sent.get("url")
    if (text is None) == (url is None):
        raise AttachmentRefused("", "give exactly one of `data` and `url`")
    if url is not None and url[:5].lower() == "data:":
        written, data = _data_url(url)
        return _type_of_content(data, given or written, "url"), data
    if url is not None:
        _check_address(url)
        return _accepted(given or mimetypes.guess_type(urlsplit(url).path)[0]), None
    data = _decoded(cast("str", text), "data")
    return _type_of_content(data, given, "data"), data


def _data_url(url: str) -> tuple[str | None, bytes]:
    comma = url.find(",", 0, _MAX_DATA_HEAD_CHARS)
    if comma < 0:
        raise AttachmentRefused("url", "is not a data URL")
    media_type, _, options = url[5:comma].partition(";")
    body = url[comma + 1 :]
    encoded = options.lower().split(";")[-1] == "base64"
    return media_type or None, _decoded(body, "url") if encoded else _unescaped(body)


def _unescaped(text: str) -> bytes:
    try:
        data = decoded_up_to(text.encode(), MAX_ATTACHMENT_BYTES)
    except ValueError:
        raise AttachmentRefused("url", "is not a data URL") from None
    if data is None:
        raise _too_large("url")
    return data


def _decoded(text: str, field: str) -> bytes:
    # Four characters encode three bytes; a text that is far too long is not even decoded.
    if len(text) // 4 * 3 > MAX_ATTACHMENT_BYTES + 3:
        raise _too_large(field)
    try:
        return b64decode(text, validate=True)
    except (NotBase64, ValueError):
        raise AttachmentRefused(field, "is not base64") from None


def _type_of_content(data: bytes, given: str | None, field: str) -> str:
    if not data:
        raise AttachmentRefused(field, "is empty")
    if len(data) > MAX_ATTACHMENT_BYTES:
        raise _too_large(field)
    found = sniffed(data)
    media_type = _accepted(given or found)
    if found != media_type and (found is not None or media_type in IMAGE_TYPES or media_type == "application/pdf"):
        raise AttachmentRefused("mediaType", f"is {media_type}, but the content is {found or 'something else'}")
    return media_type


def sniffed(data: bytes) -> str | None:
    """Returns the media type that a content shows by how it begins."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((media_type for signature, media_type in _SIGNATURES if data.startswith(signature)), None)


def _accepted(media_type: str | None) -> str:
    if media_type is None:
        raise AttachmentRefused("mediaType", "is missing, and cannot be determined from the rest")
    name = media_type.partition(";")[0].strip().lower()
    name = "image/jpeg" if name == "image/jpg" else name
    kind, _, detail = name.partition("/")
    if name in IMAGE_TYPES or name in FILE_TYPES or (kind == "text" and detail.replace("-", "").isalnum()):
        return name
    raise AttachmentRefused("mediaType", f"must be one of {', '.join((*IMAGE_TYPES, *FILE_TYPES))} or text/…")


def _check_address(url: str) -> None:
    if len(url) > MAX_URL_CHARS:
        raise AttachmentRefused("url", f"has more than {MAX_URL_CHARS} characters")
    try:
        parts = urlsplit(url)
        good = parts.scheme.lower() in ("http", "https") and bool(parts.hostname)
    except ValueError:
        good = False
    if not good or not url.isprintable() or " " in url:
        raise AttachmentRefused("url", "must be an http, https or data address")
    if not _is_public(urlsplit(url).hostname or ""):
        raise AttachmentRefused("url", "must be a public address, since the model's provider fetches it")


def _is_public(host: str) -> bool:
    """Whether an address may be public, as the operator's own model server must not be made to fetch from its network.

    Names are resolved where they are fetched, so only literal addresses are checked.
    """
    name = host.rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return False
    try:
        return ip_address(name).is_global
    except ValueError:
        # A host that ends in a number is an IP address in any notation, such as 0x7f.1.
        return re.fullmatch(r"(0x[0-9a-f]*|[0-9]+)", name.rpartition(".")[2]) is None


def _check_name(name: str | None) -> None:
    if name is not None and not name.isprintable():
        raise AttachmentRefused("name", "must be printable")


def _too_large(field: str) -> AttachmentRefused:
    return AttachmentRefused(field, f"has more than {MAX_ATTACHMENT_BYTES:,} bytes of content")


# For display


def with_redacted_urls(spec: bytes) -> bytes:
    """Returns a stored spec with redacted attachment URLs, as those of private files contain a secret."""
    if b'"attachments"' not in spec or b'"url"' not in spec:
        return spec
    return _redacted_in(Raw(spec), {"messages": {"attachments": {}}, "attachments": {}})


def _redacted_in(value: Raw, inside: dict[str, Any]) -> bytes:
    """Redacts attachments below the fields `inside`. Older specs may have something else there."""
    match _kind(value):
        case b"[":
            return encode([Raw(_redacted_in(item, inside)) for item in decode_items(value)])
        case b"{":
            fields = decode_fields(value)
            for name in inside.keys() & fields.keys():
                fields[name] = Raw(_redacted_in(fields[name], inside[name]))
            if not inside and "url" in fields and _kind(fields["url"]) == b'"':
                fields["url"] = Raw(encode(redact_url(decode(fields["url"], type=str))))
            return encode(fields)
        case _:
            return bytes(value)


def _kind(value: Raw) -> bytes:
    return bytes(memoryview(value)[:1])


# For the plan


class StoredAttachment(Struct, rename="camel"):
    """An attachment in a stored spec."""

    media_type: str
    name: str | None = None
    url: str | None = None
    sha256: str | None = None
    size_bytes: int | None = None

    def part(self) -> Image | File:
        kind = Image if self.media_type in IMAGE_TYPES else File
        blob = self.sha256 if self.url is None else None
        size = self.size_bytes if self.url is None else None
        return kind(self.media_type, url=self.url, name=self.name or None, blob=blob, size=size)
