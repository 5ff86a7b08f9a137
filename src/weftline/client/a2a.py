"""A2A agents that this process talks to: the run gets their card, and calls to them are made from here."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from time import monotonic
from typing import Any, Literal, NamedTuple, cast
from urllib.parse import urljoin

import msgspec

from weftline import prompts
from weftline.client.arguments import ToolContext
from weftline.client.errors import InvalidSpec, NetworkError, ToolError
from weftline.client.events import OfferedCall
from weftline.client.http import exchange
from weftline.client.tools import Handler
from weftline.peer_responses import FAILED, UNDER_WAY, WAITS, answer_text, state_of, unwrapped
from weftline.work.threads import Threads

logger = logging.getLogger("weftline.client")

CARD_PATHS = (".well-known/agent-card.json", ".well-known/agent.json")
CARD_TTL_S = 300.0
_POLL_S = (0.1, 2.0)
_CONVERSATIONS = 1024
_METHODS = {
    "0.3": ("message/send", "tasks/get", "tasks/cancel"),
    "1.0": ("SendMessage", "GetTask", "CancelTask"),
}
_CANCEL_S = 0.8
"""Less than a run waits for its handlers after it has ended."""


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
    """An A2A agent, made by `local_a2a`.

    Calls of one session (or of one run outside a session) share one conversation.
    """

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
        self._conversations: OrderedDict[str, _Conversation] = OrderedDict()

    def __repr__(self) -> str:
        return f"<local_a2a {self.name!r}>"

    async def acquire(self) -> dict[str, Any]:
        ref: dict[str, Any] = {"kind": "a2a_local", "name": self.name, "agentCard": await self.card()}
        if self._description is not None:
            ref["description"] = self._description
        return ref

    async def release(self) -> None:
        pass

    def handler(self, call: OfferedCall) -> Handler | None:
        return self if call.kind == "a2a_local" and call.name == self.name else None

    async def card(self) -> dict[str, Any]:
        """Returns the agent's card, fetched again every five minutes."""
        if self._card is not None and monotonic() < self._card_until:
            return self._card
        assert self._url is not None
        root = self._url.rstrip("/") + "/"
        addresses = [self._url] if self._url.endswith(".json") else [urljoin(root, path) for path in CARD_PATHS]
        failure = ""
        for address in addresses:
            response = await exchange("GET", address, headers={"Accept": "application/json", **self._headers})
            card = _json_object(response.body)
            if response.status == 200 and card is not None:
                self._card, self._card_until = card, monotonic() + CARD_TTL_S
                return card
            failure = failure or f"{address} responded with {response.status}"
        raise NetworkError(f"the card of the A2A agent {self.name!r} cannot be read: {failure}")

    async def __call__(self, args: dict[str, Any], context: ToolContext, workers: Threads) -> str:
        message = args.get("message")
        if not isinstance(message, str):
            raise ToolError(f"The arguments do not fit the tool {self.name}: message: must be a string")
        key = context.session_id or context.run_id
        result = await self._finished(await self._send(message, self._conversations.get(key, _Conversation())))
        self._remember(key, result)
        state = state_of(result)
        text = answer_text(result) or ""
        if state in FAILED:
            raise ToolError(text or f"The agent {self.name} ended the task as {state}.")
        return prompts.remote.agent_waits(self.name, text) if state == WAITS else text

    def _remember(self, key: str, result: dict[str, Any]) -> None:
        known = self._conversations.pop(key, _Conversation())
        task = _text(result, "id") if state_of(result) == WAITS else ""
        self._conversations[key] = _Conversation(_text(result, "contextId") or known.context_id, task)
        if len(self._conversations) > _CONVERSATIONS:
            self._conversations.popitem(last=False)

    async def _send(self, text: str, conversation: _Conversation) -> dict[str, Any]:
        sent: dict[str, Any] = {"messageId": uuid.uuid4().hex}
        params: dict[str, Any] = {"message": sent}
        # The agent answers at once with the task, which can then be cancelled while it runs.
        if self._endpoint(await self.card()).version == "1.0":
            sent |= {"role": "ROLE_USER", "parts": [{"text": text}]}
            params["configuration"] = {"returnImmediately": True}
        else:
            sent |= {"kind": "message", "role": "user", "parts": [{"kind": "text", "text": text}]}
            params["configuration"] = {"blocking": False}
        if conversation.context_id:
            sent["contextId"] = conversation.context_id
        if conversation.task_id:
            sent["taskId"] = conversation.task_id
        return unwrapped(await self._rpc(0, params))

    async def _finished(self, result: dict[str, Any]) -> dict[str, Any]:
        """Waits until the task is no longer in progress, as some agents respond before they are done."""
        pause_s, max_s = _POLL_S
        while state_of(result) in UNDER_WAY and isinstance(result.get("id"), str):
            task = {"id": result["id"]}
            try:
                await asyncio.sleep(pause_s)
                result = unwrapped(await self._rpc(1, task))
            except asyncio.CancelledError:
                await self._cancel(task)
                raise
            pause_s = min(max_s, pause_s * 2)
        return result

    async def _cancel(self, task: dict[str, Any]) -> None:
        """Cancels a task whose answer is no longer wanted, without waiting long."""
        try:
            async with asyncio.timeout(_CANCEL_S):
                await self._rpc(2, task)
        except Exception as error:
            logger.info("a task of the agent %s could not be cancelled: %s", self.name, type(error).__name__)

    async def _rpc(self, method: Literal[0, 1, 2], params: dict[str, Any]) -> dict[str, Any]:
        endpoint = self._endpoint(await self.card())
        name = _METHODS[endpoint.version][method]
        body = msgspec.json.encode({"jsonrpc": "2.0", "id": uuid.uuid4().hex, "method": name, "params": params})
        headers = {"Content-Type": "application/json", "Accept": "application/json", **self._headers}
        if endpoint.version == "1.0":
            headers["A2A-Version"] = "1.0"
        response = await exchange(
            "POST", endpoint.url, headers=headers, body=body, timeout_s=self.timeout_s or 86_400.0
        )
        answer = _json_object(response.body)
        if answer is None or (response.status >= 400 and "error" not in answer):
            raise ToolError(f"The agent {self.name} responded with {response.status}.")
        error = answer.get("error")
        if error is not None:
            reason = cast("dict[str, Any]", error).get("message") if isinstance(error, dict) else error
            raise ToolError(f"The agent {self.name} refused: {reason}")
        result = answer.get("result")
        if not isinstance(result, dict):
            raise ToolError(f"The agent {self.name} responded without a result.")
        return cast("dict[str, Any]", result)

    def _endpoint(self, card: dict[str, Any]) -> _Endpoint:
        """Returns the agent's JSON-RPC endpoint from its card; that of version 0.3 if it has both."""
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


class _Conversation(NamedTuple):
    context_id: str = ""
    task_id: str = ""
    """The task that waits for an answer."""


class _Endpoint(NamedTuple):
    url: str
    version: Literal["0.3", "1.0"]


def _text(value: object, name: str) -> str:
    """Returns a string field of a value that may be an object."""
    found: Any = cast("dict[str, Any]", value).get(name) if isinstance(value, dict) else None
    return found if isinstance(found, str) else ""


def _json_object(body: bytes) -> dict[str, Any] | None:
    try:
        value: object = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None
