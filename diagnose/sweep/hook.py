"""Run the hook: a program that gets the JSON of a critical sweep, to drain the host, say.

It runs as root with only the caller's variables that it needs to find its cluster: PATH is fixed,
the working folder is `/`, new files are private. It must belong to root, on a path only root can
change. When it ends or its time is up, all its processes end too, including daemons, which become
our children as orphans. It first gets SIGTERM and a few seconds to undo incomplete work. A hook
that is rejected, fails or hangs is noted; it never changes the result.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from rankscope.probes.base.folders import UnsafePlace, trusted_program

PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_PASSED_ON = ("NODE_NAME", "SLURMD_NODENAME", "SLURM_CONF", "KUBECONFIG", "SCONTROL", "KUBECTL")
_PASSED_ON_WITH = ("RANKSCOPE_", "KUBERNETES_SERVICE_")
_OUTPUT_CAP = 200
GRACE_S = 5.0  # after SIGTERM; less if the time limit is short
_GRACE_PART = 6
_POLL_S = 0.05
_LET_GO_S = 2.0  # to wait for killed processes; no longer, as they may hang in the kernel
_PR_SET_CHILD_SUBREAPER = 36


def environment(given: Mapping[str, str], content: Mapping[str, Any]) -> dict[str, str]:
    """Environment of a hook: host, state, fixed PATH, and the caller's variables for finding the cluster.

    `given`: the caller's environment; `content`: the sweep's JSON.
    """
    kept = {name: value for name, value in given.items() if name in _PASSED_ON or name.startswith(_PASSED_ON_WITH)}
    said = {"RANKSCOPE_HOST": content["host"], "RANKSCOPE_STATE": content["summary"]["state"]}
    return {**kept, "PATH": PATH, "LANG": "C.UTF-8", **said}


def run_hook(program: str, content: dict[str, Any], timeout_s: float) -> str:
    """Run the program in its own session, with the JSON `content` on stdin, and kill what is left of it.

    Returns a note if it was rejected or failed, '' if not. Never raises.
    """
    try:
        real = trusted_program(program)
    except (OSError, UnsafePlace) as error:
        return f"hook {program}: {error.strerror if isinstance(error, OSError) else error}; it was not run"
    with _none_left():
        return _run(program, real, content, timeout_s)


def _run(program: str, real: Path, content: dict[str, Any], timeout_s: float) -> str:
    """Run the checked program `real` under the name `program`, kill it after `timeout_s`; return as `run_hook`."""
    try:
        with _in_memory(json.dumps(content).encode()) as given:
            child = subprocess.Popen(
                [program], executable=real, stdin=given, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                env=environment(os.environ, content), cwd="/", umask=0o077, start_new_session=True,
            )  # fmt: skip
    except OSError as error:
        return f"hook {program}: {error.strerror}"
    said = _watch(child, timeout_s)
    late = child.poll() is None
    if late:
        _signal(child, signal.SIGTERM)
        said += _watch(child, min(GRACE_S, timeout_s / _GRACE_PART))
    _signal(child, signal.SIGKILL)
    assert child.stderr is not None
    child.stderr.close()
    with contextlib.suppress(subprocess.TimeoutExpired):  # it may hang in the kernel
        child.wait(_LET_GO_S)
    words = f": {last}" if (last := complaint(said)) else ""
    if late:
        return f"hook {program}: did not end within {timeout_s:g} s; it was killed{words}"
    return f"hook {program}: exit code {child.returncode}{words}" if child.returncode else ""


def _signal(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Signal the whole session: killing only a shell would leave its children."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)


@contextlib.contextmanager
def _none_left() -> Iterator[None]:
    """Kill all processes started inside the block, even those that left their session or parent.

    As child subreaper, this process inherits and kills orphans.
    """
    before, of_libc = _children(), ctypes.CDLL(None)
    of_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
        until = time.monotonic() + _LET_GO_S
        while (left := _children() - before) and time.monotonic() < until:
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            for pid in left:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            time.sleep(_POLL_S / 10)
    finally:
        of_libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _children() -> frozenset[int]:
    """Pids of this process's children.

    Empty where the kernel does not list them (CONFIG_PROC_CHILDREN).
    """
    found: set[int] = set()
    for of_thread in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found.update(map(int, of_thread.read_text().split()))
    return frozenset(found)


def complaint(said: bytes) -> str:
    """End of a hook's standard error, as one line. Never raises."""
    return " ".join(said.decode("utf-8", "replace").split())[-_OUTPUT_CAP:]


def _watch(child: subprocess.Popen[bytes], timeout_s: float) -> bytes:
    """Wait for the hook up to `timeout_s`, and return the end of its standard error."""
    deadline, said = time.monotonic() + timeout_s, b""
    assert child.stderr is not None
    open_yet = True
    while True:
        ended = child.poll() is not None
        ready = select.select([child.stderr], [], [], 0 if ended else _POLL_S)[0] if open_yet else []
        data = os.read(child.stderr.fileno(), 65536) if ready else b""
        said = (said + data)[-4 * _OUTPUT_CAP :]
        open_yet = open_yet and not (ready and not data)
        if (ended and not data) or time.monotonic() > deadline:
            return said
        if not open_yet and not ended:
            time.sleep(_POLL_S)


@contextlib.contextmanager
def _in_memory(data: bytes) -> Iterator[IO[bytes]]:
    """Yield a file in memory with `data`, so that neither a full disk nor an idle reader blocks."""
    with os.fdopen(os.memfd_create("sweep.json", os.MFD_CLOEXEC), "wb+") as file:
        file.write(data)
        file.seek(0)
        yield file
