"""What stops a job for ever, and what only looks so: done to the lab's own job, with the right answer.

A kind is a fault of the lab (labkit/faults) after which the job is over. `hangs`: whether it is a hang. `leaves_ranks`: whether a command
that is typed at the silence still finds a process to ask; ranks over gloo end as soon as a connection breaks.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from dataclasses import replace
from typing import ClassVar

from labkit import step_times
from labkit.faults.base import Fault, Truth
from labkit.faults.slow_link import CutOff
from labkit.faults.stopped import Stopped
from labkit.launch import Plan
from labkit.machine import disk
from labkit.machine.served import served
from labkit.machine.shell import LabError

STEPS_AHEAD = 4
REPORT_VALUES = 1000
GLOO_PART_BYTES = 1 << 20  # in which it sends what is at least two for each rank
LONG_S = 14.0  # what takes long and is no hang: three times the silence that is an alarm
ROOM_BYTES = 192 << 20


class Hang(Fault):
    """One kind."""

    group = "hangs"
    one_dose = True
    spoils = True
    min_ranks = 3
    hangs: ClassVar[bool] = True
    leaves_ranks: ClassVar[bool] = True

    def stick(self, how: str, **more: object) -> None:
        """The victim's order."""
        self.job.order(self.victim, {"stuck": {"how": how, **more}})

    def stick_all(self, how: str, **more: object) -> None:
        """All ranks, in the same step."""
        steps = [step_times.read(self.job.folder / f"rank{rank}.steps") for rank in range(self.job.plan.ranks)]
        at = max(of_rank[-1].step for of_rank in steps) + STEPS_AHEAD
        for rank in range(self.job.plan.ranks):
            self.job.order(rank, {"stuck": {"how": how, "at": at, **more}})

    def truth(self, component: str, cause: str, function: str | None = None) -> Truth:
        return Truth("hang", {component: frozenset({cause})}, (self.victim,), function=function, exact=True)

    def revert(self) -> None:
        """The job ends with the case."""


class StoppedRank(Hang, Stopped):
    """SIGSTOP."""

    name = "stopped"

    def inject(self) -> Truth:
        return Stopped.inject(self)

    def revert(self) -> None:
        Stopped.revert(self)


class EndlessLoop(Hang):
    """A loop in Python that waits for a flag."""

    name = "loop"

    def inject(self) -> Truth:
        self.stick("loop")
        return self.truth("process", "spinning", "wait_for_flag")


class LockHeld(Hang):
    """A thread beside the training keeps the lock that the training thread wants."""

    name = "lock"

    def inject(self) -> Truth:
        self.job.order(self.victim, {"upload": {"hold_s": 1e6, "idle_s": 1.0}})
        return self.truth("python", "lock", "log_metrics")


class GilHeld(Hang):
    """A thread beside the training is in C and gives nobody the GIL; its function is the answer."""

    name = "gil"

    def inject(self) -> Truth:
        self.stick("hold")
        return self.truth("python", "gil", "check_names")


class _Report(Hang):
    """The report of one step is not as the others make it."""

    how: ClassVar[str]
    function: ClassVar[str | None] = "share_report"

    @classmethod
    def plan(cls, plan: Plan, dose: str, rng: random.Random) -> Plan:
        return replace(plan, report_values=REPORT_VALUES)

    def inject(self) -> Truth:
        self.stick(self.how)
        return self.truth("process", "missing-collective", self.function)


class MissedCollective(_Report):
    """Left out: the rank waits in the next step's backward pass."""

    name = "missed-collective"
    how = "skip"
    function = None


class OtherCollective(_Report):
    """Another operation."""

    name = "other-collective"
    how = "other"


