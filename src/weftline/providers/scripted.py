"""The scripted model family: answers from a script, with no key and no network.

`ScriptedModel` plays one script and is made for tests; `ScriptedProvider` is the family that a server lists, with one
model per script. The format of scripts is in `scripts.py`.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Self, TypeAlias, cast, overload

import msgspec
from msgspec.structs import replace

from weftline.messages import Assistant, File, Image, System, ToolResults, User, UserPart
from weftline.providers.base import (
    CallArgs,
    CallDone,
    CallStart,
    Chunk,
    Finish,
    ModelInfo,
    ModelRequest,
    ProviderError,
    TextDelta,
    ThinkingDelta,
    ThinkingDone,
    UsageUpdate,
)
from weftline.providers.openai.schema import described
from weftline.providers.scripts import (
    DEFAULT_USAGE,
    Phrase,
    Script,
    ScriptedCall,
    Slot,
    Template,
    Turn,
    load_scripts,
    parse_script,
    parse_scripts,
)

__all__ = ["Script", "ScriptedModel", "ScriptedProvider", "Turn", "load_scripts", "parse_scripts"]

Sleep: TypeAlias = Callable[[float], Awaitable[object]]

NAME = "scripted"


class ScriptedModel:
    """Plays one script: a list of turns, each a text or a mapping; or a `Script`, or a whole script as a mapping.

    >>> ScriptedModel([calls("weather", city="Oslo"), "Sunny."])

    Every request is kept in `requests`, unchanged. With `strict`, a call beyond the last turn fails instead of
    repeating that turn (one marked `loop` still repeats), and so does a template without a value. As a context manager,
    it fails at the end if a turn was never played.
    """

    name = NAME

    def __init__(
        self,
        script: Script | Mapping[str, object] | Sequence[object],
        *,
        strict: bool = False,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        if not isinstance(script, Script):
            value = dict(script) if isinstance(script, Mapping) else {"turns": [_turn(turn) for turn in script]}
            script = parse_script(value, name="script", source="ScriptedModel")
        self.script = script
        self.requests: list[ModelRequest] = []
        self._strict = strict
        self._player = _Player(script, strict=strict, sleep=sleep)
        self._played: set[int] = set()
        self._beyond: list[int] = []

    def models(self) -> Sequence[ModelInfo]:
        return (_info(self.script),)

    async def aclose(self) -> None:
        return None

    def stream(self, request: ModelRequest) -> AsyncIterator[Sequence[Chunk]]:
        self.requests.append(_snapshot(request))
        index = self._player.index(request)
        if self._strict and self._player.is_beyond(request, index):
            self._beyond.append(request.call_index)
            return _refused(
                f"script {self.script.name!r} has {len(self.script.turns)} turns and was asked for one more "
                f"(model call {request.call_index}, counted from 0)",
                code="script_exhausted",
            )
        self._played.add(index)
        return self._player.play(request, index)

    def assert_done(self) -> None:
        """Alias of `assert_played`."""
        self.assert_played()

    def assert_played(self) -> None:
        """Raises `AssertionError` if a turn was never played, or one was requested that the script does not have."""
        turns = len(self.script.turns)
        missing = [f"turns[{index}]" for index in range(turns) if index not in self._played]
        if self.script.finalize is not None and turns not in self._played:
            missing.append("finalize")
        if missing:
            raise AssertionError(f"script {self.script.name!r} was not fully played: {', '.join(missing)} left")
        if self._beyond:
            raise AssertionError(f"script {self.script.name!r} was asked for turns it does not have: {self._beyond}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # A test that already fails keeps its own error.
        if kind is None:
            self.assert_played()


class ScriptedProvider:
    """A model family with one model per script: the request's `model` is the script's name.

    Keeps requests in `requests` only with `record=True`, as a long-running server must not.
    """

    name = NAME

    def __init__(self, scripts: Mapping[str, Script], *, record: bool = False, sleep: Sleep = asyncio.sleep) -> None:
        self.requests: list[ModelRequest] = []
        self._record = record
        self._infos = tuple(_info(script) for script in scripts.values())
        self._players = {name: _Player(script, strict=False, sleep=sleep) for name, script in scripts.items()}

    def models(self) -> Sequence[ModelInfo]:
        return self._infos

    async def aclose(self) -> None:
        return None

    def stream(self, request: ModelRequest) -> AsyncIterator[Sequence[Chunk]]:
        if self._record:
            self.requests.append(_snapshot(request))
        player = self._players.get(request.model)
        if player is None:
            known = ", ".join(sorted(self._players)) or "none"
            return _refused(f"no script {request.model!r} (there are: {known})", code="unknown_script")
        return player.play(request, player.index(request))


@overload
def calls(name: str, /, **args: object) -> dict[str, object]: ...
@overload
def calls(*each: tuple[str, Mapping[str, object]]) -> dict[str, object]: ...
def calls(*each: str | tuple[str, Mapping[str, object]], **args: object) -> dict[str, object]:
    """A turn in which the model calls one tool: `ScriptedModel([calls("order", cake="lemon"), "Ordered."])`.

    Pass pairs for several calls in one turn: `calls(("order", {"cake": "lemon"}), ("pay", {"amount": 5}))`.
    """
    if args and not (len(each) == 1 and isinstance(each[0], str)):
        raise TypeError("arguments by name belong to one call: calls('order', cake='lemon')")
    if not each:
        raise TypeError("a turn of calls needs at least one: calls('order', cake='lemon')")
    pairs = [(one, args) if isinstance(one, str) else one for one in each]
    return {"tool_calls": [{"name": name, "args": dict(given)} for name, given in pairs]}


def _turn(turn: object) -> object:
    return {"text": turn} if isinstance(turn, str) else turn


def _info(script: Script) -> ModelInfo:
    return ModelInfo(vendor_id=script.name, label=script.name, tools=True, reasoning=True)


def _snapshot(request: ModelRequest) -> ModelRequest:
    # The run's message list grows in place and would otherwise change under the test that inspects it.
    return replace(request, messages=tuple(request.messages), tools=tuple(request.tools), native=[])


async def _refused(message: str, *, code: str) -> AsyncIterator[Sequence[Chunk]]:
    raise ProviderError("invalid_request", message, code=code)
    yield ()


class _Player:
    """A script prepared for playing: what is the same in every play is built once, here."""

    __slots__ = ("_final", "_loop_at", "_sleep", "_strict", "_turns")

    def __init__(self, script: Script, *, strict: bool, sleep: Sleep) -> None:
        self._strict = strict
        self._sleep = sleep
        self._turns = [_Ready(turn, index) for index, turn in enumerate(script.turns)]
        self._loop_at = next((index for index, turn in enumerate(script.turns) if turn.loop), None)
        self._final = None if script.finalize is None else _Ready(script.finalize, len(script.turns))

    def index(self, request: ModelRequest) -> int:
        """Returns the index of the turn that this request plays; `len(turns)` means `finalize`."""
        turns = len(self._turns)
        at = min(request.call_index, turns - 1)
        if self._loop_at is not None and at >= self._loop_at:
            if request.tools or request.tools_disabled or self._final is None:
                at = self._loop_at
            else:
                return turns
        return turns if request.tools_disabled and self._final is not None else at

    def is_beyond(self, request: ModelRequest, index: int) -> bool:
        return request.call_index > index and index < len(self._turns) and index != self._loop_at

    async def play(self, request: ModelRequest, index: int) -> AsyncIterator[Sequence[Chunk]]:
        if index == len(self._turns) and self._final is not None:
            ready = self._final
        else:
            ready = self._turns[index]
            if request.tools_disabled:
                ready = ready.without_calls()
        turn = ready.turn
        thinking = ready.thinking if request.reasoning else ()
        if ready.whole is not None and not thinking and (not turn.calls or request.call_index == index):
            yield ready.whole
            return
        deltas = ready.deltas
        if deltas is None:
            deltas = [TextDelta(_render(phrase, request, self._strict)) for phrase in turn.deltas]
        chunks: list[Chunk] = [*thinking]
        if turn.delay_s and len(deltas) > 1:
            for delta in deltas[:-1]:
                chunks.append(delta)
                yield chunks
                await self._sleep(turn.delay_s)
                chunks = []
            chunks.append(deltas[-1])
        else:
            chunks.extend(deltas)
        for position, call in enumerate(turn.calls):
            chunks += _call(call, position, request.call_index, _args(call, request, self._strict))
        chunks.extend(ready.tail)
        if chunks:
            yield chunks
        if turn.error is not None:
            raise ProviderError(turn.error.cls, turn.error.message, retryable=turn.error.retryable)


class _Ready:
    """A turn with its chunks that do not depend on the request."""

    __slots__ = ("_final", "_index", "deltas", "tail", "thinking", "turn", "whole")

    def __init__(self, turn: Turn, index: int) -> None:
        self.turn = turn
        self._index = index
        self._final: _Ready | None = None
        self.thinking: tuple[Chunk, ...] = ()
        if turn.thinking:
            self.thinking = (*(ThinkingDelta(text) for text in turn.thinking), ThinkingDone())
        texts = [phrase for phrase in turn.deltas if isinstance(phrase, str)]
        # None if one of them is a template.
        self.deltas: list[TextDelta] | None = None
        if len(texts) == len(turn.deltas):
            self.deltas = [TextDelta(text) for text in texts]
        usage = turn.usage or (DEFAULT_USAGE if turn.error is None else None)
        self.tail: tuple[Chunk, ...] = () if usage is None else (UsageUpdate(usage),)
        if turn.error is None:
            self.tail = (*self.tail, Finish(turn.finish_reason))
        # The whole answer, for a turn that is always the same; with calls, if it is played in its place.
        self.whole: tuple[Chunk, ...] | None = None
        args = [call.args for call in turn.calls if call.args is not None]
        paced = turn.delay_s and len(texts) > 1
        if self.deltas is not None and len(args) == len(turn.calls) and not turn.error and not paced:
            calls = [_call(call, at, index, args[at]) for at, call in enumerate(turn.calls)]
            self.whole = (*self.deltas, *[chunk for call in calls for chunk in call], *self.tail)

    def without_calls(self) -> _Ready:
        """Returns the turn's text without calls, for a forced final turn if the script has no `finalize`."""
        turn = self.turn
        if not turn.calls:
            return self
        if self._final is None:
            reason = "end_turn" if turn.finish_reason == "tool_use" else turn.finish_reason
            self._final = _Ready(replace(turn, calls=(), finish_reason=reason), self._index)
        return self._final


