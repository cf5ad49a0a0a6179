"""Imbalance that moves: in every step another rank is late, by its input or by a pause.

The input may be longer sequences, in turn or at random; the pause, say, garbage collection.

W(r,s)  = own - io - sched - sync: what the rank computes, without waiting for a CPU, a disk or a
          lock
x(r,s)  = W(r,s) - lower quartile over s of W(r,·), less the lower quartile of that over ranks (from
          four ranks on)
lost    = trimmed mean over s of T(s) - T'(s); in T' every x(r,s) is the mean of x(·,s) over the
          ranks, that is, work divided evenly

One of three signatures distinguishes it from noise, which moves too:

turns     The x are of two kinds, split where the variance between the kinds is largest (Otsu 1979)
          and far apart: Ashman's D = |m2 - m1| / √((s1² + s2²)/2) >= 4.6 with medians and MADs
          (halves of one normal: 2.3); most steps have both kinds; and they are no accidents, now in
          one function, now in another (varying.py, scattered). In a large fleet the longest ranks
          of each step are read because they are the longest, which makes two kinds by selection:
          they are left out.
shared    What one rank has more in a step the others have less. With x the W of a rank less its
          median: 1 - Var(Σ over r of x(r,·)) / Σ over r of Var(x(r,·)) >= 0.9; noise that hits each
          rank by itself gives 0.
together  All functions of a step grow together (what-if analysis, OSDI'25: correlation of forward
          and backward >= 0.9): rho >= 0.9, the mean correlation of the functions (varying.py).

None of them counts where a function that only the longer steps have, such as reading a file, makes
them longer (occasional.py): that is a note. A fault of one rank is excluded: no rank is late more
often than by chance (else it is odd, or has episodes), and the time is work. Where it is waiting
for a CPU, a disk or a lock instead, a note reports noise of the hosts.

Pauses: where one Python function varies alone, is little of the work on average, and the work of
the others is as usual, the function varies and not the input. It is the suspect, on all ranks, and
in T' all x are 0. Otherwise no component is a suspect.

In pipelines of p stages and m micro-batches uneven lengths cost more than the sums over a step
show: each micro-batch is paced by the longest of p at a time. With sd the ranks' relative standard
deviation of W over the steps, a micro-batch has sd · √m, and the longest of p is e(p) of that above
the mean (Blom 1958): lost += T' · sd · √m · e(p), at most the measured excess of the steps.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from rankscope.diagnose import budgets, limits
from rankscope.diagnose.infer.causes.hypothesis import GUESS, SEEN, Hypothesis, common_host
from rankscope.diagnose.infer.causes.registry import cause
from rankscope.diagnose.infer.causes.rows import CLEAR, Clear, Row, Taken
from rankscope.diagnose.infer.causes.whole_job import Proposal, WholeJob
from rankscope.diagnose.infer.fleet.model import Fleet, Pipelines
from rankscope.diagnose.infer.model.evidence import varying
from rankscope.diagnose.infer.model.evidence.occasional import occasional
from rankscope.diagnose.infer.model.replay import busy, shrink
from rankscope.diagnose.infer.model.scene import Scene
from rankscope.diagnose.infer.verdict.contract import AGAINST, ASLEEP, DETAIL, LIMIT, Evidence
from rankscope.diagnose.infer.verdict.function import Function
from rankscope.diagnose.infer.verdict.note import Note, NoteCode
from rankscope.diagnose.stats.mixture import OF_ONE, two_kinds
from rankscope.diagnose.stats.robust import nan_median, trimmed_mean
from rankscope.diagnose.text import seconds
from rankscope.observer.sources import Source
from rankscope.probes.base.arrays import Bools, Floats


@dataclass(frozen=True, slots=True)
class _Signature:
    """What shows that work moves: evidence, how clear it is (z), and in which steps ranks have more (`heavy`)."""

    evidence: tuple[Evidence, ...]
    z: float
    heavy: Bools  # ranks x steps


@cause("workload", "data-imbalance", scope="all", witness="late in turn, by work",
       says="^the work is uneven: now one rank has more, now another",
       action="Sort or pack the batches by length, so that "
       "all have equally much per step.")  # fmt: skip
@cause("python", "slow-function", scope="all", witness="stacks: it varies, in turn on all",
       says="^now on one rank, now on another, {function|Python code} takes long")  # fmt: skip
@cause("python", "blocking-call", scope="all", witness="the same, in turn on all ranks",
       says="^now on one rank, now on another, {function|Python code} sleeps")  # fmt: skip
@cause("python", "gc", scope="all", witness="the same, in turn on all ranks", rests_on=[Source.CALLS],
       says="^Python's garbage collection stops the ranks[, in {function}]",
       action="Each rank collects garbage in steps of its own, and all wait for it: collect on all ranks in the same "
       "steps (gc.disable(), then gc.collect() every so many steps), or less often (gc.freeze()).")  # fmt: skip
def moving_work(job: WholeJob) -> list[Proposal]:
    """Return the moving imbalance as a row, or a note on what else makes ranks late in turn.

    A row of workload/data-imbalance, or of python for pauses; nothing where ranks are even.
    """
    fleet, scene = job.fleet, job.scene
    ranks, steps = scene.own.shape
    if ranks < 2 or steps < limits.STEPS_FEW or ranks * steps > budgets.PARTS_MOST:
        return []
    late = scene.own - _usual(scene.own)
    cost = float(np.nan_to_num(trimmed_mean((_highest(late) - np.nanmean(np.nan_to_num(late), axis=0))[None, :])[0]))
    # Micro-batches of a live pipeline are counted from outside, too roughly for a model.
    pipelines = scene.pipelines if fleet.timed else None
    clear = cost >= limits.EFFECT_SHARE * scene.step_s
    if not clear and pipelines is None:
        return []
    first = fleet.steps.count - steps
    matrices = fleet.steps
    other = np.nan_to_num(matrices.io_s + matrices.sched_s + matrices.sync_s)[:, first:]
    work = scene.own - other
    x = _moved(work)
    latest = np.argmax(np.where(np.isfinite(late), late, -np.inf), axis=0), np.arange(steps)
    worked = float(np.nansum(np.maximum(x[latest], 0.0)) / max(float(np.nansum(np.maximum(late[latest], 0.0))), 1e-12))
    if worked < limits.MOST:
        text = (
            f"now one rank is late, now another, by {seconds(cost)} on average, mostly waiting for a CPU, a disk or a lock: "
            "noise of the hosts"
        )
        return [Note(NoteCode.MOVING_NOISE, text)] if clear else []
    found = varying.most(fleet)
    pauses = found is not None and found.pauses
    if found is not None and pauses and _is_paused_by(fleet, found.users):
        return []  # ../waste/pauses.py tells it with its steps
    even = scene.own - np.nan_to_num(np.maximum(x, 0.0)) if pauses else scene.own - x + np.nanmean(x, axis=0)
    between_s, shared_s = 0.0, shrink(scene.own, even, scene.pipelines, scene.busy_s)
    if not pauses and pipelines is not None:
        between_s = _between_stages(scene, pipelines, work, even, shared_s)
    lost_s = shared_s + between_s
    if lost_s < limits.EFFECT_SHARE * scene.step_s:
        return []
    by_chance = _without_longest(x, scene.own, fleet.longest)
    signature = _turns(by_chance, often=not pauses)
    if signature is not None and varying.scattered(fleet, work, found):
        text = f"now one rank is late, now another, by {seconds(cost)} on average, in one function or another: accidents, not the input"
        return [Note(NoteCode.MOVING_NOISE, text)]
    if signature is None and not pauses:
        signature = _shared(work) or _together(fleet, work, x, lost_s / scene.step_s, pipelines)
    if signature is None:
        return []
    if not pauses and (done := _done_in_turn(fleet, signature, x)) is not None:
        return [done]
    taken = Taken(between_s, np.arange(ranks), scene.own - even)
    return [Row(_hypothesis(fleet, signature, found), taken, Clear(signature.z))]


def _is_paused_by(fleet: Fleet, function: Function) -> bool:
    """Whether the observer saw the function pause several ranks."""
    table = fleet.pauses
    same = (table.name.codes == table.name.code(function.name)) & (table.file.codes == table.file.code(function.file))
    return len(np.unique(table.rank[same & ~table.more])) > 1


def _done_in_turn(fleet: Fleet, signature: _Signature, x: Floats) -> Note | None:
    """Return a note on a function that only the longer steps have: then the input is even.

    None where there is no such function. `x`: seconds above the usual, ranks x steps.
    """
    heavy = signature.heavy
    if fleet.timed or not heavy.any() or heavy.all():
        return None
    apart_s = float(np.nanmean(x[heavy]) - np.nanmean(x[~heavy]))
    found = occasional(fleet, heavy, apart_s)
    if found is None:
        return None
    frame, takes_s = found
    place = Function("python", *frame).place
    text = (
        f"now one rank is late, now another: {place} takes {seconds(takes_s)} in some steps of each rank, "
        "not in the same ones, and nothing in the others: the input is even"
    )
    return Note(NoteCode.MOVING_NOISE, text)


def _usual(own: Floats) -> Floats:
    """Return each rank's median own time, as a column: lasting differences between ranks are not moving ones."""
    return nan_median(own, 1)[:, None]


