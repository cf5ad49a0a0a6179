"""Sample with py-spy as a subprocess, where BPF or the unwinder's own walk cannot be used.

py-spy is run with --nonblocking, always: it reads memory and never stops the target, so it may be
killed at any moment. It counts samples without times; stacks are torn now and then (3 % measured on
a DDP job, against none in the kernel).
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rankscope.probes.base import rights
from rankscope.probes.base.scratch import Scratch, scratch
from rankscope.probes.base.text import printable
from rankscope.probes.confine import credentials
from rankscope.unwinder.errors import FallbackFailed
from rankscope.unwinder.names.code import NAME_CAP, Frame

_END_S = 2.0
_LOOK_EVERY_S = 0.1
_STACKS, _LOG = "stacks", "log"
GRACE_S = 10.0
_OUTPUT_CAP_BYTES = 8 << 20  # py-spy takes fifteen times as much memory to write it
_LOG_CAP_BYTES = 64 * 1024
_MEMORY_BYTES = 512 << 20

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


@dataclass(frozen=True, slots=True)
class PySample:
    """A distinct stack of one thread, and how often it was seen. Frames innermost first; lines are
    FIRST lines.
    """

    tid: int  # 0 where py-spy knows only pthread_self()
    thread_name: str
    frames: tuple[Frame, ...]
    count: int


@dataclass(frozen=True, slots=True)
class PySpyResult:
    """The samples that py-spy took of one process. `problem` says why there are none, or fewer than
    asked for.
    """

    pid: int
    samples: tuple[PySample, ...]
    taken: int
    failed: int
    behind_s: float
    problem: str


def find_pyspy() -> Path:
    """Find the py-spy next to the running interpreter, else the one on PATH. Raises FallbackFailed."""
    beside = Path(sys.executable).parent / "py-spy"
    if beside.is_file():
        return beside
    found = shutil.which("py-spy")
    if found is None:
        raise FallbackFailed("py-spy is not installed")
    return Path(found)


@dataclass(slots=True)
class Sampling:
    """One running py-spy. Always call `end`."""

    pid: int
    process: subprocess.Popen[bytes]
    folder: Scratch

    def ended(self) -> bool:
        """Tell whether py-spy has exited."""
        return self.process.poll() is not None

    def end(self) -> tuple[int | None, tuple[int, int]]:
        """Kill py-spy if it still runs; return its exit code, and descriptors of its output and log.

        The exit code is None if py-spy still ran. The caller closes both descriptors; the files' names are removed.
        """
        code = self.process.poll()
        _end(self.process)
        try:
            return code, (_opened(self.folder.path / _STACKS), _opened(self.folder.path / _LOG))
        finally:
            self.folder.close()


class _Elsewhere:
    """A running py-spy in the process that has the rights for it; the interface of `Sampling`."""

    def __init__(self, asked: rights.Delegate, pid: int, duration_s: float, rate_hz: int, idle: bool) -> None:
        self.pid, self._asked = pid, asked
        asked.ask("pyspy_start", pid=pid, duration_s=duration_s, rate_hz=rate_hz, idle=idle)

    def ended(self) -> bool:
        """Tell whether py-spy has exited."""
        return bool(self._asked.ask("pyspy_ended", pid=self.pid)[0]["ended"])

    def end(self) -> tuple[int | None, tuple[int, int]]:
        """Kill py-spy if it still runs; return its exit code, and descriptors of its output and log.

        The exit code is None if py-spy still ran. The caller closes both descriptors.
        """
        answer, files = self._asked.ask("pyspy_end", pid=self.pid)
        return answer["code"], (files[0], files[1])


def record(
    pids: Sequence[int], duration_s: float, rate_hz: int = 19, idle: bool = True, program: Path | None = None
) -> tuple[PySpyResult, ...]:
    """Sample all `pids` at once for `duration_s` (whole seconds, rounded up) and wait for the end.

    One py-spy per process; a process that cannot be sampled has its reason in `problem`. Each
    py-spy dies with the calling thread. `idle` includes waiting threads, which matter most in
    training. Raises FallbackFailed.
    """
    return tuple(record_each(pids, duration_s, rate_hz, idle, program))


def record_each(
    pids: Sequence[int], duration_s: float, rate_hz: int = 19, idle: bool = True, program: Path | None = None
) -> Generator[PySpyResult, None, None]:
    """Sample all `pids` at once as `record` does, but yield results one at a time to save memory.

    The output of one is freed before the next is read. Raises FallbackFailed.
    """
    asked = rights.delegate()
    with contextlib.ExitStack() as cleanup:
        running: list[Sampling | _Elsewhere] = []
        for pid in pids:
            one = (
                start(pid, duration_s, rate_hz, idle, program)
                if asked is None
                else _Elsewhere(asked, pid, duration_s, rate_hz, idle)
            )
            running.append(one)
            cleanup.callback(_drop, one, running)
        deadline = time.monotonic() + duration_s + GRACE_S
        while time.monotonic() < deadline and not all(one.ended() for one in running):
            time.sleep(_LOOK_EVERY_S)
        while running:
            yield _result(running.pop(0))


def start(pid: int, duration_s: float, rate_hz: int, idle: bool, program: Path | None = None) -> Sampling:
    """Start a py-spy that samples one process, into a folder of its own. Raises FallbackFailed.

    `idle`: include waiting threads; `program`: py-spy, None to find it.
    """
    program = program or find_pyspy()
    folder = scratch()
    try:
        return Sampling(pid, _start(program, pid, duration_s, rate_hz, idle, folder.path), folder)
    except BaseException:
        folder.close()
        raise


def _start(
    program: Path, pid: int, duration_s: float, rate_hz: int, idle: bool, folder: Path
) -> subprocess.Popen[bytes]:
    """Run py-spy in the background, confined; it writes the files `stacks` and `log` to `folder`.

    `duration_s` is rounded up to whole seconds. Raises FallbackFailed where it cannot be run.
    """
    command = [str(program), "record", "--pid", str(pid), "--duration", str(max(1, -int(-duration_s // 1)))]
    command += ["--rate", str(rate_hz), "--format", "raw", "--output", str(folder / _STACKS)]
    command += ["--nonblocking", "--threads", "--full-filenames", "--function"]
    command += ["--idle"] if idle else []
    confine = partial(_confine, _may_write(folder))
    with (folder / _LOG).open("wb") as log:
        try:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=confine,  # noqa: PLW1509 - system calls alone, no locks
                cwd=folder,
            )
        except OSError as error:
            raise FallbackFailed(f"{program}: {error.strerror or error}") from error


def _may_write(folder: Path) -> bool:
    """Let the group of py-spy's own user write to `folder`, and to nothing else.

    Returns False, without a change, unless run as root; also where that fails.
    """
    if os.geteuid() != 0:
        return False
    try:
        os.chown(folder, -1, credentials.NOBODYS_USER)
        folder.chmod(0o770)
    except OSError:
        return False
    return True


def _confine(as_nobody: bool) -> None:
    """Confine py-spy, in the child before exec: limit files and memory, drop all rights but reading.

    It dies with its parent. `as_nobody`: switch to py-spy's own user too.
    """
    credentials.no_core_dump()
    resource.setrlimit(resource.RLIMIT_FSIZE, (_OUTPUT_CAP_BYTES, _OUTPUT_CAP_BYTES))
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, _MEMORY_BYTES))
    if os.geteuid() == 0:
        keep = credentials.mask((credentials.CAP_DAC_READ_SEARCH, credentials.CAP_SYS_PTRACE)) & credentials.effective()
        credentials.close_the_bounds(keep)
        if as_nobody:
            # without the right to switch users it stays root, with these two
            with contextlib.suppress(OSError):
                credentials.become(credentials.NOBODYS_USER)
        credentials.set_capabilities(keep, passed_on=keep)
    credentials.no_new_rights()
    credentials.die_with_parent(signal.SIGKILL)  # a switch of user resets it


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill py-spy if it runs, and wait up to 2 s for it to end. Never raises."""
    if process.poll() is None:
        process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        # py-spy opens files of the target: on a file system that does not answer no signal ends it
        process.wait(_END_S)


