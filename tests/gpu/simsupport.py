"""What the tests of the emulated GPU machine share: processes that use it, and looks at it from outside."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from labkit.gpu.sim.sim import Machine

REPOSITORY = Path(__file__).resolve().parents[2]

PRELUDE = """
import ctypes, json, os, sys, time
from ctypes import byref, c_double, c_int, c_size_t, c_void_p
rt, nccl = ctypes.CDLL("libcudart.so.12"), ctypes.CDLL("libnccl.so.2")
class Dim3(ctypes.Structure):
    _fields_ = [("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint)]
class Id(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]
rt.cudaLaunchKernel.argtypes = (c_void_p, Dim3, Dim3, c_void_p, c_size_t, c_void_p)
rt.cudaMemcpyAsync.argtypes = (c_void_p, c_void_p, c_size_t, c_int, c_void_p)
rt.cudaStreamSynchronize.argtypes = rt.cudaStreamQuery.argtypes = (c_void_p,)
nccl.ncclCommInitRank.argtypes = (c_void_p, c_int, Id, c_int)
nccl.ncclAllReduce.argtypes = (c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p)
nccl.ncclSend.argtypes = nccl.ncclRecv.argtypes = (c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p)
def kernel(seconds, stream=None):
    work = c_double(seconds)
    arguments = (c_void_p * 1)(ctypes.addressof(work))
    return rt.cudaLaunchKernel(b"k", Dim3(1, 1, 1), Dim3(1, 1, 1), arguments, 0, stream)
def stream():
    made = c_void_p()
    assert rt.cudaStreamCreate(byref(made)) == 0
    return made
def communicator(rank, size, name):
    path = os.environ["GPUSIM_STATE"] + "." + name
    if rank == 0:
        mine = Id()
        assert nccl.ncclGetUniqueId(byref(mine)) == 0
        open(path + ".part", "wb").write(bytes(mine))
        os.rename(path + ".part", path)
    while not os.path.exists(path):
        time.sleep(0.005)
    comm = c_void_p()
    assert nccl.ncclCommInitRank(byref(comm), size, Id.from_buffer_copy(open(path, "rb").read()), rank) == 0
    return comm
def all_reduce(comm, bytes_, stream=None):
    return nccl.ncclAllReduce(None, None, bytes_ // 4, 7, 0, comm, stream)
def tell(**values):
    print(json.dumps(values), flush=True)
assert rt.cudaSetDevice(0) == 0
"""


def start(machine: Machine, rank: int, program: str) -> subprocess.Popen[str]:
    """A process on the GPU of `rank`; it tells values by lines of JSON."""
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(program)],
        env=os.environ | machine.job_environment(rank),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def told(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The next values a process tells."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"the process ended ({process.wait(5)}) before it told anything"
    values: dict[str, Any] = json.loads(line)
    return values


def finish(process: subprocess.Popen[str], timeout: float = 20) -> dict[str, Any]:
    """Its last values, after it has ended well."""
    out, _ = process.communicate(timeout=timeout)
    assert process.returncode == 0
    values: dict[str, Any] = json.loads(out.splitlines()[-1]) if out else {}
    return values


@contextlib.contextmanager
def ranks(machine: Machine, numbers: range, program: str) -> Iterator[list[subprocess.Popen[str]]]:
    """One process per rank, `rank` and `size` defined in the program; all are dead afterwards."""
    started = [
        start(machine, rank, f"rank, size = {rank}, {len(numbers)}\n" + textwrap.dedent(program)) for rank in numbers
    ]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def observe(machine: Machine, program: str, timeout: float = 60) -> Any:
    """What a Python program prints as JSON when it runs as an observer of the machine."""
    words = [sys.executable, "-c", "import json, os, sys\nimport pynvml as nvml\n" + textwrap.dedent(program)]
    done = subprocess.run(machine.observer_command(words), capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def eventually(condition: Any, seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def words_of(machine: Machine, nic: int) -> int:
    """port_xmit_data of a NIC: words of four bytes."""
    path = machine.sys / f"class/infiniband/mlx5_{nic}/ports/1/counters/port_xmit_data"
    return int(path.read_text())
