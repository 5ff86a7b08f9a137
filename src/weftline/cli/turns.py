"""Shows what a model was sent in a turn, what it answered, and what that cost."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Sequence
from typing import Any

import click

from weftline.cli.screen import cost
from weftline.cli.terminal import clean, is_terminal, on_one_line, styled

_MAX_WIDTH = 120
_MAX_CHARS = 4_000
"""For one text. JSON has all of it."""
_GAP = "  "


def show_turn(turn: dict[str, Any], *, whole_request: bool) -> None:
    """Prints a turn: with the whole request, or only the messages that the previous turn did not have."""
    click.echo(_headline(turn))
    for one in turn["attempts"]:
        if "errorClass" in one:
            click.echo(styled(f"attempt {one['attempt']} failed: {one['errorClass']}", fg="yellow"))
    sent = turn["request"]
    messages: list[dict[str, Any]] = sent["messages"]
    if whole_request:
        _show_instructions(sent)
        _show_tools(sent)
        _show_settings(sent, turn["answer"])
        _title(f"Messages ({len(messages)})")
        _show_messages(messages)
    else:
        _show_in_short(sent, turn["answer"])
        earlier: int = sent["earlier"]
        before = f", after {_count(earlier, 'earlier message')} (--request shows all)" if earlier else ""
        _title(f"Sent{before}")
        _show_messages(messages[earlier:])
    _title("Answered")
    answer: dict[str, Any] | None = turn["answer"]
    if answer is None:
        click.echo(f"{_GAP}Nothing: no attempt has completed the turn.")
        return
    _show_messages([answer["message"]])
    if "problem" in answer:
        click.echo(styled(f"{_GAP}It does not fit the output schema: {clean(answer['problem'])}", fg="yellow"))


def show_conversation(turn: dict[str, Any]) -> None:
    """Prints the conversation up to and including a turn's answer."""
    sent, answer = turn["request"], turn["answer"]
    if sent["systemPrompt"]:
        _heading("instructions")
        _show_text(sent["systemPrompt"])
    _show_messages(conversation(turn))
    if answer is None:
        click.echo(f"\n{_headline(turn)}: not answered")


