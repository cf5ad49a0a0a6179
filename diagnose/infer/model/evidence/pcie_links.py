"""PCIe links compared with the same links of the peers.

w = speed · width / (maximum speed · maximum width), per device on the path of a rank: its GPU, its
    NIC, the bridges above. The devices of a rank with the same maxima are sorted by w and compared
    in this order with those of the peers: a bridge that is in a narrow slot on every rank is no
    suspect, and does not hide a GPU that is narrow on one rank only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankscope.diagnose import budgets, limits
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.model.functions import sample
from rankscope.diagnose.infer.verdict.contract import Evidence
from rankscope.diagnose.stats.robust import median
from rankscope.diagnose.text import after
from rankscope.probes.base.arrays import Ints

Key = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Link:
    """One PCIe link: speeds in GT/s per lane, widths in lanes; `expected`: the peers' w."""

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
        """w = speed · width / (maximum speed · maximum width)."""
        return self.speed_gts * self.width / max(self.speed_limit_gts * self.width_limit, 1e-9)

    @property
    def ratio(self) -> float:
        """This link's w over its peers'; 1 if unknown."""
        return self.share / self.expected if self.expected > 0 else 1.0

    def evidence(self) -> tuple[Evidence, ...]:
        """Return two lines: speed and width against the link's own capability, and w against the peers'."""
        mine = f"{self.speed_gts:.3g} GT/s x{self.width:.0f}"
        able = f"{self.speed_limit_gts:.3g} GT/s x{self.width_limit:.0f}"
        return (
            Evidence("sysfs", f"PCIe link of {self.instance}", mine, f"{able} (its own capability)", ""),
            Evidence("sysfs", "share of the link's capability", 100 * self.share, 100 * self.expected, "%", self.peers),
        )

    def action(self, host: str) -> str:
        """Return what to do about the link, as a sentence; `host`: '' if unknown."""
        return (
            f"Reseat {self.instance}{after('of', host)} and check its riser and slot (`lspci -vv -s {self.instance} | grep Lnk`): the link "
            "came up below what both ends can do."
        )


def degraded(fleet: Fleet, rank: int, peers: Ints) -> Link | None:
    """Return the rank's PCIe link that is worst compared with its peers', if below 0.75 of theirs; else None."""
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
        # Of equal shares the last address: bridges come before devices under them.
        for place, (_, instance, share, speed, width) in enumerate(sorted(links, key=lambda each: (each[2], each[1]))):
            beside = [shares[place] for shares in ordered if len(shares) > place]
            expected = median(beside) if beside else 1.0
            if share <= limits.HALVED * expected:
                found.append(Link(rank, instance, speed, key[0], width, key[1], expected, len(beside)))
    if not found:
        return None
    # Both ends of a link report the same; the lower one is the device.
    worst = min(link.ratio for link in found)
    return max((link for link in found if link.ratio <= worst + 1e-3), key=lambda link: link.instance)


def narrow_ranks(fleet: Fleet) -> Ints:
    """Ranks with more links below 0.75 of their capability than the median rank, most first.

    At most budgets.EXAMINED of them.
    """
    counters = fleet.counters
    rows = counters.rows("pcie.width")
    limit = counters.table.limit[rows]
    thin = rows[(counters.table.value[rows] <= limits.HALVED * limit) & (counters.table.rank[rows] >= 0)]
    rows = counters.rows("pcie.speed_gts")
    limit = counters.table.limit[rows]
    slow = rows[(counters.table.value[rows] <= limits.HALVED * limit) & (counters.table.rank[rows] >= 0)]
    count = np.bincount(counters.table.rank[np.concatenate((thin, slow))], minlength=len(fleet.ranks))
    # What every rank has is the machine: only ranks above the median can be odd.
    odd = np.flatnonzero(count > np.median(count)) if len(count) else np.empty(0, np.int64)
    chosen: Ints = odd[np.argsort(-count[odd], kind="stable")][: budgets.EXAMINED]
    return chosen


def _links(fleet: Fleet, ranks: Ints) -> dict[Key, list[tuple[int, str, float, float, float]]]:
    """Links of these ranks by (maximum speed, maximum width): (rank, instance, w, speed, width)."""
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
