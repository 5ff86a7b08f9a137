"""Did you mean …? Our names for what other libraries call otherwise, and the nearest of our own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final


def did_you_mean(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Returns a sentence with the nearest known words and a leading space; empty if none is near."""
    from difflib import get_close_matches

    by_lower = {one.lower(): one for one in known}
    near = [by_lower[one] for one in get_close_matches(word.lower()[:200], by_lower, n=3, cutoff=cutoff)]
    if not near:
        return ""
    *others, last = [repr(one) for one in near]
    return f" Did you mean {', '.join(others)} or {last}?" if others else f" Did you mean {last}?"


def sentence(text: str) -> str:
    """Returns the text with a full stop, unless it already ends a sentence, so that another can follow."""
    return text if text.endswith((".", "?", "!", "…")) else f"{text}."


def our_name(of: str, name: str) -> str:
    """Returns what to write here for a name that another library has; empty for any other name.

    `of` is an option of `Agent`, `run` or `tool`, an attribute of `agent` or `result`, or a name to import.
    """
    ours = ELSEWHERE.get(of, {}).get(name)
    if ours is None:
        return ""
    return f"{_KINDS[of].format(name=name)} here it is {ours}."


def missing_attribute(of: str, value: object, name: str) -> AttributeError:
    """Returns the error for an attribute that a value does not have. For the `__getattr__` of its class."""
    if sentence := our_name(of, name):
        return AttributeError(sentence, name=None, obj=None)
    return AttributeError(f"{type(value).__name__!r} object has no attribute {name!r}", name=name, obj=value)


_KINDS: Final = {
    "Agent": "an Agent has no option {name!r}:",
    "run": "a run has no option {name!r}:",
    "tool": "a tool has no option {name!r}:",
    "agent": "an Agent has no attribute {name!r}:",
    "result": "a RunResult has no attribute {name!r}:",
    "context": "a RunContext has no attribute {name!r}:",
    "weftline": "weftline has no {name}:",
    "weftline.events": "weftline.events has no {name}:",
}

_TURNS: Final = "`limits=Limits(max_turns=10)`"
_SETTING: Final = "`settings=Settings({})`"
_GUARD: Final = "a hook, `@agent.on(OutputReady)` for answers, `@agent.on(BeforeModel)` for requests"
_DURABLE: Final = "`Engine('./data')`, whose runs survive a crash"

