"""Notes on hardware counters that moved while no rank waits; they are no suspects.

A counter is reported if it moved far more than on its peers (errors), or is below its own
capability and its peers (speeds, clocks), and its device is no suspect. A low level of most devices
is reported once, as that of the machines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from rankscope.diagnose import budgets, limits, xids
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.model.evidence.event_words import event_words
from rankscope.diagnose.infer.verdict.contract import DEVICES, Suspect
from rankscope.diagnose.infer.verdict.note import Note, NoteCode
from rankscope.diagnose.stats.robust import median
from rankscope.diagnose.text import rank_list
from rankscope.probes.base.arrays import Ints

_ERRORS = {
    "gpu.ecc_uncorrected": 1.0, "gpu.ecc_corrected": 0.0, "gpu.rows_remapped": 1.0, "gpu.remap_failed": 1.0,
    "gpu.remap_pending": 1.0, "pcie.replays": 0.0, "pcie.aer_correctable": 0.0, "pcie.aer_nonfatal": 1.0,
    "pcie.aer_fatal": 1.0, "nvlink.errors": 0.0, "nvlink.links_down": 1.0, "nic.symbol_errors": 0.0,
    "nic.crc_errors": 0.0, "nic.link_downed": 1.0, "nic.retransmits": 0.0, "nic.out_of_sequence": 0.0,
}  # fmt: skip  # name → least value; 0: at limits.EVENTS_HZ
_BELOW = {
    "pcie.speed_gts": (limits.HALVED, 1.0, "GT/s"), "pcie.width": (limits.HALVED, 1.0, "lanes"),
    "nic.speed_hz": (limits.HALVED, 1e9, "GB/s"), "gpu.sm_clock_hz": (limits.NEARLY_ALL, 1e9, "GHz"),
}  # fmt: skip


def notes(fleet: Fleet, suspects: Sequence[Suspect]) -> list[Note]:
    """Return notes on counters that moved and cost nothing, at most budgets.INSTANCES_SHOWN."""
    accused = _devices(fleet, suspects)
    by_rank = {rank for suspect in suspects for rank in suspect.ranks if suspect.component in DEVICES}
    found = [*events(fleet, suspects), *_errors(fleet, accused, by_rank), *_below(fleet, accused, by_rank)]
    return (
        found[: budgets.INSTANCES_SHOWN]
        if len(found) <= budgets.INSTANCES_SHOWN
        else [
            *found[: budgets.INSTANCES_SHOWN - 1],
            Note(
                NoteCode.COUNTER_IDLE,
                f"{len(found) - budgets.INSTANCES_SHOWN + 1} more counters moved and cost nothing",
            ),
        ]
    )


def events(fleet: Fleet, suspects: Iterable[Suspect]) -> list[Note]:
    """Return notes on lost GPUs and Xids of devices that are no suspects.

    They matter whether the job is slow or hangs.
    """
    accused = _devices(fleet, suspects)
    return [*_lost(fleet, accused), *_xids(fleet, accused)][: budgets.INSTANCES_SHOWN]


def _devices(fleet: Fleet, suspects: Iterable[Suspect]) -> set[tuple[str, str]]:
    """(host, name) of each device that is a suspect; for a group's, on all of its hosts."""
    host_of = dict(zip(fleet.ranks.number.tolist(), fleet.ranks.host, strict=True))
    return {
        (host, one.name)
        for suspect in suspects
        for one in suspect.instances
        for host in ({suspect.host} if suspect.host else {host_of.get(rank, "") for rank in suspect.ranks})
    }


def _errors(fleet: Fleet, accused: set[tuple[str, str]], ranks: set[int]) -> Iterator[Note]:
    """Yield a note per error counter that is far above the devices' median on at most half of them.

    Skips suspect devices, `accused` as (host, name), and all devices of `ranks` (rank numbers).
    """
    table = fleet.counters.table
    for name, least in _ERRORS.items():
        rows = fleet.counters.rows(name)
        values = table.value[rows]
        if not len(rows):
            continue
        floor = max(least or limits.EVENTS_HZ * fleet.seconds, limits.OTHER_KIND * median(values))
        moved = rows[values >= floor]
        if len(moved) and len(moved) * 2 <= max(len(rows), 2):
            yield from _told(fleet, moved, name, accused, ranks)


