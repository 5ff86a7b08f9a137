"""A model API on the loopback interface that records every request with its whole conversation.

Its answer follows from the order in the conversation, except for the number of the request, which is part of every
answer: two answers to one turn are never the same, so the log shows which of them was used.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from typing import Any

from aiohttp import web

from campaigns.torture.ledger import Asked, Ledger, Line
from campaigns.torture.orders import Turn, number_in, order

MODEL = "fake:torture"


class FakeModel:
    def __init__(self, ledger: Ledger, *, seed: int) -> None:
        self._ledger = ledger
        self._seed = seed
        self._begun: set[tuple[int, int]] = set()

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/chat/completions", self._complete)]

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        messages = tuple(lines_of(body["messages"]))
        number, turn_number = _place(messages)
        life = int(request.headers["authorization"].removeprefix("Bearer life-"))
        first = (number, turn_number) not in self._begun
        self._begun.add((number, turn_number))
        asked = Asked(len(self._ledger.asked) + 1, number, turn_number, life, messages)
        self._ledger.asked.append(asked)
        turn = order(self._seed, number).turns[turn_number]
        if turn.fails == "refused" and first:
            asked.ended = "failed"
            return web.json_response({"error": {"message": "try again"}}, status=500)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        try:
            await response.prepare(request)
            for piece in range(turn.pieces):
                await response.write(_event({"content": f"{asked.number}:{piece} "}))
                await asyncio.sleep(turn.pace_ms / 1000)
                if turn.fails == "cut" and first and piece >= turn.pieces // 2:
                    asked.ended = "failed"
                    if request.transport is not None:
                        request.transport.close()
                    return response
            await response.write(b"".join(_end(asked, turn)))
            asked.ended = "whole"
        except OSError:
            asked.ended = "cut"
        return response


def lines_of(messages: Sequence[dict[str, Any]]) -> Iterator[Line]:
    """The messages of a chat request, in the simplest form."""
    for message in messages:
        role, text = message["role"], message.get("content") or ""
        if role == "tool":
            yield (role, text, message["tool_call_id"])
        else:
            calls = [(call["id"], call["function"]) for call in message.get("tool_calls", ())]
            yield (role, text, *[part for id, f in calls for part in (id, f["name"], f["arguments"])])


def _place(messages: Sequence[Line]) -> tuple[int, int]:
    """The order, and the requested turn, counted from 0 as in the log."""
    turn = 0
    for line in reversed(messages):
        if line[0] == "assistant":
            turn += 1
        elif line[0] == "user" and (number := number_in(line[1])) is not None:
            return number, turn
    raise ValueError(f"a conversation without an order: {messages}")


def _end(asked: Asked, turn: Turn) -> Iterator[bytes]:
    for index, call in enumerate(turn.calls):
        args = {"order": asked.order, "turn": asked.turn, "index": index} | (
            {"ms": call.ms} if call.tool != "ask" else {}
        )
        function = {"name": call.tool, "arguments": json.dumps(args)}
        yield _event(
            {
                "tool_calls": [
                    {"index": index, "id": f"c{asked.number}-{index}", "type": "function", "function": function}
                ]
            }
        )
    yield _event({}, finish="tool_calls" if turn.calls else "stop")
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    yield _data({"id": f"r{asked.number}", "model": "torture", "choices": [], "usage": usage})
    yield b"data: [DONE]\n\n"


def _event(delta: dict[str, Any], *, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return _data({"id": "r", "object": "chat.completion.chunk", "model": "torture", "choices": [choice]})


def _data(document: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"
