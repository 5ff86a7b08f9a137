"""OpenAI Chat Completions, and every server that speaks it: OpenRouter, Groq, Cerebras, xAI, DeepSeek, Ollama, vLLM…"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from weftline import prompts
from weftline.providers.base import ModelRequest, SchemaForm
from weftline.providers.names import NameMap
from weftline.providers.openai.chat_request import ChatEncoder, marked_body
from weftline.providers.openai.chat_stream import ChatReader
from weftline.providers.openai.family import OpenAIFamily, joined
from weftline.providers.openai.schema import (
    AnswerTool,
    ReportRestorer,
    Restorer,
    answer_schema,
    answer_tool,
    restorer_for,
)

_encode = msgspec.json.encode


class OpenAIChat(OpenAIFamily):
    """A server that speaks Chat Completions.

    >>> provider = OpenAIChat(profile="groq", api_key="…")
    >>> provider = OpenAIChat(profile="compatible", name="lab", base_url="http://gpu.lan:8000/v1")
    """

    path = "chat/completions"

    def _reader(self, names: NameMap) -> ChatReader:
        return ChatReader(self._name, self._profile, names, self._error)

    def _body(self, request: ModelRequest, names: NameMap) -> bytes:
        cache = self._cache and request.cache
        encoder = ChatEncoder(self._name, self._profile, names, self._takes_images(request.model), cache)
        messages = self._native(request, encoder.message)
        if cache:
            messages = marked_body(messages)
        report = self._report(request)
        if text := self._system(request, report):
            system = encoder.system(text)
            messages.insert(0, marked_body([system])[0] if cache else system)
        # The parts that never change come first, so that the body up to the last message is the same from turn to turn.
        head = b'{"model":' + _encode(request.model)
        if tools := [*request.tools, *([report.spec] if report else [])]:
            head += b',"tools":[' + encoder.tools(tools) + b"]"
        settings = _encode(self._settings(request, names, report))
        return joined(head + b',"messages":[', messages, b"]," + settings[1:])

    def _names(self, request: ModelRequest) -> NameMap:
        report = self._report(request)
        return NameMap([*(spec.name for spec in request.tools), *([report.name] if report else [])])

    def _restorer(self, request: ModelRequest) -> Restorer | ReportRestorer:
        if report := self._report(request):
            return ReportRestorer(report)
        native = self._schema_form(request) == "native"
        return restorer_for(request, answer=native, tools=self._profile.strict_tools)

    def _schema_form(self, request: ModelRequest) -> SchemaForm | None:
        if request.output_schema is None:
            return None
        when = self._profile.schema
        native = when == "always" or (when == "no_tools" and not request.tools)
        return "native" if native else self._profile.schema_else

    def _report(self, request: ModelRequest) -> AnswerTool | None:
        if request.output_schema is None or self._schema_form(request) != "tool":
            return None
        names = super()._names(request)
        return answer_tool(request.output_schema, {names.out(spec.name) for spec in request.tools})

    def _system(self, request: ModelRequest, report: AnswerTool | None) -> str:
        texts = [request.system or ""]
        if report is not None:
            texts.append(prompts.models.answer_by_tool(report.name))
        elif request.output_schema is not None and self._schema_form(request) == "prompt":
            texts.append(prompts.models.answer_by_schema(bytes(request.output_schema.schema).decode()))
        return "\n\n".join(text for text in texts if text)

    def _settings(self, request: ModelRequest, names: NameMap, report: AnswerTool | None) -> dict[str, Any]:
        profile = self._profile
        knob = self._knob(request.model)
        settings: dict[str, Any] = {"stream": True}
        if profile.stream_usage:
            settings["stream_options"] = {"include_usage": True}
        if report is not None and (not request.tools or request.tools_disabled or request.tool_choice == "none"):
            settings["tool_choice"] = {"type": "function", "function": {"name": report.name}}
        elif request.tools:
            settings["tool_choice"] = _tool_choice(request, names)
        if request.tools and request.parallel_tool_calls is not None and profile.parallel and knob.parallel:
            settings["parallel_tool_calls"] = request.parallel_tool_calls
        effort = self._effort(request)
        if effort is not None and profile.reasoning != "none":
            as_object = profile.reasoning == "object"
            settings |= {"reasoning": {"effort": effort}} if as_object else {"reasoning_effort": effort}
        if request.output_schema is not None and self._schema_form(request) == "native":
            answer = answer_schema(request.output_schema)
            form = {"name": request.output_schema.name, "strict": answer.strict, "schema": Raw(answer.schema)}
            settings["response_format"] = {"type": "json_schema", "json_schema": form}
        if request.cache_key and profile.prompt_cache_key:
            settings["prompt_cache_key"] = request.cache_key
        if request.max_output_tokens is not None:
            settings[profile.max_tokens_field] = request.max_output_tokens
        if not (profile.fixed_sampling and knob.levels and effort != "none"):
            if request.temperature is not None:
                settings["temperature"] = request.temperature
            if request.top_p is not None:
                settings["top_p"] = request.top_p
            if request.stop:
                settings["stop"] = list(request.stop)
        if request.top_k is not None and profile.top_k:
            settings["top_k"] = request.top_k
        return settings


def _tool_choice(request: ModelRequest, names: NameMap) -> str | dict[str, Any]:
    choice = "none" if request.tools_disabled else request.tool_choice
    if isinstance(choice, str):
        return choice
    return {"type": "function", "function": {"name": names.out(choice[1])}}