def _highest(values: Floats) -> Floats:
    """Return the largest finite value of each column (ranks x steps); -inf where there is none."""
    return np.asarray(np.where(np.isfinite(values), values, -np.inf).max(axis=0), dtype=np.float64)


def _moved(work: Floats) -> Floats:
    """Return x(r,s): work less each rank's lower quartile over steps; negative where it is below.

    From four ranks on, the lower quartile over ranks of the result is subtracted from each step too.
    """
    level = np.nan_to_num(_quartile(work, 1))[:, None]
    x = work - level
    if len(work) >= 4:
        x = x - np.nan_to_num(_quartile(x, 0))[None, :]
    return x


def _without_longest(x: Floats, own: Floats, count: int) -> Floats:
    """Return `x` with NaN for the `count` longest ranks of each step, which were read because they are longest.

    The remaining ones are a sample of all ranks.
    """
    if not count:
        return x
    longest = np.argpartition(np.nan_to_num(own), len(own) - min(count, len(own)), axis=0)[-count:]
    left: Floats = x.copy()
    np.put_along_axis(left, longest, np.nan, axis=0)
    return left


def _quartile(values: Floats, axis: int) -> Floats:
    """Return the lower quartile along an axis, ignoring NaN; a value that occurs. NaN where all are NaN."""
    ordered = np.sort(values, axis=axis)  # NaN sorts last
    count = np.isfinite(values).sum(axis=axis)
    place = np.expand_dims(np.maximum(np.ceil(count * 0.25).astype(np.int64) - 1, 0), axis)
    return np.asarray(np.take_along_axis(ordered, place, axis), dtype=np.float64).squeeze(axis)


