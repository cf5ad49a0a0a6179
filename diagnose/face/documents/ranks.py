"""The JSON that `rankscope ranks --json` prints, from an inspection of a host's processes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rankscope.diagnose.text import clean

SCHEMA = "rankscope.ranks/1"

if TYPE_CHECKING:
    from rankscope.observer.census.found import FoundRank, Rejected
    from rankscope.observer.sight import Sight


def as_object(sight: Sight) -> dict[str, Any]:
    """Return as JSON the ranks, servers, rejected processes, notes and collectives that were seen."""
    census, devices = sight.census, sight.devices
    return {
        "schema": SCHEMA,
        "ranks": [_rank(found) | {"devices": devices.get(found.pid, "")} for found in census.ranks],
        "servers": [
            {
                "job": clean(one.job),
                "pid": one.pid,
                "port": one.port,
                "program": clean(one.program),
                "asked_by": list(one.asked_by),
            }
            for one in sight.servers
        ],
        "rejected": [
            {"pid": r.pid, "comm": clean(r.comm), "reason": clean(reason(r, devices))} for r in census.rejected
        ],
        "notes": [clean(note) for note in census.notes],
        "collectives": [
            {
                "job": clean(seen.job),
                "seen": [f"{clean(family)} in {clean(file)}" for family, file in seen.seen],
                "hidden": [clean(file) for file in seen.hidden],
            }
            for seen in sight.collectives
        ],
    }


def _rank(found: FoundRank) -> dict[str, Any]:
    """Return one rank as JSON."""
    identity = found.identity
    return {
        "job": clean(identity.job),
        "title": clean(identity.title),
        "rank": identity.rank,
        "local_rank": identity.local_rank,
        "world_size": identity.world_size,
        "local_world_size": identity.local_world_size,
        "guessed": found.guessed,
        "launcher": clean(found.launcher),
        "role": clean(identity.role),
        "host": clean(identity.host),
        "node": clean(identity.node),
        "container": clean(identity.container),
        "pid": identity.pid,
        "workers": loaders(found),
        "python": clean(identity.python),
        "command": clean(identity.command),
    }


def reason(rejected: Rejected, devices: Mapping[int, str]) -> str:
    """Say why a process is no rank, and which devices it drives, if several (`devices`: in words, by pid)."""
    what = devices.get(rejected.pid)
    return f"{rejected.reason}, one process that drives {what}" if what else rejected.reason


def loaders(found: FoundRank) -> int:
    """Count the worker processes that may feed the rank with data: not compilers or multiprocessing helpers."""
    from rankscope.observer.census.workers import FEEDING

    return sum(worker.kind in FEEDING for worker in found.workers)
