"""Windows of many hosts → their ranks and steps as two tables, and what each rank is like, as columns of the table of ranks:

works      the functions on which the rank's training thread spends 2 % of the window and more, as 64 bits of their names' hashes
messages   collectives and messages of the window, and `moved`, their bytes: ranks of different stages differ in these
rate       bytes per second of the rank's slowest connection while only the network held its data back; infinite where little moved
errors     errors that counters of the host's devices counted in the window

The hashes may agree where names do not: these columns choose whom to read in full, and decide nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankscope.diagnose import limits
from rankscope.diagnose.fleet import from_windows
from rankscope.diagnose.fleet.labels import equals, floats, ints, labels
from rankscope.diagnose.fleet.roles import MUCH
from rankscope.diagnose.fleet.roll_call import WINDOW, RollCall
from rankscope.diagnose.fleet.sources import Source, Unread, read_parts
from rankscope.observer.window.manifest import Manifest
from rankscope.observer.window.store.container import Part
from rankscope.observer.window.store.same_names import told_apart
from rankscope.probes.arrays import Floats, Ints

_WANTED = {
    "ranks": (
        "job", "rank", "local_rank", "world_size", "local_world_size", "role", "netns", "container", "node", "title", "state",
        "stopped_s", "last_progress_s", "in_collective_s", "ended_s", "guessed", "owner",
    ),
    "steps": ("rank", "start_s", "seconds", "own_s", "wait_s"),
    "patterns": ("rank", "thread", "kind", "name", "file", "beta", "count", "bytes"),
    "flows": ("rank", "sent_bytes", "busy_s", "rwnd_limited_s", "sndbuf_limited_s"),
    "counters": ("scope", "name", "unit", "kind", "value"),
}  # fmt: skip
ROW = "row"  # column of the steps: the row of their rank in the table of ranks; -1 where it is not there
_MUCH_SENT = 1e6  # bytes: of less the rate is chance
_DEVICES = ("gpu", "nvlink", "pcie", "nic")
_IN_HEALTH = (  # what sound links and memories correct now and then; of the others one is worth a look
    "gpu.ecc_corrected", "nvlink.errors", "pcie.replays", "pcie.aer_correctable", "nic.symbol_errors", "nic.crc_errors",
    "nic.retransmits", "nic.out_of_sequence", "nic.pause", "nic.cnp", "nic.tx_errors", "nic.rx_errors", "nic.tx_dropped",
    "nic.rx_dropped",
)  # fmt: skip
GROUP = 128  # hosts: some megabytes, a tenth of a second


@dataclass(frozen=True, slots=True)
class Survey:
    """Windows of a group of hosts. `source`: by window, the number of its source in the group; each rank names its window, each step
    the row of its rank."""

    manifests: tuple[Manifest, ...]
    source: tuple[int, ...]
    ranks: pa.Table
    steps: pa.Table
    unread: Unread

    @property
    def roll(self) -> RollCall:
        return RollCall(self.manifests, self.ranks)


def survey(sources: Sequence[Source]) -> Survey:
    """Read a group of hosts. Runs on a worker."""
    parts: list[Part] = []
    source: list[int] = []
    unread: Unread = []
    for place, found in enumerate(read_parts(sources, unread, _WANTED)):
        parts += found
        source += [place] * len(found)
    if not parts:
        return Survey((), (), pa.table({}), pa.table({}), unread)
    manifests = tuple(replace(part.manifest, costs=()) for part in parts)
    tables = {name: _tagged(parts, name) for name in _WANTED}
    where = _Places(tables["ranks"])
    steps = tables["steps"].drop_columns([WINDOW, "rank"])
    steps = steps.append_column(ROW, pa.array(where.of(tables["steps"]).astype(np.int32)))
    lengths_s = np.array([about.seconds for about in manifests])
    ranks = _described(_short(tables["ranks"]), tables, where, lengths_s)
    return Survey(manifests, tuple(source), ranks, steps, unread)


def together(surveys: Iterable[Survey], group: int = GROUP) -> Survey:
    """The surveys of all groups, in their order; `source` counts over all of them."""
    manifests: list[Manifest] = []
    source: list[int] = []
    unread: Unread = []
    ranks: list[pa.Table] = []
    steps: list[pa.Table] = []
    rows = 0
    for place, each in enumerate(surveys):
        if each.manifests:
            ranks.append(from_windows.shifted(each.ranks, WINDOW, len(manifests)))
            steps.append(_shifted(each.steps, rows))
            rows += each.ranks.num_rows
        manifests += each.manifests
        source += [place * group + number for number in each.source]
        unread += each.unread
    joined = [from_windows.joined(pieces) if pieces else pa.table({}) for pieces in (ranks, steps)]
    return Survey(told_apart(manifests), tuple(source), joined[0], joined[1], unread)


def _shifted(steps: pa.Table, rows: int) -> pa.Table:
    row = ints(steps, ROW)
    moved = pa.array(np.where(row >= 0, row + rows, -1).astype(np.int32))
    return steps.set_column(steps.schema.get_field_index(ROW), ROW, moved)


def _tagged(parts: Sequence[Part], name: str) -> pa.Table:
    """One table of all windows, with the window's number in each row."""
    tables = [part.tables[name] for part in parts]
    number = np.repeat(np.arange(len(parts), dtype=np.int32), [table.num_rows for table in tables])
    return from_windows.joined(tables).combine_chunks().append_column(WINDOW, pa.array(number))


