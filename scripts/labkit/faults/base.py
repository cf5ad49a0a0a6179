"""What every fault of the lab is: something done to a running job, undone again, with a known answer."""

from __future__ import annotations

import abc
import random
from dataclasses import dataclass
from typing import ClassVar

from labkit.launch import Job
from labkit.steps import Pace

# By how much a fault lengthens the step, as a share of the healthy step.
DOSES = {"strong": (0.5, 0.9), "weak": (0.1, 0.2)}


@dataclass(frozen=True, slots=True)
class Truth:
    """The right answer.

    causes: component → causes that are right names for it. ranks: those that suffer. whole_host: where naming some of
    the ranks (all of one host's) is enough. function: qualified name's last part, for Python faults. culprit: what the
    evidence could name as well (a process, an interface); not asked for.
    """

    status: str
    causes: dict[str, frozenset[str]]
    ranks: tuple[int, ...] = ()
    whole_host: bool = False
    function: str | None = None
    node: str | None = None
    culprit: str | None = None


class Fault(abc.ABC):
    """One fault on one job. `rng` decides what is left open; `dose` is a key of DOSES."""

    name: ClassVar[str]
    min_hosts: ClassVar[int] = 1

    def __init__(self, job: Job, rng: random.Random, dose: str, healthy: Pace) -> None:
        self.job = job
        self.rng = rng
        self.healthy = healthy
        self.dose = dose
        self.added_share = rng.uniform(*DOSES[dose])
        self.victim = rng.randrange(job.plan.ranks)

    @property
    def added_s(self) -> float:
        """By how much a step is to become longer, seconds."""
        return self.added_share * self.healthy.step_s

    @abc.abstractmethod
    def inject(self) -> Truth:
        """Do it; the right answer from now on."""

    @abc.abstractmethod
    def revert(self) -> None:
        """Undo it; the job is healthy again."""
