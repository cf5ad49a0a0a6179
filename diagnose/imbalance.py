"""A moving imbalance: in every step another rank has more work (longer sequences, in turn or at random). Nobody is guilty.

W(r,s)  = own - io - sched - sync            what the rank computes: work, not waiting for a CPU, a disk or a lock
x(r,s)  = W(r,s) - lower quartile over s of W(r,·) - lower quartile over ranks of the same (from four ranks on)
lost    = trimmed mean over s of T(s) - T'(s),  where in T' every x(r,s) is the mean of x(·,s) over the ranks: work shared evenly

Told from noise, which moves too, by one of two signatures:
 turns     the x are of two kinds, split where their variance between the kinds is greatest (Otsu 1979), and the kinds lie apart:
           Ashman's D = |m2 - m1| / √((s1² + s2²)/2) >= 4.5 with medians and MADs (halves of one normal: 2.7); most steps have both kinds
 together  all functions of a step grow together (what-if analysis, OSDI'25: correlation of forward and backward >= 0.9):
           rho = (Var W - Σ sd(f)²) / ((Σ sd(f))² - Σ sd(f)²) >= 0.8, the mean correlation of the functions, from variances alone.
           Samples add variance of their own, sampling_s · t(f), to functions that were sampled; it is taken off, and where it is
           more than half of what is there nothing can be said
Told from a fault: no rank is slow oftener than chance gives it (else it is odd, or has episodes), and the time is work. Where it is
waiting for a CPU, a disk or a lock instead, a note says so: that is the host's noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose import limits
from diagnose.attribute import Function
from diagnose.compare import nan_median, trimmed_mean
from diagnose.fleet import Bools, Fleet, Floats
from diagnose.lost_time import shrink
from diagnose.suspects import Scene
from diagnose.text import seconds
from diagnose.verdict import Evidence, Suspect

_WORK = ("python", "gpu", "memory")
_SAMPLING_S = 1 / 99  # between two stacks of one thread (observer/recorder.py)
_APART = 4.5
_TOGETHER = 0.8
_CELLS_MOST = 4_000_000


@dataclass(frozen=True, slots=True)
class _Signature:
    evidence: tuple[Evidence, ...]
    clear: float  # 0..1
    heavy: Bools  # ranks x steps


def moving_imbalance(fleet: Fleet, scene: Scene, notes: list[str]) -> Suspect | None:
    """The imbalance as a suspect of workload/data-imbalance; None, perhaps with a note, where there is none."""
    ranks, steps = scene.own.shape
    if ranks < 2 or steps < limits.STEPS_FEW or ranks * steps > _CELLS_MOST:
        return None
    late = scene.own - _usual(scene.own)
    cost = float(np.nan_to_num(trimmed_mean((_highest(late) - np.nanmean(np.nan_to_num(late), axis=0))[None, :])[0]))
    if cost < limits.MOVING_SHARE * scene.step_s:
        return None
    first = fleet.steps.count - steps
    matrices = fleet.steps
    other = np.nan_to_num(matrices.io_s + matrices.sched_s + matrices.sync_s)[:, first:]
    work = scene.own - other
    x = _moved(work)
    latest = np.argmax(np.where(np.isfinite(late), late, -np.inf), axis=0), np.arange(steps)
    worked = float(np.nansum(np.maximum(x[latest], 0.0)) / max(float(np.nansum(np.maximum(late[latest], 0.0))), 1e-12))
    if worked < limits.MOVING_WORK:
        notes.append(
            f"in each step another rank is late, by {seconds(cost)} on average, mostly waiting for a CPU, a disk or a lock: "
            "noise of the hosts"
        )
        return None
    lost_s = shrink(scene.own, scene.own - x + np.nanmean(x, axis=0), scene.pipelines, scene.busy_s)
    if lost_s < limits.MOVING_SHARE * scene.step_s:
        return None
    signature = _turns(x) or _together(fleet, work, x, cost / scene.step_s)
    if signature is None:
        return None
    return _suspect(fleet, scene, signature, lost_s)


def _usual(own: Floats) -> Floats:
    """What each rank takes usually, as a column: a lasting difference between ranks is not a moving one."""
    return nan_median(own, 1)[:, None]


def _highest(values: Floats) -> Floats:
    return np.asarray(np.where(np.isfinite(values), values, -np.inf).max(axis=0), dtype=np.float64)


def _moved(work: Floats) -> Floats:
    level = np.nan_to_num(_quartile(work, 1))[:, None]
    x = work - level
    if len(work) >= 4:
        x = x - np.nan_to_num(_quartile(x, 0))[None, :]
    return x


def _quartile(values: Floats, axis: int) -> Floats:
    """Lower quartile without NaN, a value that occurs; NaN where everything is NaN."""
    ordered = np.sort(values, axis=axis)  # NaN last
    count = np.isfinite(values).sum(axis=axis)
    place = np.expand_dims(np.maximum(np.ceil(count * 0.25).astype(np.int64) - 1, 0), axis)
    return np.asarray(np.take_along_axis(ordered, place, axis), dtype=np.float64).squeeze(axis)


def _turns(x: Floats) -> _Signature | None:
    known = x[np.isfinite(x)]
    split = _otsu(known)
    with np.errstate(invalid="ignore"):
        heavy: Bools = x > split
    light = known[known <= split]
    many = known[known > split]
    if not len(light) or not len(many):
        return None
    apart = float(np.median(many) - np.median(light))
    spread = float(np.sqrt((_mad(many) ** 2 + _mad(light) ** 2) / 2))
    distance = apart / max(spread, 1e-9 * apart, 1e-12)
    both = float(np.mean(heavy.any(axis=0) & (~heavy & np.isfinite(x)).any(axis=0)))
    if distance < _APART or both < 0.6 or not _spread_over_ranks(heavy):
        return None
    evidence = (
        Evidence("steps", "steps in which some ranks have more work", 100 * both, None, "% of steps"),
        Evidence("steps", "work is of two sizes, which differ by", apart, None, "s/step"),
        Evidence("steps", "distance of the sizes over their spread (noise: 2.7)", min(distance, 999.0), _APART, ""),
    )
    return _Signature(evidence, distance**2 / (distance**2 + 5), heavy)


def _otsu(values: Floats) -> float:
    """The threshold with the greatest variance between what is below and what is above."""
    ordered = np.sort(values)
    count = len(ordered)
    if count < 2:
        return float("inf")
    below = np.arange(1, count)
    total = np.cumsum(ordered)
    mean_below = total[:-1] / below
    mean_above = (total[-1] - total[:-1]) / (count - below)
    between = below * (count - below) * (mean_above - mean_below) ** 2
    best = int(np.argmax(between))
    return float((ordered[best] + ordered[best + 1]) / 2)


def _mad(values: Floats) -> float:
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))


def _spread_over_ranks(heavy: Bools) -> bool:
    """Whether at least half of the ranks have their share, and none has more than three times the usual one."""
    count = heavy.sum(axis=1)
    usual = float(count.mean())
    several = max(2.0, 0.3 * usual) if usual >= 4 else 1.0  # few steps for many ranks: not everybody's turn comes
    had = float(np.mean(count >= several))
    return had >= (0.5 if usual >= 2 else 0.25 * usual) and float(count.max()) <= max(3 * usual, usual + 4)


def _together(fleet: Fleet, work: Floats, x: Floats, cost_share: float) -> _Signature | None:
    if fleet.patterns.sd_s is None or cost_share < 1.5 * limits.MOVING_SHARE:
        return None
    correlation = _correlation(fleet, work)
    if correlation is None or correlation < _TOGETHER:
        return None
    with np.errstate(invalid="ignore"):
        heavy: Bools = x >= np.nan_to_num(_highest(x))[None, :]
    if not _spread_over_ranks(heavy):
        return None
    evidence = (
        Evidence("functions", "functions of a step grow together (correlation)", correlation, _TOGETHER, ""),
        Evidence("steps", "another rank has most work in each step, by", 100 * cost_share, None, "% of the step"),
    )
    return _Signature(evidence, float(np.clip(correlation, 0.0, 1.0)) * 0.9, heavy)


def _correlation(fleet: Fleet, work: Floats) -> float | None:
    """Median over ranks of the mean correlation of their functions' times; None where it cannot be told."""
    table = fleet.patterns
    assert table.sd_s is not None
    kinds = [table.kind.code(kind) for kind in _WORK]
    chosen = (table.thread.codes == table.thread.code("training")) & np.isin(table.kind.codes, kinds)
    rows = np.flatnonzero(chosen & np.isfinite(table.sd_s))
    if len(rows) == 0:
        return None
    ranks = len(fleet.ranks)
    variance = table.sd_s[rows] ** 2
    sampled = np.zeros(len(rows))
    if not fleet.timed:
        running = (table.kind.codes[rows] == table.kind.code("python")) & (
            table.detail.codes[rows] == table.detail.code("")
        )
        sampled = np.where(running, _SAMPLING_S * table.per_step_s[rows], 0.0)
    clean = np.maximum(variance - sampled, 0.0)
    squares = np.bincount(table.rank[rows], clean, ranks)
    raw = np.bincount(table.rank[rows], variance, ranks)
    linear = np.bincount(table.rank[rows], np.sqrt(clean), ranks) ** 2
    whole = np.array([np.nanvar(each) if np.isfinite(each).sum() > 2 else np.nan for each in work])
    # One function that varies alone says nothing about others; nor does what is mostly noise of the samples.
    usable = np.isfinite(whole) & (squares >= 0.5 * raw) & (squares <= 0.8 * linear) & (squares > 0)
    if usable.sum() < max(2, 0.5 * ranks):
        return None
    each = (whole[usable] - squares[usable]) / (linear[usable] - squares[usable])
    return float(np.median(each))


