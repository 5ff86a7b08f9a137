"""Every context keeps the same promises."""

from __future__ import annotations

import shutil
from collections.abc import Generator, Mapping
from pathlib import Path

import pytest

from tools.contexts.fake_docker import FakeDocker, write_direct_docker
from weftline.testing import contexts
from weftline.testing.contexts import CHECKS, Check
from weftline.tools.contexts import docker as docker_context
from weftline.tools.contexts.base import (
    Capabilities,
    Command,
    ContextUnavailable,
    ExecResult,
    FileBytes,
    Handle,
    Listing,
)
from weftline.tools.contexts.docker import DockerContext
from weftline.tools.contexts.process import ProcessContext
from weftline.tools.contexts.remote import RemoteContext
from weftline.tools.contexts.sandboxed import SandboxedContext

NEEDS_BWRAP = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs the program bwrap (bubblewrap)")


def named(check: Check) -> str:
    return check.__name__


@pytest.mark.requirement("tool.context.contract", "tool.path.any_name", "tool.context.destroy", "tool.context.timeout")
@pytest.mark.parametrize("check", CHECKS, ids=named)
async def test_the_process_context_conforms(check: Check) -> None:
    await check(ProcessContext())


@NEEDS_BWRAP
@pytest.mark.parametrize("check", CHECKS, ids=named)
async def test_the_sandboxed_context_conforms(check: Check) -> None:
    await check(SandboxedContext())


class Elsewhere:
    """A provider of sandboxes, as far as one can see from here."""

    def __init__(self) -> None:
        self._there = ProcessContext()
        self._handles: dict[str, Handle] = {}

    async def create(self, *, cwd: str | None, env: Mapping[str, str]) -> tuple[str, str]:
        handle = await self._there.spawn(cwd=cwd, env=env)
        self._handles[handle.id] = handle
        return handle.id, handle.cwd

    async def exec(
        self, sandbox: str, command: Command, *, cwd: str, env: Mapping[str, str], timeout_s: float, stdin: bytes
    ) -> ExecResult:
        handle = self._handles[sandbox]
        return await self._there.exec(handle, command, cwd=cwd, env=env, timeout_s=timeout_s, stdin=stdin)

    async def read_file(self, sandbox: str, path: str, *, max_bytes: int) -> FileBytes:
        return await self._there.read_file(self._handles[sandbox], path, max_bytes=max_bytes)

    async def write_file(self, sandbox: str, path: str, data: bytes) -> str:
        return await self._there.write_file(self._handles[sandbox], path, data)

    async def list_directory(self, sandbox: str, path: str) -> Listing:
        return await self._there.list_files(self._handles[sandbox], path)

    async def destroy(self, sandbox: str) -> None:
        await self._there.destroy(self._handles.pop(sandbox))


@pytest.mark.requirement("tool.context.contract")
@pytest.mark.parametrize(
    "check",
    [
        contexts.variables_and_directories_are_for_one_command,
        contexts.commands_and_file_verbs_see_the_same_files,
        contexts.file_verbs_stay_inside,
        contexts.two_handles_share_nothing,
        contexts.a_cancelled_command_is_killed_first,
        contexts.a_destroyed_handle_cannot_be_used,
    ],
    ids=named,
)
async def test_a_remote_sandbox_conforms(check: Check) -> None:
    await check(RemoteContext(Elsewhere()))


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[FakeDocker]:
    fake = FakeDocker(tmp_path)
    monkeypatch.setenv("PATH", str(fake.bin), prepend=":")
    monkeypatch.setattr(docker_context, "NOTES", str(tmp_path / "notes"))
    yield fake
    fake.close()


@pytest.mark.requirement("tool.context.contract", "tool.context.docker")
@pytest.mark.parametrize(
    "check",
    [
        contexts.variables_and_directories_are_for_one_command,
        contexts.commands_and_file_verbs_see_the_same_files,
        contexts.any_name_can_be_used,
        contexts.file_verbs_stay_inside,
        contexts.file_errors_are_distinguished,
    ],
    ids=named,
)
async def test_the_docker_context_conforms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: Check) -> None:
    monkeypatch.setenv("PATH", str(write_direct_docker(tmp_path)), prepend=":")
    monkeypatch.setattr(docker_context, "NOTES", str(tmp_path / "notes"))
    await check(DockerContext(workdir=str(tmp_path / "workspace")))


@pytest.mark.requirement("tool.context.contract", "tool.context.docker", "tool.context.destroy")
@pytest.mark.parametrize(
    "check",
    [contexts.a_cancelled_command_is_killed_first, contexts.a_destroyed_handle_cannot_be_used],
    ids=named,
)
@pytest.mark.usefixtures("docker")
async def test_process_in_a_container_is_ended_there(tmp_path: Path, check: Check) -> None:
    await check(DockerContext(workdir=str(tmp_path / "workspace")))


@pytest.mark.requirement("tool.context.docker", "tool.context.destroy")
async def test_a_container_has_image_limits_and_five_seconds_to_stop(docker: FakeDocker, tmp_path: Path) -> None:
    workdir = str(tmp_path / "workspace")
    context = DockerContext(
        "python:3.12", memory_mb=512, cpus=1.5, network=False, env={"A": "b c"}, workdir=workdir, mount=tmp_path
    )
    assert context.capabilities == Capabilities(shell=True, filesystem=True, network=False)
    handle = await context.spawn()
    await context.destroy(handle)
    run, stop, remove = docker.commands
    assert run == [
        *("run", "--detach", "--init", "--label", "weftline", "--name", handle.id, "--workdir", workdir),
        *("--env", "A=b c"),
        *("--network", "none", "--memory", "512m", "--cpus", "1.5", "--volume", f"{tmp_path}:{workdir}"),
        *("python:3.12", "sleep", "infinity"),
    ]
    assert stop == ["stop", "--time", "5", handle.id]
    assert remove == ["rm", "--force", "--volumes", handle.id]
    assert DockerContext().capabilities.network


@pytest.mark.requirement("tool.context.docker")
async def test_without_docker_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ContextUnavailable, match="install"):
        await DockerContext().spawn()


async def test_without_bubblewrap_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ContextUnavailable, match="install the package `bubblewrap`"):
        await SandboxedContext().spawn()


async def test_a_bubblewrap_that_cannot_make_a_sandbox_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\necho 'No permissions to create new namespace' >&2; exit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(ContextUnavailable, match="No permissions to create new namespace"):
        await SandboxedContext().spawn()


@NEEDS_BWRAP
async def test_a_sandbox_has_no_network_no_secrets_and_no_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    (tmp_path / "neighbour").write_text("x")
    root = tmp_path / "root"
    root.mkdir()
    context = SandboxedContext()
    handle = await context.spawn(cwd=root)
    shown = await context.exec(
        handle,
        "env; cat /etc/shadow; ls -A /home /root; ls ..; cat /sys/class/net/*/address; cat /proc/net/route;"
        "echo /proc/[0-9]*; touch /usr/x /etc/x && echo bad; touch ok && echo good",
    )
    text = shown.stdout.decode()
    assert "sk-secret" not in text and "neighbour" not in text and "bad" not in text
    assert "eth" not in text and "good" in text
    assert len([word for word in text.split() if word.startswith("/proc/")]) <= 4
    assert (root / "ok").exists()
    await context.destroy(handle)
