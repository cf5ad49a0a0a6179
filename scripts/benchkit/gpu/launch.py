"""The ranks of a training on the GPUs of this host, as torchrun would start them; all are gone at the end."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from labkit.machine.shell import LabError, python

START_S = 240.0
_CUDA = "import torch; print(torch.version.cuda or '-', torch.cuda.device_count(), torch.__version__)"


def devices_of_torch() -> tuple[str, int, str]:
    """CUDA's version ('-' where there is none), how many GPUs PyTorch finds, PyTorch's version; LabError without PyTorch."""
    done = subprocess.run([python(), "-I", "-c", _CUDA], capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError("PyTorch is not installed here", "Run scripts/setup --lab.")
    cuda, devices, version = done.stdout.split()
    return cuda, int(devices), version


def names_of_gpus() -> list[str]:
    """What the GPUs of this host are, in NVML's order."""
    done = subprocess.run(
        ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, check=False
    )
    return done.stdout.splitlines()


@contextlib.contextmanager
def ranks_of(
    script: Path, words: Sequence[str | Path], count: int, log: Path, gpu: int | None, shared: bool = False
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """`count` processes of a script, each the leader of a process group.

    gpu: the only one that they see, as NVML counts; None: all. shared: they use it over NCCL, which refuses two ranks of one
    host on one GPU: each tells it that it is a host of its own, and messages go over sockets of the loopback interface.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # fmt: skip
    if gpu is not None:
        environment["CUDA_VISIBLE_DEVICES"] = str(gpu)
    if shared:
        environment |= {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
    processes: list[subprocess.Popen[bytes]] = []
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # nothing is to stay behind
    try:
        with log.open("wb") as file:
            for rank in range(count):
                own = {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}
                if shared:
                    own["NCCL_HOSTID"] = f"host-of-rank-{rank}"
                processes.append(
                    subprocess.Popen(
                        [python(), script, *words], env=own, stdout=file, stderr=file, stdin=subprocess.DEVNULL,
                        start_new_session=True,
                    )
                )  # fmt: skip
        yield processes
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_for_lines(paths: Sequence[Path], processes: Sequence[subprocess.Popen[bytes]], log: Path) -> None:
    """Until every rank has written ten lines, one per step."""
    deadline = time.monotonic() + START_S
    while not all(path.exists() and path.read_bytes().count(b"\n") >= 10 for path in paths):
        if time.monotonic() > deadline or any(process.poll() is not None for process in processes):
            said = log.read_text(errors="replace").strip()[-600:]
            raise LabError("the training job does not start", said or "It says nothing.")
        time.sleep(0.2)
