"""A2A agents that this process talks to: the run gets their card, and calls to them go out from here."""

from __future__ import annotations

import asyncio
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from time import monotonic
from typing import Any, Literal, NamedTuple, cast
from urllib.parse import urljoin

import msgspec

from weftline.client.context import ToolContext
from weftline.client.errors import InvalidSpec, NetworkError, ToolError
from weftline.client.events import LocalToolCall
from weftline.client.http import exchange
from weftline.client.tools import Handler
from weftline.client.workers import HandlerWorkers

CARD_PATHS = (".well-known/agent-card.json", ".well-known/agent.json")
CARD_TTL_S = 300.0
_POLL_S = (0.1, 2.0)
_CONVERSATIONS = 1024
_METHODS = {"0.3": ("message/send", "tasks/get"), "1.0": ("SendMessage", "GetTask")}
_UNDER_WAY = frozenset({"submitted", "working"})
_FAILED = frozenset({"failed", "rejected", "canceled", "auth-required"})


def local_a2a(
    name: str,
    url: str | None = None,
    *,
    card: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    description: str | None = None,
    timeout_s: float | None = 300.0,
) -> LocalA2A:
    """An A2A agent as a tool that takes one message.

    Args:
        name: The name that the model calls it by.
        url: The agent's address, whose well-known card is fetched, or the address of the card itself.
        card: The card as data, instead of `url`.
        headers: Sent to the agent with every request. The server never sees them.
        description: For the model, instead of the card's description.
    """
    if (url is None) == (card is None):
        raise InvalidSpec("give either url or card")
    return LocalA2A(name, url=url, card=card, headers=headers, description=description, timeout_s=timeout_s)


class LocalA2A:
    """Made by `local_a2a`. Calls of one session (or of one run outside a session) share one conversation."""

    def __init__(
        self,
        name: str,
        *,
        url: str | None,
        card: Mapping[str, Any] | None,
        headers: Mapping[str, str] | None,
        description: str | None,
        timeout_s: float | None,
    ) -> None:
        self.name = name
        self.timeout_s = timeout_s
        self._url = url
        self._headers = dict(headers or {})
        self._description = description
        self._card: dict[str, Any] | None = None if card is None else dict(card)
        self._card_until = float("inf") if card is not None else 0.0
        self._contexts: OrderedDict[str, str] = OrderedDict()

    def __repr__(self) -> str:
        return f"<local_a2a {self.name!r}>"

    async def acquire(self) -> dict[str, Any]:
        ref: dict[str, Any] = {"kind": "a2a_local", "name": self.name, "agentCard": await self.card()}
        if self._description is not None:
            ref["description"] = self._description
        return ref

    async def release(self) -> None:
        pass

    def handler(self, call: LocalToolCall) -> Handler | None:
        return self if call.kind == "a2a_local" and call.name == self.name else None

    async def card(self) -> dict[str, Any]:
        """The agent's card, fetched again every five minutes."""
        if self._card is not None and monotonic() < self._card_until:
            return self._card
        assert self._url is not None
        root = self._url.rstrip("/") + "/"
        addresses = [self._url] if self._url.endswith(".json") else [urljoin(root, path) for path in CARD_PATHS]
        failure = ""
        for address in addresses:
            reply = await exchange("GET", address, headers={"Accept": "application/json", **self._headers})
            card = _json_object(reply.body)
            if reply.status == 200 and card is not None:
                self._card, self._card_until = card, monotonic() + CARD_TTL_S
                return card
            failure = failure or f"{address} answered {reply.status}"
        raise NetworkError(f"the card of the A2A agent {self.name!r} cannot be read: {failure}")

    async def __call__(self, args: dict[str, Any], context: ToolContext, workers: HandlerWorkers) -> str:
        message = args.get("message")
        if not isinstance(message, str):
            raise ToolError(f"The arguments do not fit the tool {self.name}: message: must be a string")
        conversation = context.session_id or context.run_id
        result = await self._finished(await self._send(message, self._contexts.get(conversation)))
        context_id = result.get("contextId")
        if isinstance(context_id, str):
            self._contexts[conversation] = context_id
            self._contexts.move_to_end(conversation)
            if len(self._contexts) > _CONVERSATIONS:
                self._contexts.popitem(last=False)
        text = reply_text(result)
        if _state(result) in _FAILED:
            raise ToolError(text or f"The agent {self.name} ended the task as {_state(result)}.")
        return text

    async def _send(self, text: str, context_id: str | None) -> dict[str, Any]:
        sent: dict[str, Any] = {"messageId": uuid.uuid4().hex}
        params: dict[str, Any] = {"message": sent}
        if self._endpoint(await self.card()).version == "1.0":
            sent |= {"role": "ROLE_USER", "parts": [{"text": text}]}
        else:
            sent |= {"kind": "message", "role": "user", "parts": [{"kind": "text", "text": text}]}
            params["configuration"] = {"blocking": True}
        if context_id is not None:
            sent["contextId"] = context_id
        result = await self._rpc(0, params)
        # Version 1.0 wraps it.
        inner: Any = result.get("task") or result.get("message")
        return cast("dict[str, Any]", inner) if isinstance(inner, dict) and "status" not in result else result

    async def _finished(self, result: dict[str, Any]) -> dict[str, Any]:
        """The task once it is no longer in progress: some agents respond before they are done."""
        pause_s, max_s = _POLL_S
        while _state(result) in _UNDER_WAY and isinstance(result.get("id"), str):
            await asyncio.sleep(pause_s)
            pause_s = min(max_s, pause_s * 2)
            result = await self._rpc(1, {"id": result["id"]})
        return result

    async def _rpc(self, method: Literal[0, 1], params: dict[str, Any]) -> dict[str, Any]:
        endpoint = self._endpoint(await self.card())
        name = _METHODS[endpoint.version][method]
        body = msgspec.json.encode({"jsonrpc": "2.0", "id": uuid.uuid4().hex, "method": name, "params": params})
        headers = {"Content-Type": "application/json", "Accept": "application/json", **self._headers}
        if endpoint.version == "1.0":
            headers["A2A-Version"] = "1.0"
        reply = await exchange("POST", endpoint.url, headers=headers, body=body, timeout_s=self.timeout_s or 86_400.0)
        answer = _json_object(reply.body)
        if answer is None or (reply.status >= 400 and "error" not in answer):
            raise ToolError(f"The agent {self.name} answered {reply.status}.")
        error = answer.get("error")
        if error is not None:
            reason = cast("dict[str, Any]", error).get("message") if isinstance(error, dict) else error
            raise ToolError(f"The agent {self.name} refused: {reason}")
        result = answer.get("result")
        if not isinstance(result, dict):
            raise ToolError(f"The agent {self.name} answered without a result.")
        return cast("dict[str, Any]", result)

    def _endpoint(self, card: dict[str, Any]) -> _Endpoint:
        """The agent's JSON-RPC endpoint, from its card: that of version 0.3 if it has both, which all know."""
        found = [_Endpoint(card["url"], "0.3")] if isinstance(card.get("url"), str) and card["url"] else []
        interfaces: Any = card.get("supportedInterfaces") or card.get("additionalInterfaces")
        for one in cast("list[Any]", interfaces) if isinstance(interfaces, list) else []:
            url = _text(one, "url")
            if url and (_text(one, "protocolBinding") or _text(one, "transport")) in ("", "JSONRPC"):
                found.append(_Endpoint(url, "1.0" if _text(one, "protocolVersion") >= "1.0" else "0.3"))
        found.sort(key=lambda endpoint: endpoint.version)
        if not found:
            raise ToolError(f"The card of the agent {self.name} has no url for JSON-RPC.")
        first = found[0]
        return _Endpoint(urljoin(self._url, first.url), first.version) if self._url is not None else first


