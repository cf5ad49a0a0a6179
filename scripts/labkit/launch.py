"""Starting, watching and stopping one training job on the hosts of the lab."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from labkit import cgroups, disk, hosts, steps
from labkit.shell import LabError, python

JOB_SCRIPT = Path(__file__).with_name("job.py")
HEALTHY_STEPS = 10
START_TIMEOUT_S = 120.0
_PR_SET_PDEATHSIG = 1


class RankEnded(LabError):
    """A process of the job ended by itself: the job is broken, or somebody harmed it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to start. `lone`: the rank that has the last core for itself; the others share the rest."""

    ranks: int
    hosts: int
    lone: int
    rate_mbit: int = 600
    device_ms: float = 120.0
    sample_bytes: int = 512 << 10

    def host_of(self, rank: int) -> int:
        """Ranks are laid on hosts in blocks, as launchers do."""
        return rank * self.hosts // self.ranks

    def ranks_on(self, host: int) -> tuple[int, ...]:
        return tuple(rank for rank in range(self.ranks) if self.host_of(rank) == host)

    @property
    def crops(self) -> int:
        """The rank's own CPU work, so chosen that eight ranks leave two cores mostly idle and two ranks are not all waiting."""
        return 50 if self.ranks > 4 else 120


class Job:
    """A running job. Use as a context manager: leaving stops every process and removes hosts and groups."""

    def __init__(self, plan: Plan, seed: int) -> None:
        self.plan = plan
        self.folder = disk.FOLDER / "job"
        self.hosts: list[hosts.Host] = []
        self.groups: list[cgroups.Group] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        self.device: str | None = None
        self.device_kind = ""
        self._companions: list[subprocess.Popen[bytes]] = []
        self._hierarchies = cgroups.hierarchies()
        self._run_id = f"lab-{random.Random(seed).randrange(16**6):06x}"

    def __enter__(self) -> Job:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def control_file(self, rank: int) -> Path:
        return self.folder / f"rank{rank}.control"

    def _start(self) -> None:
        self.device, self.device_kind = disk.make_shards()
        self.folder.mkdir(exist_ok=True)
        self.hosts = hosts.build(self.plan.hosts, self.plan.rate_mbit)
        for rank in range(self.plan.ranks):
            group = cgroups.Group(f"rank{rank}", self._hierarchies)
            self.groups.append(group)
            self.processes.append(self._start_rank(rank, group))

    def _start_rank(self, rank: int, group: cgroups.Group) -> subprocess.Popen[bytes]:
        host = self.hosts[self.plan.host_of(rank)]
        peers = self.plan.ranks_on(host.number)
        environment = os.environ | {
            "RANK": str(rank),
            "LOCAL_RANK": str(peers.index(rank)),
            "WORLD_SIZE": str(self.plan.ranks),
            "LOCAL_WORLD_SIZE": str(len(peers)),
            "GROUP_RANK": str(host.number),
            "ROLE_RANK": str(rank),
            "ROLE_NAME": "default",
            "MASTER_ADDR": self.hosts[0].address,
            "MASTER_PORT": "29500",
            "TORCHELASTIC_RUN_ID": self._run_id,
            "GLOO_SOCKET_IFNAME": hosts.INTERFACE,
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        }
        command = [python(), str(JOB_SCRIPT), "--dir", str(self.folder), "--data", str(disk.SHARDS)]
        command += f"--crops {self.plan.crops} --device-ms {self.plan.device_ms}".split()
        command += f"--sample-kib {self.plan.sample_bytes // 1024}".split()
        cores = os.sched_getaffinity(0)
        with (self.folder / f"rank{rank}.log").open("wb") as log:
            return _start(command, log=log.fileno(), env=environment, enter=[group.enter, host.enter], cores=cores)

    def cores_of(self, rank: int) -> set[int]:
        """The cores a rank may use: the lone rank has the last one for itself, in healthy runs as well."""
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) < 2:
            return set(cores)
        return {cores[-1]} if rank == self.plan.lone else set(cores[:-1])

    def companion_group(self, name: str) -> cgroups.Group:
        """A control group for processes that do not belong to the job; it goes with the job."""
        group = cgroups.Group(name, self._hierarchies)
        self.groups.append(group)
        return group

    def start_companion(self, command: list[str], group: cgroups.Group, cores: set[int]) -> subprocess.Popen[bytes]:
        """Start a process that does not belong to the job; it ends with the job at the latest."""
        process = _start(command, log=subprocess.DEVNULL, env=dict(os.environ), enter=[group.enter], cores=cores)
        self._companions.append(process)
        return process

    def wait_until_healthy(self) -> None:
        """Until every rank has made HEALTHY_STEPS steps; LabError where one dies or it takes too long.

        Ranks start on all cores, which is quicker, and are put on their own afterwards.
        """
        deadline = time.monotonic() + START_TIMEOUT_S
        while self._fewest_steps() < HEALTHY_STEPS:
            self.check_alive()
            if time.monotonic() > deadline:
                raise LabError(f"no {HEALTHY_STEPS} steps in {START_TIMEOUT_S:.0f} s\n{self._end_of_log(0)}")
            time.sleep(0.2)
        for rank, process in enumerate(self.processes):
            for task in Path(f"/proc/{process.pid}/task").iterdir():
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(int(task.name), self.cores_of(rank))

    def _fewest_steps(self) -> int:
        return min(len(steps.read(self.folder / f"rank{rank}.steps")) for rank in range(self.plan.ranks))

    def check_alive(self) -> None:
        """RankEnded where a rank is gone; one that was killed before those that ended because of it."""
        ended = [(process.poll(), rank) for rank, process in enumerate(self.processes)]
        for status, rank in sorted((status, rank) for status, rank in ended if status is not None):
            raise RankEnded(f"rank {rank} ended with status {status}\n{self._end_of_log(rank)}")

    def pace(self, since: float, until: float) -> steps.Pace | None:
        return steps.pace(self.folder, self.plan.ranks, since, until)

    def stop(self) -> None:
        """End every process, remove groups, hosts and files. Safe to call twice, or on a job that started in part."""
        with _undisturbed():
            everything = [*self.processes, *self._companions]
            for process in everything:
                for number in (signal.SIGKILL, signal.SIGCONT):
                    if process.poll() is None:
                        process.send_signal(number)
            for process in everything:
                process.wait()
            self.processes, self._companions = [], []
            clean_up()

    def _end_of_log(self, rank: int) -> str:
        try:
            lines = (self.folder / f"rank{rank}.log").read_text(errors="replace").splitlines()
        except FileNotFoundError:
            lines = []
        return "\n".join(f"    rank {rank} | {line}" for line in lines[-15:])


def _start(
    command: list[str], *, log: int, env: dict[str, str], enter: list[Callable[[], None]], cores: set[int]
) -> subprocess.Popen[bytes]:
    libc = ctypes.CDLL(None)

    def before_exec() -> None:
        # Should the lab be killed, its processes die with it.
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        for step in enter:
            step()
        os.sched_setaffinity(0, cores)

    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=env,
        cwd="/",
        start_new_session=True,
        preexec_fn=before_exec,  # noqa: PLW1509 (the lab has one thread)
    )


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Put off signals that would end the lab, so that a second Ctrl-C does not cut the cleaning short."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def clean_up() -> int:
    """Remove everything the lab leaves on a host: groups with their processes, namespaces, files; how many things."""
    return cgroups.remove_all() + hosts.remove_all() + disk.remove_all()
