"""The verdict as frozen dataclasses, with components and exit code. JSON: as_json.py."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rankscope.diagnose import budgets
from rankscope.diagnose.infer.verdict.budget import Budget
from rankscope.diagnose.infer.verdict.function import Function
from rankscope.diagnose.infer.verdict.note import Note
from rankscope.diagnose.infer.verdict.stack_tree import StackNode
from rankscope.probes.base.errors import EXIT_CRITICAL, EXIT_DEGRADED, EXIT_HEALTHY, EXIT_UNKNOWN

STATUSES = ("healthy", "inefficient", "fault", "imbalance", "hang", "unknown")
COMPONENTS = (
    "gpu", "nvlink", "pcie", "nic", "network", "cpu", "memory", "storage", "python", "process", "workload",
)  # fmt: skip
# Their causes are registered by the hypotheses: infer/causes/registry.py.

AGAINST = "against: "  # prefix of `source` for evidence against the suspect
# What a line of evidence is. Lines against a suspect are known by their source.
BECAUSE = "because"  # speaks for it; `expected`: what the peers show, or what is usual
RULED_OUT = "ruled-out"  # was looked at and is as on the peers: another reason less
LIMIT = "limit"  # `expected`, or else the value, is a limit
WITHOUT = "without"  # `expected` is what would be without the suspect
DETAIL = "detail"  # true, and of no use at 3 a.m.: in the JSON and with -v
ROLES = (BECAUSE, RULED_OUT, LIMIT, WITHOUT, DETAIL)
# How sure: a counter or the kernel shows the cause; the times fit it; it is what is left.
WITNESSED, LIKELY, GUESSED = SURE = ("witnessed", "likely", "guess")
DEAD = "DEAD"  # said of a hang whose first suspect has ended
_ENDED = (("process", "exited"), ("memory", "oom-kill"))
ASLEEP = "asleep, by a call like time.sleep"  # evidence value for a function that only waits for the clock

DEVICES = ("gpu", "nvlink", "pcie", "nic")  # components with several instances per host


@dataclass(frozen=True, slots=True)
class Evidence:
    """One measurement for a suspect, or against it (`source` then begins with AGAINST).

    `peers`: number of peers whose median is `expected`; 0 if none. `role`: one of ROLES.
    """

    source: str
    measure: str
    value: float | str
    expected: float | str | None
    unit: str
    peers: int = 0
    role: str = BECAUSE


@dataclass(frozen=True, slots=True)
class Instance:
    """The suspect device: 'gpu2', 'eth0', '/data (ext4 254:1)'.

    `comm`, `pid`: process that uses it, if any.
    """

    name: str
    comm: str = ""
    pid: int = -1

    @property
    def text(self) -> str:
        """The device with the process that uses it, if known: 'gpu2', 'gpu2 by trainer (4711)'."""
        who = process_text(self.comm, self.pid)
        return f"{self.name} by {who}" if who else self.name


def process_text(comm: str, pid: int) -> str:
    """Format a process as 'trainer (4711)', or by name alone if the pid is unknown."""
    return f"{comm} ({pid})" if pid >= 0 else comm


SCOPES = ("rank", "role", "host", "link", "group", "all")  # what a cause affects


@dataclass(frozen=True, slots=True)
class Suspect:
    """One suspect. `sure`: one of SURE; `says`: the sentence of its cause with fields (sentence.py)."""

    component: str
    cause: str
    host: str
    instances: tuple[Instance, ...]
    ranks: tuple[int, ...]
    function: Function | None
    lost_seconds_per_step: float
    lost_percent: float
    confidence: float
    since: float | None  # unix time
    evidence: tuple[Evidence, ...]
    action: str
    scope: str = "rank"
    sure: str = LIKELY
    waste: bool = False  # nobody differs by it: time that need not be spent
    still: bool = False  # the job makes no progress: the lost seconds are those of the standstill
    says: str = ""

    @property
    def code(self) -> str:
        """Component and cause, such as 'network/slow-link'."""
        return f"{self.component}/{self.cause}"

    @property
    def guess(self) -> bool:
        """Whether nothing confirms the cause."""
        return self.sure == GUESSED

    @property
    def instance(self) -> str:
        """The first few instances in words, 'gpu6, gpu4'."""
        return ", ".join(one.text for one in self.instances[: budgets.INSTANCES_SHOWN])


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """Step length in seconds: median, 99th percentile, and the baseline's median; None if unknown."""

    p50: float | None
    p99: float | None
    baseline_p50: float | None


@dataclass(frozen=True, slots=True)
class Baseline:
    """The windows that the verdict was compared with."""

    windows: int
    ranks: int
    start: float  # unix time
    end: float
    step_p50: float | None
    source: str = "given"  # given (--baseline DIR) | history (--baseline auto)
    used: tuple[str, ...] = ()  # names of the windows


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one job in one window."""

    status: str
    job: str
    hosts: tuple[str, ...]
    ranks: tuple[int, ...]
    start: float  # unix time
    end: float
    baseline: Baseline | None
    step_seconds: StepSeconds
    slowdown_percent: float
    suspects: tuple[Suspect, ...]
    notes: tuple[Note, ...]
    steps: int = 0
    title: str = ""  # the job's name for people; '': unknown
    guessed: tuple[int, ...] = ()  # ranks with guessed numbers
    stacks: StackNode | None = None  # for a hang: where all ranks are
    budget: Budget | None = None  # where the time goes; None where nothing was seen
    machines: tuple[str, ...] = ()  # whose containers the hosts are; none where each host is a machine

    @property
    def word(self) -> str:
        """The first word for people: the status in capitals, or DEAD for a hang whose first suspect has ended."""
        first = self.suspects[0] if self.suspects else None
        return word_of(self.status, "" if first is None else first.component, "" if first is None else first.cause)

    @property
    def exit_code(self) -> int:
        """Exit code: 0 nothing wrong, 1 slow or degraded, 2 critical, 3 could not judge."""
        codes = {
            "healthy": EXIT_HEALTHY,
            "inefficient": EXIT_DEGRADED,
            "fault": EXIT_DEGRADED,
            "imbalance": EXIT_DEGRADED,
            "hang": EXIT_CRITICAL,
        }
        return codes.get(self.status, EXIT_UNKNOWN)


def word_of(status: str, component: str, cause: str) -> str:
    """Return the verdict's first word: the status in capitals, or DEAD for a hang whose first suspect has ended.

    `component`, `cause`: of the first suspect; '' without one.
    """
    return DEAD if status == "hang" and (component, cause) in _ENDED else status.upper()


_WORST_FIRST = (EXIT_CRITICAL, EXIT_DEGRADED, EXIT_UNKNOWN, EXIT_HEALTHY)


def worst_first(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Sort verdicts on several jobs by severity, worst first."""
    return sorted(verdicts, key=lambda verdict: _WORST_FIRST.index(verdict.exit_code))
