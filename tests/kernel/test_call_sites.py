"""Calls that mark steps keep where in the Python code they were made."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from watching import HZ, Watched

from rankscope.observer.live import kernel_probes
from rankscope.probes.bpf import ring

pytestmark = pytest.mark.beside(ranks=False)

# A library whose name and function stand in the call table, called from two lines in a known rhythm: 97 times, and every tenth time.
LIBRARY = "int MPI_Barrier(void *communicator) { return communicator != 0; }\n"
PROGRAM = """
import ctypes, sys, time
barrier = ctypes.CDLL(sys.argv[1]).MPI_Barrier
print("ready", flush=True)
sys.stdin.readline()
def train():
    for step in range(97):
        time.sleep(0.005)
        barrier(1)
        if step % 10 == 0:
            barrier(2)
train()
sys.stdin.readline()
"""


def test_calls_from_two_lines_are_told_apart(program: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    (tmp_path / "mpi.c").write_text(LIBRARY)
    library = tmp_path / "libmpi.so.40"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "mpi.c")], check=True)
    process = program(PROGRAM, str(library))
    probes = kernel_probes.load(hz=HZ)
    try:
        probes.calls.watch([process.pid])
        one = Watched(probes, process)
        one.go()
        events = one.observe(1.5)
        calls = events[events["type"] == ring.CALL]
        assert len(calls) == 97 + 10
        assert (calls["ready_ns"] != 0).all()
        assert sorted(Counter(calls["ready_ns"].tolist()).values()) == [10, 97]
        usual, rare = (one.watch.name_stack(probes.stack(stack)) for stack in np.unique(calls["ready_ns"]).tolist())
        assert usual.name == rare.name == "train"
        assert usual.site != rare.site
        assert usual.site and rare.site
        one.close()
    finally:
        probes.close()