def _told(fleet: Fleet, moved: Ints, name: str, accused: set[tuple[str, str]], ranks: set[int]) -> Iterator[Note]:
    """Yield the note on one counter: the device on which it moved most, and how many others.

    `moved`: rows on which it moved. Skips suspect devices, `accused` as (host, name), and devices
    of `ranks` (rank numbers); no note if none is left.
    """
    table = fleet.counters.table
    left = [
        row
        for row in moved[np.argsort(-table.value[moved], kind="stable")].tolist()
        if not _known(fleet, row, accused, ranks)
    ]
    if left:
        counter = fleet.counters.at(left[0])
        more = f" and {len(left) - 1} more devices" if len(left) > 1 else ""
        unit = "" if counter.kind == "gauge" else "+"
        where = f"{counter.instance}{_whose(fleet, left[0])}{more}"
        yield Note(
            NoteCode.COUNTER_IDLE, f"{event_words(name)}: {unit}{counter.value:.0f} on {where}, but nobody waits for it"
        )


def _known(fleet: Fleet, row: int, accused: set[tuple[str, str]], ranks: set[int]) -> bool:
    """Whether the device of a counter row, or another one of the same rank, is a suspect already.

    `accused`: suspect devices as (host, name); `ranks`: numbers of ranks with a suspect device.
    """
    table = fleet.counters.table
    rank = int(table.rank[row])
    if rank >= 0 and int(fleet.ranks.number[rank]) in ranks:
        return True
    return (_host(fleet, row), table.instance.at(row)) in accused


def _host(fleet: Fleet, row: int) -> str:
    """Host of a counter row: its rank's host, else the observed one."""
    table = fleet.counters.table
    rank = int(table.rank[row])
    return fleet.ranks.host[rank] if rank >= 0 else table.observed_on.at(row)


def _whose(fleet: Fleet, row: int) -> str:
    """Say whose device a counter row is about: ' (rank 3, node-0)', ' (node-0, no rank of the job)'."""
    rank = int(fleet.counters.table.rank[row])
    host = _host(fleet, row)
    return (
        f" ({rank_list((int(fleet.ranks.number[rank]),))}, {host})" if rank >= 0 else f" ({host}, no rank of the job)"
    )


def _below(fleet: Fleet, accused: set[tuple[str, str]], ranks: set[int]) -> Iterator[Note]:
    """Yield a note per speed or clock that is below its limit and its peers on some devices, or low on most.

    Skips suspect devices, `accused` as (host, name), and all devices of `ranks` (rank numbers).
    """
    table = fleet.counters.table
    for name, (share, size, unit) in _BELOW.items():
        rows = fleet.counters.rows(name)
        rows = rows[(table.limit[rows] > 0) & (table.value[rows] > 0)]
        if not len(rows):
            continue
        part = table.value[rows] / table.limit[rows]
        low = rows[part <= share]
        if len(low) * 2 > len(rows) and len(rows) > 1:
            level = f"{100 * median(part):.0f} % of its limit"
            text = f"{event_words(name)} is at {level} on {len(low)} of {len(rows)} devices: nobody is odd, all may be slow"
            yield Note(NoteCode.ALL_LOW, text)
            continue
        low = low[table.value[low] / table.limit[low] <= share * median(part)]
        left = [row for row in low.tolist() if not _known(fleet, row, accused, ranks)]
        if left:
            counter = fleet.counters.at(left[0])
            more = f" and {len(left) - 1} more devices" if len(left) > 1 else ""
            level = f"{counter.value / size:.4g} of {counter.limit / size:.4g} {unit}"
            where = f"{counter.instance}{_whose(fleet, left[0])}{more}"
            yield Note(NoteCode.COUNTER_IDLE, f"{event_words(name)} {level} on {where}, but nobody waits for it")


def _xids(fleet: Fleet, accused: set[tuple[str, str]]) -> Iterator[Note]:
    """Yield a note per GPU and Xid error, but not on suspects; `accused`: suspects as (host, device name)."""
    for name in fleet.counters.names("gpu.xid."):
        number = xids.number_of(name[8:])
        if number is None:
            continue
        rows = fleet.counters.rows(name)
        for row in rows[fleet.counters.table.value[rows] > 0].tolist():
            counter = fleet.counters.at(row)
            if not _known(fleet, row, accused, set()):
                what, state, action = xids.meaning(number)
                text = f"Xid {number} on {counter.instance}{_whose(fleet, row)}: {what} ({state}). {action}"
                yield Note(NoteCode.XID, text)


def _lost(fleet: Fleet, accused: set[tuple[str, str]]) -> Iterator[Note]:
    """Yield a note per GPU that fell off the bus and is no suspect; `accused`: suspects as (host, device name)."""
    rows = fleet.counters.rows("gpu.lost")
    for row in rows[fleet.counters.table.value[rows] > 0].tolist():
        counter = fleet.counters.at(row)
        if not _known(fleet, row, accused, set()):
            yield Note(NoteCode.GPU_LOST, f"{counter.instance}{_whose(fleet, row)} has fallen off the bus")
