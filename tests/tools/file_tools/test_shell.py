from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.file_tools.kit import Kit, file_kit
from weftline.tools.base import Toolset
from weftline.tools.builtin.files import files
from weftline.tools.builtin.shell import output_text, shell
from weftline.tools.builtin.todo import todo
from weftline.tools.contexts.base import Capabilities, ExecResult
from weftline.tools.contexts.process import ProcessContext

MARKER = re.compile(r"…\((\d+) bytes truncated from head\)…\n")


def shell_kit(root: Path, max_output_bytes: int = 32_768, *, metadata: bool = True) -> Kit:
    return Kit(shell(root, max_output_bytes=max_output_bytes, metadata=metadata).tools)


def without_time(result: str) -> str:
    return re.sub(r"\d+ms\)$", "?ms)", result)


@pytest.mark.requirement("tool.shell.metadata", "tool.shell.no_stdin")
async def test_result_has_both_outputs_exit_code_and_time(tmp_path: Path) -> None:
    kit = shell_kit(tmp_path)
    failed = await kit.ok("shell", command="cat; printf out; echo err >&2; exit 3")
    assert without_time(failed) == "out\n[stderr]\nerr\n(exit 3, ?ms)"
    assert without_time(await kit.ok("shell", command="echo out")) == "out\n(exit 0, ?ms)"
    assert without_time(await kit.ok("shell", command="true")) == "(exit 0, ?ms)"
    assert without_time(await kit.ok("shell", command="pwd")) == f"{tmp_path}\n(exit 0, ?ms)"
    bare = shell_kit(tmp_path, metadata=False)
    assert await bare.ok("shell", command="echo out; echo err >&2; exit 3") == "out\n"


@pytest.mark.requirement("tool.context.timeout")
async def test_command_that_took_too_long_is_result_that_says_so(tmp_path: Path) -> None:
    kit = shell_kit(tmp_path)
    seconds, result = 0, ""
    for seconds in (1, 10, 60):  # on a busy machine a second may be over before the command has begun
        result = await kit.ok("shell", command="echo begun; sleep 600", timeout_s=seconds)
        if result.startswith("begun"):
            break
    said = f"[The command did not finish within {seconds} seconds and was killed with all its children.]"
    assert without_time(result) == f"begun\n{said}\n(exit 124, ?ms)"
    for seconds in (0, -1, 601):
        assert "more than 0 and at most 600" in await kit.refused("shell", command="true", timeout_s=seconds)


@pytest.mark.requirement("tool.shell.tail")
async def test_the_end_of_a_long_output_is_kept(tmp_path: Path) -> None:
    command = "seq 1 20000; echo err >&2"
    size = len("".join(f"{number}\n" for number in range(1, 20001))) + 4
    cut = await shell_kit(tmp_path).ok("shell", command=command)
    found = MARKER.match(cut)
    assert found is not None and int(found[1]) == size - 32_768
    assert without_time(cut).endswith("\n20000\n[stderr]\nerr\n(exit 0, ?ms)")
    whole = await shell_kit(tmp_path, 0).ok("shell", command=command)
    assert whole.startswith("1\n2\n")


async def test_undecodable_output_is_shown_as_far_as_possible(tmp_path: Path) -> None:
    result = await shell_kit(tmp_path).ok("shell", command=r"printf 'a\377b'")
    assert without_time(result) == "a\ufffdb\n(exit 0, ?ms)"


@pytest.mark.requirement("tool.shell.tail")
@given(stdout=st.text("aé€𝄞\n", max_size=30), stderr=st.text("bü𝄞\n", max_size=30), max_bytes=st.integers(1, 80))
def test_a_cut_is_exact_and_never_goes_through_a_character(stdout: str, stderr: str, max_bytes: int) -> None:
    result = ExecResult(stdout=stdout.encode(), stderr=stderr.encode(), exit_code=0)
    text = output_text(result, max_bytes=max_bytes, with_stderr=True)
    surplus = len((stdout + stderr).encode()) - max_bytes
    found = MARKER.match(text)
    if surplus <= 0:
        assert found is None
        return
    assert found is not None
    dropped = int(found[1])
    assert surplus <= dropped <= surplus + 3
    kept_stdout, _, kept_stderr = text[found.end() :].partition("[stderr]\n")
    assert stderr.endswith(kept_stderr)
    assert stdout.endswith((kept_stdout, kept_stdout.removesuffix("\n")))
    line_break = len((kept_stdout + kept_stderr).encode()) + dropped - len((stdout + stderr).encode())
    assert line_break in (0, 1)
    (stdout + stderr).encode()[dropped:].decode()


@pytest.mark.requirement("tool.shell.tail", "tool.context.output_cap")
async def test_dropped_context_counts_too(tmp_path: Path) -> None:
    context = ProcessContext(max_output_bytes=1000)
    kit = Kit(shell(tmp_path, context=context, max_output_bytes=0).tools)
    result = await kit.ok("shell", command="head -c 5000 /dev/zero | tr '\\0' x")
    assert without_time(result) == "…(4000 bytes truncated from head)…\n" + "x" * 1000 + "\n(exit 0, ?ms)"


