"""The tools of an MCP server that the server connects to over Streamable HTTP, with the official client."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from weftline import prompts
from weftline.kernel.entries import Effect
from weftline.messages import File, Image, Text, UserPart
from weftline.providers.base import ToolSpec
from weftline.text.canonical import NotCanonical, canonical_value, parse
from weftline.text.redaction import Redactor
from weftline.text.schema_cost import refusal
from weftline.tools.base import ToolContext, ToolOutput, ToolProgress
from weftline.tools.checking import issues_of
from weftline.tools.mcp.address import McpPlace
from weftline.tools.mcp.asking import CALLER, Caller, ask_model, put_to_people
from weftline.tools.mcp.pool import Connection, McpMissing, McpPool
from weftline.tools.remote import RemoteTool, UnavailableTool, redacted_apart
from weftline.tools.schema import EMPTY_OBJECT_SCHEMA, object_root

if TYPE_CHECKING:
    from mcp import MCPError
    from mcp.types import (
        BlobResourceContents,
        CallToolResult,
        ContentBlock,
        RequestParamsMeta,
        TextResourceContents,
    )
    from mcp.types import Tool as Listed

logger = logging.getLogger(__name__)

KEY = "weftline/idempotency-key"
"""Where a server finds the idempotency key in the metadata of a call."""
_NO_QUESTIONS = "no back-channel for server-initiated requests"
"""The error of servers made with the official package if a tool asks in a revision that does not support it."""
MAX_TOOLS = 2000
_TOOLS_PER_BATCH = 10
"""How many tools are read in one go if redaction is expensive."""
MAX_PAGES = 2000
_MAX_NAME = 64
_MAX_QUESTIONS, _MAX_QUESTION, _MAX_MESSAGE_CHARS = 5, 500, 8000
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_]")


class McpEntry(Struct, frozen=True):
    """A tool as the server lists it, in our own types."""

    name: str
    description: str
    parameters: Raw
    effect: Effect
    output_schema: Raw | None = None


class McpUnavailable(Exception):
    """The server's tools could not be listed."""


