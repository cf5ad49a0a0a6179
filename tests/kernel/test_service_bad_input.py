"""Whatever goes wrong around it at once, `rankscope watch` goes on, says each trouble in a line, and harms no job."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import service_log
from installed import RANKSCOPE

pytestmark = pytest.mark.apart  # it counts all jobs of the host, and all complaints about them

JOBS = 64
_LIBRARY = "int _ZN4gloo9allreduceERNS_16AllreduceOptionsE(int n) { return n; }\n"
_RANK = """
#include <stdio.h>
#include <unistd.h>
int _ZN4gloo9allreduceERNS_16AllreduceOptionsE(int);
int main(void) { for (;;) { _ZN4gloo9allreduceERNS_16AllreduceOptionsE(3); usleep(100000); } }
"""


def build(folder: Path) -> Path:
    """A process that the census takes for a rank, and that costs next to nothing."""
    library, program = folder / "libtorch_cpu.so", folder / "rank"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, "-xc", "-"], input=_LIBRARY, text=True, check=True)
    command = ["cc", "-o", program, "-xc", "-", "-xnone", library, f"-Wl,-rpath,{folder}"]
    subprocess.run(command, input=_RANK, text=True, check=True)
    return program


def rank(program: Path, port: int, world_size: int = 1) -> subprocess.Popen[bytes]:
    """One of a job of its own, which its port names."""
    about = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "10.0.0.9",
        "MASTER_PORT": str(port),
    }
    return subprocess.Popen([program], env=os.environ | about)


@contextmanager
def full_disk(place: Path) -> Iterator[None]:
    """A file system on which nothing more can be written."""
    place.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", place], check=True)
    try:
        with (place / "filler").open("wb", buffering=0) as filler:
            while True:
                try:
                    filler.write(bytes(4096))
                except OSError:
                    break
        yield
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class Service:
    """What it says until now."""

    def __init__(self, folder: Path, *options: str | Path) -> None:
        self.said, self.errors = folder / "said", folder / "stderr"
        self.process = subprocess.Popen(
            [RANKSCOPE, "watch", "--json", "--no-routine", *options],
            stdout=self.said.open("wb"), stderr=self.errors.open("wb"),
        )  # fmt: skip

    def count(self) -> Counter[str]:
        """Jobs that each kind of event was about."""
        told = service_log.events(self.said)
        return Counter(kind for kind, _ in {(event["kind"], event["job"]) for event in told})

    def wait_for(self, kind: str, count: int, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while self.count()[kind] < count:
            assert self.process.poll() is None, self.errors.read_text()
            assert time.monotonic() < deadline, f"{self.count()} {self.errors.read_text()}"
            time.sleep(0.1)


def test_a_service_goes_on_whatever_goes_wrong_around_it(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    program, state = build(tmp_path), tmp_path / "state"
    store = f"s3://key:secret@windows/x?endpoint_override=127.0.0.1:{closed_port()}&scheme=http&region=us-east-1"
    with full_disk(state), socket.socket() as taken, ExitStack() as closing:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ranks = [rank(program, 21_000 + job, world_size=1 + (job == 0)) for job in range(JOBS)]
        service = Service(
            tmp_path, "--state", state, "--history", state / "history", "--metrics", state / "watch.prom", "--out", store,
            "--spool", tmp_path / "spool", "--metrics-port", str(taken.getsockname()[1]),
        )  # fmt: skip
        closing.callback(lambda: [(one.kill(), one.wait()) for one in (*ranks, service.process)])
        service.wait_for("job", JOBS)

        for one in ranks[1 : JOBS // 2]:  # none of it is a reason to end
            one.terminate()
        service.process.send_signal(signal.SIGHUP)
        more = [rank(program, 22_000 + job) for job in range(8)]
        ranks += more
        service.wait_for("job", JOBS + 8)
        for one in more:
            one.terminate()
        service.wait_for("gone", JOBS // 2 - 1 + 8)
        service.wait_for("note", 1)  # the store is away
        assert [one.poll() for one in (ranks[0], *ranks[JOBS // 2 : JOBS])] == [None] * (JOBS // 2 + 1)
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(20) == 0
    complaints = service.errors.read_text().splitlines()
    assert all(line.startswith("rankscope: ") for line in complaints), complaints
    for word in ("no metrics", "log cannot be written", "black box cannot be written"):
        assert sum(word in line for line in complaints) == 1, complaints
    assert len(complaints) <= 8 and "secret" not in service.errors.read_text() + service.said.read_text(), complaints


def test_after_a_kill_the_next_service_knows_the_jobs_and_loses_no_line(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    program, state = build(tmp_path), tmp_path / "state"
    with rank(program, 23_000) as one:
        try:
            for start in (1, 2):
                service = Service(tmp_path, "--state", state, "--history", tmp_path / "history")
                service.wait_for("job", 1)
                service.process.kill()
                service.process.wait()
                kept = [json.loads(line)["kind"] for line in (state / "events.jsonl").read_text().splitlines()]
                assert kept.count("started") == kept.count("job") == start
            assert one.poll() is None
        finally:
            one.kill()
