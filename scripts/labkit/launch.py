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

import psutil

from labkit import step_times
from labkit.machine import cgroups, disk, hosts
from labkit.machine.log_pipe import Shipper
from labkit.machine.orders import write_orders
from labkit.machine.shell import LabError, python
from labkit.programs import PROGRAMS

MASTER_PORT = 29500
START_TIMEOUT_S = 120.0
_PR_SET_PDEATHSIG = 1


class RankEnded(LabError):
    """A process of the job ended by itself: the job is broken, or somebody harmed it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to start. `lone`: the rank that has the last core for itself; the others share the rest.

    free_cores: nobody has a core for himself. views: see `crops`. The rest are features of the job, off by default: loader
    `workers` per rank, bytes printed per step through a pipe, values that
    all ranks add up after each step, pages of a table looked up per step, steps from checkpoint to
    checkpoint, stages of the pipeline. program: which of programs.PROGRAMS.
    """

    ranks: int
    hosts: int
    lone: int
    rate_mbit: int = 600
    device_ms: float = 120.0
    sample_bytes: int = 512 << 10
    free_cores: bool = False
    views: int = 0
    workers: int = 0
    report_bytes: int = 0
    report_values: int = 0
    lookups: int = 0
    save_every: int = 0
    stages: int = 1
    program: str = "job"

    @property
    def windows(self) -> float:
        """How many usual windows it takes to see enough steps of this job."""
        return 1

    def host_of(self, rank: int) -> int:
        """Ranks are laid on hosts in blocks, as launchers do."""
        return rank * self.hosts // self.ranks

    def ranks_on(self, host: int) -> tuple[int, ...]:
        return tuple(rank for rank in range(self.ranks) if self.host_of(rank) == host)

    @property
    def crops(self) -> int:
        """The rank's own CPU work, so chosen that eight ranks leave two cores mostly idle and two ranks are not all waiting."""
        return self.views or (50 if self.ranks > 4 else 120)

    def stage_of(self, rank: int) -> int:
        return rank * self.stages // self.ranks

    @property
    def job_arguments(self) -> list[str]:
        """Of job.py, for what the job does."""
        words = {
            "crops": self.crops,
            "device-ms": self.device_ms,
            "sample-kib": self.sample_bytes // 1024,
            "workers": self.workers,
            "report-bytes": self.report_bytes,
            "report-values": self.report_values,
            "lookups": self.lookups,
            "save-every": self.save_every,
            "stages": self.stages,
        }
        return [word for name, value in words.items() for word in (f"--{name}", str(value))]


