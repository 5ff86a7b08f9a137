"""The process that `forked.py` has copied: it has read what our processes read, and runs nothing itself.

A copy does what `python` would have done with its arguments. It knows where the nursery is, so that the servers which
an example starts are copies too.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import random
import runpy
import selectors
import socket
import sys
import threading
from types import ModuleType
from typing import Any, cast

from forked import Nursery, fork_from
from passwords import hash_quickly
from weftline.testing.crash import arm

_LARGEST_REQUEST_BYTES = 1 << 20
_READ_BEFORE = (
    "aiohttp",
    "anyio._backends._asyncio",
    "apsw",
    "argon2",
    "encodings.idna",
    "encodings.utf_8_sig",
    "genai_prices.data",
    "genai_prices.decompose",
    "genai_prices.validation",
    "importlib.readers",
    "jsonschema_rs",
    "mcp.client.streamable_http",
    "mcp.server.streamable_http_manager",
    "pydantic.type_adapter",
    "uvicorn.lifespan.off",
    "uvicorn.protocols.http.httptools_impl",
    "uvloop",
    "weftline.agent.agent",
    "weftline.agent.engine.engine",
    "weftline.agent.engine.in_memory",
    "weftline.agent.engine.starting",
    "weftline.server.offline",
    "weftline.server.routes.operator",
    "weftline.cli.serve",
    "weftline.client._sync",
    "weftline.net.session",
    "weftline.providers.anthropic.provider",
    "weftline.providers.google.provider",
    "weftline.providers.openai.chat",
    "weftline.providers.openai.responses",
    "weftline.server.routes.every",
    "weftline.server.serve",
    "weftline.store.memory",
    "weftline.store.sqlite.store",
    "weftline.testing",
    "weftline.tools.mcp.http",
    "weftline.spec.door",
)


def main(starter: socket.socket, door: socket.socket) -> None:
    """Copies this process for whoever comes to the door, until the other end of `starter` is closed.

    A copy returns only if its work fails.
    """
    for name in _READ_BEFORE:
        importlib.import_module(name)
    hash_quickly()
    gc.freeze()
    address = door.getsockname()
    arguments = copies(starter, door)
    random.seed()
    arm(os.environ.get("WEFTLINE_CRASH"))  # read when the module was imported
    fork_from(Nursery(address))
    try:
        as_python(arguments)
    except SystemExit as ended:
        if not isinstance(ended.code, int | None):
            raise
        leave(ended.code or 0)
    else:
        leave(0)


def leave(code: int) -> None:
    """Ends this copy as Python would, but for the tearing down of modules: that alone would copy every page of memory
    that it shares with the nursery, and take longer than most copies live."""
    ending: Any = (threading, atexit)
    ending[0]._shutdown()  # waits for threads
    gc.collect()  # what was forgotten still complains
    ending[1]._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def copies(starter: socket.socket, door: socket.socket) -> list[str]:
    """Forks for every request, and tells how copies ended; returns only in a copy, with the arguments to run with."""
    selector = selectors.DefaultSelector()
    for line in (starter, door):
        selector.register(line, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            line = cast("socket.socket", key.fileobj)
            if line is starter:
                os._exit(0)
            if line is door:
                selector.register(door.accept()[0], selectors.EVENT_READ)
                continue
            request, fds = b"", list[int]()
            with contextlib.suppress(ConnectionResetError):  # killed before it read our last answer
                request, fds, _, _ = socket.recv_fds(line, _LARGEST_REQUEST_BYTES, 3)
            if not request:
                selector.unregister(line)
                line.close()
                continue
            match json.loads(request):
                case int(pid):
                    answer = os.waitpid(pid, 0)[1]
                case [arguments, env, folder, own_session]:
                    answer = os.fork()
                    if not answer:
                        for other in list(selector.get_map().values()):
                            cast("socket.socket", other.fileobj).close()
                        selector.close()
                        for fd, place in zip(fds, (0, 1, 2), strict=True):
                            os.dup2(fd, place)
                            os.close(fd)
                        if own_session:
                            os.setsid()
                        os.environ.clear()
                        os.environ.update(env)
                        os.chdir(folder)
                        return arguments
                    for fd in fds:
                        os.close(fd)
                case other:
                    raise ValueError(other)
            with contextlib.suppress(BrokenPipeError):
                line.send(str(answer).encode())


def as_python(arguments: list[str]) -> None:
    match arguments:
        case ["-m", module, *_]:
            sys.argv = arguments[1:]
            sys.path[0] = os.getcwd()
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case ["-c", program, *_]:
            sys.argv = ["-c", *arguments[2:]]
            sys.path[0] = ""
            sys.modules["__main__"] = main_module = ModuleType("__main__")
            exec(program, vars(main_module))
        case [script, *_]:
            sys.argv = arguments
            sys.path[0] = os.path.dirname(script)
            runpy.run_path(script, run_name="__main__")
        case _:
            raise ValueError("nothing to run")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(*(socket.socket(fileno=int(fd)) for fd in sys.argv[1:]))
