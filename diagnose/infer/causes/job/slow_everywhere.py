"""All ranks are slower than in the baseline and none differs: which function, or the transfer.

slower = step - step p50 of the baseline, both without what strangers and quotas took

It is a row of ../rows.py where slower reaches the least growth that counts (past/baseline.py). It
removes `slower` from each step; z = slower / √(spread of the baseline² + (1.4 % of the step)²).

The function that grew most is named where it grew by half of slower. For a Python function that
grew by more than its share of the step slower counts from 5 % on, else from 10 %. The Python
function is found as for one rank compared with its peers (model/attribute.py), on the rank with the
median growth, with its own past as its peers: time in library functions counts for the user's
function that calls them. For other kinds the median over ranks counts. Where waiting for another
thread of the rank grew most, what that thread does is named if it grew by half of that.

Without such a function: the transfer, the least stay of any rank in collectives, if its growth
explains half of slower and ranks did not send half as much more; the row removes that growth. The
link is not identified: all are equally slow. Where the own time of some ranks grew by half of
slower and that of most did not, nothing is reported without a function.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.causes.hypothesis import DESIGNED, GUESS, NO_COUNTER, SEEN, Hypothesis, common_host
from rankscope.diagnose.infer.causes.rank.storage import is_write
from rankscope.diagnose.infer.causes.registry import cause
from rankscope.diagnose.infer.causes.rows import Clear, Row, Taken, gain_s, removed
from rankscope.diagnose.infer.causes.whole_job import Known, WholeJob
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.model.attribute import Located, Profiles
from rankscope.diagnose.infer.model.busy_host import cpus_text, cpus_together, taken_s
from rankscope.diagnose.infer.model.evidence.programs import culprits, programs
from rankscope.diagnose.infer.model.scene import Scene
from rankscope.diagnose.infer.model.waiting import transfer
from rankscope.diagnose.infer.past.as_peers import RANKS_MOST, with_past
from rankscope.diagnose.infer.past.baseline import GrownFunction, Reference, most_grown, most_grown_helper
from rankscope.diagnose.infer.past.compared import growth_s
from rankscope.diagnose.infer.verdict.contract import Evidence
from rankscope.diagnose.infer.verdict.function import Function
from rankscope.diagnose.stats.robust import median, trimmed_mean
from rankscope.observer.sources import Source
from rankscope.probes.base.arrays import Floats


@cause("workload", "slow-everywhere", scope="all", witness="what grew since the baseline",
       says="^all ranks became slower[, in {function}]")  # fmt: skip
@cause("network", "slow-link", scope="all", witness="transfer longer than in the baseline",
       action="All ranks stay longer in collectives and none waits for another: look at what their links share, a switch or other "
       "traffic, and at changed settings of the collectives.")  # fmt: skip
@cause("cpu", "contended", scope="all", witness="run queue grew since the baseline",
       says="it waits longer for a CPU than before")  # fmt: skip
@cause("storage", "slow-read", scope="all", witness="time in reads since the baseline", rests_on=[Source.FILE_CALLS])
@cause("storage", "slow-write", scope="all", witness="time in writes since the baseline", rests_on=[Source.FILE_CALLS])
def slower_everywhere(job: WholeJob, known: Known) -> list[Row]:
    """Return one row for the growth of all ranks that no known row explains, or none."""
    fleet, scene, reference, found = job.fleet, job.scene, job.reference, known.rows
    if reference is None:
        return []
    single = [row for row in found if row.is_excess and not row.before]
    taken = [row for row in found if not (row.is_excess or row.rare or row.found.cause in DESIGNED)]
    own = scene.own - removed(scene.own, single)
    scene = replace(scene, own=own, step_s=scene.step_s - gain_s(scene, single))
    more_s = _more_taken_s(reference, own, taken) + sum(row.taken.step_s for row in taken)
    slower = scene.step_s - reference.step_p50 - more_s
    if slower < reference.least_growth_of_function_s:
        return []
    z = slower / float(np.hypot(limits.SCALE_FLOOR * scene.step_s, reference.step_p50_spread))
    evidence = [_against_baseline(scene, reference)]
    growth = growth_s(fleet, own, reference)
    grown, below, odd = _most_grown(fleet, own, scene, reference, growth)
    explained = 0.0
    if grown is not None:
        explained = min(grown.more_s / slower, 1.0)
        what = f"time in {_called(grown.function)}" + (f" ({grown.detail})" if grown.detail else "")
        evidence.append(Evidence("stacks", what, grown.now_s, grown.before_s, "s/step"))
        evidence.extend(below)
    clear = explained >= limits.HOLDS_LEAST and grown is not None
    if slower < reference.least_growth_s and not (clear and odd):
        return []
    if not clear:
        longer = _longer_transfer(fleet, scene, reference, slower)
        if longer is not None and not longer.more_sent:  # if more is sent, no link is the cause
            return [Row(_of_network(fleet, scene, reference, longer), Taken(longer.lost_s), Clear(z))]
        if _of_some_only(growth, slower):
            return []
        evidence += longer.evidence if longer is not None else ()
        evidence.append(Evidence("stacks", "growth that functions explain, at most", 100 * explained, None, "%"))
    all_slower = _of_function(fleet, grown if clear else None, tuple(evidence))
    return [Row(all_slower, Taken(slower), Clear(z))]


def _of_some_only(growth: Floats, slower: float) -> bool:
    """Whether some ranks' own time grew by half of `slower`, but that of most ranks did not."""
    grew = int((growth >= limits.HOLDS_LEAST * slower).sum())
    return 0 < grew <= len(growth) / 2


