"""The service's metrics in Prometheus' text format. Pure.

Labels are bounded (training_job, rank, kind of alarm, component and cause), never a function or path.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from rankscope.diagnose.service.tell.suspects import SuspectState
from rankscope.diagnose.text import clean

JOBS_MOST = 64
# New job names per day, per user and in total: each is a series that the scraper stores for weeks.
NAMES_EACH, NAMES_MOST = 64, 512
# New suspects likewise: sets of labels per day, per user and in total.
SUSPECTS_EACH, SUSPECTS_MOST = 256, 1024
_DAY_S = 86400.0
_LONGEST = 256  # whole names: the ends of long ones distinguish jobs


@dataclass(frozen=True, slots=True)
class RankState:
    """State of one rank here. `waited_share`: of its last steps; NaN if unknown."""

    rank: int
    up: bool
    stopped: bool
    silent_s: float
    waited_share: float


@dataclass(frozen=True, slots=True)
class JobState:
    """State of one job with ranks here.

    `alarms`: by kind, since the service began; `user`: its owner. `inefficient`: nobody differs, and time is spent
    that need not be. `ledger`: seconds and number of events by kind, since the job began.
    """

    job: str
    ranks: Sequence[RankState]
    step_s: float
    baseline_s: float
    steps: int
    slow: bool
    hung: bool
    named: bool
    alarms: dict[str, int]
    windows: int
    lost_s: float
    user: str = ""
    inefficient: bool = False
    ledger: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    dead: bool = False
    suspects: Sequence[SuspectState] = ()


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job that ended by a failure a short while ago: it has no other series any more."""

    job: str
    user: str
    suspects: Sequence[SuspectState] = ()


@dataclass(frozen=True, slots=True)
class ServiceState:
    """State of the service itself.

    `put_off`: operations delayed for lack of resources; `left_out`: ranks that are not watched; `at`: Unix time of
    this state.
    """

    cpu_s: float
    resident_bytes: int
    probe_s: float
    lost_events: int
    put_off: int = 0
    left_out: int = 0
    at: float = math.nan


_JOB_GAUGES: tuple[tuple[str, str, str], ...] = (
    ("step_seconds", "gauge", "Median of the last steps."),
    ("step_baseline_seconds", "gauge", "What is usual."),
    ("steps_total", "counter", "Steps seen."),
    ("slow", "gauge", "1 while steps last longer than usual."),
    ("hung", "gauge", "1 while no rank here ends a step, or one is stopped or dead."),
    ("dead", "gauge", "1 while a rank here is dead by a failure, and for 15 minutes after the job's end."),
    ("named", "gauge", "1 while somebody is named for it."),
    ("inefficient", "gauge", "1 while nobody differs and time is spent that need not be."),
    ("lost_seconds_per_step", "gauge", "What mending the first suspect of the last verdict gives back."),
    ("windows_total", "counter", "Closer looks."),
)
# gauges: time moves from one kind to another when it is known better what it was
_LEDGER_GAUGES = (
    ("seconds", "Where the job's time went since it began, by kind: productive, gc, checkpoint, hang, …"),
    ("events", "How often, by kind."),
)
_RANK_GAUGES: tuple[tuple[str, str], ...] = (
    ("up", "1 while the process lives."),
    ("stopped", "1 while it is stopped."),
    ("silent_seconds", "Since its last step ended."),
    ("waited_ratio", "Share of its last steps in which it waited for others."),
)


_SUSPECT_GAUGES: tuple[tuple[str, str], ...] = (
    ("", "1 for each suspect of the last verdict, most damaging first, at most four of a job."),
    ("_lost_seconds_per_step", "What mending it gives back."),
    ("_lost_ratio", "What mending it gives back, as a share of the step."),
)


@dataclass(frozen=True, slots=True)
class Family:
    """All series of one metric. `kind`: gauge or counter; each row: labels and a finite value."""

    name: str
    kind: str
    text: str
    rows: tuple[tuple[dict[str, str], float], ...]


@dataclass(slots=True)
class Names:
    """Names that may have series (of jobs, or the labels of suspects), limited per day and user.

    Otherwise a user who renames a job every minute would fill the scraper. `each`, `most`: new ones per day, of a
    user and of all; `_known`: by name and user, when it was added, CLOCK_MONOTONIC.
    """

    each: int = NAMES_EACH
    most: int = NAMES_MOST
    _known: dict[tuple[str, str], float] = field(default_factory=dict)

    def has_room(self, name: str, user: str, now_s: float) -> bool:
        """Tell whether this name has series, or may get them; in that case it is added.

        Names older than a day are dropped, the oldest first.
        """
        if (name, user) in self._known:
            return True
        while self._known and now_s - next(iter(self._known.values())) >= _DAY_S:
            del self._known[next(iter(self._known))]
        if len(self._known) >= self.most or sum(whose == user for _, whose in self._known) >= self.each:
            return False
        self._known[name, user] = now_s
        return True


