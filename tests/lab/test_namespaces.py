"""A job in its own mount, pid and network namespaces looks the same from outside as one without."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pyarrow.parquet as pq
from labsupport import PLAIN_JOB, rankscope, trains

RANKS, SLOW_RANK = 2, 1
WINDOW_S = 10.0
# The two jobs share two cores and are not in step with each other, so their profiles may differ by a tenth of the time.
MOST_APART = 0.10
# Of about 500 samples at most one in a thousand may fail: 3 is the 99.8 % quantile of Poisson(0.5).
MOST_FAILED = 3
INSIDE, OUTSIDE = 29871, 29873  # ports, which name the jobs; outside the range from which the kernel hands them out
_ISOLATED = ["unshare", "--mount", "--pid", "--fork", "--net", "--kill-child", "--mount-proc"]
_WAIT_S = 90.0


@contextmanager
def job(port: int, isolated: bool) -> Iterator[Callable[[], list[int]]]:
    """A DDP job; yields what waits until it trains, for the host pids of its ranks."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS)]
    command += ["--master-addr", "127.0.0.1", "--master-port", str(port), str(PLAIN_JOB), "120", str(SLOW_RANK)]
    if isolated:
        command = [*_ISOLATED, "sh", "-c", 'ip link set lo up && exec "$@"', "job", *command]
    launcher = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        start_new_session=True,
    )
    try:
        yield lambda: _wait_until_it_trains(launcher)
    finally:
        below = descendants(launcher.pid)
        os.killpg(launcher.pid, signal.SIGKILL)
        for pid in below:  # torchrun gives each rank a session of its own
            if Path(f"/proc/{pid}").exists():
                os.kill(pid, signal.SIGKILL)
        launcher.wait()


def _wait_until_it_trains(launcher: subprocess.Popen[bytes]) -> list[int]:
    deadline = time.monotonic() + _WAIT_S
    while time.monotonic() < deadline:
        assert launcher.poll() is None, "the job ended before it trained"
        ranks = [pid for pid in descendants(launcher.pid) if _is_rank(pid)]
        if len(ranks) == RANKS and all(trains(pid) for pid in ranks):
            return ranks
        time.sleep(0.3)
    raise AssertionError("the job did not begin to train")


def descendants(pid: int) -> list[int]:
    """All processes below `pid`, by host pid."""
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _is_rank(pid: int) -> bool:
    try:
        words = psutil.Process(pid).cmdline()
    except psutil.NoSuchProcess:  # or a zombie, which is one of these
        return False
    return str(PLAIN_JOB) in words and "torch.distributed.run" not in words


def profile(folder: Path) -> Counter[tuple[str, str]]:
    """Share of the training thread's critical path by kind and function, over all ranks."""
    counts: Counter[tuple[str, str]] = Counter()
    for row in pq.read_table(folder / "patterns.parquet").to_pylist():
        if row["thread"] == "training":
            counts[row["kind"], row["name"]] += row["beta"]
    total = sum(counts.values())
    return Counter({function: beta / total for function, beta in counts.items()})


def namespace(pid: int, kind: str) -> str:
    return str(Path(f"/proc/{pid}/ns/{kind}").readlink())


def test_a_job_in_its_own_namespaces_has_the_same_patterns_as_outside_them(tmp_path: Path) -> None:
    assert shutil.which("unshare")
    with ExitStack() as jobs:
        starting = [jobs.enter_context(job(port, isolated=port == INSIDE)) for port in (INSIDE, OUTSIDE)]
        inside, outside = (wait() for wait in starting)
        for kind in ("mnt", "pid", "net"):
            assert namespace(inside[0], kind) != namespace(os.getpid(), kind)
            assert namespace(outside[0], kind) == namespace(os.getpid(), kind)
        time.sleep(3)
        # Both in one window: whatever else this machine does meanwhile, it does to both.
        pids = [word for pid in (*inside, *outside) for word in ("--pid", str(pid))]
        done = rankscope("record", "--out", str(tmp_path), "--window", f"{WINDOW_S:g}", *pids)
        assert done.returncode == 0, done.stderr

    folders = {
        port: next(path for path in tmp_path.iterdir() if path.name.endswith(str(port))) for port in (INSIDE, OUTSIDE)
    }
    for port, pids_of_job in ((INSIDE, inside), (OUTSIDE, outside)):
        ranks = pq.read_table(folders[port] / "ranks.parquet").to_pylist()
        assert [rank["rank"] for rank in ranks] == list(range(RANKS))
        assert sorted(rank["pid"] for rank in ranks) == sorted(pids_of_job)
        assert {rank["stack_source"] for rank in ranks} == {"bpf"}
        assert sum(rank["samples"] for rank in ranks) > 50
        assert sum(rank["failed_samples"] for rank in ranks) <= MOST_FAILED
        assert all((rank["inner_pid"] == rank["pid"]) is (port == OUTSIDE) for rank in ranks)
        assert pq.read_table(folders[port] / "steps.parquet").num_rows > 40
        assert pq.read_table(folders[port] / "collectives.parquet").num_rows > 80
        assert pq.read_table(folders[port] / "flows.parquet").num_rows > 0
    one, other = profile(folders[INSIDE]), profile(folders[OUTSIDE])
    assert {function for function, share in one.items() if share > 0.1 and function[0] != "sched"} >= {
        ("python", "main"), ("python", "tokenize")
    }  # fmt: skip
    apart = sum(abs(one[function] - other[function]) for function in one.keys() | other.keys()) / 2
    assert apart <= MOST_APART, (apart, one.most_common(8), other.most_common(8))
