"""What other users of a host can do to it while it is observed, and how long a fork takes meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from campaignkit.chaos.job import PROGRAMS, build_program
from labkit.machine.shell import LabError, run

SOMEBODY = 65534
MOST_MAPPINGS = 60_000  # of a process, just below vm.max_map_count


class Forks:
    """A prober that forks all the time and times it. Before all others in the queue for a CPU, so that what it waits for is the kernel."""

    def __init__(self, program: Path) -> None:
        self.by_probes_s = 0.0
        self._process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self._line() != "ready":
            raise LabError("what times forks does not start")

    def longest_s(self) -> float:
        """The longest since the last call. `by_probes_s` is then how long one waited for probes put in or taken out, at most."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        longest_us, by_probes_us = map(int, self._line().split())
        self.by_probes_s = by_probes_us / 1e6
        return longest_us / 1e6

    def end(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@contextmanager
def forks(folder: Path) -> Iterator[Forks]:
    """Time forks. The program is built in `folder`."""
    program = folder / "forker"
    probing = Forks(program if program.exists() else build_program("forker.c", program))
    try:
        yield probing
    finally:
        probing.end()


@contextmanager
def mappings(folder: Path, library: Path, offset: int, processes: int, stays_s: int = 60) -> Iterator[None]:
    """Another user maps one page of a library as often as he may, in some processes."""
    program = folder / "mapper"
    if not program.exists():
        build_program("mapper.c", program)
    words = [str(program), str(library), str(offset & ~4095), str(MOST_MAPPINGS), str(stays_s)]
    started = [
        subprocess.Popen(words, stdout=subprocess.PIPE, text=True, user=SOMEBODY, group=SOMEBODY)
        for _ in range(processes)
    ]
    try:
        for one in started:
            if one.stdout is None or one.stdout.readline() != "ready\n":
                raise LabError("another user cannot map the library: are all folders above it his to enter?")
        yield
    finally:
        for one in started:
            one.kill()
        for one in started:
            one.wait()


def offset_of(library: Path, function: str) -> int:
    """Where a function is in a library as small as ours: in the file as in memory."""
    lines = run("nm", "-D", library).splitlines()
    return next(int(line.split()[0], 16) for line in lines if line.endswith(f" {function}"))


class Holder:
    """A process of another user that maps a library, and a file server of his, that stops answering, with its memory in hand.

    Whoever puts a probe into the library waits for that memory, and with it every fork of the host. `folder` is one that he may enter.
    """

    def __init__(self, folder: Path, library: Path) -> None:
        self.served = folder / "served"
        self.served.mkdir(exist_ok=True)
        data, program = folder / "data.bin", folder / "silent"
        data.write_bytes(os.urandom(65536))
        run("cc", "-O1", "-pthread", "-o", program, PROGRAMS / "silent.c")
        command = [sys.executable, str(PROGRAMS / "fuse.py"), str(self.served), str(data), "whole", str(SOMEBODY)]
        self.server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        _expect(self.server, "ready")
        # Whatever goes wrong, the host does not stand still for long: this ends the server without a fork.
        end = "import os,sys,time,signal; time.sleep(20); os.kill(int(sys.argv[1]), signal.SIGKILL)"
        self.last_resort = subprocess.Popen([sys.executable, "-c", end, str(self.server.pid)])
        self.process = subprocess.Popen(
            [str(program), str(self.served / "data.bin"), "lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={"LD_PRELOAD": str(library)}, user=SOMEBODY,
        )  # fmt: skip
        _expect(self.process, "ready")

    def hold(self) -> None:
        """From now on."""
        self.server.send_signal(signal.SIGSTOP)
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        _expect(self.process, "holds")

    def end(self) -> None:
        """End the processes; safe to call twice."""
        for process in (self.server, self.process, self.last_resort):
            process.kill()
        for process in (self.server, self.process, self.last_resort):
            process.wait()


def _expect(process: subprocess.Popen[str], word: str) -> None:
    said = process.stdout.readline().strip() if process.stdout is not None else ""
    if said != word:
        raise LabError(f"{process.args!r} said {said!r} in place of {word!r}")


@contextmanager
def holder(folder: Path, library: Path) -> Iterator[Holder]:
    """One that does not hold yet."""
    one = Holder(folder, library)
    try:
        yield one
    finally:
        one.end()
        subprocess.run(["umount", "-l", one.served], check=True)