def _suspect(fleet: Fleet, scene: Scene, signature: _Signature, lost_s: float) -> Suspect:
    rows = np.flatnonzero(signature.heavy.any(axis=1))
    function = _most_varying(fleet)
    hosts = {fleet.ranks.host[int(row)] for row in rows}
    oftenest = 100 * float(signature.heavy.sum(axis=1).max()) / max(signature.heavy.shape[1], 1)
    evidence = [
        *signature.evidence,
        Evidence("steps", "steps in which one rank has it, at most", oftenest, None, "% of steps"),
        Evidence("steps", "ranks whose turn it was", float(len(rows)), float(len(fleet.ranks)), "ranks"),
    ]
    if function is not None:
        evidence.append(Evidence("functions", "varies most", function.name, None, ""))
    return Suspect(
        component="workload",
        cause="data-imbalance",
        host=hosts.pop() if len(hosts) == 1 else "",
        instance="moves from rank to rank",
        ranks=tuple(sorted(int(fleet.ranks.number[row]) for row in rows)),
        function=None,
        lost_seconds_per_step=lost_s,
        lost_percent=100 * lost_s / max(scene.step_s, lost_s),
        confidence=float(np.clip(0.9 * signature.clear, 0.05, 0.95)),
        since=None,
        evidence=tuple(evidence),
        action="In each step other ranks have more work: sort or pack the batches by length, so that all have equally much per step.",
    )


def _most_varying(fleet: Fleet) -> Function | None:
    table = fleet.patterns
    if table.sd_s is None:
        return None
    kinds = [table.kind.code(kind) for kind in _WORK]
    rows = np.flatnonzero(
        np.isin(table.kind.codes, kinds)
        & (table.thread.codes == table.thread.code("training"))
        & np.isfinite(table.sd_s)
    )
    if len(rows) == 0:
        return None
    total = np.bincount(table.name.codes[rows], table.sd_s[rows], len(table.name.values))
    row = int(rows[np.flatnonzero(table.name.codes[rows] == int(np.argmax(total)))[0]])
    return Function(table.kind.at(row), table.name.at(row), table.file.at(row), int(table.line[row]))
