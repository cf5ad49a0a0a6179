"""What is done to a job, undone again, with the right answer."""

from __future__ import annotations

import abc
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import ClassVar

from labkit.faults.base import Truth
from labkit.jobs import lines
from labkit.jobs.launch import Job, JobEnded
from labkit.machine.shell import Impossible

# A slow function is to make the step longer by this share of it.
DOSE = 0.3
LEAST_DOSE, MOST_DOSE = 0.15, 0.8
TUNING_S, TUNING_ROUNDS = 3.0, 6
TUNING_TRIES = 40  # an evaluation that calls the slow function as well, for each sample, may take two minutes
HOGS = 3
HALF_A_CORE = """
import time
while True:
    until = time.monotonic() + 0.02
    while time.monotonic() < until:
        pass
    time.sleep(0.02)
"""
COMPUTE = "while True: pass"


class Fault(abc.ABC):
    """One fault on one job. `step_s`: a healthy step by the job's own lines."""

    name: ClassVar[str]
    wanted: ClassVar[float] = 0.95  # the share of cases that must be right
    spoils: ClassVar[bool] = False  # the job cannot be made as it was
    in_window: ClassVar[bool] = False  # done while it is observed
    windows: ClassVar[float] = 1.0  # how many usual windows are observed
    settle_s: ClassVar[float] = 2.5  # from when it is done until it is looked at
    undisturbed: ClassVar[bool] = False  # its truth holds only where nobody else uses the CPUs
    timed: ClassVar[bool] = True  # what it took of each step can be measured

    def __init__(self, job: Job, rng: random.Random, step_s: float) -> None:
        self.job = job
        self.rng = rng
        self.step_s = step_s
        self.victim = rng.choice(self.ranks_to_hit(job))

    def ranks_to_hit(self, job: Job) -> tuple[int, ...]:
        return tuple(range(job.row.ranks))

    @abc.abstractmethod
    def inject(self) -> Truth: ...

    def revert(self) -> None:  # noqa: B027 (nothing to undo, unless a fault says so)
        pass

    def pace_s(self) -> float:
        """A step of the job now, by its own lines, mean: where steps take up half of the time, and no evaluation.

        Not the median: who waits for a batch waits for several at once, and of three steps two are short then.
        """
        time.sleep(0.6)
        for _ in range(TUNING_TRIES):
            time.sleep(TUNING_S)
            usual = [_but_the_longest(of_rank) for of_rank in self.job.recent(TUNING_S)]
            now = lines.mean_step_s(usual)
            if now is not None and min(sum(line.seconds for line in of_rank) for of_rank in usual) >= TUNING_S / 2:
                return now
        raise JobEnded("a rank made no step any more when one of its functions was slow")


def _but_the_longest(steps: list[lines.Line]) -> list[lines.Line]:
    """An evaluation is in the seconds of the step after it."""
    return sorted(steps, key=lambda line: line.seconds)[:-1] or steps


class _SlowFunction(Fault):
    """The function takes longer, by as much as makes the steps longer by the dose: ranks that wait for others hide some of it."""

    settle_s = 0.0  # its dose was seen in steps of some seconds

    def slow_down(self, function: str, manner: str, seconds: float) -> None:
        """`seconds`: a first guess of what a call must take longer."""
        usual_s = self.pace_s()  # not the median step of some seconds: steps may be of two lengths
        for _ in range(TUNING_ROUNDS):
            self.job.order(self.victim, {"function": function, "manner": manner, "seconds": seconds})
            share = self.pace_s() / usual_s - 1
            if LEAST_DOSE <= share <= MOST_DOSE:
                return
            seconds *= min(4.0, max(0.25, DOSE / max(share, 0.01)))
        raise Impossible(
            f"{function} could not be made so slow that it shows: the job's own steps became {100 * share:+.0f} %"
        )

    def revert(self) -> None:
        self.job.order(self.victim, None)


class SlowPython(_SlowFunction):
    """One function of one rank computes too long: itself in C, or in the library functions that it calls."""

    name = "slow-python"

    def ranks_to_hit(self, job: Job) -> tuple[int, ...]:
        return job.row.victims or super().ranks_to_hit(job)

    def inject(self) -> Truth:
        manner = self.rng.choice(("busy", "library"))
        self.slow_down(self.job.row.function, manner, DOSE * self.step_s / self.job.row.calls)
        causes = {"python": frozenset({"slow-function", "blocking-call"})}
        return Truth("fault", causes, (self.victim,), function=self.job.row.function, culprit=manner)


class BusyThread(_SlowFunction):
    """A thread of one rank computes after each step, with or without the GIL: the training thread waits for that, or for a CPU.

    Where there are CPUs to spare, a thread without the GIL harms nobody: then it is impossible.
    """

    name = "busy-thread"
    wanted = 0.0  # counted, without a target

    def inject(self) -> Truth:
        manner = self.rng.choice(("busy", "compress"))
        self.slow_down("export", manner, self.step_s)
        causes = {"python": frozenset({"slow-function", "gil"})}
        return Truth("fault", causes, (self.victim,), function="export", culprit=manner)


