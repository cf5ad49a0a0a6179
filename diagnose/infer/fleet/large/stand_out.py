"""Choose the hosts of a large fleet that are read in full.

d(r,s) = own(r,s) - median over the role of own(q,s)
excess(r) = 10 % trimmed mean of d over the steps, or over any third of them

Possibly odd ranks   excess(r) >= 0.8 floors (suspects need one), or waiting less than the role by
                     as much; three steps longer by a quarter of a step; stopped, ended, silent or
                     without steps; a slow connection compared with the role; device errors on the host; a
                     missing rank of the same launcher
Longest ranks        the longest in each step: they decide how long steps would be without a suspect
Sample of peers      hosts at even distances, and enough of each role
Ends of connections  hosts at the other ends of slow connections and of the sample's connections

All ranks of such hosts are read. Roles are the given ones, else ranks alike in functions, messages
and bytes. Computations on all ranks are tasks by block: they get the steps and return one number
per rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rankscope.diagnose import limits
from rankscope.diagnose.infer.fleet.labels import distinct_rows
from rankscope.diagnose.infer.fleet.large.crowd import Crowd
from rankscope.diagnose.infer.fleet.large.medians import blocks, medians
from rankscope.diagnose.infer.fleet.roles import alike
from rankscope.diagnose.stats.robust import nan_median, peers_median, trimmed_mean
from rankscope.probes.base.arrays import Bools, Floats, Ints, Singles

_MOST_HOSTS = 512  # most possibly odd hosts: the oddest first; with more of them none is an outlier
_SAMPLE_HOSTS = 256  # 2,000 ranks: their median is accurate to 3 % of the spread
LONGEST = 4  # ranks per step


def hosts_to_read(crowd: Crowd, pool: Executor) -> frozenset[str]:
    """Choose the hosts (observer's names) to read in full: possibly odd ones, and a sample of their peers.

    `pool`: executor for blocks of ranks.
    """
    role = _roles(crowd)
    of_rank = crowd.hosts.of_rank
    names = crowd.hosts.names
    shown = _shown(crowd, role, pool)
    slow = _slow_links(crowd, role)
    odd = _oddness(crowd, shown.odd) + 1.0 * slow + 1.0 * crowd.lacking
    worst = np.zeros(len(names))
    np.maximum.at(worst, of_rank, odd)
    chosen = np.zeros(len(names), dtype=bool)
    chosen[[place for place in np.argsort(-worst, kind="stable")[:_MOST_HOSTS] if worst[place] > 0]] = True
    chosen[of_rank[shown.longest]] = True
    here = np.unique(of_rank)
    sample = _SAMPLE_HOSTS // 2 if any(crowd.link_to.values) else _SAMPLE_HOSTS  # half if link peers are added
    sampled = np.zeros(len(names), dtype=bool)
    sampled[here[np.linspace(0, len(here) - 1, min(sample, len(here))).astype(np.int64)]] = True
    chosen |= sampled
    chosen[_other_ends(crowd, (slow & chosen[of_rank]) | sampled[of_rank])] = True
    for one in range(int(role.max(initial=-1)) + 1):  # few roles: stages, a learner, its actors
        members = np.flatnonzero(role == one)
        lacking = limits.PEERS_EXACT - int(chosen[of_rank[members]].sum())
        if lacking > 0:
            chosen[of_rank[members[:: max(len(members) // limits.PEERS_EXACT, 1)][: limits.PEERS_EXACT]]] = True
    return frozenset(names[place] for place in np.flatnonzero(chosen).tolist())


def _roles(crowd: Crowd) -> Ints:
    """Number the role of each rank: the given one, else ranks alike in functions, messages and bytes per step."""
    if any(crowd.role.values):
        return np.unique(crowd.role.codes, return_inverse=True)[1].reshape(-1).astype(np.int64)
    each, number = _few_distinct(crowd.works)
    sets = ((each.view(np.uint64)[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)).astype(bool)
    found = alike(sets, np.bincount(number))[number]
    steps = np.maximum(np.isfinite(crowd.steps.own_s).sum(axis=1), 1)
    parts = (found, _magnitude(crowd.messages / steps), _magnitude(crowd.moved / steps))
    return distinct_rows(parts)


def _few_distinct(values: Ints) -> tuple[Ints, Ints]:
    """Return the distinct values, rising, and the index of each value among them.

    Like np.unique with return_inverse, without sorting a million values of which few are distinct.
    """
    encoded = pa.array(values).dictionary_encode()
    each = encoded.dictionary.to_numpy()
    order = np.argsort(each)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return each[order], place[encoded.indices.to_numpy()]


def _magnitude(values: Floats) -> Ints:
    """Class of each value: the power of two nearest to value / median of all, within ±8.

    An edge may split one role in two, which is harmless.
    """
    median = max(float(np.median(values)), 1e-9)
    return np.asarray(np.round(np.log2(np.maximum(values, 1e-9 * median) / median)).clip(-8, 8), dtype=np.int64)


def _oddness(crowd: Crowd, by_steps: Singles) -> Floats:
    """Oddness by rank, in effect floors; 0 for ordinary ranks.

    `by_steps`: oddness by the steps alone; ranks that stand still and hosts with device errors get
    more.
    """
    errors = (crowd.errors > 0) | (crowd.errors_hz > limits.EVENTS_HZ)
    return np.asarray(by_steps + 100.0 * _strange(crowd) + 10.0 * errors)


@dataclass(frozen=True, slots=True)
class _Shown:
    """What the steps of ranks show.

    `odd`: oddness of each rank, in effect floors; `longest`: ranks (rows) with most own time in
    some step.
    """

    odd: Singles
    longest: Ints


def _shown(crowd: Crowd, role: Ints, pool: Executor) -> _Shown:
    """Compute the oddness of all ranks by their steps, and which ranks are the longest in a step.

    `role`: by rank. Blocks of ranks are tasks of `pool`.
    """
    own, wait = crowd.steps.own_s, crowd.steps.wait_s
    if not own.size:
        return _Shown(np.zeros(len(own), dtype=np.float32), np.empty(0, dtype=np.int64))
    usual = _Usual.of((own, wait), role, pool)
    tasks = [
        pool.submit(_of_block, own[rows], wait[rows], usual.of_rows(rows), crowd.steps.usual_s)
        for rows in blocks(len(own))
    ]
    parts = [task.result() for task in tasks]
    firsts = [rows.start for rows in blocks(len(own))]
    longest = np.concatenate([part.longest + first for part, first in zip(parts, firsts, strict=True)])
    return _Shown(np.concatenate([part.odd for part in parts]), np.unique(longest[_highest(own[longest])]))


def _of_block(own: Singles, wait: Singles, usual: _Usual, step_s: float) -> _Shown:
    """Oddness and longest ranks of a block, compared with `usual` (of all ranks).

    Runs on a worker.
    """
    floor_s = max(limits.EFFECT_SHARE * step_s, limits.EFFECT_SECONDS)
    gap = own - usual.rows[0][usual.which]
    parts = [gap, *np.array_split(gap, 3, axis=1)] if gap.shape[1] >= 3 else [gap]
    excess = np.max([np.nan_to_num(trimmed_mean(part)) for part in parts], axis=0)
    spared = np.nan_to_num(trimmed_mean(usual.rows[1][usual.which] - wait))
    odd = np.maximum(np.maximum(excess, spared), 0.0) / floor_s
    odd[odd < limits.NEARLY_ALL] = 0.0
    rare = (np.nan_to_num(gap) >= limits.LARGE_SHARE * step_s).sum(axis=1) >= limits.SEVERAL
    return _Shown((odd + 1.0 * rare).astype(np.float32), np.unique(_highest(own)))


def _highest(own: Singles) -> Ints:
    """Rows of the LONGEST highest values of each column of `own` (ranks x steps), with repetitions."""
    count = min(LONGEST, len(own))
    by_step = np.ascontiguousarray(np.nan_to_num(own).T)
    return np.asarray(np.argpartition(by_step, len(own) - count, axis=1)[:, len(own) - count :].reshape(-1))


@dataclass(frozen=True, slots=True)
class _Usual:
    """Peers' median per step of each rank.

    `rows`: by matrix, one row for a large role, one per rank of a small one; `which`: row by rank.
    """

    rows: Sequence[Floats]
    which: Ints

    @classmethod
    def of(cls, matrices: Sequence[Singles], role: Ints, pool: Executor) -> _Usual:
        """Compute from the step matrices of all ranks."""
        sizes = np.bincount(role)
        large = np.flatnonzero(sizes > limits.PEERS_EXACT)
        place = np.full(len(sizes), -1, dtype=np.int64)
        place[large] = np.arange(len(large))
        which = place[role]
        of_many = np.flatnonzero(which >= 0)
        some = matrices if len(of_many) == len(role) else [matrix[of_many] for matrix in matrices]
        rows = [[each] for each in medians(some, which[of_many], pool)] if len(large) else [[] for _ in matrices]
        count = len(large)
        for one in np.flatnonzero((sizes > 0) & (sizes <= limits.PEERS_EXACT)).tolist():
            members = np.flatnonzero(role == one)
            which[members] = count + np.arange(len(members))
            count += len(members)
            for each, matrix in zip(rows, matrices, strict=True):
                mine = matrix[members].astype(np.float64)
                each.append(peers_median(mine, np.zeros(len(members), dtype=np.int64)))
        return cls([np.concatenate(each) for each in rows], which)

    def of_rows(self, rows: slice) -> _Usual:
        """Restrict to a slice of ranks and the rows they need."""
        each, which = np.unique(self.which[rows], return_inverse=True)
        return _Usual([values[each] for values in self.rows], which.reshape(-1))


def _strange(crowd: Crowd) -> Bools:
    """Mark ranks that did not run all the time: stopped, ended, silent outside collectives, or
    without steps."""
    still = ~crowd.running | (crowd.stopped_s > 0) | np.isfinite(crowd.ended_s)
    known = np.isfinite(crowd.steps.own_s).any(axis=1)
    patience_s = max(limits.STEPS_LEAST * crowd.steps.usual_s, limits.STALL_SECONDS)
    if known.any():
        still |= ~known
    silent = np.nan_to_num(crowd.last_progress_s, nan=np.inf) > patience_s
    return np.asarray(still | (silent & (crowd.in_collective_s <= 0)))  # a rank in a collective waits for others


def _slow_links(crowd: Crowd, role: Ints) -> Bools:
    """Mark ranks whose slowest connection has less than half of their role's median rate; unknown ones are not."""
    rate = np.where(np.isfinite(crowd.rate_hz), crowd.rate_hz, np.nan)
    usual = np.array([float(nan_median(rate[role == one], 0)) if np.isfinite(rate[role == one]).any() else np.nan
                      for one in range(int(role.max(initial=-1)) + 1)])  # fmt: skip
    slow: Bools = np.nan_to_num(rate, nan=np.inf) < limits.HOLDS_LEAST * np.nan_to_num(usual)[role]
    return slow


def _other_ends(crowd: Crowd, among: Bools) -> Ints:
    """Hosts (indices) at the other end of the slowest connections of the ranks in the mask `among`."""
    at = {address: number for number, address in enumerate(crowd.link_from.values) if address}
    host_of = np.full(len(crowd.link_from.values), -1, dtype=np.int64)
    host_of[crowd.link_from.codes] = crowd.hosts.of_rank
    wanted = [at.get(crowd.link_to.values[code], -1) for code in np.unique(crowd.link_to.codes[among]).tolist()]
    return np.unique(host_of[[place for place in wanted if place >= 0]])