def conversation(turn: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the messages of a turn and its answer."""
    answer: dict[str, Any] | None = turn["answer"]
    return [*turn["request"]["messages"], *([] if answer is None else [answer["message"]])]


def _headline(turn: dict[str, Any]) -> str:
    attempts: list[dict[str, Any]] = turn["attempts"]
    tokens: dict[str, int] = turn["tokens"]
    usd: float | None = turn["costUsd"]
    answer: dict[str, Any] | None = turn["answer"]
    cached = f" ({tokens['cachedTokens']} cached)" if tokens["cachedTokens"] else ""
    about = "about " if turn["usageEstimated"] else ""
    parts = [
        f"turn {turn['turn']} of 0 to {turn['lastTurn']}" if turn["lastTurn"] else "turn 0, the only one",
        attempts[-1]["model"]["id"],
        f"{about}{tokens['inputTokens']} tokens in{cached}, {tokens['outputTokens']} out",
        "" if usd is None else cost(usd, estimated=turn["usageEstimated"]),
        f"{sum(one['activeMs'] for one in attempts) / 1000:.1f} s",
        _count(len(attempts), "attempt") if len(attempts) > 1 else "",
        (answer or {}).get("finishReason") or "",
    ]
    return styled(" · ".join([clean(part) for part in parts if part]), bold=True)


def _show_instructions(sent: dict[str, Any]) -> None:
    _title("Instructions")
    if sent["systemPrompt"]:
        _show_text(sent["systemPrompt"])
    else:
        click.echo(f"{_GAP}None.")


def _show_tools(sent: dict[str, Any]) -> None:
    tools: list[dict[str, Any]] = sent["tools"]
    agent: str | None = sent["toolsOfAgent"]
    if not tools and agent is None:
        return
    _title("Tools, which this last turn could not use" if sent["toolsDisabled"] else "Tools")
    for tool in tools:
        parameters: dict[str, Any] = tool.get("parameters") or {}
        properties: dict[str, Any] = parameters.get("properties", {})
        named = ", ".join(properties)
        what = tool.get("description") or tool.get("url") or f"of kind {tool['kind']}, defined outside the log"
        _show_text(f"{tool['name']}({named}) {what}")
    if agent is not None:
        _show_text(f"… and those that the code of the agent {agent!r} has")


def _show_in_short(sent: dict[str, Any], answer: dict[str, Any] | None) -> None:
    """Prints a line each for the instructions, the tools and the output schema, as far as there are any."""
    tools = [tool["name"] for tool in sent["tools"]]
    if sent["toolsOfAgent"] is not None:
        tools.append(f"those of {sent['toolsOfAgent']}")
    schema = sent["outputSchema"]
    lines = {
        "instructions": sent["systemPrompt"],
        "tools": ", ".join(tools) + (", which this last turn could not use" if sent["toolsDisabled"] else ""),
        "output": "" if schema is None else f"{schema['name']}, a schema {_how_sent(answer)}",
    }
    click.echo()
    for name, line in lines.items():
        if line and (tools or name != "tools"):
            width = shutil.get_terminal_size().columns if is_terminal() else _MAX_WIDTH
            click.echo(f"{styled(f'{name:<12}', dim=True)} {on_one_line(line, min(width, _MAX_WIDTH) - 13)}")


def _how_sent(answer: dict[str, Any] | None) -> str:
    """Returns how the model was told about the output schema; its provider says so with the answer."""
    metadata: dict[str, str] = {} if answer is None else answer["metadata"]
    form = metadata.get("output_schema", "")
    return {"native": "in the API's own field", "tool": "as the input of a tool", "prompt": "in words"}.get(form, "")


def _show_settings(sent: dict[str, Any], answer: dict[str, Any] | None) -> None:
    settings = {name: json.dumps(value, ensure_ascii=False) for name, value in sent["settings"].items()}
    if sent["reasoningLevel"] is not None:
        settings["reasoningLevel"] = str(sent["reasoningLevel"])
    if sent["outputSchema"] is not None:
        how = _how_sent(answer)
        settings[f"outputSchema ({how})" if how else "outputSchema"] = json.dumps(
            sent["outputSchema"]["schema"], ensure_ascii=False
        )
    if settings:
        _title("Settings")
        for name, value in settings.items():
            _show_text(f"{name}: {value}")


def _show_messages(messages: Sequence[dict[str, Any]]) -> None:
    for message in messages:
        if message["role"] == "tool":
            for result in message["results"]:
                mark = "→" if result["ok"] else "✗"
                _heading(f"{mark} {result['name']}", note=result["toolUseId"])
                _show_text(result["text"], depth=2)
                _show_attachments(result, depth=2)
            continue
        _heading(message["role"], note="added by the server" if message.get("injected") else "")
        if message.get("thinking"):
            _show_text(message["thinking"], depth=2, dim=True)
        if message.get("text"):
            _show_text(message["text"], depth=2)
        _show_attachments(message, depth=2)
        for call in [*message.get("providerCalls", ()), *message.get("calls", ())]:
            _show_call(call)


def _show_call(call: dict[str, Any]) -> None:
    _show_text(f"· {call['name']} {json.dumps(call['args'], ensure_ascii=False)}", depth=2)
    if call.get("result") is not None:
        _show_text(f"{'→' if call['ok'] else '✗'} {call['result']}", depth=3)
    elif "how" in call:
        _show_text("… no result yet" if call["how"] is None else f"✗ {call['how']}", depth=3)


def _show_attachments(holder: dict[str, Any], *, depth: int) -> None:
    for one in holder.get("attachments", ()):
        size = f", {one['sizeBytes']:,} bytes" if "sizeBytes" in one else ""
        _show_text(
            f"[{one['mediaType']} {one.get('name') or one.get('url') or ''}{size}]".replace(" ]", "]"), depth=depth
        )


def _title(text: str) -> None:
    click.echo(f"\n{styled(text, bold=True)}")


def _heading(text: str, *, note: str = "") -> None:
    click.echo(f"{_GAP}{styled(clean(text), fg='cyan')}{styled(f'  {clean(note)}', dim=True) if note else ''}")


def _show_text(text: str, *, depth: int = 1, **style: Any) -> None:
    """Prints a text from outside, indented, and on a terminal in lines that fit."""
    indent = _GAP * depth
    text = clean(text)
    more = len(text) - _MAX_CHARS
    lines = (text if more <= 0 else text[:_MAX_CHARS]).split("\n")
    if is_terminal():
        width = min(shutil.get_terminal_size().columns, _MAX_WIDTH) - len(indent)
        lines = [part for line in lines for part in _wrapped(line, width)]
    for line in lines:
        click.echo(f"{indent}{styled(line, **style)}".rstrip())
    if more > 0:
        click.echo(on_one_line(f"{indent}… {more:,} more characters; --json has them", _MAX_WIDTH))


def _wrapped(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    return textwrap.wrap(line, max(width, 20), drop_whitespace=False, replace_whitespace=False, break_on_hyphens=False)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