class _Endpoint(NamedTuple):
    url: str
    version: Literal["0.3", "1.0"]


def _text(value: object, name: str) -> str:
    """A string field of a value that may be an object."""
    found: Any = cast("dict[str, Any]", value).get(name) if isinstance(value, dict) else None
    return found if isinstance(found, str) else ""


def reply_text(result: dict[str, Any]) -> str:
    """The text of a message, of a task's status, or of its last artifact: the first that has any."""
    status: Any = result.get("status")
    artifacts: Any = result.get("artifacts")
    places: list[Any] = [result.get("parts")]
    if isinstance(artifacts, list) and artifacts:
        last: Any = cast("list[Any]", artifacts)[-1]
        places.append(cast("dict[str, Any]", last).get("parts") if isinstance(last, dict) else None)
    if isinstance(status, dict):
        message: Any = cast("dict[str, Any]", status).get("message")
        places.insert(1, cast("dict[str, Any]", message).get("parts") if isinstance(message, dict) else None)
    for parts in places:
        text = _parts_text(parts)
        if text:
            return text
    return ""


def _parts_text(parts: object) -> str:
    if not isinstance(parts, list):
        return ""
    texts: list[str] = []
    for part in cast("list[object]", parts):
        if isinstance(part, dict):
            text = cast("dict[str, Any]", part).get("text")
            if isinstance(text, str):
                texts.append(text)
    return "\n".join(texts)


def _state(result: dict[str, Any]) -> str:
    status: Any = result.get("status")
    state: Any = cast("dict[str, Any]", status).get("state") if isinstance(status, dict) else None
    return state.removeprefix("TASK_STATE_").lower().replace("_", "-") if isinstance(state, str) else ""


def _json_object(body: bytes) -> dict[str, Any] | None:
    try:
        value: object = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None
