"""Merge suspects of one mechanism whose hosts belong to one rack, switch, rail or file system.

Of N hosts, n belong to the group; K hosts are suspects of the mechanism, k of them in the group. By
chance at least k fall into the group with probability

p = P(Hypergeometric(N, n, K) >= k)

The group is the suspect if G · p <= 1.4 %, G the number of groups examined, and at least half of its
hosts are suspects: a single bad host does not make a bad rack. Where only the worst hosts were
examined, at least half of that many. Of several groups that pass, the one with the least p takes
its suspects first, the others are tested on the rest. Hosts of the group that are slow for the same
reason, though not clearly enough alone, are added (members.py). A rail is all adapters of one name;
its units are adapters instead of hosts. Where no topology is given, hosts with consecutive names
are proposed (neighbours.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rankscope.diagnose import budgets, limits
from rankscope.diagnose.infer.causes.group import neighbours
from rankscope.diagnose.infer.causes.group.members import Members
from rankscope.diagnose.infer.fleet.large.topology import Group
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.verdict.contract import Evidence, Suspect
from rankscope.diagnose.stats.urn import at_least

_OF_COMPONENT = {
    "rack": ("gpu", "cpu"),  # one cooling, one power
    "switch": ("network", "nic"),
    "filesystem": ("storage",),
    "rail": ("network", "nic"),
    neighbours.KIND: tuple(neighbours.REASON),
}
_ACTION = {
    "rack": "look at cooling and power of rack {}",
    "switch": "look at switch {}: its uplinks, its errors, who else uses it",
    "filesystem": "look at the servers of {}",
    "rail": "look at the switches of rail {}",
    neighbours.KIND: "look at what {} have in common, {} maybe: with --topology FILE it is named",
}


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A group that may be the suspect instead of `members`.

    `accused`: its hosts (of a rail: adapters) that are suspects; `size`: all of its hosts; `chance`: G · p.
    """

    group: Group
    members: tuple[Suspect, ...]
    accused: int
    size: int
    chance: float


def with_groups(
    fleet: Fleet, suspects: Sequence[Suspect], groups: Sequence[Group], members: Members | None = None
) -> list[Suspect]:
    """Merge suspects that one group of hosts explains; return all suspects in their order.

    `members`: finds further ranks that belong to a group; None: none are added.
    """
    left = list(suspects)
    known = {component for group in groups for component in _OF_COMPONENT[group.kind]}
    of_kind = _asked((*groups, *neighbours.proposed(fleet, suspects, known)), fleet, suspects)
    while found := min(_candidates(fleet, left, of_kind), key=lambda one: one.chance, default=None):
        explained = set(map(id, found.members))
        place = next(at for at, each in enumerate(left) if id(each) in explained)
        others = [each for each in left if id(each) not in explained]
        one = _as_one(found)
        if members is not None and found.members[0].scope == "rank":
            one = members.joined(one, found.group.hosts, [rank for each in others for rank in each.ranks])
        left = [*others[:place], one, *others[place:]]
    return left


@dataclass(frozen=True, slots=True)
class _Asked:
    """The groups of one kind with more than one suspect host; `count`: all groups of the kind."""

    count: int
    groups: tuple[Group, ...]


def _asked(groups: Iterable[Group], fleet: Fleet, suspects: Sequence[Suspect]) -> dict[str, _Asked]:
    """Return, by kind, how many groups there are and those with more than one suspect host."""
    host_of = _host_of(fleet)
    accused = frozenset(host_of[rank] for each in suspects if each.scope != "group" for rank in each.ranks)
    of_kind: dict[str, list[Group]] = {}
    for group in groups:
        of_kind.setdefault(group.kind, []).append(group)
    return {
        kind: _Asked(len(mine), tuple(each for each in mine if len(accused & each.hosts) > 1))
        for kind, mine in of_kind.items()
    }


def _host_of(fleet: Fleet) -> dict[int, str]:
    """Map the numbers of ranks to the names of their hosts."""
    return dict(zip(fleet.ranks.number.tolist(), fleet.ranks.host, strict=True))


