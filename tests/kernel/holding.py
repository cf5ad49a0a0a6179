"""Who holds up every fork of this host: a user whose own file server holds his memory, while a file that he maps gets a probe."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from chaoskit.job import PROGRAMS
from labkit.machine.shell import run
from rankscope.probes import warden
from rankscope.probes.bpf import loader
from rankscope.probes.bpf.functions import uprobes
from rankscope.probes.bpf.functions.uprobes import TRACE_UPROBE_MULTI
from rankscope.probes.calls import probe as calls
from rankscope.probes.calls.programs import programs
from rankscope.probes.calls.table import CallRow

TABLE = (CallRow("librslab", "rs_lab_call", "call", "wait", 1),)
# A guard of the host sees it after a second, and has to see the same thread wait three times. The holder ends by himself after 20.
ENDED_S = (warden.LOOKS + 6) * warden.LOOKS_EVERY_S
LIBRARY = "int rs_lab_call(int n) { return n + 3; }\n"


@contextlib.contextmanager
def place() -> Iterator[Path]:
    """A folder with the library, the program that holds its memory, and what its file server serves."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    try:
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-o", folder / "librslab.so", "-xc", "-"], input=LIBRARY, text=True, check=True
        )
        run("cc", "-O1", "-pthread", "-o", folder / "silent", PROGRAMS / "silent.c")
        (folder / "served").mkdir()
        (folder / "data.bin").write_bytes(os.urandom(65536))
        yield folder
    finally:
        shutil.rmtree(folder)


class Holder:
    """A process of another user that has the library mapped, and a file server of his that stops answering."""

    def __init__(self, folder: Path) -> None:
        served = folder / "served"
        self.server = subprocess.Popen(
            [sys.executable, str(PROGRAMS / "fuse.py"), str(served), str(folder / "data.bin"), "whole", "65534"],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.server.stdout is not None
        assert self.server.stdout.readline().strip() == "ready"
        # Whatever goes wrong here, the host does not stand still for long: this ends the server without a fork.
        end = "import os,sys,time,signal; time.sleep(20); os.kill(int(sys.argv[1]), signal.SIGKILL)"
        self.last_resort = subprocess.Popen([sys.executable, "-c", end, str(self.server.pid)])
        self.process = subprocess.Popen(
            [str(folder / "silent"), str(served / "data.bin"), "lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, env={"LD_PRELOAD": str(folder / "librslab.so")}, user=65534,
        )  # fmt: skip
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == "ready"

    def hold(self) -> None:
        self.server.send_signal(signal.SIGSTOP)
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline().strip() == "holds"

    def end(self) -> None:
        for process in (self.server, self.process, self.last_resort):
            process.kill()
        for process in (self.server, self.process, self.last_resort):
            process.wait()


@contextlib.contextmanager
def holder(folder: Path) -> Iterator[Holder]:
    """One that does not hold yet."""
    one = Holder(folder)
    try:
        yield one
    finally:
        one.end()
        subprocess.run(["umount", "-l", folder / "served"], check=True)


def place_of_function(library: Path) -> int:
    """Where the function is in the file is where it is in memory, in a library as small as this."""
    symbols = subprocess.run(["nm", "-D", library], capture_output=True, text=True, check=True).stdout.splitlines()
    return next(int(line.split()[0], 16) for line in symbols if line.endswith(" rs_lab_call"))


def unguarded_probe_s() -> float:
    """How long a probe that nothing in this process guards is put in while somebody holds his memory, and forks wait; then one is made."""
    module = loader.load([calls.SOURCE], defines={"RS_RING_PAGES": 64}, generated=programs(TABLE))
    try:
        with place() as folder, holder(folder) as one:
            library = folder / "librslab.so"
            offset, program = place_of_function(library), module.program("rs_enter_0", attach_type=TRACE_UPROBE_MULTI)
            one.hold()
            began_s = time.monotonic()
            links = uprobes.attach_many(program.fd, library, [offset])
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
            took_s = time.monotonic() - began_s
            module.held.update(links)
            module.release(links)
            return took_s
    finally:
        module.close()
