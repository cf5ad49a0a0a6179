"""Votes of one window on devices: GPUs and hosts by excess among peers, ports and PCIe by rates.

Ranks that are slow for another reason (a slow function of the job) vote like all others: in one job
they are wrong, over many jobs they average out. Ports and PCIe devices: device_votes.py.
"""

from __future__ import annotations

import numpy as np

from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.past.device_votes import device_votes
from rankscope.diagnose.infer.past.reputation import Vote, votes_of
from rankscope.diagnose.infer.solve.prepare import prepare
from rankscope.diagnose.stats.robust import median, nan_median
from rankscope.probes.base.arrays import Bools, Floats, Ints


def votes(fleet: Fleet) -> list[Vote]:
    """Return the votes of one window of a job; empty where it has no steps to compare."""
    per_step = nan_median(fleet.steps.seconds, 0)
    if not np.isfinite(per_step).any():
        return []
    scene, _ = prepare(fleet, per_step)
    return votes_on(fleet, scene.differences.excess_s / scene.step_s, scene.roles)


def votes_on(fleet: Fleet, excess: Floats, roles: Ints) -> list[Vote]:
    """Return the votes by each rank's excess, a share of the step, among ranks of the same role."""
    ranks = fleet.ranks
    known = np.isfinite(excess)
    found: list[Vote] = []
    for role in np.unique(roles[known]):
        rows = np.flatnonzero(known & (roles == role)).tolist()
        names = [_gpu(fleet, row) for row in rows]
        positions = [f"{fleet.title}/{int(ranks.number[row])}" for row in rows]
        hosts = [ranks.host[row] for row in rows]
        found += votes_of("gpu", fleet.job, fleet.start, names, positions, hosts, excess[rows])
    found += _of_hosts(fleet, excess, roles, known)
    found += device_votes(fleet)
    return found


def _of_hosts(fleet: Fleet, excess: Floats, roles: Ints, known: Bools) -> list[Vote]:
    """Return votes on hosts by their median rank, among hosts with ranks of the same roles."""
    ranks = fleet.ranks
    of_host: dict[str, list[int]] = {}
    for row in np.flatnonzero(known).tolist():
        of_host.setdefault(ranks.observed_on[row], []).append(row)
    alike: dict[tuple[int, ...], list[str]] = {}
    for host, rows in of_host.items():
        alike.setdefault(tuple(sorted(roles[rows].tolist())), []).append(host)
    found: list[Vote] = []
    for hosts in alike.values():
        names = [ranks.machine[of_host[host][0]] or host if ranks.machine else host for host in hosts]
        positions = [f"{fleet.title}/{min(int(ranks.number[row]) for row in of_host[host])}" for host in hosts]
        value = np.array([median(excess[of_host[host]]) for host in hosts])
        found += votes_of("host", fleet.job, fleet.start, names, positions, hosts, value)
    return found


def _gpu(fleet: Fleet, row: int) -> str:
    """Identify a rank's only GPU: its UUID, else host and name; '' without one, or with several."""
    ranks = fleet.ranks
    if not ranks.gpus or len(ranks.gpus[row]) != 1:
        return ""
    uuid = ranks.gpu_ids[row] if ranks.gpu_ids else ""
    return uuid or f"{ranks.observed_on[row]}/{ranks.gpus[row][0]}"
