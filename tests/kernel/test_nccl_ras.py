"""RAS is asked inside the network namespace of the job; whoever listens there cannot keep us, nor make us read for ever."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rankscope.probes.nccl import ras as nccl_ras
from rankscope.probes.nccl.ras import RasSilence
from rankscope.probes.nccl.ras_answer import RasAnswer

pytestmark = pytest.mark.beside(ranks=False)

# Speaks as NCCL's src/ras/client_support.cc does: a line per command, then the status, then it closes.
SERVER = """
    import socket, subprocess, sys, time
    mode, answer = sys.argv[1], open(sys.argv[2], "rb").read()
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    if mode == "absent": print("ready", flush=True); time.sleep(60)
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(("127.0.0.1", 28028)); listener.listen(64)
    print("ready", flush=True)
    while True:
        peer, _ = listener.accept()
        try:
            if mode == "mute": time.sleep(60)
            if mode == "garbage": peer.sendall(bytes(range(256)) * 64); peer.close(); continue
            stream = peer.makefile("rb")
            for line in stream:
                command = line.decode().strip().lower()
                if command.startswith("client protocol"): peer.sendall(b"SERVER PROTOCOL 2\\n")
                elif command.startswith("timeout "): peer.sendall(b"OK\\n")
                elif command.startswith("set format ") and mode != "old": peer.sendall(b"OK\\n")
                elif command == "verbose status": break
                else: peer.sendall(b"ERROR: Unknown command\\n")
            if mode == "slow":
                for byte in answer: peer.sendall(bytes([byte])); time.sleep(0.05)
            if mode == "cut": answer = answer[:len(answer) // 2]
            peer.sendall(answer)
            stream.close(); peer.close()
        except OSError:
            pass
"""
TEXT = """NCCL version 2.27.7+cuda12.9 compiled with CUDA 12.9

Warnings
========

#0-0 (cf264af53edbe986) MISMATCH
  Communicator ranks have different AllReduce operation counts
  31 ranks have launched up to operation 36
  Rank 7 has launched up to operation 35 -- GPU 0 (NVML 7) managed by process 98217 on node 172.16.64.210

"""
COUNTS = {"collective_counts": {"AllReduce": 37}}
RANKS = [{"rank": n, "host": "10.0.0.1", "pid": 9001 + n, "cuda_dev": 0, "nvml_dev": n, **COUNTS} for n in range(7)]
JSON = json.dumps({"nccl_version": "2.28.9", "communicators": [{"hash": "0x1f", "size": 7, "ranks": RANKS}]})
Job = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """Starts a listener in a network namespace of its own, or in that of `beside`."""
    started: list[subprocess.Popen[str]] = []

    def start(mode: str, answer: str = JSON, beside: int = 0) -> subprocess.Popen[str]:
        (tmp_path / "server.py").write_text(textwrap.dedent(SERVER))
        (tmp_path / f"answer{len(started)}").write_text(answer)
        enter = ["nsenter", f"--net=/proc/{beside}/ns/net"] if beside else ["unshare", "--net"]
        command = [*enter, sys.executable, tmp_path / "server.py", mode, tmp_path / f"answer{len(started)}"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_json_where_the_job_offers_it(job: Job) -> None:
    answer = nccl_ras.ask(job("new").pid)
    assert isinstance(answer, RasAnswer) and answer.whole
    assert [place.pid for place in answer.communicators[0].ranks] == [9001 + n for n in range(7)]


def test_text_from_a_job_that_knows_no_formats(job: Job) -> None:
    answer = nccl_ras.ask(job("old", TEXT).pid)
    assert isinstance(answer, RasAnswer) and not answer.whole
    assert [place.pid for group in answer.communicators[0].behind() for place in group.who] == [98217]


@pytest.mark.parametrize(
    ("mode", "answer", "expected"),
    [
        ("absent", JSON, "nothing listens"),
        ("garbage", JSON, "something other than RAS"),
        ("mute", JSON, "does not answer"),
        ("slow", JSON, "does not answer"),
        ("cut", JSON, "not JSON"),
        ("new", "Segmentation fault\n", "could not be read"),
    ],
)
def test_what_is_no_answer_is_a_reason_in_time(job: Job, mode: str, answer: str, expected: str) -> None:
    pid = job(mode, answer).pid
    start = time.monotonic()
    found = nccl_ras.ask(pid, limit_s=1.5)
    assert time.monotonic() - start < 3.0
    assert isinstance(found, RasSilence) and expected in found.reason


def test_a_stopped_process_of_the_job_is_passed_over(job: Job) -> None:
    alive = job("new")
    os.kill(job("new", beside=alive.pid).pid, signal.SIGSTOP)
    # The kernel gives each connection to one of the two by its port: both are met in some attempts.
    assert sum(isinstance(nccl_ras.ask(alive.pid), RasAnswer) for _ in range(5)) >= 3


def test_a_process_that_has_ended_is_a_reason(job: Job) -> None:
    process = job("new")
    process.kill()
    process.wait()
    found = nccl_ras.ask(process.pid)
    assert isinstance(found, RasSilence) and "no such process" in found.reason