ELSEWHERE: Final[dict[str, dict[str, str]]] = {
    "Agent": {
        "system_prompt": "`instructions`",
        "system_message": "`instructions`",
        "prompt": "`instructions`",
        "result_type": "`output`",
        "output_type": "`output`",
        "response_format": "`output`",
        "response_model": "`output`",
        "output_schema": "`output`",
        "deps_type": "`deps`",
        "context_schema": "`deps`",
        "context_type": "`deps`",
        "llm": "`model`",
        "model_settings": "`settings`",
        "temperature": _SETTING.format("temperature=0.2"),
        "top_p": _SETTING.format("top_p=0.9"),
        "max_tokens": _SETTING.format("max_output_tokens=1000"),
        "max_turns": _TURNS,
        "max_iterations": _TURNS,
        "usage_limits": _TURNS,
        "retries": "`limits=Limits(max_retries=3, output_retries=1)`",
        "result_retries": "`limits=Limits(output_retries=1)`",
        "output_retries": "`limits=Limits(output_retries=1)`",
        "toolsets": "`tools`, which takes toolsets too",
        "functions": "`tools`",
        "builtin_tools": "`tools`",
        "mcp_servers": "`tools=[mcp(url)]`",
        "handoffs": "`tools=[other.as_tool('What it is for.')]`",
        "sub_agents": "`tools=[other.as_tool('What it is for.')]`",
        "handoff_description": "`description`",
        "history_processors": "a hook, `@agent.on(ContextBuilt)`",
        "middleware": "`hooks`",
        "callbacks": "`hooks`",
        "input_guardrails": _GUARD,
        "output_guardrails": _GUARD,
        "checkpointer": _DURABLE,
        "memory": "a thread: `agent.run(…, engine=engine, thread='ann')`",
        "store": _DURABLE,
        "instrument": "`trace(agent)`, from `weftline.runs`",
        "fallback_models": "`fallbacks`",
    },
    "run": {
        "message_history": "`messages`",
        "history": "`messages`",
        "input": "the first argument",
        "user_prompt": "the first argument",
        "message": "the first argument",
        "context": "`deps`",
        "session": "`thread`",
        "session_id": "`thread`",
        "thread_id": "`thread`",
        "conversation_id": "`thread`",
        "system_prompt": "`instructions`",
        "model_settings": "`settings`",
        "temperature": _SETTING.format("temperature=0.2"),
        "max_tokens": _SETTING.format("max_output_tokens=1000"),
        "max_turns": _TURNS,
        "usage_limits": _TURNS,
        "output_type": "the agent's `output`",
        "result_type": "the agent's `output`",
        "toolsets": "`tools`, which takes toolsets too",
        "callbacks": "`hooks`",
        "tags": "`labels`",
        "attachments": "`files`",
        "images": "`files`",
        "timeout": "`policy=Policy(time_budget_s=60)`",
        "idempotency_key": "`key`",
        "stream": "`agent.stream(…)`",
    },
    "tool": {
        "name_override": "`name`",
        "description_override": "`description`",
        "requires_approval": "`confirm='Pay {amount}?'`",
        "needs_approval": "`confirm='Pay {amount}?'`",
        "timeout": "`timeout_s`",
        "return_direct": "`terminal=True`",
        "args_schema": "the types of the function's parameters",
        "takes_ctx": "a parameter with the type `ToolContext`",
        "parallel": "`concurrent=True`",
        "idempotent": "`effect='idempotent'`",
        "retries": "`raise ToolFailed(…)`, after which the model may try again",
        "max_retries": "`raise ToolFailed(…)`, after which the model may try again",
        "failure_error_function": "`raise ToolFailed(…)`, whose text the model reads",
    },
    "agent": {
        "run_stream": "`agent.stream(…)`",
        "run_streamed": "`agent.stream(…)`",
        "run_stream_events": "`agent.stream(…)`, whose run yields the events",
        "iter": "`agent.stream(…)`, whose run yields the events",
        "astream": "`agent.stream(…)`",
        "stream_events": "`agent.stream(…)`, whose run yields the events",
        "invoke": "`agent.run_sync(…)`",
        "ainvoke": "`agent.run(…)`",
        "tool": "`Agent(tools=[…])`, with functions or `@tool`",
        "tool_plain": "`Agent(tools=[…])`, with functions or `@tool`",
        "system_prompt": "`Agent(instructions=…)`, a text or a function",
        "output_validator": "`@agent.on(OutputReady)`",
        "result_validator": "`@agent.on(OutputReady)`",
        "clone": "options of the run: `agent.run(…, instructions=…, tools=[…])`",
        "to_a2a": "`weftline serve file.py`",
        "get_tools": "`agent.tools`",
    },
    "result": {
        "data": "`result.output`",
        "final_output": "`result.output`",
        "content": "`result.text`",
        "response": "`result.final`",
        "all_messages": "`result.messages`, without parentheses",
        "to_input_list": "`result.messages`",
        "final_output_as": "`result.output`",
        "structured_output": "`result.output`",
        "tool_calls": "`result.calls`",
        "new_items": "`result.new_messages`",
        "cost": "`result.cost_usd`",
        "id": "`result.run_id`",
    },
    "context": {
        "context": "`context.deps`",
        "run_id": "`context.run.id`",
        "agent": "`context.run.agent`",
    },
    "weftline": {
        "Runner": "`agent.run(…)` and `agent.run_sync(…)`",
        "function_tool": "`tool`",
        "Tool": "`tool`",
        "RunContextWrapper": "`RunContext`",
        "AgentRunResult": "`RunResult`",
        "RunResultStreaming": "`Run`",
        "ModelRetry": "`ToolFailed`",
        "ToolException": "`ToolFailed`",
        "UsageLimits": "`Limits`",
        "ModelSettings": "`Settings`",
        "MCPServerStdio": "`mcp`",
        "MCPServerSse": "`mcp`",
        "MCPServerHTTP": "`mcp`",
        "MCPServerStreamableHTTP": "`mcp`",
        "MCPServerStreamableHttp": "`mcp`",
        "create_agent": "`Agent`",
        "create_react_agent": "`Agent`",
        "AgentExecutor": "`Agent`",
        "handoff": "`other.as_tool('What it is for.')`",
        "SQLiteSession": "`Engine('./data')`, and `thread=` with each run",
        "TestModel": "`ScriptedModel`, from `weftline.testing`",
        "FunctionModel": "`ScriptedModel`, from `weftline.testing`",
        "UnexpectedModelBehavior": "`RunFailed`",
        "AgentRunError": "`RunFailed`",
        "MaxTurnsExceeded": "`RunFailed`",
        "Client": "`from weftline.client import Client`",
        "AsyncClient": "`from weftline.client import AsyncClient`",
        "ScriptedModel": "`from weftline.testing import ScriptedModel`",
    },
    "weftline.events": {
        "CallStarted": "`CallOpened`",
        "ToolCallStarted": "`CallOpened`",
        "ToolCalled": "`CallOpened`",
        "FunctionToolCallEvent": "`CallOpened`",
        "CallEnded": "`CallFinished`",
        "CallCompleted": "`CallFinished`",
        "ToolCallFinished": "`CallFinished`",
        "ToolOutput": "`CallFinished`",
        "FunctionToolResultEvent": "`CallFinished`",
        "PartStartEvent": "`TextDelta`",
        "PartDeltaEvent": "`TextDelta`",
        "TextPartDelta": "`TextDelta`",
        "RawResponsesStreamEvent": "`TextDelta`",
        "ThinkingPartDelta": "`ThinkingDelta`",
        "RunItemStreamEvent": "one of `CallOpened`, `CallFinished` and `TurnFinished`",
        "TurnEnded": "`TurnFinished`",
        "AgentRunResultEvent": "`RunEnded`",
        "FinalResultEvent": "`RunEnded`",
        "RunFinished": "`RunEnded`",
        "RunCompleted": "`RunEnded`",
        "RunFailed": "`RunEnded`, with `status`",
        "ApprovalRequested": "`AwaitOpened`",
    },
}
"""By place, what users of pydantic-ai, openai-agents and langchain write there, and what stands for it here."""
