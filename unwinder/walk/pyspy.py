"""The fallback where BPF cannot be used, or the interpreter is none that the walk knows: py-spy as a subprocess.

py-spy is run with --nonblocking, always: it reads memory and never stops the target, so it may be killed at any moment. It
counts samples and tells no times; stacks are torn now and then (3 % measured on a DDP job, against none in the kernel).
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rankscope.probes.text import printable
from rankscope.unwinder.errors import FallbackFailed
from rankscope.unwinder.names.code import NAME_CAP, Frame

_END_S = 2.0
GRACE_S = 10.0
_OUTPUT_CAP_BYTES = 64 * 1024 * 1024
_LOG_CAP_BYTES = 64 * 1024
_PR_SET_PDEATHSIG = 1

_THREAD = re.compile(r"thread \((0x[0-9a-fA-F]+|\d+)\)(?:: (.*))?$", re.DOTALL)
_TOTALS = re.compile(r"Samples: (\d+) Errors: (\d+)")
_BEHIND = re.compile(r"([\d.]{1,20})(ms|s) behind in sampling")
_REASONS = (
    ("Failed to get process executable name", "the process ended, or its executable cannot be read"),
    ("No such process", "the process ended"),
    ("Permission denied", "py-spy may not read the process: run as root or with CAP_SYS_PTRACE"),
    ("Failed to find python version", "no Python that py-spy knows"),
    ("Failed to find a python interpreter", "no Python that py-spy knows"),
)

_libc = ctypes.CDLL(None)


@dataclass(frozen=True, slots=True)
class PySample:
    """A distinct stack of one thread, and how often it was seen. Frames innermost first; lines are FIRST lines."""

    tid: int  # 0 where py-spy knows only pthread_self()
    thread_name: str
    frames: tuple[Frame, ...]
    count: int


@dataclass(frozen=True, slots=True)
class PySpyResult:
    """What py-spy saw of one process. `problem` says why there is nothing, or less than asked for."""

    pid: int
    samples: tuple[PySample, ...]
    taken: int
    failed: int
    behind_s: float
    problem: str


def find_pyspy() -> Path:
    """The py-spy beside the running interpreter, else the one on PATH. Raises FallbackFailed."""
    beside = Path(sys.executable).parent / "py-spy"
    if beside.is_file():
        return beside
    found = shutil.which("py-spy")
    if found is None:
        raise FallbackFailed("py-spy is not installed")
    return Path(found)


def record(
    pids: Sequence[int], duration_s: float, rate_hz: int = 19, idle: bool = True, program: Path | None = None
) -> tuple[PySpyResult, ...]:
    """Samples all `pids` at once for `duration_s` (whole seconds, rounded up) and waits for the end.

    One py-spy per process; a process that cannot be sampled has its reason in `problem`. Each py-spy dies with the calling
    thread. `idle` takes in threads that wait, which in training is most of what matters. Raises FallbackFailed.
    """
    program = program or find_pyspy()
    with tempfile.TemporaryDirectory(prefix="rankscope-pyspy-") as folder, contextlib.ExitStack() as cleanup:
        running = []
        for pid in pids:
            process = _start(program, pid, duration_s, rate_hz, idle, Path(folder))
            cleanup.callback(_end, process)
            running.append((pid, process))
        deadline = time.monotonic() + duration_s + GRACE_S
        return tuple(_finish(pid, process, deadline, Path(folder)) for pid, process in running)


def _start(
    program: Path, pid: int, duration_s: float, rate_hz: int, idle: bool, folder: Path
) -> subprocess.Popen[bytes]:
    command = [str(program), "record", "--pid", str(pid), "--duration", str(max(1, -int(-duration_s // 1)))]
    command += ["--rate", str(rate_hz), "--format", "raw", "--output", str(folder / f"{pid}.raw")]
    command += ["--nonblocking", "--threads", "--full-filenames", "--function"]
    command += ["--idle"] if idle else []
    with (folder / f"{pid}.log").open("wb") as log:
        try:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - one system call, no locks
                cwd=folder,
            )
        except OSError as error:
            raise FallbackFailed(f"{program}: {error.strerror or error}") from error


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_S)  # it opens files of the target: in a file system that does not answer no signal ends it


def _finish(pid: int, process: subprocess.Popen[bytes], deadline: float, folder: Path) -> PySpyResult:
    problem = ""
    try:
        process.wait(max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        _end(process)
        problem = "py-spy did not end in time"
    log = _read(folder / f"{pid}.log", _LOG_CAP_BYTES)
    samples = parse_raw(_read(folder / f"{pid}.raw", _OUTPUT_CAP_BYTES))
    taken, failed, behind_s = parse_log(log)
    if not problem and (process.returncode or not samples):
        problem = explain(log) or ("no samples" if not samples else f"py-spy ended with {process.returncode}")
    return PySpyResult(pid, samples, taken, failed, behind_s, problem)


def _read(path: Path, cap: int) -> str:
    try:
        with path.open("rb") as file:
            return file.read(cap).decode("utf-8", "replace")
    except OSError:
        return ""


def parse_raw(text: str) -> tuple[PySample, ...]:
    """Collapsed lines of `py-spy record --format raw --threads`. Lines that make no sense are left out. Never raises."""
    samples = []
    for line in text.split("\n"):
        stack, _, count = line.rpartition(" ")
        if not stack or not (count.isascii() and count.isdigit()) or len(count) > 12:
            continue
        # What stands before it, `process PID:"command line"`, may hold anything.
        _, begin, said = (";" + stack).partition(";thread (")
        if not begin:
            continue
        parts = ("thread (" + said).split(";")
        thread = _THREAD.match(parts[0])
        if thread is None:
            continue
        tid = int(thread[1]) if thread[1].isdigit() and len(thread[1]) < 12 else 0
        frames = tuple(_frame(part) for part in reversed(parts[1:]))
        samples.append(PySample(tid, printable((thread[2] or "")[:NAME_CAP]), frames, int(count)))
    return tuple(samples)


def _frame(text: str) -> Frame:
    """`name (path:line)`. A name has no space before a parenthesis; a path may."""
    name, opening, place = text[: 8 * NAME_CAP].partition(" (")
    file, first_line = place.removesuffix(")"), 0
    head, _, line = file.rpartition(":")
    if head and line.isascii() and line.isdigit() and len(line) < 10:
        file, first_line = head, int(line)
    return Frame(
        printable(name[:NAME_CAP]), printable(file[-NAME_CAP:]) if opening else "?", first_line, None, stale=False
    )


def parse_log(text: str) -> tuple[int, int, float]:
    """(samples taken, samples failed, seconds behind at worst) from what py-spy prints. Never raises."""
    totals = _TOTALS.search(text)
    behind = 0.0
    for number, unit in _BEHIND.findall(text):
        with contextlib.suppress(ValueError):
            behind = max(behind, float(number) / (1000 if unit == "ms" else 1))
    if totals is None:
        return 0, 0, behind
    return int(totals[1][:12]), int(totals[2][:12]), behind


def explain(log: str) -> str:
    """The reason of a failure in words for the operator, from py-spy's own; empty if it gave none."""
    for sign, words in _REASONS:
        if sign.lower() in log.lower():
            return words
    lines = [line.strip() for line in log.splitlines() if line.strip().startswith(("Error", "Reason"))]
    return printable(lines[-1])[:200] if lines else ""