def _drop(one: Sampling | _Elsewhere, running: Sequence[Sampling | _Elsewhere]) -> None:
    """Stop a py-spy and discard its output, if it is still in `running`."""
    if one in running:
        for descriptor in one.end()[1]:
            os.close(descriptor)


def _result(one: Sampling | _Elsewhere) -> PySpyResult:
    """Stop a py-spy and parse its output; `problem` says why there are no samples, or why it failed."""
    code, (written, said) = one.end()
    stacks, log = _read(written, _OUTPUT_CAP_BYTES), _read(said, _LOG_CAP_BYTES)
    samples = parse_raw(stacks)
    taken, failed, behind_s = parse_log(log)
    problem = "py-spy did not end in time" if code is None else ""
    if not problem and (code or not samples):
        problem = explain(log) or ("no samples" if not samples else f"py-spy ended with {code}")
    return PySpyResult(one.pid, samples, taken, failed, behind_s, problem)


def _opened(path: Path) -> int:
    """Open a file that py-spy wrote; return the descriptor, that of /dev/null where it cannot be opened."""
    try:
        # the folder belongs to py-spy's user
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


def _read(descriptor: int, cap: int) -> str:
    """Read up to `cap` bytes from a descriptor, and close it."""
    with os.fdopen(descriptor, "rb") as file:
        return file.read(cap).decode("utf-8", "replace")


def parse_raw(text: str) -> tuple[PySample, ...]:
    """Parse the lines of `py-spy record --format raw --threads`; frames innermost first. Never raises.

    Malformed lines are left out.
    """
    samples = []
    for line in text.split("\n"):
        stack, _, count = line.rpartition(" ")
        if not stack or not (count.isascii() and count.isdigit()) or len(count) > 12:
            continue
        # The text before it, `process PID:"command line"`, may contain anything.
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
    """Parse `name (path:line)`; the line becomes `first_line`, 0 if missing, and a missing path is '?'.

    A name has no space before a parenthesis; a path may.
    """
    name, opening, place = text[: 8 * NAME_CAP].partition(" (")
    file, first_line = place.removesuffix(")"), 0
    head, _, line = file.rpartition(":")
    if head and line.isascii() and line.isdigit() and len(line) < 10:
        file, first_line = head, int(line)
    return Frame(
        printable(name[:NAME_CAP]), printable(file[-NAME_CAP:]) if opening else "?", first_line, None, stale=False
    )


def parse_log(text: str) -> tuple[int, int, float]:
    """Parse (samples taken, samples failed, largest delay in seconds) from py-spy's log; 0 where missing.

    Never raises.
    """
    totals = _TOTALS.search(text)
    behind = 0.0
    for number, unit in _BEHIND.findall(text):
        with contextlib.suppress(ValueError):
            behind = max(behind, float(number) / (1000 if unit == "ms" else 1))
    if totals is None:
        return 0, 0, behind
    return int(totals[1][:12]), int(totals[2][:12]), behind


def explain(log: str) -> str:
    """Describe the reason of a failure that py-spy's log gives; '' if it gives none."""
    for sign, words in _REASONS:
        if sign.lower() in log.lower():
            return words
    lines = [line.strip() for line in log.splitlines() if line.strip().startswith(("Error", "Reason"))]
    return printable(lines[-1])[:200] if lines else ""
