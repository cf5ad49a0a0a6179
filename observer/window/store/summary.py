"""Summaries for the first pass over thousands of hosts: one row per rank, with its steps and characteristics.

works            the functions on which the rank's training thread spends 2 % of the window and more, as 64 bits of their names' hashes
messages, moved  collectives and messages of the window, and their bytes: ranks of different stages differ in these
rate_hz          bytes per second of the rank's slowest connection while only the network limited it; infinite where little moved
link_from, link_to  the addresses of that connection
errors           errors of the host's devices of kinds that healthy ones never have, in the window
errors_hz        the most errors per second of one of the host's counters of kinds that healthy links and memories correct occasionally

Hashes may collide: these columns select the ranks to read completely, and decide nothing. Hosts
write them into their objects (front.py); for older objects they are computed by the same function,
so that both are equal.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankscope.observer.window.schema import RANKS
from rankscope.observer.window.store.columns import equals, floats, ints, labels, texts
from rankscope.probes.base.arrays import Floats, Ints

# of the window, as in the sets of functions: 20 samples in 10 s, of which all others would be
# missed by chance never
MUCH = 0.02
WINDOW = "window"  # column: the number of the row's window
STEP_COLUMNS = ("start_s", "seconds", "own_s", "wait_s")
_OF_RANKS = (
    "job", "rank", "local_rank", "world_size", "local_world_size", "role", "netns", "container", "node", "title", "state",
    "stopped_s", "last_progress_s", "in_collective_s", "ended_s", "guessed", "owner",
)  # fmt: skip
WANTED: Mapping[str, tuple[str, ...]] = {
    "ranks": _OF_RANKS,
    "steps": ("rank", *STEP_COLUMNS),
    "patterns": ("rank", "thread", "kind", "name", "file", "beta", "count", "bytes"),
    "flows": ("rank", "local", "peer", "sent_bytes", "busy_s", "rwnd_limited_s", "sndbuf_limited_s"),
    "counters": ("scope", "name", "unit", "kind", "value"),
}
SCHEMA = pa.schema(
    [
        pa.field(WINDOW, pa.int32()),
        *(pa.field(name, RANKS.field(name).type) for name in _OF_RANKS),
        pa.field("works", pa.uint64()),
        *(pa.field(name, pa.float64()) for name in ("messages", "moved", "rate_hz", "errors", "errors_hz")),
        *(pa.field(name, pa.string()) for name in ("link_from", "link_to")),
        *(pa.field(name, pa.list_(pa.float32())) for name in STEP_COLUMNS),
    ]
)
_MUCH_SENT = 1e6  # bytes: of less the rate is chance
_DEVICES = ("gpu", "nvlink", "pcie", "nic")
# errors that healthy links and memories correct occasionally; one of any other kind is worth a look
_IN_HEALTH = (
    "gpu.ecc_corrected", "nvlink.errors", "pcie.replays", "pcie.aer_correctable", "nic.symbol_errors", "nic.crc_errors",
    "nic.retransmits", "nic.out_of_sequence", "nic.pause", "nic.cnp", "nic.tx_errors", "nic.rx_errors", "nic.tx_dropped",
    "nic.rx_dropped",
)  # fmt: skip


def summary_of(windows: Sequence[Mapping[str, pa.Table]], seconds: Sequence[float]) -> pa.Table:
    """Summarise windows as SCHEMA, given at least the tables and columns in WANTED; `seconds`:
    their lengths.
    """
    tables = {
        name: _together([tables[name].select(list(columns)) for tables in windows]) for name, columns in WANTED.items()
    }
    ranks = tables["ranks"]
    where = _Places(ranks)
    works, messages, moved = _works(tables["patterns"], where)
    errors, errors_hz = _errors(tables["counters"], np.array(seconds, dtype=np.float64))
    rate, ends = _slowest(tables["flows"], where)
    window = ints(ranks, WINDOW)
    columns = {
        **{name: ranks[name].combine_chunks() for name in (WINDOW, *_OF_RANKS)},
        "works": pa.array(works),
        "messages": pa.array(messages),
        "moved": pa.array(moved),
        "rate_hz": pa.array(rate),
        "link_from": pa.array([end[0] for end in ends], pa.string()),
        "link_to": pa.array([end[1] for end in ends], pa.string()),
        "errors": pa.array(errors[window]),
        "errors_hz": pa.array(errors_hz[window]),
        **_steps(tables["steps"], where),
    }
    return pa.Table.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def _together(tables: Sequence[pa.Table]) -> pa.Table:
    """Concatenate one table of all windows, with the window's number in each row."""
    number = np.repeat(np.arange(len(tables), dtype=np.int32), [table.num_rows for table in tables])
    joined = pa.concat_tables([table.replace_schema_metadata(None) for table in tables]).unify_dictionaries()
    return joined.combine_chunks().append_column(WINDOW, pa.array(number))