@pytest.mark.requirement("tool.context.abort")
async def test_a_call_that_is_cancelled_ends_its_command_first(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ready")
    kit = shell_kit(tmp_path)
    call = asyncio.create_task(kit.call("shell", command="sleep 600 & echo $! > pid; echo > ready; sleep 600"))
    await shell_kit(tmp_path).ok("shell", command="cat ready")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


class Bare(ProcessContext):
    """A context of a user's own, with less than it could have."""

    def __init__(self, capabilities: Capabilities) -> None:
        super().__init__()
        self.capabilities = capabilities


@pytest.mark.requirement("tool.context.capabilities")
async def test_tools_that_a_context_cannot_serve_are_not_offered(tmp_path: Path) -> None:
    every = ["read_file", "list_files", "glob", "grep", "write_file", "edit", "multi_edit"]
    for capabilities, expected in (
        (Capabilities(shell=True), ["shell"]),
        (Capabilities(filesystem=True), every),
        (Capabilities(network=True), []),
        (Capabilities(shell=True, filesystem=True), [*every, "shell"]),
    ):
        context = Bare(capabilities)
        toolsets: list[Toolset] = [files(tmp_path, context=context), shell(tmp_path, context=context)]
        assert [tool.spec.name for toolset in toolsets for tool in await toolset.open()] == expected
        for toolset in toolsets:
            await toolset.close()


@pytest.mark.requirement("tool.context.default")
async def test_without_a_context_tools_work_here_in_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kit = Kit([*files().tools, *shell().tools])
    monkeypatch.chdir("/")
    await kit.ok("write_file", path="f", content="x")
    assert (await kit.ok("shell", command="pwd; cat f")).startswith(f"{tmp_path}\nx")


async def test_toolsets_with_one_context_work_in_one_place(tmp_path: Path) -> None:
    context = ProcessContext(env={"GIVEN": "1"})
    on_files, on_shell = files(tmp_path, context=context), shell(tmp_path, context=context)
    kit = Kit([*await on_files.open(), *await on_shell.open()])
    await on_files.close()
    assert "1\n" in await kit.ok("shell", command="echo $GIVEN")
    await on_shell.close()
    await on_shell.close()
    assert "1\n" in await kit.ok("shell", command="echo $GIVEN")


@pytest.mark.requirement("tool.effect.declared")
def test_the_tools_declare_what_a_crash_may_do_with_them(tmp_path: Path) -> None:
    tools = [*files(tmp_path).tools, *shell(tmp_path).tools, todo()]
    assert {tool.spec.name: (tool.effect, tool.concurrent) for tool in tools} == {
        "read_file": ("read", True),
        "list_files": ("read", True),
        "glob": ("read", True),
        "grep": ("read", True),
        "write_file": ("idempotent", False),
        "edit": ("reconcile", False),
        "multi_edit": ("reconcile", False),
        "shell": ("once", False),
        "todo": ("idempotent", False),
    }
    assert all(tool.spec.description for tool in tools)
    reading = files(tmp_path, write=False)
    assert {tool.effect for tool in reading.tools} == {"read"}


async def test_a_model_keeps_a_list(tmp_path: Path) -> None:
    kit = Kit([todo()])
    assert await kit.ok("todo") == "The list is empty."
    items = [{"text": "read"}, {"text": "write", "status": "in_progress"}, {"text": "think", "status": "done"}]
    assert await kit.ok("todo", items=items) == "[ ] read\n[~] write\n[x] think"
    assert await kit.ok("todo") == "[ ] read\n[~] write\n[x] think"
    assert "was not changed" in await kit.refused("todo", items=[{"text": "x" * 501}])
    assert await kit.ok("todo", items=[]) == "The list is empty."


@pytest.mark.requirement("tool.path.confined")
@pytest.mark.parametrize("tool", ["read_file", "write_file", "edit", "multi_edit", "list_files", "glob", "grep"])
async def test_no_tool_leaves_its_directory(tmp_path: Path, tool: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "root2").mkdir()
    (tmp_path / "root2" / "f").write_text("secret")
    (root / "link").symlink_to(tmp_path / "root2")
    more: dict[str, dict[str, object]] = {
        "write_file": {"content": "x"},
        "edit": {"old_string": "secret", "new_string": "x"},
        "multi_edit": {"edits": [{"old_string": "secret", "new_string": "x"}]},
        "glob": {"pattern": "**"},
        "grep": {"pattern": "secret"},
    }
    kit = file_kit(root)
    for path in ("../root2/f", str(tmp_path / "root2" / "f"), "link/f", "link", ".."):
        refusal = await kit.refused(tool, path=path, **more.get(tool, {}))
        assert "outside the working directory" in refusal
        assert "secret" not in refusal
    assert (tmp_path / "root2" / "f").read_text() == "secret"
