"""Servers that speak OpenAI's APIs, as data: their URL, their key's variable, and how they differ.

A server that is not in the table needs no code: take `PROFILES["compatible"]`, or the nearest profile, and change what
is different with `msgspec.structs.replace`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from weftline.providers.sampling import nearest


class Knob(Struct, frozen=True):
    """Support of reasoning levels by models whose id matches `models` (a regular expression, from the start of the id).

    `levels` maps points on the scale 0–100 to the native words. Without levels, these models have no such setting.
    """

    models: str
    levels: dict[int, str] = {}
    parallel: bool = True
    """Whether `parallel_tool_calls` may be sent."""


LOW_TO_HIGH = {30: "low", 50: "medium", 80: "high"}
LOW_TO_XHIGH = {**LOW_TO_HIGH, 90: "xhigh"}
LOW_TO_MAX = {**LOW_TO_XHIGH, 100: "max"}

OPENAI_KNOBS: tuple[Knob, ...] = (
    Knob(r"(ft:)?(gpt-[34]|chatgpt|gpt-audio|gpt-image|computer-use|gpt-5(\.\d+)?-chat)"),
    Knob(r"o1-(mini|preview)", parallel=False),
    Knob(r"o\d.*deep-research", {50: "medium"}, parallel=False),
    Knob(r"o\d", LOW_TO_HIGH, parallel=False),
    Knob(r"gpt-5-pro", {80: "high"}),
    Knob(r"gpt-5\.\d+-pro", {50: "medium", 80: "high", 90: "xhigh"}),
    Knob(r"gpt-5\.1-codex-max", LOW_TO_XHIGH),
    Knob(r"gpt-5(\.1)?-codex|codex", LOW_TO_HIGH),
    Knob(r"gpt-.*codex", LOW_TO_XHIGH),
    Knob(r"gpt-oss", LOW_TO_HIGH),
    Knob(r"gpt-5(-|$)", {15: "minimal", **LOW_TO_HIGH}),
    Knob(r"gpt-5\.1(?!\d)", {0: "none", **LOW_TO_HIGH}),
    Knob(r"gpt-5\.[2-5](?!\d)", {0: "none", **LOW_TO_XHIGH}),
    Knob(r"gpt-6-astra", LOW_TO_MAX),
    Knob(r"gpt-", {0: "none", **LOW_TO_MAX}),
)
MISTRAL_KNOBS: tuple[Knob, ...] = (
    Knob(r"mistral-large-(4|latest)", {0: "none", **LOW_TO_HIGH}),
    Knob(r"mistral-small-(4|2603|latest)|mistral-medium-(3-5|latest)", {0: "none", 80: "high"}),
)
GPT_OSS: tuple[Knob, ...] = (Knob(r"(openai/)?gpt-oss", LOW_TO_HIGH),)


class Profile(Struct, frozen=True, kw_only=True):
    """One server or kind of server, and how its requests and responses differ."""

    name: str
    base_url: str | None = None
    key_env: str | None = None
    """The environment variable with the key if none is given."""
    key_header: str = ""
    """The header with the key, if it is not `Authorization`."""
    default_model: str | None = None
    knobs: tuple[Knob, ...] = ()
    """The first row that matches a model's id applies; a model without a row has no knob."""
    reasoning: Literal["none", "effort", "object"] = "effort"
    """Chat: the level as `reasoning_effort`, as `reasoning: {effort}`, or not at all."""
    fixed_sampling: bool = False
    """Models with a knob refuse temperature, top-p and stop sequences while they reason."""
    max_stops: int | None = None
    """Chat: how many stop sequences are accepted; None for any number."""
    without_stops: str = ""
    """A regular expression for models that accept no stop sequences."""
    schema: Literal["never", "no_tools", "always"] = "never"
    """Chat: when `response_format` has the output schema. Some servers refuse it together with tools."""
    schema_else: Literal["tool", "prompt"] = "prompt"
    """Chat: what has the output schema otherwise: a tool that the server can force, or the system text."""
    strict_tools: bool = False
    """Chat: tools whose schema allows it are declared `strict`."""
    max_tokens_field: str = "max_tokens"
    top_k: bool = False
    parallel: bool = True
    stream_usage: bool = True
    cache: Literal["never", "asked", "on"] = "asked"
    """Cache markers: never, only when the provider is built with `cache=True`, or unless built with `cache=False`."""
    prompt_cache_key: bool = False
    """Requests of one conversation have a key, so that they are routed to where its beginning is cached."""
    thinking_back: Literal["no", "reasoning_details", "reasoning_content", "content"] = "no"
    """Chat: the field in which the server wants its own reasoning back."""
    think_tags: bool = True
    """Reasoning may come inside `<think>` at the beginning of the text."""
    files: bool = False
    """Chat: `file` parts are supported."""
    reasoning_outside_output: bool = False
    """`completion_tokens` does not include the reasoning tokens."""
    failed_call_code: str | None = None
    """The error code for a call that the server itself found malformed."""


PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile(
            name="openai",
            base_url="https://api.openai.com/v1",
            key_env="OPENAI_API_KEY",
            default_model="gpt-5.5",
            knobs=OPENAI_KNOBS,
            fixed_sampling=True,
            max_stops=4,
            schema="always",
            strict_tools=True,
            max_tokens_field="max_completion_tokens",
            cache="never",
            prompt_cache_key=True,
            think_tags=False,
            files=True,
        ),
        Profile(
            name="openrouter",
            base_url="https://openrouter.ai/api/v1",
            key_env="OPENROUTER_API_KEY",
            default_model="anthropic/claude-sonnet-4.5",
            knobs=(Knob(r"x-ai/"), Knob(r"", {0: "none", 15: "minimal", **LOW_TO_XHIGH})),
            reasoning="object",
            schema="always",
            top_k=True,
            cache="on",
            thinking_back="reasoning_details",
            files=True,
        ),
        Profile(
            name="groq",
            base_url="https://api.groq.com/openai/v1",
            key_env="GROQ_API_KEY",
            default_model="openai/gpt-oss-120b",
            knobs=(*GPT_OSS, Knob(r"qwen/qwen3", {0: "none", 50: "default"})),
            max_stops=4,
            # Its own format can neither be streamed nor used beside tools.
            schema_else="tool",
            max_tokens_field="max_completion_tokens",
            cache="never",
            failed_call_code="tool_use_failed",
        ),
        Profile(
            name="cerebras",
            base_url="https://api.cerebras.ai/v1",
            key_env="CEREBRAS_API_KEY",
            default_model="gpt-oss-120b",
            knobs=GPT_OSS,
            schema="no_tools",
            schema_else="tool",
            max_tokens_field="max_completion_tokens",
            cache="never",
        ),
        Profile(
            name="xai",
            base_url="https://api.x.ai/v1",
            key_env="XAI_API_KEY",
            default_model="grok-4",
            reasoning="none",
            without_stops=r"grok-3-mini|grok-4(?!.*non-reasoning)",
            schema="no_tools",
            schema_else="tool",
            cache="never",
            reasoning_outside_output=True,
        ),
        Profile(
            name="deepseek",
            base_url="https://api.deepseek.com/v1",
            key_env="DEEPSEEK_API_KEY",
            default_model="deepseek-chat",
            # Its reasoning models refuse a forced tool.
            schema_else="prompt",
            reasoning="none",
            parallel=False,
            cache="never",
            thinking_back="reasoning_content",
        ),
        Profile(
            name="mistral",
            base_url="https://api.mistral.ai/v1",
            key_env="MISTRAL_API_KEY",
            default_model="mistral-medium-latest",
            knobs=MISTRAL_KNOBS,
            schema="no_tools",
            schema_else="tool",
            # Mistral always reports usage, and refuses unknown fields.
            stream_usage=False,
            cache="never",
            thinking_back="content",
        ),
        Profile(
            name="ollama",
            base_url="http://localhost:11434/v1",
            key_env="OLLAMA_API_KEY",
            default_model="gpt-oss:20b",
            knobs=GPT_OSS,
            schema="no_tools",
            schema_else="tool",
            parallel=False,
        ),
        Profile(
            name="vllm",
            base_url="http://localhost:8000/v1",
            key_env="VLLM_API_KEY",
            knobs=GPT_OSS,
            schema="no_tools",
            schema_else="tool",
            top_k=True,
        ),
        Profile(
            name="azure",
            key_env="AZURE_OPENAI_API_KEY",
            key_header="api-key",
            knobs=OPENAI_KNOBS,
            fixed_sampling=True,
            max_stops=4,
            schema="always",
            strict_tools=True,
            max_tokens_field="max_completion_tokens",
            cache="never",
            think_tags=False,
        ),
        Profile(name="compatible", knobs=GPT_OSS),
    )
}


NO_KNOB = Knob("")


def knob_of(knobs: Sequence[Knob], model: str) -> Knob:
    """Returns the row for `model`; one without levels if the model has no knob."""
    return next((knob for knob in knobs if re.match(knob.models, model, re.IGNORECASE)), NO_KNOB)


def effort_at(levels: Mapping[int, str], level: int) -> str:
    """Returns a family's word: the lowest at 0, and above it the nearest that does not turn reasoning off."""
    if level == 0:
        return levels[min(levels)]
    return levels[nearest([place for place in levels if place > 0], level)]