def _more_taken_s(reference: Reference, own: Floats, taken: Sequence[Row]) -> float:
    """Return the seconds per step that the rows `taken` take, less what strangers took in the baseline.

    Both on the median rank; 0 if less. `taken`: strangers, quotas and the like.
    """
    if not taken:
        return 0.0
    now = median(trimmed_mean(removed(own, taken)))
    before = [median(np.nan_to_num(trimmed_mean(taken_s(each)))) for each in reference.fleets]
    return max(now - (median(before) if before else 0.0), 0.0)


def _of_function(fleet: Fleet, grown: GrownFunction | None, evidence: tuple[Evidence, ...]) -> Hypothesis:
    """Return the hypothesis that this function grew on all ranks; None: that everything is slower."""
    place = _called(grown.function) if grown is not None else ""
    if grown is not None and grown.function.file:
        place += grown.function.place.removeprefix(grown.function.name)
    component, cause = _component_of(grown) if grown is not None else ("workload", "slow-everywhere")
    rows = tuple(range(len(fleet.ranks)))
    action = f"All ranks are slower: look at what changed since the baseline{f', first at {place}' if place else ''}."
    if component == "storage" and grown is not None:
        action = (
            f"All ranks are slower in {place}: look at {grown.detail or 'its files'}: the disk and I/O limits (iostat -x 1, io.max), the "
            "server where it has one, and what changed since the baseline."
        )
    if (component, cause) == ("cpu", "contended"):
        who, action = _of_queue(fleet, rows)
        evidence = (*evidence, *who)
    return Hypothesis(
        scope="all",
        component=component,
        cause=cause,
        rows=rows,
        lost_s=float("nan"),
        support=SEEN if grown is not None else GUESS,
        evidence=evidence,
        action=action,
        host=common_host(fleet, rows),
        instance=grown.detail if grown is not None and component == "storage" else "",
        function=grown.function if grown is not None else None,
    )


