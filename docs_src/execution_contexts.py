"""Where commands run and files live."""

from __future__ import annotations

import asyncio

from weftline import files, shell
from weftline.testing.contexts import CHECKS
from weftline.tools.builtin.files import Files
from weftline.tools.builtin.shell import Shell
from weftline.tools.contexts.base import ContextUnavailable, ExecutionContext
from weftline.tools.contexts.docker import DockerContext
from weftline.tools.contexts.process import ProcessContext
from weftline.tools.contexts.sandboxed import SandboxedContext


def sandboxed() -> tuple[Files, Shell]:
    box = SandboxedContext(readable=["/opt/node"], timeout_s=120)
    return files("./project", context=box), shell("./project", context=box)


def contained() -> tuple[Files, Shell]:
    box = DockerContext("python:3.12-slim", memory_mb=512, cpus=1.5, network=False)
    return files(context=box), shell(context=box)


async def try_out(context: ExecutionContext) -> None:
    handle = await context.spawn(env={"GREETING": "hello"})
    try:
        await context.write_file(handle, "notes/name.txt", b"world")
        result = await context.exec(handle, 'echo "$GREETING $(cat notes/name.txt)"', timeout_s=10)
        print(handle.type, result.exit_code, result.stdout.decode().strip())
    finally:
        await context.destroy(handle)


async def conforms(context: ExecutionContext) -> None:
    for check in CHECKS:
        await check(context)


async def main() -> None:
    contained()
    sandboxed()
    for context in (ProcessContext(), SandboxedContext()):
        try:
            await try_out(context)
        except ContextUnavailable as error:
            print(error.message)


if __name__ == "__main__":
    asyncio.run(main())