class Job:
    """A running job. Use as a context manager: leaving stops every process and removes hosts and groups."""

    healthy_steps = 10

    def __init__(self, plan: Plan, seed: int) -> None:
        self.plan = plan
        self.folder = disk.FOLDER / "job"
        self.hosts: list[hosts.Host] = []
        self.groups: list[cgroups.Group] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        self.device: str | None = None
        self.device_kind = ""
        self.lone = plan.lone
        self.may_end: set[int] = set()
        self.shippers: list[Shipper] = []
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

    @property
    def name(self) -> str:
        """What rankscope calls this job: from the identity that torchrun gives it."""
        return f"torch-{self._run_id}-{self.hosts[0].address}:{MASTER_PORT}"

    def control_file(self, rank: int) -> Path:
        return self.folder / f"rank{rank}.control"

    def order(self, rank: int, orders: dict[str, object] | None) -> None:
        """Write a rank's control file, in one piece; None: no orders."""
        write_orders(self.control_file(rank), orders)

    def _start(self) -> None:
        self.device, self.device_kind = disk.make_shards()
        if self.plan.lookups:
            disk.make_tables(self.plan.ranks)
        self.folder.mkdir(exist_ok=True)
        self.hosts = hosts.build(self.plan.hosts, self.plan.rate_mbit)
        for rank in range(self.plan.ranks):
            group = cgroups.Group(f"rank{rank}", self._hierarchies)
            self.groups.append(group)
            self.processes.append(self._start_rank(rank, group))

    def _start_rank(self, rank: int, group: cgroups.Group) -> subprocess.Popen[bytes]:
        host = self.hosts[self.plan.host_of(rank)]
        environment = os.environ | self.rank_environment(rank)
        command = [
            python(),
            str(PROGRAMS[self.plan.program].path),
            "--dir",
            str(self.folder),
            "--data",
            str(disk.SHARDS),
        ]
        command += self.plan.job_arguments
        cores = os.sched_getaffinity(0)
        if self.plan.report_bytes:
            shipper = Shipper(self.folder / f"rank{rank}.log")
            self.shippers.append(shipper)
            entrances = [group.enter, host.enter]
            return start(command, log=shipper.entrance, env=environment, enter=entrances, cores=cores)
        with (self.folder / f"rank{rank}.log").open("wb") as log:
            return start(command, log=log.fileno(), env=environment, enter=[group.enter, host.enter], cores=cores)

    def rank_environment(self, rank: int) -> dict[str, str]:
        """What torchrun sets for a rank."""
        host = self.hosts[self.plan.host_of(rank)]
        peers = self.plan.ranks_on(host.number)
        return {
            "RANK": str(rank),
            "LOCAL_RANK": str(peers.index(rank)),
            "WORLD_SIZE": str(self.plan.ranks),
            "LOCAL_WORLD_SIZE": str(len(peers)),
            "GROUP_RANK": str(host.number),
            "ROLE_RANK": str(rank),
            "ROLE_NAME": f"stage{self.plan.stage_of(rank)}" if self.plan.stages > 1 else "default",
            "MASTER_ADDR": self.hosts[0].address,
            "MASTER_PORT": str(MASTER_PORT),
            "TORCHELASTIC_RUN_ID": self._run_id,
            "GLOO_SOCKET_IFNAME": hosts.INTERFACE,
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        }

    def cores_of(self, rank: int) -> set[int]:
        """The cores a rank may use: the lone rank has the last one for itself, in healthy runs as well."""
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) < 2 or self.plan.free_cores:
            return set(cores)
        return {cores[-1]} if rank == self.lone else set(cores[:-1])

    def pin(self, lone: int) -> None:
        """Put every rank on its cores, with the last one for `lone` (unless the plan leaves all cores to all)."""
        self.lone = lone
        for rank in range(self.plan.ranks):
            self.put_on_cores(rank, self.cores_of(rank))

    def put_on_cores(self, rank: int, cores: set[int]) -> None:
        for thread in self.threads_of(rank):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(thread, cores)

    def threads_of(self, rank: int) -> list[int]:
        """All threads of a rank and of its children."""
        found: list[int] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.processes[rank].pid)
            for one in (process, *process.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):  # ended meanwhile
                    found += [thread.id for thread in one.threads()]
        return found

    def companion_group(self, name: str) -> cgroups.Group:
        """A control group for processes that do not belong to the job; it goes with the job."""
        group = cgroups.Group(name, self._hierarchies)
        self.groups.append(group)
        return group

    def start_companion(
        self, command: list[str], group: cgroups.Group, cores: set[int], host: hosts.Host | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a process that does not belong to the job; it ends with the job at the latest."""
        enter = [group.enter, *([host.enter] if host else [])]
        process = start(command, log=subprocess.DEVNULL, env=dict(os.environ), enter=enter, cores=cores)
        self._companions.append(process)
        return process

    def observer_command(self, command: list[str]) -> list[str]:
        """The command as it must be run to see this job's machine."""
        return command

    def wait_until_healthy(self) -> None:
        """Until every rank has made `healthy_steps`; LabError where one dies or it takes too long.

        Ranks start on all cores, which is quicker, and are put on their own afterwards.
        """
        deadline = time.monotonic() + START_TIMEOUT_S
        while self._fewest_steps() < self.healthy_steps:
            self.check_alive()
            if time.monotonic() > deadline:
                raise LabError(f"no {self.healthy_steps} steps in {START_TIMEOUT_S:.0f} s\n{self._end_of_log(0)}")
            time.sleep(0.05)
        self.pin(self.plan.lone)

    def _fewest_steps(self) -> int:
        """A line of its file each."""
        return min(len(step_times.rows(self.folder / f"rank{rank}.steps")) for rank in range(self.plan.ranks))

    def check_alive(self) -> None:
        """RankEnded where a rank is gone; one that was killed before those that ended because of it."""
        ended = [(process.poll(), rank) for rank, process in enumerate(self.processes) if rank not in self.may_end]
        for status, rank in sorted((status, rank) for status, rank in ended if status is not None):
            raise RankEnded(f"rank {rank} ended with status {status}\n{self._end_of_log(rank)}")

    def pace(self, since: float, until: float) -> step_times.Pace | None:
        return step_times.pace(self.folder, self.plan.ranks, since, until)

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
            for shipper in self.shippers:
                shipper.close()
            self.processes, self._companions, self.shippers = [], [], []
            clean_up()

    def _end_of_log(self, rank: int) -> str:
        try:
            lines = (self.folder / f"rank{rank}.log").read_text(errors="replace").splitlines()
        except FileNotFoundError:
            lines = []
        return "\n".join(f"    rank {rank} | {line}" for line in lines[-15:])


def start(
    command: list[str], *, log: int, env: dict[str, str], enter: list[Callable[[], None]], cores: set[int]
) -> subprocess.Popen[bytes]:
    """Start a process of the lab; `enter` is called in it before the command (namespaces, groups)."""
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
        preexec_fn=before_exec,  # noqa: PLW1509 (the lab's other threads hold no lock that it needs)
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