class OtherSize(_Report):
    """A larger tensor, in more parts: the rank waits for parts that nobody sends.

    Gloo ends the rank if a part is larger than the buffer for it, so all parts are of the size of its largest.
    """

    name = "other-size"
    how = "larger"

    @classmethod
    def plan(cls, plan: Plan, dose: str, rng: random.Random) -> Plan:
        ranks = min(plan.ranks, 4)
        plan = replace(plan, ranks=ranks, hosts=min(plan.hosts, ranks), lone=plan.lone % ranks)
        return replace(plan, report_values=2 * ranks * GLOO_PART_BYTES // 4)


class DeadFeeder(Hang):
    """The process that makes the items of one rank is killed, and nobody looks."""

    name = "dead-worker"

    def inject(self) -> Truth:
        self.stick("feeder")
        note = self.job.folder / f"rank{self.victim}.feeder"
        deadline = time.monotonic() + 20
        while not (note.exists() and note.read_text()):
            if time.monotonic() > deadline:
                raise LabError("the rank started no process for its items")
            time.sleep(0.1)
        time.sleep(2.0)
        os.kill(int(note.read_text()), signal.SIGKILL)
        return self.truth("python", "dataloader", "next_item")


class KilledRank(Hang):
    """SIGKILL."""

    name = "killed"
    leaves_ranks = False

    def inject(self) -> Truth:
        os.kill(self.job.processes[self.victim].pid, signal.SIGKILL)
        return self.truth("process", "exited")


class OutOfMemory(Hang):
    """A rank grows beyond the limit of its control group, and the kernel ends it."""

    name = "memory-limit"
    leaves_ranks = False

    def inject(self) -> Truth:
        group = self.job.groups[self.victim]
        used, _ = group.memory_bytes()
        group.limit_memory_for_good(used + ROOM_BYTES)
        self.stick("grow")
        return self.truth("memory", "oom-kill")


class DeadFiles(Hang):
    """A read of a file on a file system that does not answer any more."""

    name = "dead-files"

    def inject(self) -> Truth:
        source = next((disk.SHARDS / f"rank{self.victim}").iterdir())
        self._held = contextlib.ExitStack()
        place = disk.FOLDER / "dead"
        server = self._held.enter_context(served(place, source, "whole"))
        self.stick("open", path=str(place / source.name))
        time.sleep(3.0)
        server.send_signal(signal.SIGSTOP)
        self.stick("read")
        return replace(self.truth("storage", "stalled", "read_page"), culprit=str(place))

    def revert(self) -> None:
        self._held.close()


class CutLink(Hang, CutOff):
    """The switch drops every packet from and to one host."""

    name = "cut-link"
    min_hosts = 3

    def inject(self) -> Truth:
        return CutOff.inject(self)

    def revert(self) -> None:
        CutOff.revert(self)


class _Harmless(Hang):
    """Takes long, and goes on."""

    hangs = False
    how: ClassVar[str]

    def inject(self) -> Truth:
        self.stick_all(self.how, seconds=LONG_S)
        return Truth("healthy", {})


class LongCheckpoint(_Harmless):
    """The first rank writes, the others wait for it."""

    name = "checkpoint"
    how = "save"


class SlowStep(_Harmless):
    """Every rank has a step that is many times as long."""

    name = "slow-step"
    how = "compute"


class Evaluation(_Harmless):
    """Every rank evaluates."""

    name = "evaluation"
    how = "evaluate"


class LoneEvaluation(_Harmless):
    """The first rank evaluates, the others wait for it."""

    name = "lone-evaluation"
    how = "validate"


class FinishedJob(_Harmless):
    """Every rank ends, with 0."""

    name = "finished"
    how = "finish"
    leaves_ranks = False


ALL: dict[str, type[Fault]] = {
    kind.name: kind
    for kind in (
        StoppedRank, EndlessLoop, LockHeld, GilHeld, MissedCollective, OtherCollective, OtherSize, DeadFeeder, KilledRank,
        OutOfMemory, DeadFiles, CutLink, LongCheckpoint, SlowStep, Evaluation, LoneEvaluation, FinishedJob,
    )
}  # fmt: skip
