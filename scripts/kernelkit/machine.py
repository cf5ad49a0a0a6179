"""Boot a kernel in the emulator, read its console, and end it by its deadline."""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelkit.architecture import Architecture
from kernelkit.archive import Fetched
from kernelkit.initial import SHARE, initial
from kernelkit.lines import Check, Console
from labkit.machine.shell import LabError

_MOST_BYTES = 8 << 20  # of the console
_PAUSE_S = 1.0


@dataclass(frozen=True, slots=True)
class Booted:
    """How a boot went. `ended`: empty where the guest switched itself off; else why not, with the end of its console."""

    checks: tuple[Check, ...]
    seconds: float
    ended: str = ""


def needed(machine: Architecture) -> None:
    """Raise LabError where this host cannot emulate the machine."""
    for what, package in ((machine.emulator, machine.emulator_package), ("modprobe", "kmod"), ("depmod", "kmod")):
        if shutil.which(what) is None:
            raise LabError(f"{what} is not installed", f"apt-get install {package}, or scripts/setup --lab.")
    if not machine.busybox.is_file():
        raise LabError(f"there is no {machine.busybox}", "apt-get install busybox-static, or scripts/setup --lab.")
    if not machine.python_on_host.exists():
        raise LabError(f"no Python at {machine.python_on_host}", "Run scripts/setup --lab.")


def boot(
    kernel: Fetched, machine: Architecture, arguments: Sequence[str], deadline_s: float, heard: Callable[[Check], None]
) -> Booted:
    """Run kernelkit.guest with `arguments` on this kernel. `heard` is called with each check as it arrives."""
    start = str(machine.repository / "scripts/start.py")
    command = [str(machine.python), start, "kernelkit.guest", *arguments]
    modules = {path.name: path.read_bytes() for path in kernel.modules()}
    content = initial(machine.busybox.read_bytes(), modules, command)
    began = time.monotonic()
    console, checks, ended = Console(), list[Check](), ""
    with tempfile.TemporaryDirectory(prefix="rankscope-kernels-") as folder:
        path = Path(folder, "initial.gz")
        path.write_bytes(content)
        with _running(_words(kernel, machine, path)) as process:
            total = 0
            for piece in _output(process, began + deadline_s):
                total += len(piece)
                for check in console.feed(piece):
                    checks.append(check)
                    heard(check)
                if total > _MOST_BYTES:
                    ended = "it printed too much"
                    break
                if console.stuck:
                    ended = "a CPU of it does not answer any more"
                    break
            else:
                if process.poll() is None:
                    ended = f"it was not done after {deadline_s:.0f} s"
                elif process.returncode:
                    ended = f"the emulator ended with {process.returncode}"
    if ended:
        ended += "".join(f"\n    | {line}" for line in console.trace or console.plain[-8:])
    return Booted(tuple(checks), time.monotonic() - began, ended)


def _words(kernel: Fetched, machine: Architecture, initial_path: Path) -> list[str]:
    quiet = f"console={machine.console} quiet loglevel=5 panic=1 mitigations=off"
    share = f"local,path={machine.root},mount_tag={SHARE},security_model=none,readonly=on,multidevs=remap"
    return [
        machine.emulator, *machine.machine, "-nographic", "-no-reboot", "-nic", "none", "-kernel", str(kernel.image),
        "-initrd", str(initial_path), "-append", quiet, "-virtfs", share,
    ]  # fmt: skip


@contextlib.contextmanager
def _running(words: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Start the emulator in a group of its own and end all of that group; the kernel ends it with this process, however that ends."""
    with subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _output(process: subprocess.Popen[bytes], until: float) -> Iterator[bytes]:
    """Yield what the process prints until it ends or the time (CLOCK_MONOTONIC, s) is up."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as waiting:
        waiting.register(process.stdout, selectors.EVENT_READ)
        while (left := until - time.monotonic()) > 0:
            if not waiting.select(min(left, _PAUSE_S)):
                continue
            piece = os.read(process.stdout.fileno(), 1 << 16)
            if not piece:
                process.wait(timeout=10)
                return
            yield piece
