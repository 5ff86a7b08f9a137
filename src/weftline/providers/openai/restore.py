"""Undoes what a request's schemas changed about an answer, before it is passed on: strict mode, the answer tool."""

from __future__ import annotations

from collections.abc import Mapping

from weftline.providers.base import CallArgs, CallDone, CallStart, Chunk, Finish, ModelRequest, TextDelta, UsageUpdate
from weftline.providers.openai.schema import AnswerSchema, AnswerTool, ToolSchema, answer_schema, tool_schema


class Restorer:
    """Processes the chunks of one answer. Text that has to be rewritten is held back until it is complete."""

    def __init__(self, answer: AnswerSchema | None, tools: Mapping[str, ToolSchema]) -> None:
        self._answer = None if answer is None or answer.as_sent else answer
        self._tools = tools
        self._text: list[str] = []
        self._calls: dict[str | int, tuple[ToolSchema, list[str]]] = {}
        self._idle = self._answer is None and not tools

    def take(self, chunks: list[Chunk]) -> list[Chunk]:
        if self._idle:
            return chunks
        out: list[Chunk] = []
        for chunk in chunks:
            match chunk:
                case TextDelta(text) if self._answer is not None:
                    self._text.append(text)
                    continue
                case CallStart(key, name) if name in self._tools:
                    self._calls[key] = (self._tools[name], [])
                case CallArgs(key, json) if key in self._calls:
                    self._calls[key][1].append(json)
                case CallDone(key, args, extra) if key in self._calls:
                    schema, pieces = self._calls.pop(key)
                    chunk = CallDone(key, schema.restored("".join(pieces) if args is None else args), extra)
                case _:
                    pass
            if not isinstance(chunk, UsageUpdate):
                out += self._whole_text()
            out.append(chunk)
        return out

    def rest(self) -> list[Chunk]:
        """Returns what was held back of an answer that broke off, unchanged."""
        text, self._text = "".join(self._text), []
        return [TextDelta(text)] if text else []

    def _whole_text(self) -> list[Chunk]:
        text, self._text = "".join(self._text), []
        return [TextDelta(text if self._answer is None else self._answer.restored(text))] if text else []


class ReportRestorer:
    """Makes the call of the answer tool the text of the answer, and drops text that the model wrote around it.

    Other text is held back until it is clear that no such call follows.
    """

    def __init__(self, tool: AnswerTool) -> None:
        self._tool = tool
        self._text: list[str] = []
        self._reports: dict[str | int, list[str]] = {}
        """The calls of the answer tool. Only the first counts."""
        self._first: str | int | None = None
        self._called = False

    def take(self, chunks: list[Chunk]) -> list[Chunk]:
        out: list[Chunk] = []
        for chunk in chunks:
            match chunk:
                case TextDelta(text):
                    if self._first is None:
                        self._text.append(text)
                    continue
                case CallStart(key, name) if name == self._tool.name:
                    if self._first is None:
                        self._first = key
                        self._text.clear()
                    self._reports[key] = []
                    continue
                case CallArgs(key, json) if key in self._reports:
                    self._reports[key].append(json)
                    if key == self._first and not self._tool.wrapped:
                        out.append(TextDelta(json))
                    continue
                case CallDone(key, args) if key in self._reports:
                    pieces = self._reports.pop(key)
                    if key == self._first and (self._tool.wrapped or not pieces):
                        out.append(TextDelta(self._tool.restored("".join(pieces) or args or "{}")))
                    continue
                case CallStart():
                    self._called = True
                    out += self.rest()
                case Finish():
                    answered = self._first is not None or bool(self._text)
                    out += self.rest()
                    if answered and not self._called and chunk.reason in ("tool_use", "malformed_function_call"):
                        # A server may also refuse an answer that the model wrote as text; it is checked like any other.
                        chunk = Finish("end_turn")
                case _:
                    pass
            out.append(chunk)
        return out

    def rest(self) -> list[Chunk]:
        """Returns what was held back, unchanged."""
        begun = self._reports.get(self._first, []) if self._tool.wrapped and self._first is not None else []
        text = "".join([*self._text, *begun])
        self._text.clear()
        begun.clear()
        return [TextDelta(text)] if text else []


def restorer_for(request: ModelRequest, *, answer: bool, tools: bool) -> Restorer:
    """`answer` and `tools` say whether these schemas were sent in their form for strict mode."""
    output = answer_schema(request.output_schema) if answer and request.output_schema is not None else None
    schemas = {spec.name: tool_schema(spec) for spec in request.tools} if tools else {}
    return Restorer(output, {name: schema for name, schema in schemas.items() if schema.meant is not None})
