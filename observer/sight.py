"""Inspect the ranks of a host without probes: the census, timeable collectives, devices.

All of it is read by a process that has given up its rights (apart/).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rankscope.observer.apart.confined import Progress
from rankscope.observer.apart.look import look
from rankscope.observer.census.collectives import SeenCollectives, seen_collectives
from rankscope.observer.census.found import RankCensus
from rankscope.observer.census.owners import several_devices
from rankscope.observer.census.ranks import find_ranks
from rankscope.observer.serving.found import Server, find_servers


@dataclass(frozen=True, slots=True)
class Sight:
    """Result of an inspection. `devices`: pid -> its devices, for processes that drive several.

    `servers`: processes that ranks of a job ask.
    """

    census: RankCensus
    collectives: tuple[SeenCollectives, ...]
    devices: dict[int, str]
    servers: tuple[Server, ...] = ()


def see(root: Path = Path("/"), progress: Progress = lambda _: None, *, verbose: bool = False) -> Sight:
    """Inspect this host; what cannot be read is in the notes. Raises OutOfMemory, ObserverEnded,
    BadData.
    """
    return look(partial(_see, root), Sight, progress, gpus=True, verbose=verbose)


def _see(root: Path) -> Sight:
    """Take the census, and find timeable collectives, processes with several devices, and servers, in this process."""
    census = find_ranks(root)
    devices = several_devices((*census.ranks, *census.alone), root)
    return Sight(census.brief(), seen_collectives(census.ranks, root), devices, find_servers(census.ranks, root))
