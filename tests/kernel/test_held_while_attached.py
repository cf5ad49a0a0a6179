"""A user who holds the lock of an address space in which the observed file is mapped keeps neither the observer nor the host waiting."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import holding
import pytest
from holding import TABLE, Holder

from campaignkit.chaos.job import PROGRAMS
from rankscope.probes.bpf import loader, warden
from rankscope.probes.bpf.functions.uprobes import MappedByOthers
from rankscope.probes.bpf.module import Module
from rankscope.probes.calls import probe as calls
from rankscope.probes.calls.programs import programs

pytestmark = pytest.mark.beside(ranks=False)

SLOWEST_S = (warden.LOOKS + 4) * warden.LOOKS_EVERY_S


@pytest.fixture
def module() -> Iterator[Module]:
    loaded = loader.load([calls.SOURCE], defines={"RS_RING_PAGES": 64}, generated=programs(TABLE))
    yield loaded
    loaded.close()


@pytest.fixture
def place() -> Iterator[Path]:
    with holding.place() as folder:
        yield folder


@pytest.fixture
def holder(place: Path) -> Iterator[Holder]:
    with holding.holder(place) as one:
        yield one


def _attach(module: Module, library: Path) -> None:
    offsets = [holding.place_of_function(library)]
    module.held.update(module.attach_functions("rs_enter_0", library, offsets, {}, on_return=False))


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


def test_without_a_guard_a_file_that_two_users_map_gets_no_probe(
    module: Module, place: Path, holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN an observer that may not cut anybody off, a guard that is not there, and a second user with the library
    monkeypatch.setattr(warden, "able", lambda: False)
    monkeypatch.setattr(warden, "PLACE", place / "guard")
    env = {"LD_PRELOAD": str(place / "librslab.so")}
    library = os.open(place / "librslab.so", os.O_PATH)
    path = Path(f"/proc/self/fd/{library}")
    other = subprocess.Popen(["sleep", "60"], env=env, user=65533)
    try:
        time.sleep(0.3)
        holder.hold()
        # WHEN a probe is to be put in, THEN it is left alone, and forks go on
        began = time.monotonic()
        with pytest.raises(MappedByOthers, match="users 65533, 65534 map it"):
            module.attach_functions(
                "rs_enter_0", path, [holding.place_of_function(place / "librslab.so")], {}, on_return=False
            )
        assert time.monotonic() - began < SLOWEST_S
        # AND where only one user has it, it gets one
        holder.end()
        module.held.update(
            module.attach_functions(
                "rs_enter_0", path, [holding.place_of_function(place / "librslab.so")], {}, on_return=False
            )
        )
    finally:
        other.kill()
        other.wait()
        os.close(library)