class SlowLoader(_SlowFunction):
    """What reads the samples of one rank sleeps, as one does who waits for a store.

    Where it runs in loader workers, python/dataloader is as right as the function itself.
    """

    name = "slow-loader"

    def ranks_to_hit(self, job: Job) -> tuple[int, ...]:
        row = job.row
        return row.loader_victims or ((0,) if row.name == "pipelining" else super().ranks_to_hit(job))

    def inject(self) -> Truth:
        row = self.job.row
        # Workers make batches side by side and in advance, while the rank trains: only what is longer than that is lost.
        late_s = row.workers * (1 + DOSE) * self.step_s if row.workers else DOSE * self.step_s
        self.slow_down(row.loader, "sleep", late_s / row.loader_calls)
        causes = {"python": frozenset({"slow-function", "blocking-call"})}
        itself = Truth("fault", causes, (self.victim,), function=row.loader, culprit="sleep")
        if not row.workers:
            return itself
        late = {"python": frozenset({"dataloader"})}
        return Truth("fault", late, (self.victim,), exact=True, culprit="sleep", alternatives=(itself,))


class CpuTaken(Fault):
    """Other processes compute on the core to which one rank is bound; the other ranks may use every core."""

    name = "cpu-taken"
    wanted = 0.0  # counted, without a target
    _hogs: Sequence[subprocess.Popen[bytes]] = ()

    def inject(self) -> Truth:
        core = max(os.sched_getaffinity(0))
        self._bind({core})
        self._hogs = [self.job.start_other([sys.executable, "-I", "-c", COMPUTE], {core}) for _ in range(HOGS)]
        causes = {"cpu": frozenset({"contended", "affinity"})}
        # The others may use that core as well: where they do, all ranks are kept from it.
        everybody = Truth("fault", causes, tuple(range(self.job.row.ranks)), everyone=True, culprit="hogs")
        return Truth("fault", causes, (self.victim,), culprit="hogs", alternatives=(everybody,))

    def _bind(self, cores: set[int]) -> None:
        pid = self.job.pids().get(self.victim)
        for thread in self.job.threads_of(pid) if pid else ():
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(thread, cores)

    def revert(self) -> None:
        for hog in self._hogs:
            hog.kill()
            hog.wait()
        self._bind(os.sched_getaffinity(0))


class Stopped(Fault):
    """SIGSTOP to one rank: the others wait for it."""

    name = "stopped"
    timed = False
    number = signal.SIGSTOP

    def inject(self) -> Truth:
        pid = self.job.pids().get(self.victim)
        if pid is None:
            raise JobEnded(f"rank {self.victim} is gone already")
        os.kill(pid, self.number)
        return Truth("hang", {"process": frozenset({"stopped"})}, (self.victim,))

    def revert(self) -> None:
        with contextlib.suppress(KeyError, ProcessLookupError):
            os.kill(self.job.pids()[self.victim], signal.SIGCONT)


class Dead(Stopped):
    """SIGKILL to one rank while it is observed: many launchers end the others soon after."""

    name = "dead"
    number = signal.SIGKILL
    spoils = True
    in_window = True
    windows = 2.0

    def inject(self) -> Truth:
        super().inject()
        return Truth("fault", {"process": frozenset({"exited"})}, (self.victim,))

    def revert(self) -> None:
        pass


class Healthy(Fault):
    """Nothing, while another process uses half a core."""

    name = "healthy"
    wanted = 1.0
    undisturbed = True
    _other: subprocess.Popen[bytes] | None = None

    def inject(self) -> Truth:
        self._other = self.job.start_other([sys.executable, "-I", "-c", HALF_A_CORE])
        return Truth("healthy", {})

    def revert(self) -> None:
        if self._other:
            self._other.kill()
            self._other.wait()


class Quiet(Fault):
    """Nothing at all."""

    name = "quiet"
    wanted = 1.0
    undisturbed = True

    def inject(self) -> Truth:
        return Truth("healthy", {})


class Building(Fault):
    """Nothing; the job has not made its first step, because it builds an extension. Nobody may be accused."""

    name = "building"
    spoils = True
    timed = False

    def ranks_to_hit(self, job: Job) -> tuple[int, ...]:
        return (0,)

    def inject(self) -> Truth:
        return Truth("unknown", {})


# In the order in which one job serves them: those come last after which it may not be what it was.
ALL: dict[str, type[Fault]] = {
    kind.name: kind for kind in (Quiet, Healthy, SlowPython, SlowLoader, BusyThread, CpuTaken, Stopped, Dead, Building)
}
