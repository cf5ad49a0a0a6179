"""Groups inferred from host names: neighbours by name that are slow for the same reason.

Hosts are usually numbered along the racks. Of N hosts, K are suspects of one mechanism; n of them
are consecutive in the order of names. By chance this happens at one of the N possible starts with
probability

p = N · P(Hypergeometric(N, n, K) >= n)

Such a sequence is proposed if p <= 1.4 % and it has at least three hosts: the two ends of one bad
link may be neighbours. Where the topology file says what the hosts share, nothing is proposed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from rankscope.diagnose import limits
from rankscope.diagnose.infer.fleet.large.topology import Group
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.verdict.contract import Suspect
from rankscope.diagnose.stats.urn import at_least

KIND = "neighbours"
REASON = {
    "network": "a switch",
    "nic": "a switch",
    "gpu": "cooling and power",
    "cpu": "cooling and power",
    "storage": "a file system",
}


def proposed(fleet: Fleet, suspects: Sequence[Suspect], known: Collection[str]) -> list[Group]:
    """Return groups of hosts consecutive by name that are suspects of one mechanism.

    `known`: components for which the topology is given; they are left out.
    """
    host_of = dict(zip(fleet.ranks.number.tolist(), fleet.ranks.host, strict=True))
    mechanisms: dict[tuple[str, str], set[str]] = {}
    for each in suspects:
        if each.component in REASON and each.component not in known and each.scope != "group":
            mechanisms.setdefault((each.component, each.cause), set()).update(host_of[rank] for rank in each.ranks)
    several = [accused for accused in mechanisms.values() if len(accused) >= limits.SEVERAL]
    if not several:
        return []
    everyone = sorted(fleet.looked_at_hosts or frozenset(host_of.values()), key=in_order)
    found = []
    for accused in several:
        for row in _rows(everyone, accused):
            chance = len(everyone) * at_least(len(row), len(row), len(accused), len(everyone))
            if len(row) >= limits.SEVERAL and chance <= limits.FALSE_DISCOVERY_RATE:
                found.append(Group(KIND, f"{row[0]} to {row[-1]}", frozenset(row)))
    return found


def in_order(name: str) -> list[tuple[bool, int, str]]:
    """Sort key for host names that compares numbers as numbers: node-9 before node-10."""
    parts = re.findall(r"\d+|\D+", name)
    return [(part.isdecimal(), int(part[:18]) if part.isdecimal() else 0, part) for part in parts]


def _rows(everyone: Sequence[str], accused: set[str]) -> Iterator[list[str]]:
    """Yield maximal sequences of consecutive suspect hosts in `everyone`, which is sorted."""
    row: list[str] = []
    for name in everyone:
        if name in accused:
            row.append(name)
        elif row:
            yield row
            row = []
    if row:
        yield row