def _turns(x: Floats, often: bool) -> _Signature | None:
    """Return the signature "turns" (two kinds of steps), or None.

    `often`: require that most steps have both kinds.
    """
    kinds = two_kinds(x)
    if kinds is None:
        return None
    with np.errstate(invalid="ignore"):
        heavy: Bools = x > kinds.split
    both = float(np.mean(heavy.any(axis=0) & (~heavy & np.isfinite(x)).any(axis=0)))
    if kinds.distance < limits.CONCENTRATED * OF_ONE or (often and both < 0.6) or not _spread_over_ranks(heavy):
        return None
    distance = min(kinds.distance, 999.0)  # infinite where all values of a kind are equal
    evidence = (
        Evidence("steps", "steps in which some ranks have more work", 100 * both, None, "% of steps"),
        Evidence("steps", "work is of two sizes, which differ by", kinds.apart, None, "s/step", role=DETAIL),
        Evidence(
            "steps",
            "distance of the sizes over their spread (noise: 2.3)",
            distance,
            limits.CONCENTRATED * OF_ONE,
            "",
            role=LIMIT,
        ),
    )
    return _Signature(evidence, distance, heavy)


def _spread_over_ranks(heavy: Bools) -> bool:
    """Return whether long steps are spread over ranks as chance spreads them.

    At least half of the ranks have their part, and none has more than three times the mean, or six
    standard deviations above it. `heavy`: ranks x steps.
    """
    count = heavy.sum(axis=1)
    usual = float(count.mean())
    several = max(2.0, 0.3 * usual) if usual >= 4 else 1.0  # few steps for many ranks: not every rank gets a turn
    had = float(np.mean(count >= several))
    most = max(3 * usual, usual + 4, usual + 6 * math.sqrt(usual))
    return had >= (0.5 if usual >= 2 else 0.25 * usual) and float(count.max()) <= most


