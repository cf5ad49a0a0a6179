"""PCIe links beside the same links of the peers.

w = speed · width / (maximum speed · maximum width), per device on the way of a rank: its GPU, its NIC, the bridges above. The
devices of a rank that have the same maxima are sorted by w and compared place by place with those of the peers: a bridge
that everybody has in a narrow slot accuses nobody, and does not hide the GPU that is narrow on one rank only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankscope.diagnose import budgets, limits
from rankscope.diagnose.fleet.model import Fleet
from rankscope.diagnose.model.functions import sample
from rankscope.diagnose.stats.robust import median
from rankscope.diagnose.verdict.contract import Evidence
from rankscope.probes.arrays import Ints

Key = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Link:
    """One PCIe link. Speeds in GT/s per lane; `expected`: the peers' w."""

    rank: int  # row in fleet.ranks
    instance: str
    speed_gts: float
    speed_limit_gts: float
    width: float
    width_limit: float
    expected: float
    peers: int

    @property
    def share(self) -> float:
        """w."""
        return self.speed_gts * self.width / max(self.speed_limit_gts * self.width_limit, 1e-9)

    @property
    def ratio(self) -> float:
        """This link's rate over that of the peers'."""
        return self.share / self.expected if self.expected > 0 else 1.0

    def evidence(self) -> tuple[Evidence, ...]:
        mine = f"{self.speed_gts:.3g} GT/s x{self.width:.0f}"
        able = f"{self.speed_limit_gts:.3g} GT/s x{self.width_limit:.0f}"
        return (
            Evidence("sysfs", f"PCIe link of {self.instance}", mine, f"{able} (its own capability)", ""),
            Evidence("sysfs", "share of the link's capability", 100 * self.share, 100 * self.expected, "%", self.peers),
        )

    def action(self, host: str) -> str:
        return (
            f"Reseat {self.instance} of {host} and check its riser and slot (`lspci -vv -s {self.instance} | grep Lnk`): the link "
            "came up below what both ends can do."
        )


def degraded(fleet: Fleet, rank: int, peers: Ints) -> Link | None:
    """The rank's link that is worst beside its peers', if it is below their three quarters; else None."""
    mine = _links(fleet, np.array([rank]))
    if all(share > limits.HALVED for links in mine.values() for _, _, share, *_ in links):
        return None
    theirs = _links(fleet, sample(peers))
    found: list[Link] = []
    for key, links in mine.items():
        by_rank: dict[int, list[float]] = {}
        for row, _, share, *_ in theirs.get(key, []):
            by_rank.setdefault(row, []).append(share)
        ordered = [sorted(shares) for shares in by_rank.values()]
        # Of equal shares the last address: bridges come before what is under them.
        for place, (_, instance, share, speed, width) in enumerate(sorted(links, key=lambda each: (each[2], each[1]))):
            beside = [shares[place] for shares in ordered if len(shares) > place]
            expected = median(beside) if beside else 1.0
            if share <= limits.HALVED * expected:
                found.append(Link(rank, instance, speed, key[0], width, key[1], expected, len(beside)))
    if not found:
        return None
    # Both ends of a link tell the same; the lower one is the device.
    worst = min(link.ratio for link in found)
    return max((link for link in found if link.ratio <= worst + 1e-3), key=lambda link: link.instance)


def narrow_ranks(fleet: Fleet) -> Ints:
    """Ranks with a link below three quarters of its capability, those with most such links first; few even in a large fleet."""
    counters = fleet.counters
    rows = counters.rows("pcie.width")
    limit = counters.table.limit[rows]
    thin = rows[(counters.table.value[rows] <= limits.HALVED * limit) & (counters.table.rank[rows] >= 0)]
    rows = counters.rows("pcie.speed_gts")
    limit = counters.table.limit[rows]
    slow = rows[(counters.table.value[rows] <= limits.HALVED * limit) & (counters.table.rank[rows] >= 0)]
    count = np.bincount(counters.table.rank[np.concatenate((thin, slow))], minlength=len(fleet.ranks))
    # What every rank has is the machine: only those with more of it than the median rank can be odd.
    odd = np.flatnonzero(count > np.median(count)) if len(count) else np.empty(0, np.int64)
    chosen: Ints = odd[np.argsort(-count[odd], kind="stable")][: budgets.EXAMINED]
    return chosen


def _links(fleet: Fleet, ranks: Ints) -> dict[Key, list[tuple[int, str, float, float, float]]]:
    """(maximum speed, maximum width) → (rank, instance, w, speed, width) of these ranks' links."""
    counters = fleet.counters
    table = counters.table
    widths = {(int(table.rank[row]), int(table.instance.codes[row])): int(row)
              for row in counters.rows_of("pcie.width", ranks)}  # fmt: skip
    found: dict[Key, list[tuple[int, str, float, float, float]]] = {}
    for row in counters.rows_of("pcie.speed_gts", ranks).tolist():
        other = widths.get((int(table.rank[row]), int(table.instance.codes[row])))
        if other is None or not (table.limit[row] > 0 and table.limit[other] > 0):
            continue
        speed, width = float(table.value[row]), float(table.value[other])
        key = (float(table.limit[row]), float(table.limit[other]))
        share = speed * width / (key[0] * key[1])
        found.setdefault(key, []).append((int(table.rank[row]), table.instance.at(row), share, speed, width))
    return found