def _call(call: ScriptedCall, position: int, call_index: int, args: str) -> tuple[Chunk, Chunk, Chunk]:
    id = f"call_{call_index}_{position}"
    return CallStart(position, call.name, id), CallArgs(position, args), CallDone(position)


def _args(call: ScriptedCall, request: ModelRequest, strict: bool) -> str:
    if call.args is not None:
        return call.args
    return msgspec.json.encode(_fill(call.value, request, strict)).decode()


def _fill(value: object, request: ModelRequest, strict: bool) -> object:
    if isinstance(value, Template):
        return _render(value, request, strict)
    if isinstance(value, dict):
        return {key: _fill(item, request, strict) for key, item in cast("dict[str, object]", value).items()}
    if isinstance(value, list):
        return [_fill(item, request, strict) for item in cast("list[object]", value)]
    return value


def _render(phrase: Phrase, request: ModelRequest, strict: bool) -> str:
    if isinstance(phrase, str):
        return phrase
    texts: list[str] = []
    for piece in phrase.pieces:
        if isinstance(piece, Slot):
            value = _value(piece, request)
            if value is None and strict:
                raise ProviderError(
                    "invalid_request", f"the script's {piece} has no value here", code="script_template"
                )
            texts.append(value or "")
        else:
            texts.append(piece)
    return "".join(texts)


