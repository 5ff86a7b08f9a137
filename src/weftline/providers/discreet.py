"""A provider that repeats what it was sent: its key is blacked out of its answers before anyone sees them.

A workspace's provider is somebody's server, and whoever may read the workspace's runs need not know its key.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace

from weftline.messages import ProviderCall, Text
from weftline.providers.base import (
    CallArgs,
    CallDone,
    CallStart,
    Chunk,
    Finish,
    ModelInfo,
    ModelRequest,
    Provider,
    ProviderError,
    TextDelta,
    ThinkingDelta,
    UsageUpdate,
    Whole,
)
from weftline.providers.throttle import close_stream
from weftline.redaction import REDACTED, Redactor

_MIN_CHARS = 8
"""Keys are longer. A shorter one would black out words."""
_THOROUGH_CHARS = 64 * 1024
"""In what is longer, a secret is found only as it is: the rest would hold up the event loop."""


class DiscreetProvider:
    """A provider whose answers do not contain these secrets. Everything else it offers is passed through."""

    def __init__(self, provider: Provider, secrets: Sequence[str]) -> None:
        self.inner = provider
        self._secrets = tuple(dict.fromkeys([secret for secret in secrets if len(secret) >= _MIN_CHARS]))
        self._redactor = Redactor(self._secrets)

    @property
    def name(self) -> str:
        return self.inner.name

    async def stream(self, request: ModelRequest) -> AsyncIterator[Sequence[Chunk]]:
        answer = _Answer(self._secrets, self._redactor)
        stream = self.inner.stream(request)
        try:
            async for chunks in stream:
                yield answer.take(chunks)
        except ProviderError:
            if rest := answer.rest():
                yield rest
            raise
        finally:
            await close_stream(stream)
        if rest := answer.rest():
            yield rest

    def models(self) -> Sequence[ModelInfo]:
        return self.inner.models()

    async def aclose(self) -> None:
        await self.inner.aclose()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class _Answer:
    """One answer. Text that may be the beginning of a secret waits for what follows it."""

    def __init__(self, secrets: Sequence[str], redactor: Redactor) -> None:
        self._secrets = secrets
        self._redactor = redactor
        self._held = ""
        self._delta: Callable[[str], Chunk] = TextDelta
        """The kind of the text that is held."""
        self._args: dict[str | int, list[str]] = {}
        """The arguments of calls, which nobody is shown before they are complete."""

    def take(self, chunks: Sequence[Chunk]) -> list[Chunk]:
        out: list[Chunk] = []
        for chunk in chunks:
            match chunk:
                case TextDelta(text) | ThinkingDelta(text):
                    if self._delta is not type(chunk):
                        self._release(out)
                        self._delta = type(chunk)
                    if shown := self._shown(text):
                        out.append(chunk if shown == text else self._delta(shown))
                case UsageUpdate():
                    out.append(chunk)
                case CallArgs(key, json):
                    self._args.setdefault(key, []).append(json)
                case _:
                    self._release(out)
                    self._take_other(chunk, out)
        return out

    def rest(self) -> list[Chunk]:
        """What is still held when nothing more comes."""
        out: list[Chunk] = []
        self._release(out)
        out += [CallArgs(key, self._clean("".join(pieces))) for key, pieces in self._args.items()]
        self._args.clear()
        return out

    def _take_other(self, chunk: Chunk, out: list[Chunk]) -> None:
        match chunk:
            case CallStart(_, name, id):
                out.append(replace(chunk, name=self._clean(name), id=id and self._clean(id)))
            case CallDone(key, args):
                pieces = self._args.pop(key, None)
                if args is None and pieces is not None:
                    args = "".join(pieces)
                out.append(chunk if args is None else replace(chunk, args=self._clean(args)))
            case Whole(Text(text)):
                out.append(Whole(Text(self._clean(text))))
            case Whole(ProviderCall() as call):
                call = replace(call, id=self._clean(call.id), name=self._clean(call.name))
                out.append(
                    Whole(replace(call, input=self._clean_json(call.input), result=self._clean_json(call.result)))
                )
            case Finish(reason):
                out += self.rest()
                out.append(Finish(reason and self._clean(reason)))
            case _:
                out.append(chunk)

    def _shown(self, text: str) -> str:
        """What may be shown of the text so far."""
        text, self._held = self._held + text, ""
        begun = len(text)
        for secret in self._secrets:
            if secret in text:
                text = text.replace(secret, REDACTED)
                begun = len(text)
        for secret in self._secrets:
            begun = min(begun, _begun(secret, text))
        self._held = text[begun:]
        return text[:begun]

    def _release(self, out: list[Chunk]) -> None:
        held, self._held = self._held, ""
        if held:
            # Most of a secret is as good as all of it.
            most = any(secret.startswith(held) and len(held) > len(secret) // 2 for secret in self._secrets)
            out.append(self._delta(REDACTED if most else held))

    def _clean(self, text: str) -> str:
        if len(text) <= _THOROUGH_CHARS:
            return self._redactor.text(text)
        for secret in self._secrets:
            text = text.replace(secret, REDACTED)
        return text

    def _clean_json(self, json: Raw | UnsetType) -> Raw | UnsetType:
        if json is UNSET:
            return json
        data = bytes(json)
        text = data.decode("utf-8", "surrogateescape")
        clean = self._clean(text)
        return json if clean == text else Raw(clean.encode("utf-8", "surrogateescape"))


def _begun(secret: str, text: str) -> int:
    """Where the end of a text may be the beginning of a secret; its length if it is not."""
    place = text.find(secret[0], max(0, len(text) - len(secret) + 1))
    while place >= 0:
        if secret.startswith(text[place:]):
            return place
        place = text.find(secret[0], place + 1)
    return len(text)
