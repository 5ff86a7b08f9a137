"""Redacts a provider's key from its answers, in case it repeats what it was sent.

A workspace's provider may be any server, and not everybody who can read the workspace's runs may know its key.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, cast

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
from weftline.providers.listing import Lists, ModelPage
from weftline.providers.throttle import close_stream
from weftline.text.redaction import REDACTED, Redactor

_MIN_CHARS = 8
"""Keys are longer. Redacting anything shorter would remove ordinary words."""
_THOROUGH_CHARS = 64 * 1024
"""In a longer text, a secret is only found verbatim, since other forms would block the event loop for too long."""


class RedactingProvider:
    """A provider whose answers do not contain these secrets. Everything else it offers is passed through."""

    def __init__(self, provider: Provider, secrets: Sequence[str]) -> None:
        self.inner = provider
        self._secrets = tuple(dict.fromkeys([secret for secret in secrets if len(secret) >= _MIN_CHARS]))
        self._redactor = Redactor(self._secrets)
        self._in_errors = Redactor(secrets)
        """Errors are short, so that shorter secrets can be redacted too."""

    @property
    def name(self) -> str:
        return self.inner.name

    async def stream(self, request: ModelRequest) -> AsyncIterator[Sequence[Chunk]]:
        answer = _RedactedAnswer(self._secrets, self._redactor)
        stream = self.inner.stream(request)
        try:
            async for chunks in stream:
                yield answer.take(chunks)
        except ProviderError as error:
            if rest := answer.rest():
                yield rest
            raise self._cleaned(error) from None
        except Exception as error:
            raise self._cleaned(error) from None
        finally:
            await close_stream(stream)
        if rest := answer.rest():
            yield rest

    def models(self) -> Sequence[ModelInfo]:
        return self.inner.models()

    def _cleaned(self, error: Exception) -> Exception:
        """An error ends up in events, exports and webhooks, like an answer. What caused it is not passed on."""
        clean = self._in_errors.text
        if isinstance(error, ProviderError):
            error.message = clean(error.message)
            error.code = error.code and clean(error.code)
        error.args = tuple(clean(one) if isinstance(one, str) else one for one in error.args)
        error.__cause__ = error.__context__ = None
        return error

    def _listing(self, listed: Lists) -> Callable[..., Awaitable[ModelPage]]:
        async def list_models(*, search: str = "", cursor: str | None = None) -> ModelPage:
            try:
                return await listed.list_models(search=search, cursor=cursor)
            except Exception as error:
                raise self._cleaned(error) from None

        return list_models

    async def aclose(self) -> None:
        await self.inner.aclose()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        return self._listing(cast("Lists", self.inner)) if name == "list_models" else found


class _Piece:
    """A text of the answer, at its position among the other chunks."""

    __slots__ = ("delta", "text", "visible")

    def __init__(self, delta: type[TextDelta] | type[ThinkingDelta], text: str) -> None:
        self.delta = delta
        self.text = text
        """Text that is held back: together with what follows on its channel, it may be a secret."""
        self.visible = ""


class _RedactedAnswer:
    """Redacts one answer. Text that may be the beginning of a secret is held back until more arrives on its channel.

    Other chunks wait behind it, so that the order stays the same.
    """

    def __init__(self, secrets: Sequence[str], redactor: Redactor) -> None:
        self._secrets = secrets
        self._redactor = redactor
        self._any = re.compile("|".join([re.escape(one) for one in sorted(secrets, key=len, reverse=True)]) or "(?!)")
        self._waiting: dict[type[TextDelta] | type[ThinkingDelta], list[_Piece]] = {TextDelta: [], ThinkingDelta: []}
        """By channel: the pieces that are not fully passed on yet."""
        self._queue: deque[Chunk | _Piece] = deque()
        self._args: dict[str | int, list[str]] = {}
        """The arguments of calls, which are not passed on before they are complete."""

    def take(self, chunks: Sequence[Chunk]) -> list[Chunk]:
        out: list[Chunk] = []
        for chunk in chunks:
            match chunk:
                case TextDelta(text) | ThinkingDelta(text):
                    piece = _Piece(type(chunk), text)
                    self._queue.append(piece)
                    self._waiting[piece.delta].append(piece)
                    self._resolve(self._waiting[piece.delta])
                case UsageUpdate():
                    out.append(chunk)
                case CallArgs(key, json):
                    self._args.setdefault(key, []).append(json)
                case Finish(reason):
                    self._resolve_all()
                    self._queue.append(Finish(reason and self._clean(reason)))
                case _:
                    self._take_other(chunk)
            if self._queue:
                self._drain(out)
        return out

    def rest(self) -> list[Chunk]:
        """Returns what is still held back at the end."""
        out: list[Chunk] = []
        self._resolve_all()
        self._drain(out)
        return out

    def _resolve_all(self) -> None:
        for waiting in self._waiting.values():
            self._resolve(waiting, at_end=True)
        self._queue += [CallArgs(key, self._clean("".join(pieces))) for key, pieces in self._args.items()]
        self._args.clear()

    def _resolve(self, waiting: list[_Piece], *, at_end: bool = False) -> None:
        """Decides which of the waiting pieces of a channel may be passed on."""
        text = "".join([piece.text for piece in waiting])
        secret = [(found.start(), found.end()) for found in self._any.finditer(text)]
        after = secret[-1][1] if secret else 0
        begun = after + min([_begun(one, text[after:]) for one in self._secrets], default=len(text) - after)
        if at_end:
            held = text[begun:]
            # Most of a secret is as bad as all of it.
            if any(one.startswith(held) and len(held) > len(one) // 2 for one in self._secrets):
                secret.append((begun, len(text)))
            begun = len(text)
        start = 0
        for piece in waiting:
            end = start + len(piece.text)
            piece.visible += _without(text, secret, start, min(end, begun))
            piece.text = text[max(start, begun) : end]
            start = end
        waiting[:] = [piece for piece in waiting if piece.text]

    def _drain(self, out: list[Chunk]) -> None:
        """Moves chunks that no longer wait to `out`."""
        while self._queue:
            first = self._queue[0]
            if isinstance(first, _Piece):
                if first.visible:
                    out.append(first.delta(first.visible))
                    first.visible = ""
                if first.text:
                    return
            else:
                out.append(first)
            self._queue.popleft()

    def _take_other(self, chunk: Chunk) -> None:
        out = self._queue
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
            case _:
                out.append(chunk)

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


def _without(text: str, secret: Sequence[tuple[int, int]], start: int, end: int) -> str:
    """Returns this part of a text, with a mark where a secret begins instead of the secret."""
    parts: list[str] = []
    for first, last in secret:
        if first < end and last > start:
            parts.append(text[start:first])
            if first >= start:
                parts.append(REDACTED)
            start = last
    parts.append(text[start:end])
    return "".join(parts)


def _begun(secret: str, text: str) -> int:
    """Returns where the end of a text may be the beginning of a secret; the text's length if it is not."""
    place = text.find(secret[0], max(0, len(text) - len(secret) + 1))
    while place >= 0:
        if secret.startswith(text[place:]):
            return place
        place = text.find(secret[0], place + 1)
    return len(text)
