"""Undoes what strict mode changed about an answer, before it is passed on."""

from __future__ import annotations

from collections.abc import Mapping

from weftline.providers.base import CallArgs, CallDone, CallStart, Chunk, ModelRequest, TextDelta, UsageUpdate
from weftline.providers.openai.schema import AnswerSchema, ToolSchema, answer_schema, tool_schema


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


def restorer_for(request: ModelRequest, *, answer: bool, tools: bool) -> Restorer:
    """`answer` and `tools` say whether these schemas were sent in their form for strict mode."""
    output = answer_schema(request.output_schema) if answer and request.output_schema is not None else None
    schemas = {spec.name: tool_schema(spec) for spec in request.tools} if tools else {}
    return Restorer(output, {name: schema for name, schema in schemas.items() if schema.meant is not None})