def _of_queue(fleet: Fleet, rows: Sequence[int]) -> tuple[tuple[Evidence, ...], str]:
    """Return (evidence, advice) on a queue for the CPUs that grew on all ranks: who ran, which CPUs they may use."""
    each_step = max(fleet.steps.count, 1) * min(len(rows), limits.PEERS_SAMPLED)
    least_s = limits.EFFECT_SHARE * median(np.nan_to_num(fleet.steps.sched_s).mean(axis=1)) * each_step
    found = [one for one in culprits(programs(fleet, rows)) if not one.is_ours and one.seconds >= least_s]
    told = [
        Evidence(
            "scheduler", f"a rank waits while {one.words} has its CPU, mean", one.seconds / each_step, None, "s/step"
        )
        for one in found
    ]
    masks = set(fleet.ranks.cpus)
    (mask,) = masks if len(masks) == 1 else ("",)
    narrow = 0 < cpus_together([mask]) < len(rows)
    if narrow:
        told.append(Evidence("process", "these ranks may run on", cpus_text(mask), None, ""))
    parts = [
        f"move or stop {found[0].words}" if found else "",
        f"let them run on more than {cpus_text(mask)} (`taskset -acp`, --cpu-bind, a cpuset)" if narrow else "",
    ]
    what = (
        " and ".join(filter(None, parts))
        or "see what else runs on their CPUs (`pidstat 1`, `top`) and which they may use"
    )
    return tuple(told), f"All ranks wait longer for a CPU than before: {what}."


def _most_grown(
    fleet: Fleet, own: Floats, scene: Scene, reference: Reference, growth: Floats
) -> tuple[GrownFunction | None, tuple[Evidence, ...], bool]:
    """Return (function that grew most, evidence from below it, whether growth is concentrated in it).

    A Python function is found by its stack; concentrated: it grew by more than its share of the
    step. `growth`: seconds per step by rank.
    """
    leaf, found = most_grown(reference, fleet), _python(fleet, own, scene, reference, growth)
    if (
        found is None
        or found.spread
        or (leaf is not None and leaf.function.kind != "python" and leaf.more_s >= found.excess_s)
    ):
        return _of_helper(reference, fleet, leaf) or (leaf, (), False)
    below = found.leaf
    told = Evidence("stacks", "deepest frame", below.place, None, "") if below is not None else None
    return GrownFunction(found.function, "", found.peers_s, found.own_s), (told,) if told is not None else (), True


def _of_helper(
    reference: Reference, fleet: Fleet, leaf: GrownFunction | None
) -> tuple[GrownFunction, tuple[Evidence, ...], bool] | None:
    """Return what grew in a rank's helper threads, where waiting for them is what grew most; else None.

    As (function, evidence of the wait, False). None unless `leaf` is a wait and the helpers' function
    grew by half of it.
    """
    if leaf is None or leaf.function.kind != "sync":
        return None
    helper = most_grown_helper(reference, fleet, limits.HOLDS_LEAST * leaf.more_s)
    if helper is None:
        return None
    waited = f"waiting in {leaf.function.name} for a thread or process of its own"
    return helper, (Evidence("scheduler", waited, leaf.now_s, leaf.before_s, "s/step"),), False


