"""A job over four hosts, each recorded for itself into a spool of its own, sent to an S3 server and judged from there.

The server stands behind the switch of the lab: windows travel over the hosts' own links, the slow one's as well. One rank's function is
slow first; then that is healed, and one host's link is slow.
"""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from labkit import verdicts
from labkit.faults import ALL
from labkit.launch import Job, Plan
from labkit.machine import disk
from labkit.machine.hosts import NETNS_FOLDER, SWITCH
from labkit.machine.shell import EXIT_NOT_GOOD_ENOUGH, REPOSITORY, LabError, rankscope, run

HOSTS = 4
CASES = ("python-slow", "slow-link")
_SERVER, _PORT, _BUCKET = "198.18.0.1", 5000, "windows"
_MOTO = REPOSITORY / ".venv/s3/bin/python"  # scripts/setup --lab makes it
_SERVE = f"""
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("{_SERVER}", {_PORT}, verbose=False)
server.start()
print("ready", flush=True)
sys.stdin.read()
"""
_RECORDS_S = 60.0
_SETTLE_S = 2.5


def act(window_s: float, seed: int) -> int:
    """Both cases; 0 where each culprit was the first suspect, and all windows came through the store."""
    if not _MOTO.exists():
        raise LabError("there is no S3 server here", "Run scripts/setup --lab.")
    rng = random.Random(seed)
    plan = Plan(ranks=HOSTS, hosts=HOSTS, lone=rng.randrange(HOSTS))
    print(f"starting a job of {HOSTS} ranks on {HOSTS} hosts (network namespaces), and an S3 server …", flush=True)
    good = True
    with Job(plan, seed) as job, _serving() as environment:
        job.wait_until_healthy()
        for name in CASES:
            good &= _case(job, name, rng, window_s, environment)
            time.sleep(_SETTLE_S)
    return 0 if good else EXIT_NOT_GOOD_ENOUGH


def _case(job: Job, name: str, rng: random.Random, window_s: float, environment: Mapping[str, str]) -> bool:
    began = time.monotonic()
    time.sleep(_SETTLE_S)
    before = job.pace(began, time.monotonic())
    if before is None:
        raise LabError("a healthy rank ended no step: this host is too busy for the lab")
    fault = ALL[name](job, rng, "strong", before)
    truth = fault.inject()
    time.sleep(_SETTLE_S)
    store = f"s3://{_BUCKET}/{name}"
    _record(job, store, window_s, environment)
    fault.revert()
    said = _as_behind_the_switch([rankscope(), "diagnose", store, "--json"], environment)
    verdict = verdicts.parse(said.stdout)
    shown = _as_behind_the_switch([rankscope(), "diagnose", store], environment).stdout
    right = verdicts.score(verdict, truth) == verdicts.FIRST
    where = truth.function or truth.node
    print(f"\n$ rankscope diagnose {store}\n{shown}\n{name} ({where}): {'named first' if right else 'NOT named first'}")
    return right


def _record(job: Job, store: str, window_s: float, environment: Mapping[str, str]) -> None:
    """One window of each host, by an observer that sees the host's ranks alone. LabError where one of them is not in the store."""
    spools = [disk.FOLDER / f"spool-{host.number}" for host in job.hosts]
    observers = []
    for host, spool in zip(job.hosts, spools, strict=True):
        pids = [word for rank in job.plan.ranks_on(host.number) for word in ("--pid", str(job.processes[rank].pid))]
        command = [rankscope(), "record", "--out", store, "--window", f"{window_s:g}", "--spool", str(spool), *pids]
        observers.append(
            subprocess.Popen(command, env=dict(environment), preexec_fn=host.enter, stdin=subprocess.DEVNULL,  # noqa: PLW1509
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )  # fmt: skip
    for host, spool, observer in zip(job.hosts, spools, observers, strict=True):
        said, complaint = observer.communicate(timeout=window_s + _RECORDS_S)
        left = sum(path.suffix == ".parquet" for path in spool.rglob("*"))
        print(f"{host.node}: {' '.join(said.split())}", flush=True)
        if observer.returncode or left:
            last = (complaint.strip() or "no message").splitlines()[-1]
            raise LabError(
                f"{host.node}: exit code {observer.returncode}, {left} windows left in the spool: {last[:200]}"
            )


@contextmanager
def _serving() -> Iterator[dict[str, str]]:
    """An S3 server on the switch, with an empty bucket; the environment in which rankscope finds it."""
    run("ip", "-n", SWITCH, "link", "set", "lo", "up")
    run("ip", "-n", SWITCH, "addr", "add", f"{_SERVER}/24", "dev", "bridge0")
    server = subprocess.Popen(
        [_MOTO, "-I", "-c", _SERVE], preexec_fn=_behind_the_switch, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL  # noqa: PLW1509
    )  # fmt: skip
    try:
        assert server.stdout is not None
        if not server.stdout.readline():
            raise LabError("the S3 server does not start", "Run scripts/setup --lab.")
        environment = os.environ | {
            "AWS_ENDPOINT_URL_S3": f"http://{_SERVER}:{_PORT}",
            "AWS_ACCESS_KEY_ID": "of-the-lab",
            "AWS_SECRET_ACCESS_KEY": "of-the-lab",
            "AWS_REGION": "us-east-1",
        }
        put = "import sys, urllib.request as u; u.urlopen(u.Request(sys.argv[1], method='PUT'), timeout=10)"
        made = _as_behind_the_switch([str(_MOTO), "-I", "-c", put, f"http://{_SERVER}:{_PORT}/{_BUCKET}"], environment)
        if made.returncode:
            raise LabError(f"the S3 server makes no bucket: {made.stderr.strip()[-200:]}")
        yield environment
    finally:
        server.kill()
        server.wait()


def _as_behind_the_switch(command: list[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=dict(environment), preexec_fn=_behind_the_switch, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip


def _behind_the_switch() -> None:
    """Move the calling process into the switch's network (between fork and exec)."""
    libc = ctypes.CDLL(None, use_errno=True)
    handle = os.open(NETNS_FOLDER / SWITCH, os.O_RDONLY | os.O_CLOEXEC)
    if libc.setns(handle, 0):
        raise OSError(ctypes.get_errno(), f"setns {SWITCH}")
