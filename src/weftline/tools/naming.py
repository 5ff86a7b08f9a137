"""Derives names from a URL or a command line, the same in every process."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath
from urllib.parse import urlsplit

_RUNNERS = frozenset({"bunx", "docker", "node", "npx", "pipx", "pnpx", "python", "python3", "uv", "uvx", "deno", "bun"})
_WORDS_OF_RUNNERS = frozenset({"run", "exec", "dlx", "tool"})
_SUFFIXES = (".py", ".js", ".mjs", ".cjs", ".ts", ".sh", ".exe")


def name_of_url(url: str) -> str:
    """`mcp_example_com` for `https://mcp.example.com/mcp`."""
    return spelled(urlsplit(url).hostname or "server")


def name_of_command(command: Sequence[str]) -> str:
    """`server_github` for `npx -y @modelcontextprotocol/server-github`.

    It is the first word that is neither an option nor a program that only runs others.
    """
    words = [word for word in command if not word.startswith("-") and word not in _WORDS_OF_RUNNERS]
    candidates = [
        word for word in words if _base(word) not in _RUNNERS and not re.fullmatch(r"python[0-9.]*", _base(word))
    ]
    word = (candidates or words or ["server"])[0]
    base = word.rsplit("/", 1)[-1].partition("@")[0] if word.startswith("@") else _base(word)
    for suffix in _SUFFIXES:
        base = base.removesuffix(suffix)
    return spelled(base)


def spelled(name: str) -> str:
    """Returns a name that every model accepts: a letter, then letters, digits and single underscores."""
    plain = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_") or "server"
    return plain if plain[0].isalpha() else f"at_{plain}"


def _base(word: str) -> str:
    return PurePath(word).name