def _python(fleet: Fleet, own: Floats, scene: Scene, reference: Reference, growth: Floats) -> Located | None:
    """Locate the growth of Python time on the rank with the median growth; None without its past."""
    known = np.flatnonzero(np.isfinite(growth))
    if not len(known) or not reference.fleets or len(fleet.ranks) > RANKS_MOST:
        return None
    row = int(known[np.argsort(growth[known])[len(known) // 2]])
    extended, roles = with_past(fleet, scene.roles, reference.fleets, np.array([row], dtype=np.int64))
    peers = np.flatnonzero(roles == roles[row])
    now = float(trimmed_mean(own)[row])
    return Profiles(extended).locate(
        row, peers[peers != row], ("python",), max(float(growth[row]), 0.0) / max(now, 1e-12)
    )


def _against_baseline(scene: Scene, reference: Reference) -> Evidence:
    """Return the evidence of the step length now and in the baseline."""
    return Evidence("steps", "step time against the baseline", scene.step_s, reference.step_p50, "s", 0)


def _called(function: Function) -> str:
    """Return the function's name in words for readers."""
    return "the queue for the CPUs" if (function.kind, function.name) == ("sched", "ready") else function.name


def _component_of(grown: GrownFunction) -> tuple[str, str]:
    """Return (component, cause) for a function that grew on all ranks: storage, cpu, else workload."""
    if grown.function.kind == "io":
        return "storage", "slow-write" if is_write(grown.function.name) else "slow-read"
    if grown.function.kind == "sched" and grown.function.name == "ready":
        return "cpu", "quota" if grown.detail == "throttled" else "contended"
    return "workload", "slow-everywhere"


@dataclass(frozen=True, slots=True)
class _LongerTransfer:
    """Growth of the transfer that explains half of the slowdown; `more_sent`: ranks send more as well."""

    lost_s: float
    evidence: tuple[Evidence, ...]
    more_sent: bool


def _longer_transfer(fleet: Fleet, scene: Scene, reference: Reference, slower: float) -> _LongerTransfer | None:
    """Return the growth of the transfer since the baseline if it explains half of `slower`; else None.

    `slower`: seconds per step.
    """
    known = [_mean(transfer(each.steps.wait_s)) for each in reference.fleets]
    before = median(known) if known else float("nan")
    now = _mean(transfer(scene.wait))
    explained = min((now - before) / slower, 1.0)
    if not explained >= limits.HOLDS_LEAST or not before > 0:
        return None
    evidence = [Evidence("steps", "transfer (the least time of any rank in collectives)", now, before, "s/step")]
    more_sent = False
    if (sent := _sent(fleet, reference)) is not None:
        grown, told = sent
        evidence.append(told)
        more_sent = grown >= limits.HOLDS_LEAST * (now / before - 1)
    return _LongerTransfer(min(now - before, slower), tuple(evidence), more_sent)


def _of_network(fleet: Fleet, scene: Scene, reference: Reference, longer: _LongerTransfer) -> Hypothesis:
    """Return network/slow-link for all ranks: what all links have in common became slow.

    Its `lost_s` is NaN; the row that holds it has the seconds.
    """
    rows = tuple(range(len(fleet.ranks)))
    return Hypothesis(
        scope="all",
        component="network",
        cause="slow-link",
        rows=rows,
        lost_s=float("nan"),
        support=NO_COUNTER,
        evidence=(_against_baseline(scene, reference), *longer.evidence),
        host=common_host(fleet, rows),
    )


def _mean(per_step: Floats) -> float:
    """Return the trimmed mean of one value per step."""
    return float(trimmed_mean(per_step[None, :])[0])


def _sent(fleet: Fleet, reference: Reference) -> tuple[float, Evidence] | None:
    """Return the relative growth of bytes sent per step and rank (median), with evidence; or None.

    Bytes of collectives; where a library hides these (a wait for an earlier operation has none), of
    TCP connections.
    """
    for source, measure, per_step in (
        ("collectives", "bytes of a rank", _collective_bytes),
        ("tcp", "sent by a rank", _tcp_bytes),
    ):
        before = median([np.median(per_step(each)) for each in reference.fleets])
        now = median(per_step(fleet))
        if before > 0 and now > 0:
            return now / before - 1, Evidence(source, measure, now / 1e6, before / 1e6, "MB/step")
    return None


def _collective_bytes(fleet: Fleet) -> Floats:
    """Return the bytes of collectives per step, by rank."""
    return fleet.bytes_per_step("collective")


def _tcp_bytes(fleet: Fleet) -> Floats:
    """Return the bytes sent per step over TCP, by rank."""
    sent = np.bincount(fleet.flows.rank, weights=fleet.flows.sent_bytes, minlength=len(fleet.ranks))
    return np.asarray(sent / fleet.steps.of_each, dtype=np.float64)
