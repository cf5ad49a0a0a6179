"""Ports (NICs, or the NVLinks of a GPU) of a fleet: a row per port, an array per counter.

A port is (observed host, network namespace of its rank, instance), since each namespace has
interfaces of the same names. Counters of a port that several ranks share belong to no rank: they
are matched with the ranks that list the port.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.fleet.counters import Columns
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.stats.robust import median, peers_median, robust_sd_of_others
from rankscope.probes.base.arrays import Bools, Floats, Ints


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports used by ranks of the job.

    Counter values are NaN where a port has no such counter.
    """

    rank: Ints  # row in fleet.ranks: the first rank that uses it
    instance: tuple[str, ...]
    prefix: str
    counted: Mapping[str, tuple[Ints, Ints]]  # counter name → rows of `table`, and the port of each (index here)
    table: Columns

    def __len__(self) -> int:
        return len(self.rank)

    def value(self, name: str) -> Floats:
        """Value of a counter over the window, by port; NaN where a port has none."""
        return self._of_each(name, self.table.value)

    def limit(self, name: str) -> Floats:
        """Limit of a counter, such as the nominal speed, by port; NaN where there is none."""
        return self._of_each(name, self.table.limit)

    def lowest(self, name: str) -> Floats:
        """Minimum of a counter over the window, by port."""
        return self._of_each(name, self.table.minimum)

    @property
    def bytes(self) -> Floats:
        """Bytes in the busier direction, by port; NaN where neither is counted."""
        sent, received = (self.value(f"{self.prefix}{way}_bytes") for way in ("tx", "rx"))
        return np.asarray(np.fmax(sent, received), dtype=np.float64)

    def _of_each(self, name: str, column: Floats) -> Floats:
        """Column values of one counter by port.

        Built on demand: the number of names is unbounded, since whoever writes the windows chooses
        them.
        """
        array = np.full(len(self), np.nan)
        if name in self.counted:
            rows, place = self.counted[name]
            array[place[::-1]] = column[rows][::-1]  # ranks that share a port report the same value: use the first
        return array


def ports(fleet: Fleet, prefix: str) -> Ports:
    """The ports that a rank uses and that have counters beginning with `prefix` ('nic.')."""
    counters, table = fleet.counters, fleet.counters.table
    names = counters.names(prefix)
    owner = _owners(fleet, names)
    of_name = [counters.rows(name) for name in names]
    everything = np.concatenate([np.empty(0, np.int64), *of_name])
    used = owner[everything] >= 0
    rows = everything[used]
    _, first, place = np.unique(_keys(fleet, rows, owner), return_index=True, return_inverse=True)
    chosen, known = rows[first], np.isfinite(table.value[rows])
    edges = np.cumsum(used)[np.cumsum([len(each) for each in of_name], dtype=np.int64) - 1].tolist()
    counted: dict[str, tuple[Ints, Ints]] = {}
    for name, begin, end in zip(names, [0, *edges], edges, strict=False):
        mine = known[begin:end]
        counted[name] = rows[begin:end][mine], place.reshape(-1)[begin:end][mine]
    instance = tuple(table.instance.at(int(row)) for row in chosen)
    return Ports(owner[chosen], instance, prefix, counted, table)


def _owners(fleet: Fleet, names: tuple[str, ...]) -> Ints:
    """Return, by counter row, the rank that uses the port: its own, else the first that lists it; -1: none.

    `names`: counters to look at; rows of others keep the rank of the table.
    """
    table = fleet.counters.table
    owner: Ints = table.rank.copy()
    shared = [row for name in names for row in fleet.counters.rows_of(name, -1).tolist()]
    if shared:
        first: dict[tuple[str, str], int] = {}
        for rank, nics in enumerate(fleet.ranks.nics):
            for port in nics:
                first.setdefault((fleet.ranks.observed_on[rank], port), rank)
        for row in shared:
            owner[row] = first.get((table.observed_on.at(row), table.instance.at(row)), -1)
    return owner


def _keys(fleet: Fleet, rows: Ints, owner: Ints) -> Ints:
    """Return a number for each of these counter rows that is equal for rows of one port.

    A port: host, network namespace of the rank that uses it (`owner`, by counter row), instance.
    """
    table = fleet.counters.table
    _, space = np.unique(fleet.ranks.netns, return_inverse=True)
    spaces = int(space.max(initial=0)) + 1
    place = table.observed_on.codes[rows] * spaces + space.reshape(-1)[owner[rows]]
    key: Ints = np.asarray(place * max(len(table.instance.values), 1) + table.instance.codes[rows], dtype=np.int64)
    return key


def classes(capability: Floats) -> Ints:
    """Group ports into classes of one nominal capability (to 4 %).

    Unknown capability is a class too. InfiniBand does not report what a port could do, so a
    degraded one looks like a slower model. Hence a class with at most a quarter of the ports joins
    the largest class.
    """
    known = np.isfinite(capability) & (capability > 0)
    found = np.full(len(capability), -1, dtype=np.int64)
    found[known] = np.round(np.log(capability[known]) / 0.04).astype(np.int64)
    values, inverse, count = np.unique(found, return_inverse=True, return_counts=True)
    group: Ints = inverse.reshape(-1).astype(np.int64)
    if len(values) > 1:
        group[count[group] <= limits.LARGE_SHARE * len(capability)] = int(np.argmax(count))
    return group


def peers_of(values: Floats, group: Ints) -> tuple[Floats, Floats, Ints]:
    """Median, robust sd and number of the other ports in each port's class.

    NaN, NaN, 0 if it has none.
    """
    middle, spread = np.full(len(values), np.nan), np.full(len(values), np.nan)
    count = np.zeros(len(values), dtype=np.int64)
    for each in np.unique(group):
        members = np.flatnonzero((group == each) & np.isfinite(values))
        if len(members) < 2:
            continue
        count[members] = len(members) - 1
        middle[members] = peers_median(values[members, None], np.zeros_like(members))[:, 0]
        spread[members] = robust_sd_of_others(values[members])
    # A port without the value has peers all the same.
    for each in np.unique(group[~np.isfinite(values)]):
        members = (group == each) & ~np.isfinite(values)
        others = values[(group == each) & np.isfinite(values)]
        if len(others):
            middle[members], spread[members], count[members] = median(others), 0.0, len(others)
    return middle, spread, count


def grown(values: Floats, group: Ints, least: float) -> Bools:
    """Mark ports whose event count is at least `least` and ten times their peers' median."""
    if not (values >= least).any():  # nearly always
        return np.zeros(len(values), dtype=np.bool_)
    middle = np.nan_to_num(peers_of(values, group)[0])
    return np.asarray(np.nan_to_num(values) >= np.maximum(least, limits.OTHER_KIND * middle), dtype=np.bool_)