class McpTool(RemoteTool):
    """One tool of an MCP server, under a name that the model can use.

    A call uses whatever connection is open; if the server did not accept it, it is sent again over a new connection, so
    a server may restart between calls.
    """

    server = ""
    """The name of the server, if the agent was given it as a toolset."""
    question = ""
    """The tool that puts the server's questions to people; empty if nobody is asked."""
    model = ""
    """The tool that asks the run's model for the server; empty if it may not."""

    def __init__(self, name: str, entry: McpEntry, *, pool: McpPool, address: McpPlace) -> None:
        super().__init__(ToolSpec(name, entry.description, entry.parameters), redactor=address.redactor)
        self.effect: Effect = entry.effect
        self.concurrent = entry.effect == "read"
        self._entry = entry
        self.upstream = entry.name
        self._pool = pool
        self._address = address

    def ask_through(self, *, question: str = "", model: str = "") -> None:
        """Names the tools for the server's questions and requests: its calls may then make further calls."""
        self.question, self.model = question or self.question, model or self.model
        self.traits = replace(self.traits, host=bool(self.question or self.model))

    async def ask(self, args: bytes, context: ToolContext) -> ToolOutput:
        from mcp import MCPError
        from pydantic import ValidationError

        arguments = cast("dict[str, Any]", parse(args))
        asked: list[str] = []
        try:
            for last in (False, True):
                async with self._pool.use(self._address) as connection:
                    try:
                        result = await self._call(connection, arguments, context, asked)
                        output = _with_questions(await self._checked(result), asked)
                        return await redacted_apart(output, connection.redactor)
                    except MCPError as error:
                        if not await self._may_retry(connection, error) or last:
                            output = _with_questions(self._failed(error), asked)
                            return await redacted_apart(output, connection.redactor)
                    except ValidationError as error:
                        # The server answered, but the answer is unreadable.
                        logger.info("MCP tool %s: its answer cannot be read: %s", self.name, type(error).__name__)
                        return self._failed(None)
            raise AssertionError("unreachable")
        except McpMissing:
            return ToolOutput.of(prompts.remote.NO_MCP, is_error=True)
        except MCPError as error:
            return self._failed(error)
        except TimeoutError as error:
            return ToolOutput.of(prompts.calls.tool_failed(self.name, str(error)), is_error=True)
        except Exception as error:
            # A server's responses are untrusted: an unparsable one is the server's failure, not the run's.
            logger.info("MCP tool %s failed: %s", self.name, type(error).__name__)
            return ToolOutput.of(prompts.calls.tool_failed(self.name, _describe(error)), is_error=True)

    async def _call(
        self, connection: Connection, arguments: dict[str, Any], context: ToolContext, asked: list[str]
    ) -> CallToolResult:
        await _prepared(self._address.redactor)
        redactor = connection.redactor

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            # Cut well beyond what is displayed, so that no part of a secret remains.
            text = redactor.text((message or "")[:_MAX_MESSAGE_CHARS])
            context.on_progress(ToolProgress(progress, total, text))

        def decline(question: str) -> None:
            if len(asked) < _MAX_QUESTIONS and (question or "" not in asked):
                asked.append(redactor.text(question[:_MAX_MESSAGE_CHARS])[:_MAX_QUESTION])

        further = context.further
        ask = None
        if further is not None and self.question:
            ask = partial(put_to_people, further=further, tool=self.question, redactor=redactor)
        sample = None
        if further is not None and self.model:
            sample = partial(ask_model, further=further, tool=self.model, redactor=redactor)
        caller = Caller(f"{context.workspace}/{context.run_id}", decline, ask, sample)
        connection.callers.append(caller)
        within = CALLER.set(caller)
        try:
            return await connection.client.call_tool(
                self.upstream,
                arguments,
                progress_callback=on_progress,
                meta=cast("RequestParamsMeta", _meta(context)),
            )
        except asyncio.CancelledError:
            connection.cut_off(caller.run)
            raise
        finally:
            CALLER.reset(within)
            connection.callers.remove(caller)

    async def _checked(self, result: CallToolResult) -> ToolOutput:
        """Returns the result, if it matches the server's own output schema."""
        schema = self._entry.output_schema
        if schema is not None and not result.is_error:
            if result.structured_content is None:
                return ToolOutput.of(prompts.remote.answer_without_structure(self.name), is_error=True)
            issues = await issues_of(msgspec.json.encode(result.structured_content), schema)
            if issues:
                problems = [f"{issue.path or '(root)'}: {issue.message}" for issue in issues[:5]]
                return ToolOutput.of(prompts.remote.answer_unlike_schema(self.name, problems), is_error=True)
        return output_of(result)

    async def _may_retry(self, connection: Connection, error: MCPError) -> bool:
        """Returns True if a failed call may be sent again, over a new connection."""
        from mcp.types import CONNECTION_CLOSED

        from weftline.tools.mcp.http import BROKEN, NOT_SENT, SESSION_LOST, UNAUTHORIZED

        if error.code == UNAUTHORIZED:
            self._pool.replace(connection)
            return await self._pool.login_has_come(connection)
        if error.code not in (NOT_SENT, SESSION_LOST, BROKEN, CONNECTION_CLOSED):
            return False
        self._pool.discard(connection)
        return error.code in (NOT_SENT, SESSION_LOST) or self.effect in ("read", "idempotent")

    def _failed(self, error: MCPError | None) -> ToolOutput:
        """Returns the result of a call that failed; without an error, of one with an unreadable answer."""
        from mcp.types import CONNECTION_CLOSED

        from weftline.tools.mcp.http import BROKEN, UNREADABLE

        if error is not None and _NO_QUESTIONS in error.message:
            logger.warning(
                "the MCP tool %s asks something during its calls, which no server can in revision 2026-07-28:"
                ' give mcp(…, revision="2025-11-25")',
                self.name,
            )
        lost = error is None or error.code in (BROKEN, CONNECTION_CLOSED, UNREADABLE)
        in_doubt = lost and self.effect not in ("read", "idempotent")
        reason = prompts.remote.MCP_UNREADABLE if error is None else error.message
        message = prompts.remote.request_failed(self.name, reason, in_doubt=in_doubt)
        return ToolOutput.of(message, is_error=True, in_doubt=in_doubt)


def _meta(context: ToolContext) -> dict[str, str]:
    """Returns the metadata of a call.

    It includes its span, as the connection and its headers are shared between runs.
    """
    own = {KEY: context.idempotency_key}
    return own if context.traceparent is None else {**own, "traceparent": context.traceparent}


