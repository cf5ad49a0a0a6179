"""What the lab of jobs asks, and how a case ended."""

from __future__ import annotations

from dataclasses import dataclass

from labkit.faults.base import Truth
from labkit.verdicts import IMPOSSIBLE


@dataclass(frozen=True, slots=True)
class Case:
    """One fault on one job of the table."""

    row: str
    fault: str
    seed: int
    window_s: float = 10.0

    @property
    def name(self) -> str:
        return f"{self.row}-{self.fault}-{self.seed}"


@dataclass(frozen=True, slots=True)
class Ranks:
    """What `rankscope ranks` said of the processes that the job's own lines name.

    right: under their own number. wrong: under another. extra: processes of the job that are no ranks.
    """

    there: int
    right: int
    wrong: int = 0
    extra: int = 0

    @property
    def all_right(self) -> bool:
        return self.right == self.there and not self.extra

    def __str__(self) -> str:
        notes = [f"{number} {word}" for number, word in ((self.wrong, "wrong"), (self.extra, "extra")) if number]
        return f"{self.right}/{self.there}" + (f" ({', '.join(notes)})" if notes else "")


@dataclass(frozen=True, slots=True)
class Result:
    """How a case ended: `outcome` is one of verdicts.FIRST … IMPOSSIBLE, `said` a line for the reader.

    before_s: the median step of some seconds before the fault, by which it is dosed; job_s, seen_s: the median step in the window,
    by the job's lines and by rankscope. healthy_before_s, healthy_after_s: mean step of all ranks over a longer stretch before the
    fault, and after it was undone and the job had healed; None where there was none, or lost time is not asked for.
    line_right: whether the place of the function is one of its lines; None where no function was to be named.
    sound: whether the job's own lines are free of contradictions. beside: share of the CPUs that programs used meanwhile that are not of
    the lab; None where it was not counted.
    """

    case: Case
    outcome: str
    said: str
    truth: Truth | None = None
    ranks: Ranks | None = None
    before_s: float | None = None
    job_s: float | None = None
    seen_s: float | None = None
    line_right: bool | None = None
    sound: bool = True
    verdict: str = ""
    wall_s: float = 0.0
    beside: float | None = None
    healthy_before_s: float | None = None
    healthy_after_s: float | None = None

    @property
    def sides_s(self) -> tuple[float, ...]:
        """The healthy means that are known, in the order of time."""
        return tuple(side for side in (self.healthy_before_s, self.healthy_after_s) if side is not None)

    @property
    def disturbed(self) -> bool:
        """Whether it is to be asked again on a quiet machine, because others used the CPUs."""
        return self.outcome == IMPOSSIBLE and self.beside is not None

    @property
    def step_error(self) -> float | None:
        """Rankscope's median step against the job's own, as a share of the latter."""
        return self.seen_s / self.job_s - 1 if self.seen_s is not None and self.job_s else None
