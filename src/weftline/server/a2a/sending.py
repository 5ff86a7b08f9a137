"""Delivers a message to its task: a new one, or the one that it names. Repeating a message has no effect."""

from __future__ import annotations

import asyncio
from hashlib import blake2b

from msgspec.json import encode

from weftline import prompts
from weftline.api.client_calls import TOO_LARGE, answer_call
from weftline.api.creating import Host
from weftline.api.sessions import send_prompt, session_of_context
from weftline.api.views import run_summary
from weftline.cases.awaits import give_answer
from weftline.errors import Conflict, InvalidRequest, NotFound
from weftline.runtime import ids
from weftline.runtime.people.answering import AwaitAnswer
from weftline.server.a2a import asking
from weftline.server.a2a.asking import NamedAnswer
from weftline.server.a2a.dialect import SentMessage
from weftline.server.a2a.rpc import CONTENT_TYPE_NOT_SUPPORTED, TASK_NOT_FOUND, UNSUPPORTED_OPERATION, RpcError, invalid
from weftline.server.a2a.tasks import MESSAGE_KEY, context_of, has_received, has_taken, is_below, read_task
from weftline.store.records.agents import AgentRow
from weftline.store.rows import AwaitFilter, IdempotencyKey, RunRow
from weftline.text.suggestions import sentence
from weftline.wire.limits import MAX_RESULT_BYTES
from weftline.wire.requests import fits, text_result


class Deliveries:
    """Delivers one message at a time to each task, so that concurrent duplicates are noticed."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._under_way: dict[int, asyncio.Task[None]] = {}

    async def deliver(self, row: RunRow, sent: SentMessage, *, sender: str) -> None:
        while (other := self._under_way.get(row.key)) is not None:
            await asyncio.wait({other})
        task = self._under_way[row.key] = asyncio.ensure_future(self._pass_on(row, sent, sender=sender))
        task.add_done_callback(lambda _: self._under_way.pop(row.key))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # retrieved, as nobody may wait
        # Waits for the commit: if the caller goes away, its retry must count as the same message.
        await asyncio.shield(task)

    async def _pass_on(self, row: RunRow, sent: SentMessage, *, sender: str) -> None:
        engine = self._host.engine
        if named := asking.named_answers(sent.content):
            await self._answer(row, sent, named, sender=sender)
            return
        if not fits(sent.text) and await has_taken(engine, row, sent.id, prompts.calls.RESULT_TOO_LARGE):
            raise invalid("message.parts", TOO_LARGE)  # again: it has closed its call, and must not close the next one
        answer = AwaitAnswer(outcome="answered", value=asking.value_of(sent.content), request=f"{sender} {sent.id}")
        if await has_taken(engine, row, sent.id, sent.text) or await has_received(engine, row.key, answer):
            return
        now = await engine.stored.row(row.key)
        assert now is not None
        asked = None
        try:
            task = await read_task(engine, now)
            if task.ended:
                raise _ended(now)
            if task.question is not None:
                await answer_call(engine, row.key, text_result(task.question, sent.text), message_id=sent.id)
            elif (asked := asking.answered_by(task.asked, task=row.key)) is not None:
                await give_answer(self._host.workspaces, engine, asked.run, asked.id, answer, by=sender)
            else:
                await self._steer(row, sent, sender=sender)
        except NotFound:
            # Somebody else has answered in the meantime.
            await self._steer(row, sent, sender=sender)
        except InvalidRequest as error:
            how = "" if asked is None else asking.how_to_answer(asked)
            raise invalid("message.parts", f"{sentence(error.message)}{how}") from None
        except Conflict as error:
            if error.code in ("await_closed", "await_expired"):
                await self._steer(row, sent, sender=sender)
                return
            if error.code != "run_terminal":
                raise
            raise _ended(row) from None

    async def _steer(self, row: RunRow, sent: SentMessage, *, sender: str) -> None:
        if not fits(sent.text):
            raise invalid("message.parts", f"must not be larger than {MAX_RESULT_BYTES:,} bytes.")
        await self._host.engine.steer(row.key, sent.text, message_id=sent.id, by=sender)

    async def _answer(self, row: RunRow, sent: SentMessage, named: list[NamedAnswer], *, sender: str) -> None:
        """Answers awaits by their ids. The engine recognizes a repeated answer."""
        engine = self._host.engine
        for name, value in named:
            answer = AwaitAnswer(outcome="answered", value=value, request=f"{sender} {sent.id} {name}")
            run, _, await_id = name.rpartition("/")
            try:
                key = await self._asking(row, run) if run else row.key
                one = AwaitFilter(workspace=row.workspace, run=key, id=await_id, limit=1, max_bytes=0)
                if any(not asking.is_answerable(found) for found in await engine.stored.awaits(one)):
                    raise InvalidRequest("a message cannot decide this; answer it on the server.")
                await give_answer(self._host.workspaces, engine, key, await_id, answer, by=sender)
            except (NotFound, InvalidRequest) as error:
                raise invalid("message.parts", f"{name[:100]}: {error.message}") from None
            except Conflict as error:
                if error.code == "run_terminal" and not run:
                    raise _ended(row) from None
                raise invalid("message.parts", f"{name[:100]}: {error.message}") from None

    async def _asking(self, row: RunRow, run: str) -> int:
        """Returns the key of a run below the task's. Raises `NotFound` for any other run."""
        found = await self._host.engine.stored.find(run, workspace=row.workspace)
        if not await is_below(self._host.engine, found, ids.run_id(row.key, row.salt)):
            raise NotFound("The task has not asked this.")
        return found.key


