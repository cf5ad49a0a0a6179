"""Votes of one window on ports and PCIe devices: their excess among devices of one nominal speed.

excess = usual / rate - 1, usual being the median rate of the class: how much longer transfers take.
A port is identified by its host's machine id and name, a PCIe device by machine id and address; a
moved card starts anew.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.fleet.ports import classes, ports
from rankscope.diagnose.infer.past.reputation import Vote, votes_of
from rankscope.diagnose.stats.robust import nan_median

_KINDS = {"port": "nic.", "pcie": "pcie."}


def device_votes(fleet: Fleet) -> Iterator[Vote]:
    """Yield votes for each class of devices that ranks use and whose rate is measured."""
    ranks = fleet.ranks
    machines = ranks.machine or ("",) * len(ranks)
    for kind, prefix in _KINDS.items():
        seen = ports(fleet, prefix)
        rate, nominal = seen.value(f"{prefix}burst_hz"), seen.limit(f"{prefix}burst_hz")
        known = np.flatnonzero(rate > 0)
        group = classes(nominal[known])
        for each in np.unique(group):
            rows = known[group == each].tolist()
            of_rank = seen.rank[rows].tolist()
            names = [
                f"{machines[rank] or ranks.observed_on[rank]}/{seen.instance[row]}"
                for row, rank in zip(rows, of_rank, strict=True)
            ]
            positions = [f"{fleet.title}/{int(ranks.number[rank])}" for rank in of_rank]
            excess = nan_median(rate[rows], 0) / rate[rows] - 1
            hosts = [ranks.host[rank] for rank in of_rank]
            yield from votes_of(kind, fleet.job, fleet.start, names, positions, hosts, excess)
