"""Find ranks that have not joined a collective, by querying NCCL's RAS twice; only for a GPU job that hangs.

Counts of a healthy job differ all the time, and an answer costs a message to every process of the
job; so nothing is queried while collectives end. In: ranks of this host with the data of their
windows. Out: rows of the table `counters` and notes; a rank of another host is named as well, where
the communicator is as large as the job.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from rankscope.observer.census.found import FoundRank
from rankscope.observer.window.counter_names import NCCL_SILENT
from rankscope.observer.window.rows import CounterRow
from rankscope.probes.base.text import printable
from rankscope.probes.nccl import ras as nccl_ras
from rankscope.probes.nccl import ras_answer
from rankscope.probes.nccl.ras import RasSilence
from rankscope.probes.nccl.ras_answer import Communicator, Place, RasAnswer

STILL_S = 5.0
_BETWEEN_S = 1.0
_LIMIT_S = 2.0
_MAX_NAMED = 16

Ask = Callable[[int], "RasAnswer | RasSilence"]


def is_hanging(in_collective_s: Mapping[int, float], window_s: float) -> bool:
    """Tell whether some rank was inside one collective for most of the window, and longer than a
    slow step.
    """
    return any(seconds >= max(0.5 * window_s, STILL_S) for seconds in in_collective_s.values())


def ask(pid: int) -> RasAnswer | RasSilence:
    """Query RAS in a rank's network namespace, within `_LIMIT_S`."""
    return nccl_ras.ask(pid, limit_s=_LIMIT_S)


def missing(
    ranks: Sequence[FoundRank], here: Collection[str] = (), asking: Ask = ask, pause_s: float = _BETWEEN_S
) -> tuple[list[CounterRow], tuple[str, ...]]:
    """Build rows and notes about ranks that are behind or do not answer. Never raises.

    None, with a note, where RAS is silent. `here`: addresses of this host, since NCCL identifies
    hosts by the address of its socket; the loopback counts as ours.
    """
    first = asking(ranks[0].pid)
    if isinstance(first, RasSilence):
        return [], (first.reason,)
    time.sleep(pause_s)
    second = asking(ranks[0].pid)
    if isinstance(second, RasSilence):
        return [], (second.reason,)
    world = max(rank.identity.world_size for rank in ranks)
    sizes = {one.identity: one for one in second.communicators}
    rows, notes = [], []
    for late in ras_answer.laggards(first, second)[:_MAX_NAMED]:
        number = _number(late.place, sizes.get(late.communicator), ranks, world, here)
        rows.append(_row(number, "ras.behind", late.operation, late.furthest - late.launched, late.furthest))
        notes.append(
            f"NCCL says: {_who(late.place, number)} has launched {late.launched} {printable(late.operation, 32)} of "
            f"communicator {printable(late.communicator, 32)}, others {late.furthest}"
        )
    for communicator in second.communicators:
        for one in communicator.missing[:_MAX_NAMED]:
            number = _number(one.place, communicator, ranks, world, here)
            rows.append(_row(number, NCCL_SILENT, communicator.identity, 1.0, None))
            notes.append(f"NCCL says: {_who(one.place, number)} {'is dead' if one.dead else 'does not answer'}")
    return rows, tuple(dict.fromkeys(notes))[:_MAX_NAMED]


def _number(
    place: Place, communicator: Communicator | None, ranks: Sequence[FoundRank], world: int, here: Collection[str]
) -> int:
    """Return the rank in the job of a process that NCCL names; −1 where only the process is known.

    `world`: ranks of the job; `here`: addresses of this host. Pids are not enough: each container
    counts its own.
    """
    for rank in ranks:
        known = place.host in ("", rank.identity.node) or place.host in here or _is_loopback(place.host)
        if known and place.pid == rank.identity.inner_pid:
            return rank.identity.rank
    size = communicator.size if communicator is not None else 0
    return place.rank if size == world and 0 <= place.rank < world else -1


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _who(place: Place, number: int) -> str:
    """Name a rank for a note: 'rank 3 (pid 77 on HOST)', or 'rank 3 of a communicator' where `number` is -1."""
    known = f"rank {number}" if number >= 0 else f"rank {place.rank} of a communicator"
    return f"{known} (pid {place.pid} on {printable(place.host, 64)})" if place.host else known


def _row(rank: int, name: str, what: str, value: float, limit: float | None) -> CounterRow:
    """Build a row of the table `counters`: a gauge of a rank; `what`: its operation or communicator."""
    return CounterRow(
        "rank", printable(what, 64), rank=rank, name=name, unit="operations", kind="gauge", value=value, limit=limit
    )
