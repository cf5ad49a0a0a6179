"""What the lab is asked to do, how a case ended, and which cases one job can serve."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from labkit.faults import ALL, Fault, Truth
from labkit.launch import Job, Plan
from labkit.step_times import Pace

# (ranks, hosts), taken in turn by seed.
SIZES = ((4, 2), (8, 4), (2, 2), (4, 4), (8, 3), (6, 3), (3, 3))
# Share of the faults that must be named right: of strong doses, and of weak ones.
GOOD_ENOUGH = 0.95
GOOD_ENOUGH_WEAK = 0.8


@dataclass(frozen=True, slots=True)
class Case:
    """What to do. `ranks`, `hosts`: None lets the seed choose. `observe`: ask rankscope, else only measure the job.

    program: which of programs.PROGRAMS is trained.
    """

    fault: str
    seed: int
    ranks: int | None = None
    hosts: int | None = None
    window_s: float = 10.0
    dose: str = "strong"
    observe: bool = True
    keep: bool = False
    program: str = "job"

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for cases that ask the same."""
        return (self.fault, self.dose, self.seed, self.ranks, self.hosts, self.window_s, self.observe, self.program)

    @property
    def name(self) -> str:
        return f"{self.fault}-{self.dose}-{self.seed}" + (f"-{self.program}" if self.program != "job" else "")


@dataclass(frozen=True, slots=True)
class Result:
    """How a case ended: `outcome` is one of verdicts.FIRST … IMPOSSIBLE, `said` a line for the reader.

    seconds: from the fault to the verdict; wall_s: the whole case, with its share of starting the job. before, after: the
    job's pace by its own clock, without and with the fault. accused: whether somebody was said to be guilty, with
    `confidence` in the first suspect, and whether that one was (one of) the guilty.
    """

    case: Case
    plan: Plan
    outcome: str
    said: str
    truth: Truth | None = None
    seconds: float | None = None
    cause_right: bool = False
    culprit_named: bool = False
    before: Pace | None = None
    after: Pace | None = None
    verdict: str = ""
    accused: bool = False
    accused_rightly: bool = False
    confidence: float = 0.0
    wall_s: float = 0.0

    @property
    def guilty(self) -> bool:
        """Whether there was anybody to be named: not in healthy runs, nor where work is uneven by design."""
        status = (
            self.truth.status
            if self.truth
            else ("healthy" if ALL_GROUPS.get(self.case.fault) == "healthy" else "fault")
        )
        return status in {"fault", "hang"}

    @property
    def healthy(self) -> bool:
        return (self.truth.status == "healthy") if self.truth else ALL_GROUPS.get(self.case.fault) == "healthy"


ALL_GROUPS = {name: kind.group for name, kind in ALL.items()}


def plan_of(case: Case, known: Mapping[str, type[Fault]] = ALL) -> Plan:
    """The sizes of a case, the rank with a core of its own, and what its fault needs of the job, by its seed."""
    kind = known[case.fault]
    rng = random.Random(f"plan {case.fault} {case.seed}{_of_weak(case)}")
    least = kind.min_hosts
    sizes = [size for size in SIZES if size[1] >= least and size[0] >= kind.min_ranks]
    ranks, hosts = sizes[(case.seed - 1) % len(sizes)]
    if case.ranks is not None:
        ranks, hosts = case.ranks, min(max(hosts, least), case.ranks)
    if case.hosts is not None:
        hosts = min(case.hosts, ranks)
    plan = Plan(ranks=ranks, hosts=hosts, lone=rng.randrange(ranks), program=case.program)
    return kind.plan(plan, case.dose, rng)


def random_of(case: Case) -> random.Random:
    """What decides all that a fault leaves open."""
    return random.Random(f"case {case.fault} {case.seed}{_of_weak(case)}")


def _of_weak(case: Case) -> str:
    return "" if case.dose == "strong" else f" {case.dose}"


@dataclass(frozen=True, slots=True)
class Bench:
    """Which lab: its faults, what a case starts and how, the share of faults to be named right, its own table of effects.

    cases_per_job: how many cases a job serves at most, one after the other. kept_in: folder of kept cases under lab-out/.
    """

    faults: dict[str, type[Fault]]
    plan_of: Callable[[Case], Plan]
    job: Callable[[Plan, int], Job]
    wanted: float = GOOD_ENOUGH
    effect_table: Callable[[Sequence[Result]], Iterator[str]] | None = None
    cases_per_job: int = 1
    kept_in: str = ""


CPU = Bench(ALL, plan_of, Job, cases_per_job=10)


def schedule(cases: Sequence[Case], bench: Bench) -> list[list[Case]]:
    """Cases that one job can serve, together: those of a seed whose jobs are alike but for the rank with its own core.

    A fault after which the job is not what it was comes last.
    """
    by_job: dict[tuple[int, Plan], list[Case]] = {}
    for case in cases:
        by_job.setdefault((case.seed, replace(bench.plan_of(case), lone=0)), []).append(case)
    chunks: list[list[Case]] = []
    for alike in by_job.values():
        chunk: list[Case] = []
        for case in sorted(alike, key=lambda case: bench.faults[case.fault].spoils):
            chunk.append(case)
            if len(chunk) >= bench.cases_per_job or bench.faults[case.fault].spoils:
                chunks.append(chunk)
                chunk = []
        if chunk:
            chunks.append(chunk)
    return chunks