def _short(ranks: pa.Table) -> pa.Table:
    """Texts as labels: of a million ranks few are different."""
    for place, column in enumerate(ranks.schema):
        if pa.types.is_string(column.type):
            ranks = ranks.set_column(place, column.name, ranks[column.name].dictionary_encode())
    return ranks.unify_dictionaries().combine_chunks()


def _described(ranks: pa.Table, tables: Mapping[str, pa.Table], where: _Places, lengths_s: Floats) -> pa.Table:
    """The table of ranks with what each of them is like. `lengths_s`: of each window."""
    works, messages, moved = _works(tables["patterns"], where)
    window = ints(ranks, WINDOW)
    columns = {
        "works": pa.array(works),
        "messages": pa.array(messages),
        "moved": pa.array(moved),
        "rate": pa.array(_rates(tables["flows"], where)),
        "errors": pa.array(_errors(tables["counters"], window, lengths_s)),
    }
    for name, column in columns.items():
        ranks = ranks.append_column(name, column)
    return ranks


class _Places:
    """Rows of the table of ranks by window and number."""

    def __init__(self, ranks: pa.Table) -> None:
        self.count = ranks.num_rows
        key = _key(ranks)
        self._order = np.argsort(key, kind="stable")
        self._keys = key[self._order]

    def of(self, table: pa.Table) -> Ints:
        """Of each row of another table; -1 for none."""
        if not self.count:
            return np.full(table.num_rows, -1, dtype=np.int64)
        key = _key(table)
        place = np.searchsorted(self._keys, key).clip(0, self.count - 1)
        return np.where(self._keys[place] == key, self._order[place], -1)


def _key(table: pa.Table) -> Ints:
    return np.asarray((ints(table, WINDOW) << 33) + ints(table, "rank"), dtype=np.int64)


def _works(patterns: pa.Table, where: _Places) -> tuple[npt.NDArray[np.uint64], Floats, Floats]:
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


def _rates(flows: pa.Table, where: _Places) -> Floats:
    row, sent = where.of(flows), floats(flows, "sent_bytes")
    held = floats(flows, "busy_s") - floats(flows, "rwnd_limited_s") - floats(flows, "sndbuf_limited_s")
    rows = np.flatnonzero((row >= 0) & (sent >= _MUCH_SENT) & (held > 0))
    rate = np.full(where.count, np.inf)
    np.minimum.at(rate, row[rows], sent[rows] / held[rows])
    return rate


def _errors(counters: pa.Table, window: Ints, lengths_s: Floats) -> Floats:
    """By rank, of its host."""
    scope, name, counted = (labels(counters, column) for column in ("scope", "name", "unit"))
    value, of_window = floats(counters, "value"), ints(counters, WINDOW)
    bad = np.isin(scope.codes, [scope.code(each) for each in _DEVICES if scope.code(each) >= 0])
    bad &= (counted.codes == counted.code("events")) & equals(counters, "kind", "delta")
    usual = np.isin(name.codes, [name.code(each) for each in _IN_HEALTH if name.code(each) >= 0])
    bad &= value > np.where(usual, limits.EVENTS_HZ * lengths_s[of_window], 0.0)
    return np.asarray(np.bincount(of_window[bad], value[bad], len(lengths_s))[window], dtype=np.float64)