async def list_tools(pool: McpPool, address: McpPlace) -> tuple[McpEntry, ...]:
    """Returns all tools of a server, over all pages. Raises `McpUnavailable` with a message for the model."""
    await _prepared(address.redactor)
    try:
        async with asyncio.timeout(pool.connect_s):
            return await _list_entries(pool, address)
    except McpMissing:
        raise McpUnavailable(prompts.remote.NO_MCP) from None
    except TimeoutError:
        raise McpUnavailable(prompts.remote.MCP_TIMED_OUT) from None
    except Exception as error:
        raise McpUnavailable(address.redactor.text(_describe(error))) from None


async def _prepared(redactor: Redactor) -> None:
    """Prepares a large redactor in a thread, so that its first use does not block the event loop."""
    if redactor.heavy:
        await asyncio.to_thread(redactor.prepare)


def _describe(error: Exception) -> str:
    """Describes an error for the model, which does not see a library's message about an unreadable answer."""
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        return prompts.remote.MCP_UNREADABLE
    return str(getattr(error, "message", None) or error) or type(error).__name__


async def _list_entries(pool: McpPool, address: McpPlace) -> tuple[McpEntry, ...]:
    for last in (False, True):
        async with pool.use(address) as connection:
            from mcp import MCPError

            from weftline.tools.mcp.http import BROKEN, NOT_SENT, SESSION_LOST, UNAUTHORIZED

            try:
                return await _pages(connection)
            except MCPError as error:
                if error.code == UNAUTHORIZED:
                    pool.replace(connection)
                    if last or not await pool.login_has_come(connection):
                        raise
                elif last or error.code not in (SESSION_LOST, NOT_SENT, BROKEN):
                    raise
                else:
                    pool.discard(connection)
    raise AssertionError("unreachable")


async def _pages(connection: Connection) -> tuple[McpEntry, ...]:
    found: dict[str, McpEntry] = {}
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await connection.client.list_tools(cursor=cursor)
        redactor = connection.redactor
        for count, tool in enumerate(page.tools):
            if len(found) < MAX_TOOLS:
                if redactor.heavy and count % _TOOLS_PER_BATCH == 0:
                    await asyncio.sleep(0)
                found.setdefault(tool.name, _entry(tool, redactor))
            elif tool.name not in found:
                return _cut_short(connection, found)
        cursor = page.next_cursor
        if cursor is None:
            return tuple(found.values())
    return _cut_short(connection, found)


def _cut_short(connection: Connection, found: dict[str, McpEntry]) -> tuple[McpEntry, ...]:
    where = connection.address.display_url
    limits = f"{MAX_TOOLS:,} tools on {MAX_PAGES:,} pages"
    logger.warning("the MCP server %s lists more than %s; %d of its tools are offered", where, limits, len(found))
    return tuple(found.values())


def _entry(tool: Listed, redactor: Redactor) -> McpEntry:
    hints = tool.annotations
    effect: Effect = "once"
    if hints is not None and hints.read_only_hint:
        effect = "read"
    elif hints is not None and hints.idempotent_hint:
        effect = "idempotent"
    schema = object_root(_affordable(tool.name, tool.input_schema, redactor)) or EMPTY_OBJECT_SCHEMA
    output_schema = _affordable(tool.name, tool.output_schema, redactor)
    description = redactor.text(tool.description or tool.title or "")
    return McpEntry(tool.name, description, schema, effect, output_schema)


def _affordable(name: str, schema: dict[str, Any] | None, redactor: Redactor) -> Raw | None:
    """Returns a schema of the server, or None if it is too costly; the tool is then offered without it."""
    if schema is None:
        return None
    encoded = msgspec.json.encode(schema)
    problem = refusal(schema, encoded=encoded)
    if problem is not None:
        logger.warning("a schema of the MCP tool %s is left out: it %s", redactor.text(name[:100]), problem)
        return None
    redacted_schema = redactor.data(encoded)
    try:
        msgspec.json.decode(redacted_schema)
    except msgspec.DecodeError:  # the secret was a number in the schema
        return None
    return Raw(redacted_schema)