def _between_stages(scene: Scene, pipelines: Pipelines, work: Floats, even: Floats, lost_s: float) -> float:
    """Return the seconds per step that lengths which differ between micro-batches cost in addition.

    `even`: own times with work divided evenly; `lost_s`: the loss already counted.
    """
    batches, stages = pipelines.micro_batches, int(np.bincount(pipelines.member).max())
    level = nan_median(work, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a rank without steps
        spread = np.nanstd(work, axis=1) / np.maximum(level, 1e-12)
    sd = np.nan_to_num(nan_median(spread[None, :], 1)[0]) if len(level) else 0.0
    after = trimmed_mean(np.stack([busy(even, pipelines), scene.busy_s]))
    longest = NormalDist().inv_cdf((stages - 0.375) / (stages + 0.25)) if stages > 1 else 0.0
    more = float(after[0]) * float(sd) * math.sqrt(batches) * longest
    return float(np.clip(more, 0.0, max(float(after[1] - after[0]) - lost_s, 0.0)))


def _shared(work: Floats) -> _Signature | None:
    """Return the signature "shared" (total work is constant, its owner varies), or None.

    z = atanh(shared) · √(steps - 3): Fisher's transform of a correlation over its error.
    """
    late = work - _usual(work)
    x = work[:, np.isfinite(work).all(axis=0)]
    if x.shape[1] < limits.STEPS_FEW:
        return None
    x = x - np.median(x, axis=1)[:, None]
    alone = float(x.var(axis=1).sum())
    shared = 1 - float(x.sum(axis=0).var()) / alone if alone > 0 else 0.0
    most: Bools = late >= _highest(late)[None, :]
    if shared < limits.NEARLY_ALL or not _spread_over_ranks(most):
        return None
    what = "what one rank has more in a step the others have less (by chance: 0, all of it: 1)"
    z = math.atanh(min(shared, limits.NEARLY_ALWAYS)) * math.sqrt(x.shape[1] - 3)
    return _Signature((Evidence("steps", what, shared, limits.NEARLY_ALL, "", role=LIMIT),), z, most)


def _together(fleet: Fleet, work: Floats, x: Floats, share: float, pipelines: Pipelines | None) -> _Signature | None:
    """Return the signature "together" (all functions of a step grow together), or None.

    `x`: moved work, ranks x steps; `share`: of the step that dividing work evenly would save.
    """
    least = limits.EFFECT_SHARE if fleet.timed else limits.ALONE_SHARE
    if fleet.patterns.sd_s is None or share < least:
        return None
    correlation = varying.correlation(fleet, work)
    if correlation is None or correlation < limits.NEARLY_ALL:
        return None
    # All ranks of a pipeline work on the same sequences.
    member = pipelines.member if pipelines is not None else np.arange(len(x))
    numbers, group = np.unique(member, return_inverse=True)
    groups = np.stack([np.nan_to_num(x[member == each]).mean(axis=0) for each in numbers])
    heaviest: Bools = groups >= _highest(groups)[None, :]
    heavy = np.asarray(heaviest[group.reshape(-1)], dtype=bool)
    if not _spread_over_ranks(heaviest):
        return None
    evidence = (
        Evidence(
            "functions",
            "functions of a step grow together (correlation)",
            correlation,
            limits.NEARLY_ALL,
            "",
            role=LIMIT,
        ),
        Evidence(
            "steps",
            "another rank has most work in each step; shared evenly it would save",
            100 * share,
            None,
            "% of the step",
        ),
    )
    clear = SEEN * min(correlation, 1.0)
    return _Signature(evidence, math.sqrt(CLEAR * clear / (1 - clear)), heavy)


def _hypothesis(fleet: Fleet, signature: _Signature, found: varying.Varying | None) -> Hypothesis:
    """Return the hypothesis of moving work: data-imbalance, or the cause of a pause if one function pauses ranks.

    `found`: the function that varies most, if any.
    """
    rows = tuple(np.flatnonzero(signature.heavy.any(axis=1)).tolist())
    pause = found if found is not None and found.pauses else None
    oftenest = 100 * float(signature.heavy.sum(axis=1).max()) / max(signature.heavy.shape[1], 1)
    evidence = [
        *signature.evidence,
        Evidence("steps", "steps in which one rank has it, at most", oftenest, None, "% of steps", role=DETAIL),
        Evidence("steps", "ranks that have it in some steps", f"{len(rows)} of {len(fleet.ranks)}", None, ""),
    ]
    doubt = 1.0
    if found is not None:
        varies = [Evidence("functions", "varies most", found.function.name, None, "")]
        if pause is not None or found.alone:
            varies.append(Evidence("functions", "its share of what varies", 100 * found.of_variance, None, "%"))
            varies.append(Evidence("functions", "its share of the work", 100 * found.of_work, None, "%"))
        # For a pause the function is the main evidence; for uneven lengths it is what all functions
        # show.
        evidence = [*varies, *evidence] if pause is not None else [*evidence, *varies]
        if pause is not None and pause.detail == "sleep":
            evidence.append(Evidence("stacks", "state in it", ASLEEP, None, ""))
        if pause is None and found.alone:
            doubt = GUESS
            evidence.append(Evidence(f"{AGAINST}functions", "grows alone: longer input makes most of a step longer; this looks like pauses",
                                     found.function.name, None, ""))  # fmt: skip
    component, cause, action = ("workload", "data-imbalance", "") if pause is None else _of_pause(pause)
    return Hypothesis(
        scope="all",
        component=component,
        cause=cause,
        rows=rows,
        lost_s=float("nan"),
        support=SEEN * doubt,
        evidence=tuple(evidence),
        action=action,
        host=common_host(fleet, rows),
        instance="moving from rank to rank",
        function=None if pause is None else pause.users,
    )


def _of_pause(pause: varying.Varying) -> tuple[str, str, str]:
    """Return (component, cause, action) for a function that makes another rank late in each step."""
    if pause.detail == "gc":
        return "python", "gc", ""
    place = pause.users.place
    cause, does = ("blocking-call", "sleeps") if pause.detail == "sleep" else ("slow-function", "takes")
    return ("python", cause, f"Look at {place}: now and then it {does} long, each time on another rank, and all wait for it.")  # fmt: skip
