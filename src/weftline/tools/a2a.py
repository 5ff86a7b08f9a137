"""An A2A peer that the server dials: one message in, its text out.

Peers differ in where they listen and in the revision they speak. So the first call tries the known forms in order, then
those in the agent's card, and remembers the one that worked. A form counts as wrong only if the peer clearly has not
accepted the message.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Coroutine, Mapping, MutableMapping
from typing import Any, Literal, TypeAlias, cast
from urllib.parse import urljoin, urlsplit
from uuid import NAMESPACE_URL, uuid5

import msgspec
from msgspec import Struct

from weftline import prompts
from weftline.kernel.entries import Effect
from weftline.net.address import InvalidAddress, origin_of
from weftline.net.dial import Dialer
from weftline.net.errors import BodyTooLarge, RequestFailed
from weftline.peer_responses import FAILED, UNDER_WAY, WAITS, Fields, answer_text, objects, state_of, unwrapped
from weftline.providers.base import ToolSpec
from weftline.text.characters import storable_json
from weftline.text.json_size import excess
from weftline.text.redaction import Redactor, redact_url
from weftline.tools.base import ToolContext, ToolOutput
from weftline.tools.client_side import A2A_PARAMETERS
from weftline.tools.remote import RemoteTool

logger = logging.getLogger(__name__)

CANCEL_S = 5.0


class OpenTask(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A peer's task that waits for an answer. The run remembers it, even after a restart."""

    id: str
    context_id: str | None = None


class OpenTasks:
    """The open tasks of one run, in its state."""

    def __init__(self, memory: MutableMapping[str, Any], *, tool: str) -> None:
        self._memory = memory
        self._key = f"weftline:a2a:{tool}"

    def waiting(self) -> OpenTask | None:
        try:
            return msgspec.convert(self._memory.get(self._key), OpenTask | None)
        except msgspec.ValidationError:  # written by something else
            return None

    def remember(self, task: OpenTask) -> None:
        self._memory[self._key] = msgspec.to_builtins(task)

    def forget(self) -> None:
        self._memory.pop(self._key, None)


class Cancellations:
    """Sends cancellations on behalf of callers that cannot wait because they are cancelled themselves."""

    def __init__(self) -> None:
        self._under_way: set[asyncio.Task[None]] = set()

    def send(self, cancel: Coroutine[Any, Any, object]) -> None:
        task = asyncio.get_running_loop().create_task(_within(cancel), name="cancel an A2A task")
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def aclose(self) -> None:
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=CANCEL_S)


async def _within(cancel: Coroutine[Any, Any, object]) -> None:
    try:
        async with asyncio.timeout(CANCEL_S):
            await cancel
    except Exception as error:
        logger.info("a task of an A2A agent could not be cancelled: %s", type(error).__name__)


MAX_ANSWER_BYTES = 8 * 1024 * 1024
MAX_CARD_BYTES = 1024 * 1024
CARD_S = 10.0
CALL_S = 300.0
_REMEMBERED = 1024
_MAX_FORMS = 12
"""The most forms that are taken from a card; each may be tried before a call fails."""
_REDIRECTS = 3

Style: TypeAlias = Literal["rpc", "rest", "rpc_1", "rest_1"]
"""JSON-RPC or plain HTTP; `_1` is protocol revision 1.0, which has its own names for methods, roles and parts."""

_CARD_NAMES = ("agent-card.json", "agent.json")
_WRONG_FORM = (-32601, -32600, -32700, -32602, -32009, -32004)
"""JSON-RPC errors of a peer that does not know the method, shape or revision: it has accepted nothing."""
_POLL_S = (0.1, 2.0)
"""The first and the longest interval between two polls of a task."""
_MAX_FAILED_POLLS = 5
"""How many polls may fail in a row."""


class _Message(Struct, frozen=True):
    text: str
    id: str
    context_id: str | None
    task_id: str | None
    """The task whose question this answers."""


class Form(Struct, frozen=True):
    url: str
    style: Style


Peer: TypeAlias = tuple[int, str]
"""A workspace and an address: workspaces do not share what they learn about a peer."""


class A2AForms:
    """Which form worked for which peer, up to a limit."""

    def __init__(self) -> None:
        self._known: OrderedDict[Peer, Form] = OrderedDict()

    def get(self, peer: Peer) -> Form | None:
        return self._known.get(peer)

    def remember(self, peer: Peer, form: Form) -> None:
        self._known[peer] = form
        self._known.move_to_end(peer)
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)

    def forget(self, peer: Peer) -> None:
        self._known.pop(peer, None)


