"""A process that the census takes for a rank, without torch: it maps a library of torch's name, calls a collective in it, and computes."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_LIBRARY = "int _ZN4gloo9allreduceERNS_16AllreduceOptionsE(int n) { return n; }\n"
_PROGRAM = """
import ctypes, os, sys, time
reduce = ctypes.CDLL(sys.argv[1])._ZN4gloo9allreduceERNS_16AllreduceOptionsE
def crunch(until):
    while time.perf_counter() < until:
        sum(range(1000))
also = [ctypes.CDLL(one) for one in os.environ.get("ALSO", "").split("|") if one]
print("ready", flush=True)
while True:
    crunch(time.perf_counter() + float(sys.argv[2]))
    reduce(3)
    open("/etc/hostname").read()
    time.sleep(float(sys.argv[3]) * float(sys.argv[2]))
"""
_JOB = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "10.0.0.9"}


@contextlib.contextmanager
def running(
    folder: Path,
    rank: int = 0,
    world_size: int = 1,
    port: int = 29771,
    work_s: float = 0.005,
    rests: int = 2,
    options: tuple[str, ...] = (),
    user: int | None = None,
    also: str = "",
    own_python: bool = False,
) -> Iterator[int]:
    """Its pid. `port`: names the job; `work_s`: in each step it computes for so long, and rests for so many times that; `options`: the
    rest of its command line; `also`: the name of another library, with the same function; `own_python`: it runs a copy of the interpreter,
    which no process of another test maps."""
    about = _JOB | {"RANK": str(rank), "WORLD_SIZE": str(world_size), "MASTER_PORT": str(port)}
    library = folder / "libtorch_cpu.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, "-xc", "-"], input=_LIBRARY, text=True, check=True)
    if also:
        about["ALSO"] = str(shutil.copy(library, folder / also))
    (folder / "train.py").write_text(_PROGRAM)
    python = os.path.realpath(sys.executable)
    if own_python:
        about["PYTHONHOME"] = sys.base_prefix
        python = shutil.copy(python, folder)
    with subprocess.Popen(
        [python, folder / "train.py", library, str(work_s), str(rests), *options],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | about,
        user=user,
        group=user,
    ) as job:
        try:
            assert job.stdout is not None and job.stdout.readline().strip() == "ready"
            yield job.pid
        finally:
            job.kill()


@contextlib.contextmanager
def job(folder: Path, port: int) -> Iterator[tuple[int, int]]:
    """The pids of two ranks of one healthy job."""
    folders = [folder / name for name in ("first", "second")]
    for one in folders:
        one.mkdir()
    # It leaves the cores to other tests.
    with contextlib.ExitStack() as running_ones:
        first, second = (
            running_ones.enter_context(running(one, rank, 2, port, 0.006, rests=9)) for rank, one in enumerate(folders)
        )
        yield first, second
