"""Number ranks whose environments do not name them completely. Pure.

Numbers come from command lines, from the holder of the rendezvous, else from the order of start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rankscope.observer.census.identity import Claim, parse_arguments


@dataclass(frozen=True, slots=True)
class Numbered:
    """One numbered process of a group. `certain`: its number is more than a guess; `told`: command
    lines gave it.
    """

    pid: int
    rank: int
    local_rank: int
    world_size: int
    certain: bool
    told: bool


@dataclass(frozen=True, slots=True)
class Member:
    """A process of a group. `local_rank`: from its environment; -1 where absent."""

    pid: int
    command: tuple[str, ...]
    local_rank: int = -1


def number_group(group: Sequence[Member], hub: int | None, whole: bool) -> tuple[Numbered, ...]:
    """Number processes that work together, given in order of start.

    `hub`: the pid of the process that holds the rendezvous: torch's store, JAX's coordinator. Both
    are in rank 0.
    `whole`: nobody else is connected with it, so these are all ranks of the job. Numbers from
    command lines (and those on this host, where these are all ranks) are certain where the hub's is
    0. Without them the hub is 0, and of two processes the other is 1. The world size is unknown (0)
    where others are connected and no command line gives it.
    """
    pids = [one.pid for one in group]
    said = [parse_arguments(one.command) for one in group]
    numbers = [rank for rank, _, _ in said]
    if (
        hub is not None
        and numbers[pids.index(hub)] is None
        and all(n for n, pid in zip(numbers, pids, strict=True) if pid != hub)
    ):
        numbers[pids.index(hub)] = 0
    if all(number is None for number in numbers):
        local, here = [one.local_rank for one in group], list(range(len(group)))
        numbers = list(local) if whole and sorted(local) == here else _counted([one.command for one in group])
    told = [number for number in numbers if number is not None]
    world = max(world for _, _, world in said) or (len(group) if whole or hub is None else 0)
    if len(told) == len(set(told)) == len(group):
        certain = hub is not None and told[pids.index(hub)] == 0 and (max(told) < world or not world)
        places = {number: place for place, number in enumerate(sorted(told))}
        return tuple(
            Numbered(pid, number, local if local >= 0 else places[number], world, certain, True)
            for pid, number, (_, local, _) in zip(pids, told, said, strict=True)
        )
    # stable: the hub first, the others in order of start
    ordered = sorted(pids, key=lambda pid: pid != hub)
    certain = hub is not None and whole and len(group) == world == 2
    return tuple(
        Numbered(pid, place, place, world, certain or (pid == hub and whole), False)
        for place, pid in enumerate(ordered)
    )


def number_by_node(claims: Mapping[int, tuple[int, Claim]]) -> dict[int, tuple[Claim, bool]]:
    """Compute global numbers for claims numbered per host, from host 1 on: pid -> (claim, whether it is certain).

    `claims`: pid -> (user, claim). number = number of the host x ranks of a host + number on the
    host, as Lightning counts; hosts have equally many. A guess where ranks of this host are
    missing, or may be: one alone, unless it is the last of all.
    """
    here: dict[tuple[int, str, int], set[int]] = {}
    for owner, claim in claims.values():
        here.setdefault((owner, claim.job, claim.node_rank), set()).add(claim.local_rank)
    found = {}
    for pid, (owner, claim) in claims.items():
        if claim.node_rank > 0:
            seen = here[owner, claim.job, claim.node_rank]
            size = max(seen) + 1
            number = claim.node_rank * size + claim.local_rank
            whole = len(seen) == size and claim.world_size % size == 0 and number < claim.world_size
            found[pid] = (replace(claim, rank=number), whole and (size > 1 or number == claim.world_size - 1))
    return found


def _counted(commands: Sequence[tuple[str, ...]]) -> list[int | None]:
    """Return the one argument in which otherwise equal command lines differ, if it counts 0, 1, 2,
    …; else Nones.
    """
    none: list[int | None] = [None] * len(commands)
    if len({len(command) for command in commands}) != 1:
        return none
    different = [column for column in zip(*commands, strict=True) if len(set(column)) > 1]
    if len(different) != 1 or not all(word.isascii() and word.isdigit() and len(word) < 8 for word in different[0]):
        return none
    numbers = [int(word) for word in different[0]]
    return list(numbers) if sorted(numbers) == list(range(len(numbers))) else none
