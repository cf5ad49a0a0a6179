"""Windows of many hosts → their ranks and steps as two tables, and what each rank is like, as columns of the table of ranks:

works      the functions on which the rank's training thread spends 2 % of the window and more, as 64 bits of their names' hashes
messages   collectives and messages of the window, and `moved`, their bytes: ranks of different stages differ in these
rate       bytes per second of the rank's slowest connection while only the network held its data back; infinite where little moved
errors     errors that counters of the host's devices counted in the window

The hashes may agree where names do not: these columns choose whom to read in full, and decide nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rankscope.diagnose.fleet import from_windows
from rankscope.diagnose.fleet.labels import floats, ints, labels
from rankscope.diagnose.fleet.roll_call import WINDOW, RollCall, numbered
from rankscope.diagnose.fleet.sources import Source, Unread, read_each
from rankscope.observer.window.folder import Window
from rankscope.observer.window.manifest import Manifest
from rankscope.probes.arrays import Floats, Ints

_TABLES = ("ranks", "steps", "patterns", "stacks", "flows", "counters")
_MUCH = 0.02  # of the window, as in ../roles.py
_MUCH_SENT = 1e6  # bytes: of less the rate is chance
_DEVICES = ("gpu", "nvlink", "pcie", "nic")
GROUP = 128  # hosts: some megabytes, a tenth of a second


@dataclass(frozen=True, slots=True)
class Survey:
    """Windows of a group of hosts. `source`: by window, the number of its source in the group; rows of both tables name their window."""

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
    windows: list[Window] = []
    source: list[int] = []
    unread: Unread = []
    for place, found in enumerate(read_each(sources, unread, _TABLES)):
        windows += found
        source += [place] * len(found)
    manifests = tuple(replace(window.manifest, costs=()) for window in windows)
    ranks = [_of_host(numbered(window.ranks, at), window) for at, window in enumerate(windows)]
    steps = [_of_host(numbered(window.steps, at), window) for at, window in enumerate(windows)]
    if not windows:
        return Survey((), (), pa.table({}), pa.table({}), unread)
    everyone = from_windows.joined(ranks)
    return Survey(manifests, tuple(source), _described(everyone, windows), from_windows.joined(steps), unread)


def together(surveys: Sequence[Survey], group: int = GROUP) -> Survey:
    """The surveys of all groups, in their order; `source` counts over all of them."""
    manifests: list[Manifest] = []
    source: list[int] = []
    unread: Unread = []
    tables: dict[str, list[pa.Table]] = {"ranks": [], "steps": []}
    for place, each in enumerate(surveys):
        if each.manifests:
            for name, pieces in tables.items():
                pieces.append(from_windows.shifted(getattr(each, name), WINDOW, len(manifests)))
        manifests += each.manifests
        source += [place * group + number for number in each.source]
        unread += each.unread
    joined_tables = {name: from_windows.joined(pieces) if pieces else pa.table({}) for name, pieces in tables.items()}
    return Survey(tuple(manifests), tuple(source), joined_tables["ranks"], joined_tables["steps"], unread)


def _of_host(table: pa.Table, window: Window) -> pa.Table:
    return table.append_column("observed_on", from_windows.constant(window.manifest.host, table.num_rows))


def _described(ranks: pa.Table, windows: Sequence[Window]) -> pa.Table:
    """The table of ranks with what each of them is like."""
    where = _Places(ranks)
    tables = {name: _tagged(windows, name) for name in ("patterns", "flows", "counters")}
    works, messages, moved = _works(tables["patterns"], where)
    columns = {
        "works": pa.array(works),
        "messages": pa.array(messages),
        "moved": pa.array(moved),
        "rate": pa.array(_rates(tables["flows"], where)),
        "errors": pa.array(_errors(tables["counters"], ints(ranks, WINDOW), len(windows))),
    }
    for name, column in columns.items():
        ranks = ranks.append_column(name, column)
    return ranks


def _tagged(windows: Sequence[Window], name: str) -> pa.Table:
    return from_windows.joined([numbered(getattr(window, name), at) for at, window in enumerate(windows)])


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
    rows = np.flatnonzero(mine & (beta >= _MUCH))
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


def _errors(counters: pa.Table, window: Ints, windows: int) -> Floats:
    """By rank, of its host."""
    scope = labels(counters, "scope")
    device = np.isin(scope.codes, [scope.code(name) for name in _DEVICES if scope.code(name) >= 0])
    counted = labels(counters, "unit")
    bad = device & (counted.codes == counted.code("events")) & (floats(counters, "value") > 0)
    bad &= np.asarray(pc.equal(counters["kind"].cast(pa.string()), "delta").to_numpy(zero_copy_only=False), dtype=bool)
    of_window = np.bincount(ints(counters, WINDOW)[bad], floats(counters, "value")[bad], windows)
    return np.asarray(of_window[window], dtype=np.float64)
