"""`weftline run`."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from weftline.cli.output import CODE, JSON
from weftline.cli.target import URL, WORKSPACE, chosen_url
from weftline.text.suggestions import sentence

if TYPE_CHECKING:
    from weftline.cli.in_process import LocalHost
    from weftline.cli.screen import Screen
    from weftline.client import AsyncClient, AsyncRun
    from weftline.client.events import Frame, OfferedCall
    from weftline.events import AwaitOpened

_LOCAL_WORKSPACE = "local"
_CANCEL_WAIT_S = 5.0
_MAX_LISTED = 8


class RunRequest(Struct, frozen=True):
    """What the command should run."""

    prompt: str
    agent: str | None
    model: str | None
    system: str | None
    tools: str | None
    workspace: str | None
    attachments: Sequence[str] = ()
    """Paths of files, or URLs."""
    run_id: str | None = None

    def body(self, *, agent_id: str | None, tools: list[dict[str, Any]]) -> bytes:
        from weftline.client.attachments import attachments_on_wire
        from weftline.client.errors import InvalidSpec
        from weftline.errors import InvalidRequest

        try:
            attachments = attachments_on_wire(self.attachments)
        except InvalidSpec as error:
            raise InvalidRequest(str(error)) from None
        fields = {
            "prompt": self.prompt,
            "agentId": agent_id,
            "modelId": self.model,
            "systemPrompt": self.system,
            "tools": tools,
            "attachments": attachments or None,
            "runId": self.run_id,
        }
        return json.dumps({name: value for name, value in fields.items() if value is not None}).encode()


@click.command()
@click.argument("prompt", required=False)
@click.option("--agent", metavar="NAME", help="A stored agent, by its id or slug.")
@click.option("--model", metavar="ID", help="The model; `weftline models` lists them.")
@click.option("--system", metavar="TEXT", help="The system prompt.")
@click.option(
    "--tools",
    type=CODE,
    metavar="CODE",
    help="@weftline.tool functions (a file, folder, module or module:name) that the model may call, in this process.",
)
@click.option(
    "--attach",
    "attachments",
    multiple=True,
    metavar="FILE",
    help="An image or a file to send along, or its address; may be repeated.",
)
@click.option("--run-id", metavar="ID", help="The id of the run, instead of a generated one.")
@URL
@WORKSPACE
@click.option(
    "--db",
    envvar="WEFTLINE_DB",
    type=click.Path(path_type=Path),
    help="Without --url: an existing store to keep the run in. By default nothing is kept.",
)
@click.option("--config", type=click.Path(path_type=Path), help="Without --url: configuration (TOML) as for `serve`.")
@click.option("--scripts", envvar="WEFTLINE_SCRIPTS", type=click.Path(path_type=Path), help="Scripted models (JSON).")
@JSON
def command(
    prompt: str | None,
    agent: str | None,
    model: str | None,
    system: str | None,
    tools: str | None,
    attachments: tuple[str, ...],
    run_id: str | None,
    url: str | None,
    workspace: str | None,
    db: Path | None,
    config: Path | None,
    scripts: Path | None,
    as_json: bool,
) -> None:
    """Run PROMPT and show what happens, in this process or on the server that --url names.

    PROMPT comes from standard input if it is - or left out. On a terminal the text appears as the model writes it;
    otherwise standard output gets only the final text, or with --json one line per event.

    Ctrl-C prints how to follow and cancel the run; a second one leaves it to the server, or cancels it without one.

    Exit codes: 0 the run succeeded, 1 it could not be started or followed, 2 wrong usage, 3 it failed, 4 it was
    cancelled, 130 interrupted.
    """
    from weftline.cli.screen import Screen

    asked = RunRequest(_prompt(prompt), agent, model, system, tools, workspace, attachments, run_id)
    screen = Screen(as_json=as_json)
    server = chosen_url(url)
    if server is not None:
        code = asyncio.run(_on_server(server, asked, screen))
    else:
        code = asyncio.run(_here(asked, screen, db=db, config=config, scripts=scripts))
    sys.exit(code)


def _prompt(given: str | None) -> str:
    if given is None and sys.stdin.isatty():
        raise click.UsageError("Give a prompt, or pipe one in.")
    try:
        # Bytes that are not UTF-8 become lone surrogates, which cannot be sent.
        text = given if given is not None and given != "-" else _without_final_newline(sys.stdin.read())
        prompt = text.encode().decode()
    except UnicodeError:
        raise click.UsageError("The prompt is not valid UTF-8.") from None
    if not prompt.strip():
        raise click.UsageError("The prompt is empty.")
    return prompt


def _without_final_newline(text: str) -> str:
    """Removes one final line break, as it is not part of a prompt."""
    return text.removesuffix("\n").removesuffix("\r")


# On a server


async def _on_server(url: str, asked: RunRequest, screen: Screen) -> int:
    from weftline.cli.asking import ShownRun
    from weftline.cli.interrupts import Interrupts
    from weftline.cli.local_tools import tools_of_file
    from weftline.cli.target import connected
    from weftline.client import BadRequest
    from weftline.errors import WeftlineError

    run: AsyncRun | None = None
    followed: asyncio.Future[ShownRun] = asyncio.get_running_loop().create_future()

    async def ask(call: OfferedCall, run_id: str, question: str) -> str:
        return await (await followed).confirm(call, run_id, question)

    handed_over = tools_of_file(asked.tools, ask=ask) if asked.tools is not None else []
    async with connected(url, asked.workspace) as client:

        def print_hint() -> None:
            where = f"{run.id} --url {url}" if run is not None else ""
            screen.note(
                f"\nThe run continues: weftline runs follow {where}\n"
                f"To cancel it:    weftline runs cancel {where}\n"
                "Press Ctrl-C again to exit."
                if where
                else "\nThe run is being created; press Ctrl-C again to give up."
            )

        async def follow() -> int:
            nonlocal run
            agent_id = await _agent_of(client, asked.agent) if asked.agent is not None else None
            try:
                run = await client.start(
                    asked.prompt,
                    agent_id=agent_id,
                    model_id=asked.model,
                    system_prompt=asked.system,
                    tools=handed_over,
                    attachments=asked.attachments,
                    run_id=asked.run_id,
                )
            except BadRequest as error:
                raise WeftlineError(_with_candidates(error.message, error.candidates), code="invalid_request") from None
            followed.set_result(ShownRun(_Server(client, run, url, asked.workspace), screen))
            return await followed.result().show(run.id)

        async def leave() -> bool:
            if run is None:
                return False
            await run.detach()
            return True

        with Interrupts(print_hint) as interrupts:
            return await _until_left(follow(), interrupts.leaving, leave)


class _Server:
    """The server of the run that this client has started; see `weftline.cli.asking.Place`."""

    others_answer = True

    def __init__(self, client: AsyncClient, run: AsyncRun, url: str, workspace: str | None) -> None:
        self._client = client
        self._run = run
        self._url = url
        self._workspace = workspace

    async def frames(self, run_id: str) -> AsyncGenerator[Frame]:
        if run_id == self._run.id:
            async for frame in self._run.frames(raise_on_failure=False):
                yield frame
            return
        async with await self._client.attach(run_id, dispatch=False) as below:
            async for frame in below.frames(raise_on_failure=False):
                yield frame

    async def answer(self, asked: AwaitOpened, reply: dict[str, Any]) -> None:
        from weftline.client import ApiError
        from weftline.client.awaits import answer
        from weftline.errors import WeftlineError

        try:
            await answer(self._client.http, asked.run_id, asked.id, reply)
        except ApiError as error:
            raise WeftlineError(error.message, code=error.code) from None

    def elsewhere(self, asked: AwaitOpened) -> str:
        from weftline.cli.asking import at_server, how_to_answer

        return how_to_answer(asked.run_id, asked.id, asked.kind, at_server(self._url, self._workspace))


async def _agent_of(client: AsyncClient, name: str) -> str:
    from urllib.parse import quote

    from weftline.client import Forbidden, NotFound
    from weftline.errors import WeftlineError
    from weftline.text.suggestions import did_you_mean

    try:
        return json.loads(await client.http.call("GET", f"/agents/{quote(name, safe='')}"))["id"]
    except Forbidden:
        return name  # a key that may not look up an agent by its slug may still run it by its id
    except NotFound:
        agents = json.loads(await client.http.call("GET", "/agents"))["agents"]
        near = did_you_mean(name, [agent["slug"] for agent in agents])
        raise WeftlineError(f"There is no agent {name!r}.{near}", code="not_found") from None


# In this process


async def _here(
    asked: RunRequest, screen: Screen, *, db: Path | None, config: Path | None, scripts: Path | None
) -> int:
    from weftline.api.cancelling import cancel_run
    from weftline.cli.asking import ShownRun
    from weftline.cli.in_process import local_engine
    from weftline.cli.interrupts import Interrupts
    from weftline.store.naming import db_option

    async with local_engine(db=db, config=config, scripts=scripts, tools=asked.tools) as here:
        run_id, workspace = await _created(here, asked, db)
        key = await here.engine.locate(run_id, workspace=workspace)

        def print_hint() -> None:
            kept = f"To see it later: weftline runs show {run_id}{db_option(db)}\n" if db is not None else ""
            screen.note(f"\n{run_id} runs in this process.\n{kept}Press Ctrl-C again to cancel it.")

        async def leave() -> bool:
            await cancel_run(here.engine, key, by="command line")
            return True

        with Interrupts(print_hint) as interrupts:
            following = ShownRun(_Process(here, workspace, db), screen).show(run_id)
            return await _until_left(following, interrupts.leaving, leave)


async def _created(here: LocalHost, asked: RunRequest, db: Path | None) -> tuple[str, int]:
    from weftline.api.creating import create_run
    from weftline.api.principal import Principal
    from weftline.cli.asking import can_ask
    from weftline.errors import NotFound, WeftlineError
    from weftline.text.suggestions import did_you_mean
    from weftline.workspace import agents, workspaces

    slug = asked.workspace or _LOCAL_WORKSPACE
    workspace = await workspaces.ensure(here.workspaces, slug)
    agent_id: str | None = None
    if asked.agent is not None:
        try:
            agent_id = (await agents.find(here.workspaces, workspace, asked.agent)).id
        except NotFound:
            known = [row.slug for row in await agents.of_workspace(here.workspaces, workspace)]
            raise WeftlineError(
                f"There is no agent {asked.agent!r} in the workspace {slug!r}.{did_you_mean(asked.agent, known)}",
                code="not_found",
            ) from None
    tools = [{"kind": "server", "name": name} for name in here.own_tools]
    try:
        made = await create_run(
            here,
            Principal("command line", workspace, slug),
            asked.body(agent_id=agent_id, tools=tools),
            nobody_to_ask=db is None and not can_ask(),
        )
    except WeftlineError as error:
        message = error.message
        if error.code == "invalid_model":
            candidates: list[str] = error.details.get("candidates", [])
            message = _with_candidates(message, candidates)
            if asked.model is None and not candidates:
                message += " Name one with --model; `weftline models` lists them and says why others are missing."
            message += _local_server_hint()
        raise WeftlineError(message, code=error.code) from None
    return made.run_id, workspace


class _Process:
    """This process; see `weftline.cli.asking.Place`."""

    def __init__(self, here: LocalHost, workspace: int, db: Path | None) -> None:
        self._here = here
        self._workspace = workspace
        self._db = db
        self.others_answer = db is not None

    async def frames(self, run_id: str) -> AsyncGenerator[Frame]:
        from weftline.cli.events import live_frames

        key = await self._here.engine.locate(run_id, workspace=self._workspace)
        async for frame in live_frames(self._here.engine, key, run_id):
            yield frame

    async def answer(self, asked: AwaitOpened, reply: dict[str, Any]) -> None:
        from getpass import getuser

        from weftline.api.principal import operator_name
        from weftline.api.validation import parsed_as
        from weftline.cases.awaits import AnswerModel, answer_of, give_answer

        engine, at = self._here.engine, self._here.workspaces
        key = await engine.locate(asked.run_id, workspace=self._workspace)
        answer = answer_of(parsed_as(AnswerModel, reply)[0])
        await give_answer(at, engine, key, asked.id, answer, by=operator_name(getuser()))

    def elsewhere(self, asked: AwaitOpened) -> str:
        from weftline.cli.asking import how_to_answer
        from weftline.store.naming import db_option

        if self._db is not None:
            return how_to_answer(asked.run_id, asked.id, asked.kind, db_option(self._db))
        return (
            "Nobody can answer it here. Run the command in a terminal, which asks you, or give it --url: a run on a"
            " server waits for `weftline approve`, `deny` or `answer`."
        )


def _local_server_hint() -> str:
    """Returns a hint for users who started a server in this folder and expect its models here."""
    from weftline.errors import StoreError
    from weftline.store import owner_of
    from weftline.store.naming import DEFAULT_DB

    try:
        owner = owner_of(DEFAULT_DB)
    except StoreError:
        return ""
    if owner is None or not owner.socket or not (Path(DEFAULT_DB) / owner.socket).exists():
        return ""
    return (
        f" Process {owner.pid} has {DEFAULT_DB} open, whose models this one does not have: if it is a server, send the"
        " run there with --url, or give the same --scripts or --config here."
    )


# Both


def _with_candidates(message: str, candidates: Sequence[str]) -> str:
    """Returns a refusal with the available models, unless it already suggests some."""
    if not candidates or "Did you mean" in message:
        return message
    more = ", …" if len(candidates) > _MAX_LISTED else ""
    return f"{sentence(message)} Name one with --model: {', '.join(candidates[:_MAX_LISTED])}{more}."


async def _until_left(
    following: Coroutine[Any, Any, int], leaving: asyncio.Event, leave: Callable[[], Coroutine[Any, Any, bool]]
) -> int:
    """Returns the exit code of `following`, or that of an interrupt if the user leaves first.

    `leave` returns whether `following` then ends by itself.
    """
    from weftline.cli.screen import INTERRUPTED

    follow = asyncio.ensure_future(following)
    left = asyncio.ensure_future(leaving.wait())
    await asyncio.wait({follow, left}, return_when=asyncio.FIRST_COMPLETED)
    if follow.done():
        left.cancel()
        return follow.result()
    if await leave():
        await asyncio.wait({follow}, timeout=_CANCEL_WAIT_S)
    follow.cancel()
    await asyncio.gather(follow, return_exceptions=True)
    return INTERRUPTED