def offered(
    ref: str,
    entries: tuple[McpEntry, ...],
    *,
    pool: McpPool,
    address: McpPlace,
    tool_filter: tuple[str, ...] | None,
    taken: frozenset[str] | set[str] = frozenset(),
) -> list[McpTool]:
    """Returns the tools of a server as `<ref>_<tool>`, under names that no other tool of the run has."""
    chosen = [entry for entry in entries if tool_filter is None or entry.name in tool_filter]
    spelled = [address.redactor.text(entry.name) for entry in chosen]
    # A tool whose name needs no change keeps it, whatever the other names become.
    exact = {whole for name in spelled if _is_fit(whole := f"{ref}_{name}")}
    names = set(taken)
    tools: list[McpTool] = []
    for entry, name in zip(chosen, spelled, strict=True):
        kept = f"{ref}_{name}" in exact
        visible = model_name(ref, name, taken=names if kept else names | exact)
        names.add(visible)
        tools.append(McpTool(visible, entry, pool=pool, address=address))
    return tools


def _is_fit(name: str) -> bool:
    return len(name) <= _MAX_NAME and not _NOT_IN_NAMES.search(name)


def model_name(ref: str, tool: str, *, taken: set[str]) -> str:
    """Returns a name that every model API accepts, the same in every process."""
    whole = f"{ref}_{tool}"
    name = _NOT_IN_NAMES.sub("_", whole)
    if len(name) <= _MAX_NAME and name not in taken:
        return name
    mark = hashlib.blake2b(whole.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return f"{name[: _MAX_NAME - len(mark) - 1]}_{mark}"


def unavailable(ref: str, reason: str, *, tool: str = "") -> UnavailableTool:
    """The one tool that stands in for an unreachable server."""
    return UnavailableTool(
        tool or f"{ref[: _MAX_NAME - len('_unavailable')]}_unavailable",
        description=prompts.remote.mcp_stand_in(ref),
        explanation=prompts.remote.mcp_unavailable(ref, reason),
    )


def _with_questions(output: ToolOutput, asked: list[str]) -> ToolOutput:
    """Returns the output, with the questions that the server had for a person."""
    notes = [
        Text(prompts.calls.nobody_to_ask(question) if question else prompts.remote.MCP_ASKED_ABOUT_SOME_RUN)
        for question in asked
    ]
    return replace(output, parts=(*output.parts, *notes))


def output_of(result: CallToolResult) -> ToolOutput:
    """Returns what the model reads of a result: its text, images and files, or else its structured content."""
    parts: list[UserPart] = []
    for block in result.content:
        parts += content_parts(block)
    if not parts:
        parts.append(Text(_structured_text(result)))
    return ToolOutput(tuple(parts), is_error=result.is_error, is_json=_is_value(parts, result))


def _is_value(parts: list[UserPart], result: CallToolResult) -> bool:
    """Returns True if the text is that of a value which the server wraps, since structured content must be an
    object.
    """
    match result.structured_content, parts:
        case {"result": bool() | int() | float() | None as value, **others}, [Text(text=text)] if not others:
            return text == msgspec.json.encode(value).decode()
        case _:
            return False


def _structured_text(result: CallToolResult) -> str:
    if result.structured_content is None:
        return ""
    try:
        return canonical_value(result.structured_content).decode()
    except NotCanonical:
        return ""


def content_parts(block: ContentBlock) -> list[UserPart]:
    from mcp.types import AudioContent, EmbeddedResource, ImageContent, ResourceLink, TextContent

    match block:
        case TextContent():
            return [Text(block.text)]
        case ImageContent():
            return [Image(block.mime_type, data=block.data)]
        case AudioContent():
            return [File(block.mime_type, data=block.data)]
        case ResourceLink():
            return [Text(f"{block.title or block.name}: {block.uri}")]
        case EmbeddedResource():
            return [resource_part(block.resource)]


def resource_part(resource: TextResourceContents | BlobResourceContents) -> UserPart:
    from mcp.types import TextResourceContents

    if isinstance(resource, TextResourceContents):
        return Text(resource.text)
    media_type = resource.mime_type or "application/octet-stream"
    if media_type.startswith("image/"):
        return Image(media_type, data=resource.blob)
    return File(media_type, data=resource.blob, name=str(resource.uri))