class _Rejected(Exception):
    """The peer does not speak this form and has not accepted the message. `newer` is a form that it may understand.

    `answered` is False if the peer was unreachable or fails on its own; then looking for its card is pointless.
    """

    def __init__(self, message: str, *, newer: Form | None = None, answered: bool = True) -> None:
        super().__init__(message)
        self.newer = newer
        self.answered = answered


class _Refused(Exception):
    """The peer accepted the message and answered with an error."""


class _TaskLost(Exception):
    """The peer accepted the task, but its outcome cannot be retrieved."""


class A2ATool(RemoteTool):
    """Delegates to an agent over A2A.

    Args:
        name: The model-facing name.
        url: The agent's endpoint, or the URL of its card.
        headers: Sent with every request to the origin of `url`, and to no other origin that the agent's card names.
        workspace: The workspace that the tool belongs to.
        context_id: Sent with every message, to continue a conversation.
        cancellations: Cancels tasks that nobody waits for any longer.
    """

    effect: Effect = "once"
    timeout_s: float | None = CALL_S

    def __init__(
        self,
        name: str,
        *,
        url: str,
        dialer: Dialer,
        forms: A2AForms,
        headers: Mapping[str, str],
        workspace: int = 0,
        description: str | None = None,
        context_id: str | None = None,
        cancellations: Cancellations | None = None,
    ) -> None:
        super().__init__(
            ToolSpec(name, description or prompts.remote.delegate_over_a2a(name), A2A_PARAMETERS),
            redactor=Redactor.of_request(url, headers),
        )
        # Messages of one conversation must not overtake each other.
        self.concurrent = context_id is None
        self._url = url
        self._peer: Peer = (workspace, url)
        self._dialer = dialer
        self._forms = forms
        self._headers = dict(headers)
        self._context_id = context_id
        self._cancellations = cancellations or Cancellations()

    async def ask(self, args: bytes, context: ToolContext) -> ToolOutput:
        text = msgspec.json.decode(args, type=dict[str, str])["message"]
        tasks = OpenTasks(context.state, tool=self.name)
        open_task = tasks.waiting()
        message = _Message(
            text=text,
            id=str(uuid5(NAMESPACE_URL, f"weftline:{context.idempotency_key}")),
            context_id=(open_task.context_id if open_task is not None else None) or self._context_id,
            task_id=open_task.id if open_task is not None else None,
        )
        known = self._forms.get(self._peer)
        reasons: list[str] = []
        tried: set[Form] = set()
        answered, looked = False, _is_card(self._url)
        try:
            queue = [known] if known is not None else await self._candidates()
            while True:
                if not queue and answered and not looked:
                    # No usual place accepted it: the agent's card says where it listens.
                    looked = True
                    queue = [form for form in await self._from_cards() if form not in tried]
                if not queue:
                    break
                form = queue.pop(0)
                tried.add(form)
                try:
                    output = await self._send(form, message, tasks)
                except _Rejected as error:
                    if open_task is not None and error.answered:
                        # The peer may have rejected the task, not the form: the next call begins a new task.
                        tasks.forget()
                    reasons.append(str(error))
                    answered = answered or error.answered
                    if error.newer is not None and error.newer not in tried:
                        queue.append(error.newer)
                    if form is known:
                        self._forms.forget(self._peer)
                        queue += [other for other in await self._candidates() if other != known]
                    continue
                self._forms.remember(self._peer, form)
                return output
        except RequestFailed as error:
            failure = prompts.remote.agent_request_failed(self.name, error.message, in_doubt=error.sent)
            return ToolOutput.of(failure, is_error=True, in_doubt=error.sent)
        return ToolOutput.of(prompts.remote.agent_out_of_reach(self.name, list(dict.fromkeys(reasons))), is_error=True)

    async def _candidates(self) -> list[Form]:
        """Returns the forms to try, in order."""
        base = _base(self._url)
        found: list[Form] = []
        if _is_card(self._url):
            found += await self._from_card(self._url)
        found += _forms(self._url, base)
        if _is_card(self._url):
            found.append(Form(base or self._url, "rpc"))
        return list(dict.fromkeys(found))

    async def _from_cards(self) -> list[Form]:
        """Returns the forms in the card below the agent's address, under either of the card's names."""
        for name in _CARD_NAMES:
            found = await self._from_card(_below(self._url, f"/.well-known/{name}"))
            if found:
                return found
        return []

    async def _from_card(self, address: str) -> list[Form]:
        """Returns the forms of the endpoint that an agent's card names; none if the card cannot be read."""
        try:
            async with self._dialer.request(
                "GET",
                address,
                headers={**self._headers, "accept": "application/json"},
                timeout_s=CARD_S,
                redirects=_REDIRECTS,
            ) as reply:
                if reply.status != 200:
                    return []
                card = _object(await reply.read(limit=MAX_CARD_BYTES))
        except RequestFailed:
            return []
        if card is None:
            return []
        forms: list[Form] = []
        for interface in objects(card.get("supportedInterfaces")):
            url, binding = interface.get("url"), interface.get("protocolBinding")
            if isinstance(url, str) and binding in ("JSONRPC", "HTTP+JSON"):
                newer = str(interface.get("protocolVersion", "1.0")) >= "1.0"
                target = urljoin(address, url)
                if binding == "JSONRPC":
                    forms.append(Form(target, "rpc_1" if newer else "rpc"))
                else:
                    forms.append(Form(_below(target, "/message:send"), "rest_1" if newer else "rest"))
        url = card.get("url")
        if isinstance(url, str):
            target = urljoin(address, url)
            forms += _forms(target, target.rstrip("/"))
        return forms[:_MAX_FORMS]

    async def _send(self, form: Form, message: _Message, tasks: OpenTasks) -> ToolOutput:
        """Sends the message once.

        Raises `_Rejected` if another form may work, `RequestFailed` if none should be tried.
        """
        try:
            result = await self._exchange(form, self._body(form, message))
            result = await self._finished(form, unwrapped(result))
        except BodyTooLarge:
            # As far as anybody can tell, the peer has done the work.
            return ToolOutput.of(prompts.remote.answer_too_large(self.name), is_error=True, in_doubt=True)
        except _Refused as refused:
            tasks.forget()
            return ToolOutput.of(prompts.remote.agent_refused(self.name, str(refused)), is_error=True)
        except _TaskLost as lost:
            tasks.forget()
            return ToolOutput.of(prompts.remote.agent_task_lost(self.name, str(lost)), is_error=True, in_doubt=True)
        return self._read(result, tasks)

    async def _finished(self, form: Form, result: Fields) -> Fields:
        """Waits until the task is finished and returns it. Cancels the task if the caller is cancelled."""
        task = result.get("id")
        if not form.style.startswith("rpc") or not isinstance(task, str):
            return result
        pause_s, max_s = _POLL_S
        failed = 0
        while state_of(result) in UNDER_WAY:
            try:
                await asyncio.sleep(pause_s)
                result = unwrapped(await self._exchange(form, _about_task(form, "get", task)))
            except asyncio.CancelledError:
                self._cancellations.send(self._exchange(form, _about_task(form, "cancel", task)))
                raise
            except _Refused as error:
                raise _TaskLost(str(error)) from None
            except (_Rejected, RequestFailed) as error:
                failed += 1
                if failed == _MAX_FAILED_POLLS:
                    raise _TaskLost(str(error)) from None
            else:
                failed = 0
            pause_s = min(max_s, pause_s * 2)
        return result

    async def _exchange(self, form: Form, body: bytes) -> Fields:
        """Sends one request and returns its result. Raises `_Rejected`, `_Refused` or `RequestFailed`."""
        own, url = self._headers_for(form.url), redact_url(form.url)
        headers = {**own, "content-type": "application/json", "accept": "application/json"}
        if form.style.endswith("_1"):
            headers["A2A-Version"] = "1.0"
        try:
            async with self._dialer.request("POST", form.url, headers=headers, body=body, timeout_s=CALL_S) as reply:
                status = reply.status
                answer = _object(await reply.read(limit=MAX_ANSWER_BYTES))
        except BodyTooLarge:
            raise
        except RequestFailed as error:
            if error.sent:
                raise
            raise _Rejected(error.message, answered=False) from None
        error = answer.get("error") if answer is not None else None
        if isinstance(error, dict) and form.style.startswith("rpc"):
            fault = cast(Fields, error)
            reason = fault.get("message")
            reason = reason if isinstance(reason, str) else prompts.remote.NO_REASON
            if fault.get("code") in _WRONG_FORM or not 200 <= status < 300:
                # It speaks JSON-RPC but not this method: peers of revision 1.0 do not know the older name.
                newer = Form(form.url, "rpc_1") if form.style == "rpc" else None
                raise _Rejected(prompts.remote.rejected(reason, url), newer=newer)
            raise _Refused(reason)
        if not 200 <= status < 300:
            newer = Form(form.url, "rest_1") if form.style == "rest" and status in (400, 422) else None
            reason = prompts.remote.http_rejected(status, url, without_headers=own != self._headers)
            raise _Rejected(reason, newer=newer, answered=status < 500)
        if answer is None:
            raise _Rejected(prompts.remote.rejected(prompts.remote.ANSWER_NOT_OBJECT, url))
        if isinstance(error, dict) and answer.keys().isdisjoint(("result", "task", "message", "parts", "status")):
            raise _Rejected(prompts.remote.rejected(prompts.remote.ANSWER_IS_ERROR, url))
        result = answer.get("result", answer)
        if not isinstance(result, dict):
            raise _Rejected(prompts.remote.rejected(prompts.remote.ANSWER_WITHOUT_RESULT, url))
        return cast(Fields, result)

    def _headers_for(self, url: str) -> dict[str, str]:
        """Returns the tool's headers, if they were given for this origin."""
        try:
            return self._headers if origin_of(url) == origin_of(self._url) else {}
        except InvalidAddress as error:
            raise _Rejected(str(error), answered=False) from None

    def _body(self, form: Form, message: _Message) -> bytes:
        newer = form.style.endswith("_1")
        sent: Fields = {
            "messageId": message.id,
            "role": "ROLE_USER" if newer else "user",
            "parts": [{"text": message.text} if newer else {"kind": "text", "text": message.text}],
        }
        if not newer:
            sent["kind"] = "message"
        if message.context_id is not None:
            sent["contextId"] = message.context_id
        if message.task_id is not None:
            sent["taskId"] = message.task_id
        if form.style == "rest_1":
            return msgspec.json.encode({"message": sent})
        params: Fields = {"message": sent}
        if form.style != "rest":
            # So that the task's id is known, and it can be cancelled, while it runs.
            params["configuration"] = {"returnImmediately": True} if newer else {"blocking": False}
        method = "SendMessage" if newer else "message/send"
        call: Fields = {"jsonrpc": "2.0", "id": message.id, "method": method, "params": params}
        if form.style == "rest":
            call["message"] = sent
        return msgspec.json.encode(call)

    def _read(self, result: Fields, tasks: OpenTasks) -> ToolOutput:
        state = state_of(result)
        text = answer_text(result)
        if text is None:
            text = prompts.remote.agent_returned_nothing(self.name, state or "")
        task, context_id = result.get("id"), result.get("contextId")
        if state == WAITS and isinstance(task, str):
            tasks.remember(OpenTask(task, context_id if isinstance(context_id, str) else None))
            return ToolOutput.of(prompts.remote.agent_waits(self.name, text))
        tasks.forget()
        return ToolOutput.of(text, is_error=state in FAILED)


