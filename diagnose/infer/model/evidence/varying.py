"""Which functions vary from step to step: all together, one alone, or each by itself.

Uses the standard deviations over the steps of the training thread's work (python, gpu, memory).
Samples add a variance of their own, sampling_s · t(f), to sampled functions; it is subtracted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.verdict.function import Function
from rankscope.diagnose.stats.robust import median
from rankscope.observer.window.users_code import users_code
from rankscope.probes.base.arrays import Floats, Ints

_WORK = ("python", "gpu", "memory")


@dataclass(frozen=True, slots=True)
class Varying:
    """One function that varies, and its shares of the variance and of the work.

    `users`: of a pause the lowest function of the user's that calls it; else, and without one, itself.
    """

    function: Function
    detail: str  # as in the patterns: gc, sleep
    of_variance: float
    of_work: float
    users: Function

    @property
    def alone(self) -> bool:
        """Whether the function has nearly all variance and at most half of the work."""
        return self.of_variance >= limits.NEARLY_ALL and self.of_work <= limits.HOLDS_LEAST

    @property
    def pauses(self) -> bool:
        """Whether it is a pause: Python that varies alone; the garbage collector, or little of the work."""
        return (
            self.alone
            and self.function.kind == "python"
            and (self.detail == "gc" or self.of_work <= limits.LARGE_SHARE)
        )


def correlation(fleet: Fleet, work: Floats) -> float | None:
    """Return how much functions vary together: median over ranks of their functions' mean correlation.

    rho = (Var W - Σ sd(f)²) / ((Σ sd(f))² - Σ sd(f)²), from variances alone. `work`: seconds,
          ranks x steps.

    None where unknown: the samples' own variance is more than half of all, or one function varies
    alone.
    """
    whole, squares, linear, raw = _by_rank(fleet, work)
    usable = np.isfinite(whole) & (squares >= 0.5 * raw) & (squares <= 0.8 * linear) & (squares > 0)
    if usable.sum() < max(2, 0.5 * len(whole)):
        return None
    each = (whole[usable] - squares[usable]) / (linear[usable] - squares[usable])
    return median(each)


def scattered(fleet: Fleet, work: Floats, found: Varying | None) -> bool:
    """Whether single functions vary independently: accidents, since input lengthens them together.

    Over all ranks rho = Σr(Var W - Σf sd²) / Σr((Σf sd)² - Σf sd²) is below 0.3, and no function
    has most of the variance: 0.8 of it; 0.5 where functions are sampled, which hides what grows
    with them.

    `work`: seconds, ranks x steps; `found`: the function that varies most; None gives False.
    """
    if found is None or found.of_variance >= (limits.NEARLY_ALL if fleet.timed else limits.HOLDS_LEAST):
        return False
    whole, squares, linear, _ = _by_rank(fleet, work)
    known = np.isfinite(whole)
    together, apart = float((whole - squares)[known].sum()), float((linear - squares)[known].sum())
    return apart > 0 and together < limits.PART * apart


def most(fleet: Fleet) -> Varying | None:
    """Return the function with most of the variance over steps, all ranks together; None if unknown.

    Unknown: the samples' own variance is most of it.
    """
    rows, variance, clean = work_variances(fleet)
    table = fleet.patterns
    if len(rows) == 0 or clean.sum() < 0.5 * variance.sum():
        return None
    labels = np.column_stack([each.codes[rows] for each in (table.kind, table.name, table.file, table.detail)])
    _, group = np.unique(labels, axis=0, return_inverse=True)
    group = group.reshape(-1)
    by_group = np.bincount(group, clean)
    best = int(np.argmax(by_group))
    row = int(rows[np.flatnonzero(group == best)[0]])
    seconds = table.per_step_s[rows]
    function = Function(table.kind.at(row), table.name.at(row), table.file.at(row), int(table.line[row]))
    mine = rows[group == best]
    varying = Varying(
        function,
        table.detail.at(row),
        float(by_group[best] / max(by_group.sum(), 1e-30)),
        float(seconds[group == best].sum() / max(seconds.sum(), 1e-30)),
        function,
    )
    if not varying.pauses:  # only of a pause somebody asks whose it is
        return varying
    return replace(varying, users=_of_user(fleet, int(mine[np.argmax(clean[group == best])])) or function)


def _of_user(fleet: Fleet, row: int) -> Function | None:
    """The lowest function of the user's on the stack of a row; None without one."""
    table = fleet.patterns
    codes, seconds = table.stack.codes, np.nan_to_num(table.per_step_s)
    if codes[row] < 0:
        return None
    known = np.flatnonzero((codes >= 0) & (table.rank == table.rank[row]))
    users = users_code((table.stack.of(int(codes[each])), float(seconds[each])) for each in known)
    lowest = next((frame for frame in reversed(table.stack.of(int(codes[row]))) if users.has(frame.file)), None)
    return None if lowest is None else Function("python", *lowest)


def _by_rank(fleet: Fleet, work: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Return, per rank, Var W (NaN with too few steps), Σ sd(f)², (Σ sd(f))², and Σ sd(f)² uncorrected.

    All but the last are corrected for the samples' own variance. `work`: W, seconds, ranks x steps.
    """
    rows, variance, clean = work_variances(fleet)
    rank, ranks = fleet.patterns.rank[rows], len(fleet.ranks)
    whole: Floats = np.array([np.nanvar(each) if np.isfinite(each).sum() > 2 else np.nan for each in work])

    def total(each: Floats) -> Floats:
        """Sum values of the work rows by rank."""
        return np.bincount(rank, each, ranks).astype(np.float64)

    return whole, total(clean), total(np.sqrt(clean)) ** 2, total(variance)


def work_variances(fleet: Fleet) -> tuple[Ints, Floats, Floats]:
    """Return the pattern rows that are work, their variance over steps, and that corrected for sampling."""
    table = fleet.patterns
    if table.sd_s is None:
        return np.empty(0, dtype=np.int64), np.empty(0), np.empty(0)
    kinds = [table.kind.code(kind) for kind in _WORK]
    chosen = (table.thread.codes == table.thread.code("training")) & np.isin(table.kind.codes, kinds)
    rows: Ints = np.flatnonzero(chosen & np.isfinite(table.sd_s) & np.isfinite(table.per_step_s))
    variance = table.sd_s[rows] ** 2
    sampled = np.zeros(len(rows))
    if not fleet.timed:
        running = (table.kind.codes[rows] == table.kind.code("python")) & (
            table.detail.codes[rows] == table.detail.code("")
        )
        sampled = np.where(running, fleet.sampling_s * table.per_step_s[rows], 0.0)
    return rows, variance, np.maximum(variance - sampled, 0.0)
