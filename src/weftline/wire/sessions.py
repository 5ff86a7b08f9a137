"""The spec of a run for a session's message: the session's own, overridden by what the message sets."""

from __future__ import annotations

from msgspec import Raw, json

from weftline.errors import InvalidRequest
from weftline.wire.bodies import MessageBody
from weftline.wire.engine_options import ENGINE_OPTIONS
from weftline.wire.json_text import decode_fields, encode
from weftline.wire.limits import MAX_METADATA_BYTES, MAX_METADATA_ENTRIES
from weftline.wire.plan import NULL
from weftline.wire.tightening import WITHIN, tightened

INPUT = frozenset({"prompt", "messages", "attachments", "turnId", "runId", *ENGINE_OPTIONS})
SESSION_ONLY = frozenset({"name", "agentId", "systemPrompt", "modelId", "modelFallbacks"})
"""Fixed when the session is created; a message cannot change them."""

_decode_words = json.Decoder(dict[str, str]).decode


def effective_spec(session_spec: bytes, message: MessageBody) -> bytes:
    """Returns the spec to store for the run of `message`. The session's own spec is not changed.

    Raises `InvalidRequest` if the combined metadata exceeds the limits.
    """
    # A session has no input of its own, but one from before attachments existed may have fields of these names.
    merged = {key: value for key, value in decode_fields(session_spec).items() if key not in INPUT}
    for key, value in decode_fields(message.spec).items():
        if key in SESSION_ONLY or value == NULL:
            continue
        if key == "tools":
            if message.replaces_tools:
                merged[key] = value
        elif key == "metadata":
            if message.metadata:
                merged[key] = _merged_words(key, merged.get(key, NULL), message.metadata)
        elif key == "labels":
            merged[key] = _merged_words(key, merged.get(key, NULL), _decode_words(value))
        elif key in WITHIN:
            merged[key] = tightened(key, value, merged.get(key, NULL))
        else:
            merged[key] = value
    return encode(merged)


def _merged_words(name: str, session: Raw, message: dict[str, str]) -> Raw:
    merged = message if session == NULL else {**_decode_words(session), **message}
    encoded = encode(merged)
    entries = len(merged)
    if entries > MAX_METADATA_ENTRIES:
        raise _over(name, f"has {entries} entries together with the session's; at most {MAX_METADATA_ENTRIES} are kept")
    if len(encoded) > MAX_METADATA_BYTES:
        raise _over(name, f"has more than {MAX_METADATA_BYTES} bytes as JSON together with the session's")
    return Raw(encoded)


def _over(name: str, message: str) -> InvalidRequest:
    return InvalidRequest(f"{name}: {message}", issues=[{"path": name, "message": message}])
