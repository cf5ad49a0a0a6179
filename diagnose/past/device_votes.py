"""What a window says of ports and PCIe devices: the places of their rates while they move data, among devices of one nominal speed.

excess = usual / rate - 1, usual the median rate of its class: what the device's transfers take longer than those of its peers.

A port is named by its host's machine and its own name, a PCIe device by its machine and address: a card that is moved begins anew.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rankscope.diagnose.fleet.model import Fleet
from rankscope.diagnose.fleet.ports import classes, ports
from rankscope.diagnose.past.reputation import Vote, votes_of
from rankscope.diagnose.stats.robust import nan_median

_KINDS = {"port": "nic.", "pcie": "pcie."}


def device_votes(fleet: Fleet) -> Iterator[Vote]:
    """Of each class of devices that a rank uses and whose rate is measured."""
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
