"""What a model family costs: recorded streams, one event a read, parsed, assembled and encoded for the log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec

from bench.machine import Machine
from bench.rows import Row
from weftline.messages import User
from weftline.providers.anthropic.provider import Anthropic
from weftline.providers.assemble import Assembler
from weftline.providers.base import CallArgs, ModelRequest, Provider, TextDelta, ThinkingDelta
from weftline.providers.google.provider import Google
from weftline.providers.openai.chat import OpenAIChat
from weftline.providers.openai.responses import OpenAIResponses
from weftline.testing.recordings import Exchange, RecordedTransport, load_recording, recordings_dir

Build = Callable[[RecordedTransport], Provider]

STREAMS: tuple[tuple[str, str, int, Build], ...] = (
    (
        "Anthropic",
        "anthropic/anthropic_model_thinking_part_redacted_stream.yaml",
        0,
        lambda transport: Anthropic(transport=transport, api_key="k"),
    ),
    ("Google", "google/google_model_stream.yaml", 0, lambda transport: Google(transport=transport, api_key="k")),
    (
        "OpenAI Chat",
        "openai_chat/run_stream_sync_streams_real_model.yaml",
        1,
        lambda transport: OpenAIChat(transport=transport, api_key="k"),
    ),
    (
        "OpenAI Responses",
        "openai_responses/openai_responses_streaming_usage.yaml",
        0,
        lambda transport: OpenAIResponses(transport=transport, api_key="k"),
    ),
)
_ROUND_S = 0.3
_MOST_STREAMS = 20_000
_encode = msgspec.json.Encoder().encode


def recorded(machine: Machine) -> list[Row]:
    """CPU time per delta; the floor decodes the JSON of the same events into dicts and does nothing with them."""
    if not recordings_dir().is_dir():
        raise RuntimeError(f"there are no recordings in {recordings_dir()}")
    rows: list[Row] = []
    for name, file, number, build in STREAMS:
        exchange = load_recording(file)[number]
        rounds = [asyncio.run(_cost_us(exchange, build)) for _ in range(machine.rounds(3))]
        floor = _floor_us(exchange.body) / (rounds[0][1] or 1)
        costs = tuple(cost for cost, _ in rounds)
        note = f"{rounds[0][1]} deltas, one event a read; floor: JSON alone"
        rows.append(Row(f"recorded delta, {name}", "us CPU", "less", costs, floor=floor, reach=40, note=note))
    return rows


async def _cost_us(exchange: Exchange, build: Build) -> tuple[float, int]:
    """Microseconds per delta, and how many deltas the stream has."""
    ends = _event_ends(exchange.body)
    request = ModelRequest("model", [User.of("hi")])
    deltas = streams = 0
    provider = build(RecordedTransport([exchange] * _MOST_STREAMS, cuts=ends))
    begun = time.process_time()
    while (spent := time.process_time() - begun) < _ROUND_S and streams < _MOST_STREAMS:
        deltas += await _read(provider, request)
        streams += 1
    if not deltas:
        raise RuntimeError("the stream has no deltas")
    return spent / deltas * 1e6, deltas // streams


async def _read(provider: Provider, request: ModelRequest) -> int:
    """What the runtime does with an answer, but for the disk."""
    assembler = Assembler(provider.name)
    deltas = 0
    async for chunks in provider.stream(request):
        assembler.feed(chunks)
        for chunk in chunks:
            if isinstance(chunk, TextDelta | ThinkingDelta):
                _encode(chunk.text)
                deltas += 1
            elif isinstance(chunk, CallArgs):
                deltas += 1
    assembler.message()
    return deltas


def _floor_us(body: bytes) -> float:
    """Microseconds for the JSON of one whole stream."""
    documents = [line[6:] for line in body.splitlines() if line.startswith(b"data: {")]
    begun, streams = time.process_time(), 0
    while (spent := time.process_time() - begun) < _ROUND_S:
        for document in documents:
            msgspec.json.decode(document)
        streams += 1
    return spent / streams * 1e6


def _event_ends(body: bytes) -> list[int]:
    mark = b"\r\n\r\n" if b"\r\n\r\n" in body else b"\n\n"
    ends: list[int] = []
    at = body.find(mark)
    while at >= 0:
        ends.append(at + len(mark))
        at = body.find(mark, at + len(mark))
    return [end for end in ends if end < len(body)]