def _about_task(form: Form, what: Literal["get", "cancel"], task: str) -> bytes:
    method = f"{what.title()}Task" if form.style == "rpc_1" else f"tasks/{what}"
    return msgspec.json.encode({"jsonrpc": "2.0", "id": task, "method": method, "params": {"id": task}})


def _is_card(url: str) -> bool:
    return urlsplit(url).path.rsplit("/", 1)[-1] in _CARD_NAMES


def _base(url: str) -> str:
    """Returns the base address of the other forms, without the well-known path of a card."""
    path = urlsplit(url).path
    if not _is_card(url):
        return url.rstrip("/")
    stem = path.rsplit("/", 1)[0].removesuffix("/.well-known")
    return urlsplit(url)._replace(path=stem, query="", fragment="").geturl().rstrip("/")


def _forms(root: str, base: str) -> list[Form]:
    return [
        Form(root, "rpc"),
        Form(_below(base, "/rpc"), "rpc"),
        Form(_below(base, "/message:send"), "rest"),
        Form(_below(base, "/message/send"), "rest"),
    ]


def _below(base: str, path: str) -> str:
    """Returns the address of a path below another address, keeping its query."""
    head, mark, query = base.partition("?")
    return f"{head.rstrip('/')}{path}{mark}{query}"


def _object(data: bytes) -> Fields | None:
    if excess(data):
        return None
    try:
        value: object = msgspec.json.decode(storable_json(data))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return cast(Fields, value) if isinstance(value, dict) else None
