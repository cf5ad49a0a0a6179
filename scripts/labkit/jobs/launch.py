"""Starting, watching and stopping one job of the table."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

from labkit.jobs import lines, machine
from labkit.jobs.lines import Line
from labkit.jobs.rows import PROGRAMS, Row
from labkit.machine.orders import write_orders
from labkit.machine.shell import REPOSITORY, Impossible, LabError

START_TIMEOUT_S = 240.0
STEADY_STEPS = 30
# The medians of two stretches of this length agree within that factor: the job is past its start.
STEADY_S, STEADY = 2.0, 1.2
FIRST_PORT, PORTS = 29700, 200


class JobEnded(LabError):
    """The job ended by itself, or did not begin to train."""


def installed() -> Path:
    """The folder of the virtual environments."""
    return Path(os.environ.get("RANKSCOPE_JOBS") or REPOSITORY / ".jobs")


class Job:
    """A running job. Leaving the context kills every process of it and removes its files."""

    def __init__(self, row: Row, seed: int) -> None:
        self.row = row
        self.folder = machine.FOLDER / "job"
        self.port = FIRST_PORT + (os.getpid() + 7 * seed) % PORTS
        self._process: subprocess.Popen[bytes] | None = None
        self._others: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Job:
        venv = installed() / self.row.venv
        if not (venv / "bin/python").exists():
            raise Impossible(f"no environment {self.row.venv} under {installed().name}: scripts/setup --jobs makes it")
        machine.clean_up()
        self.folder.mkdir(parents=True)
        self.group = machine.group("job")
        self.others = machine.group("others")
        try:
            self._process = self._start(["sh", "-c", self._command()], self.group, self._environment(venv), "log")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _command(self) -> str:
        command = self.row.command.format(ranks=self.row.ranks, port=self.port, out=self.folder)
        if self.row.boxed:
            inside = f"mount -t proc proc /proc; ip link set lo up; {command}"
            # The shell does not exec: it is process 1 there, and reaps.
            command = f"unshare --pid --fork --kill-child --mount --net sh -c '{inside}; exit $?'"
        return command

    def _environment(self, venv: Path) -> dict[str, str]:
        programs = str(Path(__file__).parent / PROGRAMS)
        places = {"out": str(self.folder), "jobs": str(installed()), "programs": programs}
        scratch = str(machine.SCRATCH)
        machine.SCRATCH.mkdir(exist_ok=True)
        return {
            **os.environ,
            "PATH": f"{venv / 'bin'}:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": programs,  # knobs.py
            "PYTHONUNBUFFERED": "1",
            "TMPDIR": scratch,
            "RAY_TMPDIR": scratch,
            "RAY_AUTH_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
            "HF_HUB_OFFLINE": "1",
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            **{name: value.format(**places) for name, value in self.row.env.items()},
        }

    def _start(
        self, command: list[str], group: Path, env: dict[str, str], log: str, cores: set[int] | None = None
    ) -> subprocess.Popen[bytes]:
        def before_exec() -> None:
            (group / "cgroup.procs").write_text("0")
            os.sched_setaffinity(0, cores or os.sched_getaffinity(0))

        with (self.folder / log).open("wb") as file:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=env, start_new_session=True,
                cwd=Path(__file__).parent / PROGRAMS, preexec_fn=before_exec,  # noqa: PLW1509
            )  # fmt: skip

    def start_other(self, command: list[str], cores: set[int] | None = None) -> subprocess.Popen[bytes]:
        """A process that does not belong to the job."""
        process = self._start(command, self.others, dict(os.environ), "others.log", cores)
        self._others.append(process)
        return process

    def lines(self) -> list[list[Line]]:
        return lines.read(self.folder, self.row.ranks)

    def recent(self, seconds: float) -> list[list[Line]]:
        now = time.time()
        return lines.between(self.lines(), now - seconds, now)

    def wait_until_steady(self) -> None:
        """Until every rank has made enough steps and they take as long as they did; JobEnded where that does not come."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._steady():
            if self.ended():
                raise JobEnded(f"{self.row.name} ended while it started\n{self.end_of_log()}")
            if time.monotonic() > deadline:
                raise JobEnded(
                    f"{self.row.name} did not train steadily in {START_TIMEOUT_S:.0f} s\n{self.end_of_log()}"
                )
            time.sleep(0.5)

    def _steady(self) -> bool:
        found = self.lines()
        if min(len(of_rank) for of_rank in found) < STEADY_STEPS:
            return False
        now = time.time()
        later = lines.median_step_s(lines.between(found, now - STEADY_S, now))
        before = lines.median_step_s(lines.between(found, now - 2 * STEADY_S, now - STEADY_S))
        return later is not None and before is not None and max(later / before, before / later) < STEADY

    def ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def pids(self) -> dict[int, int]:
        """rank → pid on this host, of the processes that printed the last lines."""
        of_process = {}
        for pid in machine.processes(self.group):
            with contextlib.suppress(OSError, StopIteration):
                status = Path(f"/proc/{pid}/status").read_text().splitlines()
                inner = next(line for line in status if line.startswith("NSpid:")).split()[-1]
                born = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
                of_process[int(inner), int(born)] = pid
        last = {of_rank[-1].rank: of_rank[-1] for of_rank in self.lines() if of_rank}
        places = {rank: of_process.get((line.pid, line.born)) for rank, line in last.items()}
        return {rank: pid for rank, pid in places.items() if pid is not None}

    def commands(self) -> set[str]:
        """Names of the job's processes."""
        found = set()
        for pid in machine.processes(self.group):
            with contextlib.suppress(OSError):
                found.add(Path(f"/proc/{pid}/comm").read_text().strip())
        return found

    def threads_of(self, pid: int) -> list[int]:
        """All threads of a process and of its children."""
        found, left = [], [pid]
        while left:
            with contextlib.suppress(OSError):  # ended meanwhile
                for task in Path(f"/proc/{left.pop()}/task").iterdir():
                    found.append(int(task.name))
                    left += [int(child) for child in (task / "children").read_text().split()]
        return found

    def order(self, rank: int, orders: dict[str, object] | None) -> None:
        """Write a rank's control file in one piece; None: no orders."""
        write_orders(self.folder / f"rank{rank}.control", orders)

    def end_of_log(self) -> str:
        try:
            told = (self.folder / "log").read_text(errors="replace").splitlines()
        except FileNotFoundError:
            told = []
        return "\n".join(f"    | {line[:200]}" for line in told[-12:])

    def stop(self) -> None:
        """Kill everything; safe to call twice."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
        try:
            for process in (*self._others, *([self._process] if self._process else [])):
                process.kill()
            machine.clean_up()
            for process in (*self._others, *([self._process] if self._process else [])):
                process.wait()
            self._others, self._process = [], None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
