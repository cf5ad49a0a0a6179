"""A user who holds the lock of an address space in which the observed file is mapped keeps neither the observer nor the host waiting."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaoskit.job import PROGRAMS
from labkit.machine.shell import run
from rankscope.probes import warden
from rankscope.probes.bpf import loader
from rankscope.probes.bpf.module import Module
from rankscope.probes.calls import probe as calls
from rankscope.probes.calls.programs import programs
from rankscope.probes.calls.table import CallRow

pytestmark = pytest.mark.beside

TABLE = (CallRow("librslab", "rs_lab_call", "call", "wait", 1),)
LIBRARY = "int rs_lab_call(int n) { return n + 3; }\n"
SLOWEST_S = (warden.LOOKS + 4) * warden.LOOKS_EVERY_S


@pytest.fixture
def module() -> Iterator[Module]:
    loaded = loader.load([calls.SOURCE], defines={"RS_RING_PAGES": 64}, generated=programs(TABLE))
    yield loaded
    loaded.close()


@pytest.fixture
def place() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", folder / "librslab.so", "-xc", "-"], input=LIBRARY, text=True, check=True
    )
    run("cc", "-O1", "-pthread", "-o", folder / "silent", PROGRAMS / "silent.c")
    (folder / "served").mkdir()
    (folder / "data.bin").write_bytes(os.urandom(65536))
    yield folder
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


@pytest.fixture
def holder(place: Path) -> Iterator[Holder]:
    one = Holder(place)
    yield one
    one.end()
    subprocess.run(["umount", "-l", place / "served"], check=True)


def _attach(module: Module, library: Path) -> None:
    """Where the function is in the file is where it is in memory, in a library as small as this."""
    symbols = subprocess.run(["nm", "-D", library], capture_output=True, text=True, check=True).stdout.splitlines()
    offset = next(int(line.split()[0], 16) for line in symbols if line.endswith(" rs_lab_call"))
    module.held.update(module.attach_functions("rs_enter_0", library, [offset], {}, on_return=False))


def test_attaching_waits_for_no_user(module: Module, place: Path, holder: Holder) -> None:
    holder.hold()
    began = time.monotonic()
    _attach(module, place / "librslab.so")
    assert time.monotonic() - began < SLOWEST_S
    forked = time.monotonic()
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    assert time.monotonic() - forked < 1


def test_a_slow_file_server_of_somebody_else_is_left_alone(module: Module, place: Path, holder: Holder) -> None:
    # GIVEN a server of a third user that leaves a reader of his waiting, and somebody who keeps the host waiting
    served = place / "slow"
    served.mkdir()
    server = subprocess.Popen(
        [sys.executable, str(PROGRAMS / "fuse.py"), str(served), str(place / "data.bin"), "whole", "65533"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None and server.stdout.readline().strip() == "ready"
        server.send_signal(signal.SIGSTOP)
        reader = subprocess.Popen(["cat", served / "data.bin"], stdout=subprocess.PIPE, user=65533)
        holder.hold()
        # WHEN a probe is put into the file
        _attach(module, place / "librslab.so")
        # THEN only the second one is cut off
        server.send_signal(signal.SIGCONT)
        assert reader.communicate(timeout=10)[0] == (place / "data.bin").read_bytes()
    finally:
        server.kill()
        server.wait()
        subprocess.run(["umount", "-l", served], check=True)


def test_detaching_waits_for_no_user_and_neither_does_a_fork(module: Module, place: Path, holder: Holder) -> None:
    _attach(module, place / "librslab.so")
    holder.hold()
    began = time.monotonic()
    module.close()
    time.sleep(1)  # a child of it takes the probe out
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    assert time.monotonic() - began < SLOWEST_S


def test_a_healthy_file_server_is_left_alone(module: Module, place: Path, holder: Holder) -> None:
    _attach(module, place / "librslab.so")
    assert warden.cut_off() == []
    module.close()
    time.sleep(3)
    assert (place / "served" / "data.bin").read_bytes() == (place / "data.bin").read_bytes()