async def find_task(app: Host, agent: AgentRow, task: str, *, status: int = 200) -> RunRow:
    """Returns the run of a task of this agent. `status` is the HTTP status if there is none."""
    try:
        row = await app.engine.stored.find(task, workspace=agent.workspace)
    except NotFound:
        row = None
    if row is None or row.agent != agent.id:
        about = {"taskId": task[:256]}
        raise RpcError(TASK_NOT_FOUND, "This agent has no such task.", about=about, status=status)
    return row


async def send(app: Host, deliveries: Deliveries, agent: AgentRow, sent: SentMessage, *, sender: str) -> RunRow:
    """Delivers a message and returns the run of its task. Message ids are unique per `sender`."""
    if sent.task_id is None:
        return await _begin(app, agent, sent, sender=sender)
    row = await find_task(app, agent, sent.task_id)
    run = await run_summary(app.engine.stored, row)
    if sent.context_id not in (None, context_of(run)):
        raise invalid("message.contextId", "is not the context of the task.")
    if run.metadata.get(MESSAGE_KEY) != sent.id or not await _began_with(app, row, sent):
        if sent.content.attachments:
            why = "Incompatible content types: images and PDF files can only come with the message that begins a task."
            raise RpcError(CONTENT_TYPE_NOT_SUPPORTED, why)
        await deliveries.deliver(row, sent, sender=sender)
    after = await app.engine.stored.row(row.key)
    assert after is not None
    return after


async def _began_with(app: Host, row: RunRow, sent: SentMessage) -> bool:
    """Returns True if this is the message that began the task, repeated with the task's id."""
    first = (await read_task(app.engine, row, history=1000)).history[:1]
    return bool(first) and (first[0].id, first[0].text) == (sent.id, sent.text)


async def _begin(app: Host, agent: AgentRow, sent: SentMessage, *, sender: str) -> RunRow:
    """Starts the run of a message, on the session of its context."""
    attachments = sent.content.attachments
    whole = encode((sender, sent.id, sent.context_id, sent.text, *[one.blob.id for one in attachments]))
    name = blake2b(whole, digest_size=16).hexdigest()
    once = IdempotencyKey(f"a2a/{agent.id}", name, b"")
    earlier = await app.engine.created_before(agent.workspace, once)
    if earlier is not None:
        return await app.engine.stored.find(earlier, workspace=agent.workspace)
    # A repeated message without a context must find the context that it began.
    thread = await session_of_context(app, agent, sent.context_id or f"ctx_{name}")
    run_id = await send_prompt(
        app,
        thread,
        sent.text,
        attachments=attachments,
        metadata={MESSAGE_KEY: sent.id},
        requested_by=sender,
        idempotency=once,
    )
    return await app.engine.stored.find(run_id, workspace=agent.workspace)


def _ended(row: RunRow) -> RpcError:
    message = f"This operation is not supported: the task has ended ({row.status}). Send a message without taskId."
    return RpcError(UNSUPPORTED_OPERATION, message)
