"""Common base of the tools that the server executes by calling a peer."""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from urllib.parse import urlsplit

from msgspec.structs import replace

from weftline import prompts
from weftline.kernel.bodies import Peer
from weftline.kernel.entries import Effect
from weftline.messages import File, Image, Text, UserPart
from weftline.providers.base import ToolSpec
from weftline.text.redaction import Redactor
from weftline.tools.arguments import object_args
from weftline.tools.base import PLAIN, ClientKind, Reconciled, ToolContext, ToolOutput, Traits, Unknown
from weftline.tools.checking import checked_args
from weftline.tools.schema import EMPTY_OBJECT_SCHEMA
from weftline.trace_context import fields
from weftline.work.outcomes import raise_if_cancelled

logger = logging.getLogger(__name__)

_RUNNERS = frozenset({"bunx", "docker", "node", "npx", "pipx", "pnpx", "python", "python3", "uv", "uvx", "deno", "bun"})
_WORDS_OF_RUNNERS = frozenset({"run", "exec", "dlx", "tool"})
_SUFFIXES = (".py", ".js", ".mjs", ".cjs", ".ts", ".sh", ".exe")


def name_of_url(url: str) -> str:
    """`mcp_example_com` for `https://mcp.example.com/mcp`."""
    return spelled(urlsplit(url).hostname or "server")


def name_of_command(command: Sequence[str]) -> str:
    """`server_github` for `npx -y @modelcontextprotocol/server-github`.

    It is the first word that is neither an option nor a program that only runs others.
    """
    words = [word for word in command if not word.startswith("-") and word not in _WORDS_OF_RUNNERS]
    candidates = [
        word for word in words if _base(word) not in _RUNNERS and not re.fullmatch(r"python[0-9.]*", _base(word))
    ]
    word = (candidates or words or ["server"])[0]
    base = word.rsplit("/", 1)[-1].partition("@")[0] if word.startswith("@") else _base(word)
    for suffix in _SUFFIXES:
        base = base.removesuffix(suffix)
    return spelled(base)


def spelled(name: str) -> str:
    """Returns a name that every model accepts: a letter, then letters, digits and single underscores."""
    plain = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_") or "server"
    return plain if plain[0].isalpha() else f"at_{plain}"


def _base(word: str) -> str:
    return PurePath(word).name


MAX_TEXT_CHARS = 200_000
"""How much of one result a model may read."""


_MAX_ON_LOOP = 32 * 1024
"""How many characters of text, or of a file in base64, are searched for secrets on the event loop."""


class RemoteTool(ABC):
    """A server tool: arguments are checked against the schema, and an interrupted call is in doubt.

    `redactor` knows the secrets sent to the peer. All answers go through it here, for every kind of tool.
    """

    effect: Effect = "once"
    concurrent = False
    timeout_s: float | None = None
    client: ClientKind | None = None
    peer: Peer | None = None
    traits: Traits = PLAIN

    def __init__(self, spec: ToolSpec, *, redactor: Redactor | None = None) -> None:
        self.spec = spec
        self._redactor = Redactor() if redactor is None else redactor

    @property
    def name(self) -> str:
        return self.spec.name

    async def prepare(self, args: str) -> bytes:
        return await checked_args(args, self.spec)

    async def invoke(self, args: bytes, context: ToolContext) -> ToolOutput:
        try:
            output = await self.ask(args, context)
        except Exception as error:
            raise_if_cancelled(error)
            # Without its traceback, which would contain what the peer and we sent.
            extra = fields(run=context.run_id, tool=self.name, call=context.call_id)
            logger.error("run %s: the tool %s failed: %s", context.run_id, self.name, type(error).__name__, extra=extra)
            output = ToolOutput.of(prompts.calls.tool_failed(self.name, str(error)), is_error=True)
        return await redacted_apart(output, self._redactor)

    @abstractmethod
    async def ask(self, args: bytes, context: ToolContext) -> ToolOutput:
        """Calls the peer. The answer may contain secrets."""

    async def reconcile(self, args: bytes, context: ToolContext) -> Reconciled:
        return Unknown()


class UnavailableTool(RemoteTool):
    """Stands in for a peer that could not be reached; its result says why."""

    effect: Effect = "read"
    concurrent = True

    def __init__(self, name: str, *, description: str, explanation: str) -> None:
        super().__init__(ToolSpec(name, description, EMPTY_OBJECT_SCHEMA))
        self._explanation = explanation

    async def prepare(self, args: str) -> bytes:
        # The model should read the explanation, whatever arguments it passes.
        return object_args(args)[1]

    async def ask(self, args: bytes, context: ToolContext) -> ToolOutput:
        return ToolOutput.of(self._explanation, is_error=True)


async def redacted_apart(output: ToolOutput, redactor: Redactor) -> ToolOutput:
    """Like `redacted`, but in a thread if there are many secrets or much text."""
    if redactor.heavy or sum([_size(part) for part in output.parts]) > _MAX_ON_LOOP:
        return await asyncio.to_thread(redacted, output, redactor)
    return redacted(output, redactor)


def redacted(output: ToolOutput, redactor: Redactor) -> ToolOutput:
    """Returns the output with every secret redacted, and texts cut to what a model may read."""
    # A text is cut beyond its limit by the length of the longest secret, since one may begin before the limit.
    room = MAX_TEXT_CHARS + redactor.longest
    texts = [part.text for part in output.parts if isinstance(part, Text)]
    redacted_texts = iter(redactor.texts([text[:room] for text in texts]))
    return replace(output, parts=tuple([_part(part, redacted_texts, redactor) for part in output.parts]))


def _size(part: UserPart) -> int:
    return len(part.text) if isinstance(part, Text) else len(part.data or "")


def _part(part: UserPart, texts: Iterator[str], redactor: Redactor) -> UserPart:
    match part:
        case Text():
            return Text(_cut(part.text, next(texts), redactor))
        case Image() | File():
            return replace(
                part,
                media_type=redactor.text(part.media_type),
                data=part.data and _file_data(part.data, redactor),
                url=part.url and redactor.text(part.url),
                name=part.name and redactor.text(part.name),
            )


def _cut(text: str, redacted_text: str, redactor: Redactor) -> str:
    if len(text) <= MAX_TEXT_CHARS:
        return redacted_text
    end = min(MAX_TEXT_CHARS, len(redacted_text) - redactor.longest)
    return prompts.remote.cut_after_chars(redacted_text[:end], MAX_TEXT_CHARS, len(text))


def _file_data(data: str, redactor: Redactor) -> str:
    if not redactor:
        return data
    try:
        plain = base64.b64decode(data)
    except (binascii.Error, ValueError):
        return redactor.text(data)
    clean = redactor.data(plain)
    return data if clean == plain else base64.b64encode(clean).decode()