def _value(slot: Slot, request: ModelRequest) -> str | None:
    """Returns the value of a slot for this request; None for a missing result or tool."""
    match slot.name:
        case "n":
            return str(request.call_index)
        case "tool_results":
            return _last_result(request, int(slot.arg))
        case "len_tool_results":
            text = _last_result(request, int(slot.arg))
            return None if text is None else str(len(text))
        case "all_tool_results":
            return " || ".join(_results_of_run(request))
        case "user_messages":
            return " | ".join(
                message.text for message in request.messages if isinstance(message, User) and not message.injected
            )
        case "message_count":
            return str(sum(isinstance(message, User | Assistant) for message in request.messages))
        case "tools":
            return "" if request.tools_disabled else ",".join(sorted(tool.name for tool in request.tools))
        case "tool_desc":
            return next((described(tool) for tool in request.tools if tool.name == slot.arg), None)
        case "system":
            systems = [message.content for message in request.messages if isinstance(message, System)]
            return "\n\n".join([request.system, *systems] if request.system else systems)
        case "sampling":
            return _sampling(request)
        case "attachments":
            return ", ".join(_attachments(request))
        case _:
            return "none" if request.reasoning is None else str(request.reasoning)


def _sampling(request: ModelRequest) -> str:
    """Returns the requested settings as JSON."""
    asked = {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "stop": list(request.stop) or None,
        "max_output_tokens": request.max_output_tokens,
    }
    return msgspec.json.encode({name: value for name, value in asked.items() if value is not None}).decode()


def _attachments(request: ModelRequest) -> list[str]:
    """Returns the images and files of the user's messages and of results: the kind and the size or address of each."""
    parts: list[UserPart] = []
    for message in request.messages:
        if isinstance(message, User):
            parts += message.parts
        elif isinstance(message, ToolResults):
            parts += [part for result in message.results for part in result.parts]
    return [
        f"{part.media_type} {part.url if part.data is None else f'{len(b64decode(part.data))} bytes'}"
        for part in parts
        if isinstance(part, Image | File)
    ]


def _last_result(request: ModelRequest, number: int) -> str | None:
    for message in reversed(request.messages):
        if isinstance(message, ToolResults):
            return message.results[number].text if number < len(message.results) else None
    return None


def _results_of_run(request: ModelRequest) -> list[str]:
    # The prompt of a later run on a thread begins with the results of earlier runs. A run has at most one answer for
    # each call it made, so anything before that many answers is not its own.
    batches: list[list[str]] = []
    answers = 0
    for message in reversed(request.messages):
        if answers == request.call_index:
            break
        if isinstance(message, Assistant):
            answers += 1
        elif isinstance(message, ToolResults):
            batches.append([result.text for result in message.results])
    return [text for batch in reversed(batches) for text in batch]