def families(jobs: Sequence[JobState], service: ServiceState, ended: Sequence[EndedJob] = ()) -> list[Family]:
    """Build all metrics of jobs, suspects, ranks and service; series with unknown values are left out.

    With more than `JOBS_MOST` jobs only the first ones of each user. `ended`: jobs that ended by a failure, of which
    only that and the suspects are shown.
    """
    shown, over = _shared_out(jobs), _shared_out(ended)
    found: list[Family] = []
    for name, kind, text in _JOB_GAUGES:
        of_jobs = [(_of(job), _job_value(job, name)) for job in shown]
        of_jobs += [(_of(job), 1.0) for job in over if name == "dead"]
        found += _family(f"rankscope_job_{name}", kind, text, of_jobs)
    suspects = [(_of(job) | one.labels, one) for job in shown for one in job.suspects]
    suspects += [(_of(job) | one.labels, one) for job in over for one in job.suspects]
    for name, text in _SUSPECT_GAUGES:
        costs = ((labels, _suspect_value(one, name)) for labels, one in suspects)
        found += _family(f"rankscope_suspect{name}", "gauge", text, costs)
    alarms = ((_of(job) | {"kind": kind}, float(count)) for job in shown for kind, count in sorted(job.alarms.items()))
    found += _family("rankscope_job_alarms_total", "counter", "Alarms by kind.", alarms)
    for place, (name, text) in enumerate(_LEDGER_GAUGES):
        kinds = (
            (_of(job) | {"kind": kind}, float(row[place])) for job in shown for kind, row in sorted(job.ledger.items())
        )
        found += _family(f"rankscope_job_ledger_{name}", "gauge", text, kinds)
    for name, text in _RANK_GAUGES:
        values = ((_of(job) | {"rank": str(rank.rank)}, _rank_value(rank, name)) for job in shown for rank in job.ranks)
        found += _family(f"rankscope_rank_{name}", "gauge", text, values)
    for name, kind, text, value in (
        ("cpu_seconds_total", "counter", "CPU time of the service, without its windows.", service.cpu_s),
        ("resident_bytes", "gauge", "Memory of the service.", float(service.resident_bytes)),
        ("probe_seconds_total", "counter", "Time of its probes in the kernel.", service.probe_s),
        ("lost_events_total", "counter", "Events that were not seen.", float(service.lost_events)),
        ("put_off_total", "counter", "What was done later, as the host had no room for it.", float(service.put_off)),
        ("ranks_left_out", "gauge", "Ranks that are not watched, for want of room.", float(service.left_out)),
        ("jobs", "gauge", "Jobs with ranks here.", float(len(jobs))),
        ("last_round_timestamp_seconds", "gauge", "When this was so.", service.at),
    ):
        found += _family(f"rankscope_watch_{name}", kind, text, [({}, value)])
    return found


_AnyJob = TypeVar("_AnyJob", JobState, EndedJob)


def _shared_out(jobs: Sequence[_AnyJob]) -> list[_AnyJob]:
    """Select at most `JOBS_MOST` jobs, in their order: the first of each user, then the second of each, and so on."""
    before, turns = Counter[str](), list[int]()
    for job in jobs:
        turns.append(before[job.user])
        before[job.user] += 1
    chosen = sorted(range(len(jobs)), key=turns.__getitem__)[:JOBS_MOST]
    return [jobs[at] for at in sorted(chosen)]


def as_prometheus(jobs: Sequence[JobState], service: ServiceState, ended: Sequence[EndedJob] = ()) -> str:
    """Format all metrics in Prometheus' text format."""
    lines: list[str] = []
    for family in families(jobs, service, ended):
        lines += [f"# HELP {family.name} {family.text}", f"# TYPE {family.name} {family.kind}"]
        for labels, value in family.rows:
            shown = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
            lines.append(f"{family.name}{{{shown}}} {value:.12g}" if shown else f"{family.name} {value:.12g}")
    return "\n".join(lines) + "\n"


def _family(name: str, kind: str, text: str, values: Iterable[tuple[dict[str, str], float]]) -> list[Family]:
    """Build the metric `name` with one series for each set of labels, as readers refuse duplicates; [] without a value.

    Values that are NaN are left out. `kind`: gauge or counter; `text`: its help.
    """
    known = {tuple(labels.items()): (labels, value) for labels, value in values if not math.isnan(value)}
    return [Family(name, kind, text, tuple(known.values()))] if known else []


def _job_value(job: JobState, name: str) -> float:
    """Return the value of a job for the metric of this name in `_JOB_GAUGES`."""
    return {
        "step_seconds": job.step_s, "step_baseline_seconds": job.baseline_s, "steps_total": float(job.steps),
        "slow": float(job.slow), "hung": float(job.hung), "dead": float(job.dead), "named": float(job.named),
        "inefficient": float(job.inefficient),
        "lost_seconds_per_step": job.lost_s, "windows_total": float(job.windows),
    }[name]  # fmt: skip


def _rank_value(rank: RankState, name: str) -> float:
    """Return the value of a rank for the metric of this name in `_RANK_GAUGES`."""
    return {
        "up": float(rank.up), "stopped": float(rank.stopped), "silent_seconds": rank.silent_s, "waited_ratio": rank.waited_share,
    }[name]  # fmt: skip


def _suspect_value(suspect: SuspectState, name: str) -> float:
    """Return the value of a suspect for the metric of this name in `_SUSPECT_GAUGES`."""
    return {"": 1.0, "_lost_seconds_per_step": suspect.lost_s, "_lost_ratio": suspect.lost_share}[name]


def _of(job: JobState | EndedJob) -> dict[str, str]:
    """Return the label of a job."""
    return {"training_job": clean(job.job, _LONGEST)}


def _escaped(text: str) -> str:
    """Escape the value of a label for Prometheus' text format."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
