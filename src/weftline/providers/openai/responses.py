"""OpenAI's Responses API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from weftline.net.errors import DEFAULT_LIMITS, TimeLimits
from weftline.net.transport import Transport
from weftline.providers.base import ModelInfo, ModelRequest
from weftline.providers.names import NameMap
from weftline.providers.openai.family import OpenAIFamily, joined
from weftline.providers.openai.profiles import Profile
from weftline.providers.openai.responses_request import (
    BUILTIN_PREFIX,
    BUILTIN_TOOLS,
    FORCIBLE_TOOLS,
    ResponsesEncoder,
)
from weftline.providers.openai.responses_stream import ResponsesReader
from weftline.providers.openai.schema import answer_schema
from weftline.providers.sampling import SamplingLimits

_encode = msgspec.json.encode


class OpenAIResponses(OpenAIFamily):
    """OpenAI models through the Responses API, without any state at OpenAI.

    `reasoning_summary` is the kind of summary to ask for when a reasoning level above 0 is set (OpenAI gives summaries
    of some models to verified organizations only).

    >>> provider = OpenAIResponses(api_key="…", models=["gpt-5.5"])
    """

    path = "responses"
    not_found = (
        "A server without /v1/responses may have Chat Completions: use the family openai_chat. "
        "Otherwise see whether the address ends in /v1."
    )

    def __init__(
        self,
        *,
        profile: str | Profile = "openai",
        transport: Transport | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        models: Sequence[str | ModelInfo] = (),
        name: str | None = None,
        default_model: str | None = None,
        limits: TimeLimits = DEFAULT_LIMITS,
        reasoning_levels: Mapping[str, Mapping[int | str, str | None]] | None = None,
        headers: Mapping[str, str] | None = None,
        reasoning_summary: Literal["auto", "concise", "detailed", "none"] = "auto",
    ) -> None:
        super().__init__(
            profile=profile,
            transport=transport,
            base_url=base_url,
            api_key=api_key,
            models=models,
            name=name,
            default_model=default_model,
            limits=limits,
            reasoning_levels=reasoning_levels,
            headers=headers,
        )
        self._summary = reasoning_summary

    def builtin_tools(self) -> Sequence[str]:
        """The tools that OpenAI itself runs; `provider:<name>` as a tool's name selects one."""
        return tuple(BUILTIN_TOOLS)

    def sampling_limits(self, model: str, *, reasoning: int | None) -> SamplingLimits:
        """Returns what the model accepts. This API has no stop sequences, and a minimum output limit."""
        return replace(super().sampling_limits(model, reasoning=reasoning), max_stops=0, min_output_tokens=16)

    def _names(self, request: ModelRequest) -> NameMap:
        return NameMap(spec.name for spec in request.tools if not spec.name.startswith(BUILTIN_PREFIX))

    def _reader(self, names: NameMap) -> ResponsesReader:
        return ResponsesReader(self._name, names, self._error)

    def _body(self, request: ModelRequest, names: NameMap) -> bytes:
        encoder = ResponsesEncoder(self._name, names, self._takes_images(request.model))
        items = self._native(request, encoder.message)
        # The parts that never change come first, so that the body up to the last item is the same from turn to turn.
        head = b'{"model":' + _encode(request.model)
        if request.tools:
            head += b',"tools":[' + encoder.tools(request.tools) + b"]"
        if request.system:
            head += b',"instructions":' + _encode(request.system)
        settings = _encode(self._settings(request, names))
        return joined(head + b',"input":[', items, b"]," + settings[1:])

    def _settings(self, request: ModelRequest, names: NameMap) -> dict[str, Any]:
        settings: dict[str, Any] = {"store": False, "stream": True}
        knob = self._knob(request.model)
        effort = self._effort(request)
        if self.takes_reasoning(request.model):
            # Models that do not reason refuse this.
            settings["include"] = ["reasoning.encrypted_content"]
        if effort is not None:
            settings["reasoning"] = {"effort": effort}
            if self._summary != "none" and request.reasoning:
                settings["reasoning"]["summary"] = self._summary
        if request.output_schema is not None:
            answer = answer_schema(request.output_schema)
            form = {"strict": answer.strict, "name": request.output_schema.name, "schema": Raw(answer.schema)}
            settings["text"] = {"format": {"type": "json_schema", **form}}
        if request.tools:
            settings["tool_choice"] = _tool_choice(request, names)
            if request.parallel_tool_calls is not None and knob.parallel:
                settings["parallel_tool_calls"] = request.parallel_tool_calls
        if request.cache_key and self._profile.prompt_cache_key:
            settings["prompt_cache_key"] = request.cache_key
        if request.max_output_tokens is not None:
            settings["max_output_tokens"] = request.max_output_tokens
        if not (self._profile.fixed_sampling and knob.levels and effort != "none"):
            if request.temperature is not None:
                settings["temperature"] = request.temperature
            if request.top_p is not None:
                settings["top_p"] = request.top_p
        return settings


def _tool_choice(request: ModelRequest, names: NameMap) -> str | dict[str, Any]:
    choice = "none" if request.tools_disabled else request.tool_choice
    if isinstance(choice, str):
        return choice
    if choice[1].startswith(BUILTIN_PREFIX):
        kind = choice[1].removeprefix(BUILTIN_PREFIX)
        # Only some tools can be named directly, but any can be the only one allowed.
        allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": kind}]}
        return {"type": kind} if kind in FORCIBLE_TOOLS else allowed
    return {"type": "function", "name": names.out(choice[1])}
