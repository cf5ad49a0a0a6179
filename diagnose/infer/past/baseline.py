"""Compare with earlier windows of the same job.

Slow everywhere: the median step exceeds the baseline's by 10 % and no rank is odd; the function is
the one whose median over ranks grew most. By design: an excess over the peers that existed before
is an imbalance, not a fault (causes/rank/by_design.py). Each figure is the median over the baseline
windows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.fleet.gather import gather
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.fleet.roles import roles
from rankscope.diagnose.infer.model.excess import differences
from rankscope.diagnose.infer.model.waits import collectives
from rankscope.diagnose.infer.past.demand import NO_DEMAND, Demand, demand_of, queue_of_demand_s
from rankscope.diagnose.infer.verdict.contract import Baseline
from rankscope.diagnose.infer.verdict.function import Function
from rankscope.diagnose.infer.verdict.note import Note
from rankscope.diagnose.stats.medians import medians_of_sums
from rankscope.diagnose.stats.robust import median_of_each, nan_median, robust_sd_of
from rankscope.observer.window.folder import Window, folder_name
from rankscope.probes.base.errors import BadData

FLEETS_MOST = 5  # most earlier window times to compare with


@dataclass(frozen=True, slots=True)
class Reference:
    """Figures of the baseline windows."""

    about: Baseline
    step_p50: float
    step_p50_spread: float  # seconds; between baseline windows, or within a single one
    excess: dict[int, float]  # rank number → excess over its peers then, seconds per step
    own: dict[int, float]  # rank number → own time then, seconds per step
    functions: dict[tuple[str, str, str, int, str], float]  # median over ranks, seconds per step
    notes: tuple[Note, ...]
    fleets: tuple[Fleet, ...] = ()  # the windows themselves, newest first
    demand: Demand = NO_DEMAND  # CPU demand

    @property
    def least_growth_s(self) -> float:
        """Smallest growth, in seconds per step, that is neither chance nor variation between baseline windows."""
        return self._least_s(limits.ALONE_SHARE)

    @property
    def least_growth_of_function_s(self) -> float:
        """Smallest growth of a single function, in seconds per step.

        Lower than `least_growth_s`, since a slower host would make all functions longer.
        """
        return self._least_s(limits.EFFECT_SHARE)

    def _least_s(self, share: float) -> float:
        """The largest of: this share of the step, the effect floor, 3.5 times the spread; seconds per step."""
        return max(share * self.step_p50, limits.EFFECT_SECONDS, limits.Z_CLEAR * self.step_p50_spread)


@dataclass(frozen=True, slots=True)
class GrownFunction:
    """The function with the largest growth since the baseline, on the median rank."""

    function: Function
    detail: str
    before_s: float
    now_s: float

    @property
    def more_s(self) -> float:
        """Growth in seconds per step."""
        return self.now_s - self.before_s


def read_baseline(windows: Sequence[Window], job: str, source: str = "given") -> Reference:
    """Summarise the baseline windows of `job`. Raises BadData if there are none, or too few steps.

    `source`: where they come from, 'given' or 'history'.
    """
    moments: list[Fleet] = []
    for start in sorted({round(window.manifest.start / max(window.manifest.seconds, 1.0)) for window in windows}):
        group = [w for w in windows if round(w.manifest.start / max(w.manifest.seconds, 1.0)) == start]
        if any(job in window.ranks["job"].to_pylist() for window in group):
            moments.append(gather(group, job))
    if not moments:
        raise BadData("the baseline is of another job: no window in it holds this one")
    usable = [fleet for fleet in moments if fleet.steps.count >= limits.STEPS_LEAST]
    if not usable:
        raise BadData("the baseline holds no window with enough steps")
    about = Baseline(
        windows=len(windows),
        ranks=len(usable[-1].ranks),
        start=min(fleet.start for fleet in usable),
        end=max(fleet.start + fleet.seconds for fleet in usable),
        step_p50=None,
        source=source,
        used=tuple(folder_name(window.manifest) for window in sorted(windows, key=lambda each: -each.manifest.start)),
    )
    return reference_of(usable, about)


def reference_of(usable: Sequence[Fleet], about: Baseline) -> Reference:
    """Combine fleets of one job, oldest first, into a Reference; `about` lacks the step time."""
    medians = [float(np.nanmedian(fleet.steps.seconds)) for fleet in usable]
    newest = usable[-1]
    found = [differences(fleet.steps.own_s, roles(fleet), p50) for fleet, p50 in zip(usable, medians, strict=True)]
    first = nan_median(newest.steps.seconds, 0)
    first = first[np.isfinite(first)]
    within = robust_sd_of(first) / max(np.sqrt(len(first)), 1.0)
    between = robust_sd_of(np.array(medians))
    p50 = float(np.median(medians))
    numbers = [fleet.ranks.number.tolist() for fleet in usable]
    kept = tuple(reversed(usable))[:FLEETS_MOST]
    return Reference(
        replace(about, step_p50=p50),
        p50,
        max(within, between),
        median_of_each(
            [dict(zip(who, each.excess_s.tolist(), strict=True)) for who, each in zip(numbers, found, strict=True)]
        ),
        median_of_each(
            [dict(zip(who, each.own_s.tolist(), strict=True)) for who, each in zip(numbers, found, strict=True)]
        ),
        median_of_each([function_medians(fleet) for fleet in usable], 0.0),
        (),
        kept,
        demand_of(kept),
    )


def code_changed(reference: Reference, fleet: Fleet) -> bool:
    """Whether the job ran other code then: common functions are less than half of either's time.

    shared = Σ min(before(f), now(f)) / min(Σ before, Σ now)   f: Python and GPU functions, by name and file
    """
    now, before = _by_place(function_medians(fleet)), _by_place(reference.functions)
    least = min(sum(now.values()), sum(before.values()))
    if least <= 0:
        return False
    return sum(min(seconds, before.get(place, 0.0)) for place, seconds in now.items()) < 0.5 * least


def _by_place(functions: Mapping[tuple[str, str, str, int, str], float]) -> dict[tuple[str, str], float]:
    """Sum the seconds of Python and GPU functions by (name, file)."""
    result: dict[tuple[str, str], float] = {}
    for (kind, name, file, _, _), seconds in functions.items():
        if kind in ("python", "gpu"):
            result[name, file] = result.get((name, file), 0.0) + seconds
    return result


def function_medians(fleet: Fleet, thread: str = "training") -> dict[tuple[str, str, str, int, str], float]:
    """Median over ranks of each function's seconds per step, on the training or another kind of thread.

    By (kind, name, file, line, detail). Excludes collectives. The run-queue wait is one function
    wherever it occurs.
    """
    table = fleet.patterns
    rows = np.flatnonzero((table.thread.codes == table.thread.code(thread)) & ~collectives(table))
    if len(rows) == 0:
        return {}
    queue = table.kind.codes[rows] == table.kind.code("sched")
    file, line = np.where(queue, -1, table.file.codes[rows]), np.where(queue, 0, table.line[rows])
    columns = np.stack([table.kind.codes[rows], table.name.codes[rows], file, line, table.detail.codes[rows]])
    unique, key = np.unique(columns, axis=1, return_inverse=True)
    median = medians_of_sums(
        table.rank[rows], key.reshape(-1), table.per_step_s[rows], len(fleet.ranks), unique.shape[1]
    )
    return {
        (table.kind.values[kind], table.name.values[name], table.file.values[place] if place >= 0 else "", int(at),
         table.detail.values[detail]): float(median[index])
        for index, (kind, name, place, at, detail) in enumerate(unique.T)
    }  # fmt: skip


def most_grown(reference: Reference, fleet: Fleet) -> GrownFunction | None:
    """Return the function with the largest growth since the baseline; None if none grew.

    Run-queue wait that the ranks cause by their own demand counts as known before.
    """
    now, before = function_medians(fleet), dict(reference.functions)
    for key in [key for key in now if key[0] == "sched" and key[-1] == "queue"]:
        before[key] = before.get(key, 0.0) + float(np.median(queue_of_demand_s(fleet, reference.demand)))
    grown = {key: seconds - before.get(key, 0.0) for key, seconds in now.items()}
    if not grown:
        return None
    key = max(grown, key=lambda each: grown[each])
    if grown[key] <= 0:
        return None
    kind, name, file, line, detail = key
    return GrownFunction(Function(kind, name, file, line), detail, before.get(key, 0.0), now[key])


def most_grown_helper(reference: Reference, fleet: Fleet, least_s: float) -> GrownFunction | None:
    """Return the function of loaders or other threads that grew most, by at least `least_s` per step.

    Python and file functions only. None if there is none.
    """
    if not reference.fleets:
        return None
    found = []
    for thread in ("loader", "other"):
        before = median_of_each([function_medians(each, thread) for each in reference.fleets], 0.0)
        for key, now_s in function_medians(fleet, thread).items():
            kind, name, file, line, detail = key
            grown = GrownFunction(Function(kind, name, file, line), detail, before.get(key, 0.0), now_s)
            if kind in ("io", "python") and grown.more_s >= least_s:
                found.append(grown)
    return max(found, key=lambda each: each.more_s, default=None)
