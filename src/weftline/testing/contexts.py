"""A conformance suite for execution contexts: checks that a context keeps the promises of `tools/contexts/base.py`.

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    async def test_my_context_conforms(check):
        await check(MyContext())

Every broken promise is an `AssertionError`. The context must have a POSIX shell.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

from weftline.tools.contexts.base import (
    TIMED_OUT,
    ContextDestroyed,
    ExecResult,
    ExecutionContext,
    FileError,
    FileErrorKind,
    Handle,
)

Check: TypeAlias = Callable[[ExecutionContext], Awaitable[None]]

ODD_NAMES = ('it\'s "$(id)" `x`', "-rf", "a\n;b&c|d", "*?[a]ü\\", "end\n")
_WAIT_S = 60
_ENOUGH_S = 1.0
"""Enough for a command to print a word, even on a busy machine."""
_HELD_S = 600
"""A command that lasts until it is killed."""


@asynccontextmanager
async def a_place(context: ExecutionContext) -> AsyncGenerator[Handle]:
    async with asyncio.timeout(_WAIT_S):
        handle = await context.spawn()
        try:
            yield handle
        finally:
            await context.destroy(handle)


async def error_kind_of(call: Awaitable[object]) -> FileErrorKind | None:
    """The kind of error that a file operation raises; None if it raises none."""
    try:
        await call
    except FileError as error:
        return error.kind
    return None


async def a_handle_describes_itself(context: ExecutionContext) -> None:
    async with a_place(context) as handle:
        assert handle.id and handle.type == context.type
        assert handle.cwd.startswith("/")
        result = await context.exec(handle, "pwd")
        assert result.stdout.decode().strip() == handle.cwd


async def outputs_are_separate_and_the_exit_code_is_reported(context: ExecutionContext) -> None:
    async with a_place(context) as handle:
        result = await context.exec(handle, "echo out; echo err >&2; exit 3")
        assert (result.stdout, result.stderr, result.exit_code) == (b"out\n", b"err\n", 3)
        assert not result.timed_out and not result.dropped_stdout and not result.dropped_stderr
        assert (await context.exec(handle, ["no-such-program"])).exit_code != 0


async def arguments_are_passed_as_they_are(context: ExecutionContext) -> None:
    async with a_place(context) as handle:
        result = await context.exec(handle, ["printf", "%s|", "a b", "$HOME", "*", "'", ""])
        assert result.stdout == b"a b|$HOME|*|'||"


async def input_ends_at_once_unless_it_is_given(context: ExecutionContext) -> None:
    async with a_place(context) as handle:
        assert (await context.exec(handle, "cat; echo over")).stdout == b"over\n"
        data = bytes(range(256)) * 1000
        assert (await context.exec(handle, ["cat"], stdin=data)).stdout == data


async def variables_and_directories_are_for_one_command(context: ExecutionContext) -> None:
    async with asyncio.timeout(_WAIT_S):
        handle = await context.spawn(env={"KEPT": "1"})
        try:
            await context.exec(handle, ["mkdir", "below"])
            show = 'printf "%s" "$KEPT-$ONCE-${PWD##*/}"'
            assert (await context.exec(handle, show, env={"ONCE": "2"}, cwd="below")).stdout == b"1-2-below"
            assert (await context.exec(handle, show)).stdout.startswith(b"1--")
            assert not (await context.exec(handle, show)).stdout.endswith(b"-below")
        finally:
            await context.destroy(handle)


async def commands_and_file_verbs_see_the_same_files(context: ExecutionContext) -> None:
    async with a_place(context) as handle:
        assert await context.write_file(handle, "one/two.txt", b"hello\0\xff") == "one/two.txt"
        assert (await context.exec(handle, ["cat", "one/two.txt"])).stdout == b"hello\0\xff"
        await context.exec(handle, "printf more > one/three.txt; mkdir one/four")
        assert (await context.read_file(handle, "one/three.txt")).data == b"more"
        listing = await context.list_files(handle, "one")
        assert [(entry.path, entry.kind) for entry in listing.entries] == [
            ("one/four", "directory"),
            ("one/three.txt", "file"),
            ("one/two.txt", "file"),
        ]
        everything = await context.list_files(handle, recursive=True, skip=("four",))
        assert [entry.path for entry in everything.entries] == ["one", "one/four", "one/three.txt", "one/two.txt"]
        assert everything.path == "." and everything.complete


async def a_file_is_replaced_and_keeps_its_mode(context: ExecutionContext) -> None:
    async with a_place(context) as handle:
        await context.write_file(handle, "run.sh", b"echo old")
        await context.exec(handle, "chmod 755 run.sh")
        await context.write_file(handle, "run.sh", b"echo new")
        assert (await context.exec(handle, "sh run.sh; [ -x run.sh ] && echo kept")).stdout == b"new\nkept\n"


async def large_files_are_read_up_to_a_limit(context: ExecutionContext) -> None:
    async with a_place(context) as handle:
        await context.write_file(handle, "data", b"x" * 100_000)
        part = await context.read_file(handle, "data", max_bytes=1000)
        assert (len(part.data), part.complete) == (1000, False)
        whole = await context.read_file(handle, "data", max_bytes=100_000)
        assert (len(whole.data), whole.complete) == (100_000, True)


async def any_name_can_be_used(context: ExecutionContext) -> None:
    async with a_place(context) as handle:
        for name in ODD_NAMES:
            assert await context.write_file(handle, f"d/{name}", name.encode()) == f"d/{name}"
            file = await context.read_file(handle, f"d/{name}")
            assert (file.path, file.data) == (f"d/{name}", name.encode())
        listing = await context.list_files(handle, "d")
        assert {entry.path for entry in listing.entries} == {f"d/{name}" for name in ODD_NAMES}


async def file_verbs_stay_inside(context: ExecutionContext) -> None:
    async with a_place(context) as handle:
        await context.exec(handle, "ln -s /etc out; ln -s ../.. up; ln -s inner to; mkdir inner; echo x > inner/file")
        for path in ("/etc/passwd", "inner/../../x", "out/passwd", f"{handle.cwd}x/y"):
            assert await error_kind_of(context.read_file(handle, path)) in ("outside", "missing"), path
        for path in ("../x", "out/x", "up/x", "new/../../x"):
            assert await error_kind_of(context.write_file(handle, path, b"")) == "outside", path
        assert await error_kind_of(context.list_files(handle, "new")) == "missing"
        assert await error_kind_of(context.list_files(handle, "out")) == "outside"
        assert (await context.read_file(handle, "to/file")).path == "inner/file"
        assert (await context.read_file(handle, f"{handle.cwd}/inner/../inner/file")).data == b"x\n"


async def file_errors_are_distinguished(context: ExecutionContext) -> None:
    async with a_place(context) as handle:
        await context.exec(handle, "mkdir d; mkfifo p; echo x > f")
        assert await error_kind_of(context.read_file(handle, "none")) == "missing"
        assert await error_kind_of(context.read_file(handle, "d")) == "directory"
        assert await error_kind_of(context.write_file(handle, "d", b"")) == "directory"
        assert await error_kind_of(context.read_file(handle, "p")) == "special"
        assert await error_kind_of(context.write_file(handle, "p", b"")) == "special"
        assert await error_kind_of(context.list_files(handle, "f")) == "not_directory"
        assert await error_kind_of(context.write_file(handle, "f/g", b"")) == "not_directory"
        kinds = {entry.path: entry.kind for entry in (await context.list_files(handle)).entries}
        assert kinds == {"d": "directory", "p": "other", "f": "file"}


async def two_handles_share_nothing(context: ExecutionContext) -> None:
    async with a_place(context) as one, a_place(context) as other:
        assert one.id != other.id
        await context.write_file(one, "mine", b"1")
        assert await error_kind_of(context.read_file(other, "mine")) == "missing"
        assert (await context.exec(other, "ls")).stdout == b""


async def a_command_that_takes_too_long_is_killed(context: ExecutionContext) -> None:
    async with a_place(context) as handle:
        held = f"echo begun; sleep {_HELD_S} & sleep {_HELD_S}"
        result = await context.exec(handle, held, timeout_s=_ENOUGH_S)
        assert (result.exit_code, result.timed_out, result.stdout) == (TIMED_OUT, True, b"begun\n")


async def a_cancelled_command_is_killed_first(context: ExecutionContext) -> None:
    async with a_place(context) as handle:
        task, watch = await _held(context, handle)
        task.cancel()
        outcome = (await asyncio.gather(task, return_exceptions=True))[0]
        assert isinstance(outcome, asyncio.CancelledError)
        assert (await watch).stdout == b"gone\n"
        assert await error_kind_of(context.read_file(handle, "late")) == "missing"


async def a_destroyed_handle_cannot_be_used(context: ExecutionContext) -> None:
    async with a_place(context) as handle:
        task, watch = await _held(context, handle)
        await context.destroy(handle)
        for outcome in await asyncio.gather(task, watch, return_exceptions=True):
            assert isinstance(outcome, ContextDestroyed)
        await context.destroy(handle)
        for call in (
            context.exec(handle, "true"),
            context.read_file(handle, "x"),
            context.write_file(handle, "x", b""),
            context.list_files(handle),
        ):
            outcome = (await asyncio.gather(call, return_exceptions=True))[0]
            assert isinstance(outcome, ContextDestroyed)


async def _held(context: ExecutionContext, handle: Handle) -> tuple[asyncio.Task[ExecResult], asyncio.Task[ExecResult]]:
    """A command that has begun and keeps running, with a child, and another one that ends when nothing is left of the
    first.
    """
    await context.exec(handle, "mkfifo gate ready")
    held = f"exec 4> gate; sleep {_HELD_S} & echo begun > ready; sleep {_HELD_S}; echo late > late"
    task = asyncio.create_task(context.exec(handle, held))
    watch = asyncio.create_task(context.exec(handle, "cat gate; echo gone"))
    assert (await context.exec(handle, ["cat", "ready"])).stdout == b"begun\n"
    return task, watch


CHECKS: tuple[Check, ...] = (
    a_handle_describes_itself,
    outputs_are_separate_and_the_exit_code_is_reported,
    arguments_are_passed_as_they_are,
    input_ends_at_once_unless_it_is_given,
    variables_and_directories_are_for_one_command,
    commands_and_file_verbs_see_the_same_files,
    a_file_is_replaced_and_keeps_its_mode,
    large_files_are_read_up_to_a_limit,
    any_name_can_be_used,
    file_verbs_stay_inside,
    file_errors_are_distinguished,
    two_handles_share_nothing,
    a_command_that_takes_too_long_is_killed,
    a_cancelled_command_is_killed_first,
    a_destroyed_handle_cannot_be_used,
)
"""Every promise, each checked with its own handles."""