class _Places:
    """Index of the table of ranks by window and rank number."""

    def __init__(self, ranks: pa.Table) -> None:
        self.count = ranks.num_rows
        key = _key(ranks)
        self._order = np.argsort(key, kind="stable")
        self._keys = key[self._order]

    def of(self, table: pa.Table) -> Ints:
        """Return the row of the rank for each row of another table; -1 for none."""
        if not self.count:
            return np.full(table.num_rows, -1, dtype=np.int64)
        key = _key(table)
        place = np.searchsorted(self._keys, key).clip(0, self.count - 1)
        return np.where(self._keys[place] == key, self._order[place], -1)


def _key(table: pa.Table) -> Ints:
    """Combine each row's window and rank into one number."""
    return np.asarray((ints(table, WINDOW) << 33) + ints(table, "rank"), dtype=np.int64)


def _steps(steps: pa.Table, where: _Places) -> dict[str, pa.Array]:
    """Collect the steps of each rank as lists; steps without a rank are left out."""
    row = where.of(steps)
    order = np.argsort(row, kind="stable")[int((row < 0).sum()) :]
    ends = np.concatenate(([0], np.cumsum(np.bincount(row[order], minlength=where.count)))).astype(np.int32)
    chosen = steps.take(pa.array(order))
    return {
        name: pa.ListArray.from_arrays(
            pa.array(ends), pa.concat_arrays(chosen[name].chunks or [pa.array([], pa.float32())])
        )
        for name in STEP_COLUMNS
    }


def _works(patterns: pa.Table, where: _Places) -> tuple[npt.NDArray[np.uint64], Floats, Floats]:
    """Return for each rank the bits of the functions it works in, its number of collectives, and their bytes."""
    row, beta = where.of(patterns), floats(patterns, "beta")
    thread, kind = labels(patterns, "thread"), labels(patterns, "kind")
    collective = kind.codes == kind.code("collective")
    mine = (row >= 0) & (thread.codes == thread.code("training")) & (collective | (kind.codes == kind.code("python")))
    name, file = labels(patterns, "name"), labels(patterns, "file")
    both = name.codes * max(len(file.values), 1) + file.codes
    rows = np.flatnonzero(mine & (beta >= MUCH))
    each, number = np.unique(both[rows], return_inverse=True)
    width = max(len(file.values), 1)
    bit = [
        zlib.crc32(f"{name.values[one // width]}\0{file.values[one % width]}".encode()) % 64 for one in each.tolist()
    ]
    works = np.zeros(where.count, dtype=np.uint64)
    np.bitwise_or.at(works, row[rows], np.uint64(1) << np.array(bit, dtype=np.uint64)[number.reshape(-1)])
    rows = np.flatnonzero(mine & collective)
    messages, moved = (
        np.bincount(row[rows], floats(patterns, name)[rows], where.count).astype(np.float64)
        for name in ("count", "bytes")
    )
    return works, messages, moved


def address_of(endpoint: str) -> str:
    """Return the address of 'address:port' or '[address]:port'; IPv4 mapped in IPv6 becomes IPv4."""
    address = endpoint.rpartition(":")[0].strip("[]") or endpoint
    return address.removeprefix("::ffff:")


def _slowest(flows: pa.Table, where: _Places) -> tuple[Floats, list[tuple[str, str]]]:
    """Return for each rank the rate (bytes/s) of its slowest connection, and that connection's (local, peer) addresses.

    Infinite and ('', '') where little was sent.
    """
    row, sent = where.of(flows), floats(flows, "sent_bytes")
    held = floats(flows, "busy_s") - floats(flows, "rwnd_limited_s") - floats(flows, "sndbuf_limited_s")
    rows = np.flatnonzero((row >= 0) & (sent >= _MUCH_SENT) & (held > 0))
    speed = sent[rows] / held[rows]
    order = np.lexsort((speed, row[rows]))
    ranks, first = np.unique(row[rows][order], return_index=True)
    rate, ends = np.full(where.count, np.inf), [("", "")] * where.count
    rate[ranks] = speed[order][first]
    chosen = rows[order][first]
    told = flows.take(pa.array(chosen))
    for rank, local, peer in zip(ranks.tolist(), texts(told, "local"), texts(told, "peer"), strict=True):
        ends[rank] = (address_of(local), address_of(peer))
    return rate, ends


def _errors(counters: pa.Table, seconds: Floats) -> tuple[Floats, Floats]:
    """Return by window the events of kinds that healthy devices never have, and the highest rate of
    the others.
    """
    scope, name, counted = (labels(counters, column) for column in ("scope", "name", "unit"))
    value, window = floats(counters, "value"), ints(counters, WINDOW)
    bad = np.isin(scope.codes, [scope.code(each) for each in _DEVICES if scope.code(each) >= 0])
    bad &= (counted.codes == counted.code("events")) & equals(counters, "kind", "delta") & (value > 0)
    usual = np.isin(name.codes, [name.code(each) for each in _IN_HEALTH if name.code(each) >= 0])
    errors = np.bincount(window[bad & ~usual], value[bad & ~usual], len(seconds)).astype(np.float64)
    fastest = np.zeros(len(seconds))
    np.maximum.at(fastest, window[bad & usual], value[bad & usual] / seconds[window[bad & usual]])
    return errors, fastest
