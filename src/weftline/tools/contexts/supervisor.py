"""The parent process of one command, which makes sure that nothing of the command stays behind.

A bare interpreter runs this file, which imports nothing of Weftline. Our side holds the other end of the control
socket. When that closes, because the command timed out, was cancelled or our process died, the command is ended. On
Linux, orphans of the command become children of this process, even if they created their own session, and are killed
when the command ends.

The command's process says on the socket that it is there before it becomes the command. Its own supervisor is the
first thing that a hostile command would stop or kill, and by then its time is running and its process group is known.

Every command waits for this file to start, so it does not import `signal` and `socket`, which would double the time.
"""

from __future__ import annotations

import ctypes
import os
import select
import sys
import time

_SIGNALS = __import__("_signal")
"""What `signal` is made of."""
_SIGKILL, _SIGPIPE, _SIGTERM, _SIGCONT, _SIGXFSZ = 9, 13, 15, 18, 25
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_GIVE_UP_S = 5.0
"""A process that cannot be killed waits for a disk or a driver; it is abandoned after this."""
_POLL_S = 0.02
_REAP_S = 1.0


def main() -> None:
    control = int(sys.argv[1])
    os.set_inheritable(control, False)
    grace_s, locale, cwd, command = float(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5:]
    if not locale:
        os.environ.pop("LC_CTYPE", None)  # Python sets it for itself if there is no locale
    _adopt_orphans()
    begun, beginning = os.pipe()  # the second end is closed when the child has become the command
    child = os.fork()
    if not child:
        _become(command, cwd, control)
    os.close(beginning)
    os.read(begun, 1)
    _close_outputs()
    status = _until_it_ends(child, control, grace_s)
    _kill_descendants(child)
    _report(control, f"exit {status}\n")


def _become(command: list[str], cwd: str, control: int) -> None:
    """Makes this process, a child of the supervisor, the command. It does not return."""
    name = cwd
    try:
        os.chdir(cwd)
        os.setsid()
        # Signals that Python ignores must have their default in the command.
        for number in (_SIGPIPE, _SIGXFSZ):
            _SIGNALS.signal(number, _SIGNALS.SIG_DFL)
        _SIGNALS.pthread_sigmask(_SIGNALS.SIG_SETMASK, ())
        _report(control, f"pid {os.getpid()}\n")
        name = command[0]
        os.execvp(name, command)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        os.write(2, f"{name}: {reason}\n".encode(errors="surrogateescape"))
        code = 127 if isinstance(error, FileNotFoundError) else 126
        _report(control, f"failed {code}\n")
        os._exit(code)


def _until_it_ends(child: int, control: int, grace_s: float) -> int:
    """Waits for the command and returns its exit code.

    When the other end of `control` closes, it is terminated, then killed.
    """
    watched, poll_s = _watch(child)
    kill_at: float | None = None
    while True:
        code, _ = _reap(child)
        if code is not None:
            return code
        if kill_at is None:
            ready, _, _ = select.select([*watched, control], [], [], poll_s)
            if control in ready and not _received(control):
                kill_at = time.monotonic() + grace_s
                _signal_group(child, _SIGTERM)
        else:
            left_s = kill_at - time.monotonic()
            if left_s <= 0:
                _signal_group(child, _SIGKILL)
            if left_s <= -_GIVE_UP_S:
                return 128 + _SIGKILL
            select.select(watched, [], [], min(poll_s, left_s if left_s > 0 else _POLL_S))


def _watch(child: int) -> tuple[list[int], float]:
    """Returns what becomes readable when `child` ends, and how often to poll anyway."""
    try:
        return [os.pidfd_open(child)], _REAP_S
    except (AttributeError, OSError):
        return [], _POLL_S


def _reap(child: int) -> tuple[int | None, bool]:
    """Reaps all processes that have ended. Returns the exit code of `child` if it did, and whether any are left.

    Once its parent is gone, every descendant is a child of this process.
    """
    code: int | None = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code, False
        if not pid:
            return code, True
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            code = code if code >= 0 else 128 - code


def _kill_descendants(child: int) -> None:
    give_up_at = time.monotonic() + _GIVE_UP_S
    _signal_group(child, _SIGKILL)
    while _reap(child)[1] and time.monotonic() < give_up_at:
        for pid, group in _descendants().items():
            # The whole group at once, as it might otherwise fork faster than we poll.
            if group != os.getpgrp():
                _signal_group(group, _SIGKILL)
            try:
                os.kill(pid, _SIGKILL)
            except OSError:
                pass
        if _reap(child)[1]:
            select.select([], [], [], _POLL_S)


def _descendants() -> dict[int, int]:
    """Returns the descendants of this process and their groups; none without /proc."""
    parents: dict[int, tuple[int, int]] = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    state, parent, group = file.read().rpartition(b") ")[2].split(b" ", 3)[:3]
            except (OSError, ValueError):
                continue
            if state not in (b"Z", b"X"):
                parents[int(name)] = (int(parent), int(group))
    found: dict[int, int] = {}
    wave = {os.getpid()}
    while wave:
        wave = {pid for pid, (parent, _) in parents.items() if parent in wave and pid not in found}
        found.update((pid, parents[pid][1]) for pid in wave)
    return found


def _signal_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except OSError:
        pass


def _adopt_orphans() -> None:
    try:
        prctl = ctypes.CDLL(None).prctl
        prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        prctl(_PR_SET_PDEATHSIG, _SIGCONT, 0, 0, 0)  # the command may have stopped us when our own process dies
    except (AttributeError, OSError):
        pass  # not Linux: processes that leave the group are lost


def _close_outputs() -> None:
    """Closes the outputs, so that readers of the command's output do not wait for this process."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for place in (0, 1, 2):
        os.dup2(nothing, place)


def _received(control: int) -> bytes:
    try:
        return os.read(control, 4096)
    except OSError:
        return b""


def _report(control: int, line: str) -> None:
    try:
        os.write(control, line.encode())
    except OSError:
        pass  # nobody is listening any more


if __name__ == "__main__":
    main()