def _candidates(fleet: Fleet, suspects: Sequence[Suspect], of_kind: Mapping[str, _Asked]) -> Iterator[_Candidate]:
    """Yield the groups, and the rails of adapters, that have more suspects of one mechanism than by chance."""
    host_of = _host_of(fleet)
    everyone = fleet.looked_at_hosts or frozenset(host_of.values())
    mechanisms: dict[tuple[object, ...], list[Suspect]] = {}
    for each in suspects:
        if each.scope != "group" and each.ranks:
            mechanisms.setdefault((each.component, each.cause), []).append(each)
    for (component, _), alike in mechanisms.items():
        mine = [one for kind, one in of_kind.items() if component in _OF_COMPONENT[kind]]
        asked = _Asked(sum(one.count for one in mine), tuple(group for one in mine for group in one.groups))
        units = {id(each): frozenset(host_of[rank] for rank in each.ranks) for each in alike}
        yield from _beyond_chance(asked, alike, units, everyone)
        if component in _OF_COMPONENT["rail"]:
            of_ranks = fleet.ranks.nics or ((),) * len(fleet.ranks)  # unknown where the fleet was read from timings
            adapters = frozenset(
                f"{host}/{nic}" for host, nics in zip(fleet.ranks.host, of_ranks, strict=True) for nic in nics
            )
            rails = tuple(
                Group("rail", name, frozenset(one for one in adapters if one.endswith(f"/{name}")))
                for name in _names(alike)
            )
            units = {id(each): _adapters(each, units[id(each)]) & adapters for each in alike}
            yield from _beyond_chance(_Asked(len(rails), rails), alike, units, adapters)


def _beyond_chance(
    asked: _Asked, suspects: Sequence[Suspect], units: dict[int, frozenset[str]], everyone: frozenset[str]
) -> Iterator[_Candidate]:
    """Yield those groups at least half of whose hosts are suspects, with G · p of at most 1.4 %.

    `suspects`: of one mechanism; `units`: hosts (of a rail: adapters) of each by its id(); `everyone`:
    all hosts or adapters of the job.
    """
    accused = frozenset[str]().union(*units.values())
    for group in asked.groups:
        there = group.hosts & everyone
        inside = accused & there
        examined = min(len(there), budgets.EXAMINED)
        if len(inside) <= 1 or len(inside) < limits.HOLDS_LEAST * examined or len(there) == len(everyone):
            continue
        chance = asked.count * at_least(len(inside), len(there), len(accused), len(everyone))
        if chance <= limits.FALSE_DISCOVERY_RATE:
            members = tuple(each for each in suspects if units[id(each)] and units[id(each)] <= there)
            if len(members) > 1 or any(len(units[id(each)]) > 1 for each in members):
                yield _Candidate(group, members, len(inside), len(there), chance)


def _names(suspects: Iterable[Suspect]) -> list[str]:
    """Return the names of the devices of these suspects, sorted."""
    return sorted({one.name for each in suspects for one in each.instances})


def _adapters(suspect: Suspect, hosts: Iterable[str]) -> frozenset[str]:
    """Return 'host/device' for each of these hosts and each device of the suspect."""
    return frozenset(f"{host}/{one.name}" for host in hosts for one in suspect.instances)


def _as_one(found: _Candidate) -> Suspect:
    """Merge the suspects of a group into one of scope "group": ranks and devices of all, losses added up.

    `host` is empty, the confidence is the highest, `since` the earliest if all have one. Component,
    cause and evidence are those of the suspect with the largest loss, after evidence of the group.
    """
    members, group = found.members, found.group
    first = max(members, key=lambda each: each.lost_seconds_per_step)
    text = Evidence(
        "topology", f"hosts of {group.kind} {group.name} that are accused", float(found.accused), None, "", found.size
    )
    if group.kind == "rail":
        text = replace(text, measure=f"adapters of rail {group.name} that are accused")
    if group.kind == neighbours.KIND:
        text = replace(
            text, source="names", measure=f"hosts from {group.name}, next to one another by name, that are accused"
        )
    since = [each.since for each in members if each.since is not None]
    return replace(
        first,
        scope="group",
        host="",
        instances=tuple(
            sorted({one for each in members for one in each.instances}, key=lambda one: neighbours.in_order(one.name))
        ),
        ranks=tuple(sorted({rank for each in members for rank in each.ranks})),
        lost_seconds_per_step=float(np.sum([each.lost_seconds_per_step for each in members])),
        lost_percent=float(np.sum([each.lost_percent for each in members])),
        confidence=max(each.confidence for each in members),
        since=min(since) if len(since) == len(members) else None,
        evidence=(text, *first.evidence),
        action=_ACTION[group.kind].format(group.name, neighbours.REASON.get(first.component, "")),
    )
