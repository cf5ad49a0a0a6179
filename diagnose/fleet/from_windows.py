"""Tables of windows as the columns of a fleet. No Python loop runs over steps or patterns."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rankscope.diagnose.fleet.counters import Columns, Counters
from rankscope.diagnose.fleet.labels import Labels
from rankscope.diagnose.fleet.model import Flows, Patterns, Ranks, Steps
from rankscope.probes.arrays import Floats, Ints
from rankscope.probes.errors import NoRanks

_STEP_COLUMNS = ("seconds", "own_s", "wait_s", "io_s", "sched_s", "sync_s")


def plain(table: pa.Table) -> pa.Table:
    """Decode dictionaries: those of two hosts differ."""
    for index, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            column = table.column(index).cast(field.type.value_type)
            table = table.set_column(index, field.name, column)
    return table.replace_schema_metadata(None)


def rows_of(table: pa.Table, numbers: Ints) -> Ints:
    """Row in Ranks of every table row's rank; -1 where the rank is not of this job."""
    wanted = _ints(table, "rank")
    if len(numbers) == 0:
        return np.full(len(wanted), -1, np.int64)
    place = np.clip(np.searchsorted(numbers, wanted), 0, len(numbers) - 1)
    return np.where(numbers[place] == wanted, place, -1)


def _ints(table: pa.Table, name: str) -> Ints:
    column = pc.fill_null(table[name].cast(pa.int64()), -1)
    return np.asarray(column.to_numpy(), dtype=np.int64)


def _floats(table: pa.Table, name: str) -> Floats:
    column = table[name].cast(pa.float64())
    return np.asarray(pc.fill_null(column, float("nan")).to_numpy(), dtype=np.float64)


def _texts(table: pa.Table, name: str) -> tuple[str, ...]:
    return tuple(value if value is not None else "" for value in table[name].to_pylist())


def _labels(table: pa.Table, name: str) -> Labels:
    column = pc.fill_null(table[name], "").combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], pa.string())
    encoded = column.dictionary_encode()
    codes = np.asarray(encoded.indices.to_numpy(zero_copy_only=False), dtype=np.int64)
    return Labels(codes, tuple(encoded.dictionary.to_pylist()))


def ranks(table: pa.Table, notes: list[str]) -> Ranks:
    """One row per rank of the job, sorted by number. Raises NoRanks if there is none."""
    if table.num_rows == 0:
        raise NoRanks("no rank was found in the window")
    numbers = _ints(table, "rank")
    unique, first = np.unique(numbers, return_index=True)
    if len(unique) < len(numbers):
        notes.append(f"{len(numbers) - len(unique)} ranks were reported twice; the first report of each is used")
    table = table.take(pa.array(first))
    host, node, netns = _texts(table, "observed_on"), _texts(table, "node"), _ints(table, "netns")
    world = _ints(table, "world_size")
    absent = int(world.max(initial=0)) - len(unique)
    if absent > 0:
        notes.append(
            f"{absent} of {int(world.max())} ranks were not seen: they run on hosts without a window, or are gone"
        )
    return Ranks(
        number=unique,
        host=_host_names(host, node),
        observed_on=host,
        netns=netns,
        role=_texts(table, "role"),
        world_size=world,
        pid=_ints(table, "pid"),
        addresses=tuple(tuple(each or ()) for each in table["addresses"].to_pylist()),
        cpus=_texts(table, "cpus"),
        state=_texts(table, "state"),
        stopped_s=np.nan_to_num(_floats(table, "stopped_s")),
        last_progress_s=_floats(table, "last_progress_s"),
        in_collective_s=np.nan_to_num(_floats(table, "in_collective_s")),
        ended_s=_floats(table, "ended_s"),
        exit_status=_floats(table, "exit_status"),
        lost_events=_ints(table, "lost_events"),
        gpus=tuple(tuple(each or ()) for each in table["gpus"].to_pylist()),
        nics=tuple(tuple(each or ()) for each in table["nics"].to_pylist()),
    )


def _host_names(hosts: tuple[str, ...], nodes: tuple[str, ...]) -> tuple[str, ...]:
    """The host's name; where its ranks see different node names (containers), the name that the rank itself sees."""
    seen: dict[str, set[str]] = {}
    for host, node in zip(hosts, nodes, strict=True):
        seen.setdefault(host, set()).add(node)
    return tuple(node if node and len(seen[host]) > 1 else host for host, node in zip(hosts, nodes, strict=True))


def steps(table: pa.Table, rows: Ints, ranks: int, window_s: float, notes: list[str]) -> Steps:
    """Put every rank's steps into the columns of a reference rank: the nearest start in wall time.

    The steps of one job start together, so the nearest start is right as long as clocks agree to half a step; where
    they do not, the columns are merely shifted, which costs power and not correctness.
    """
    start, length = _floats(table, "start_s"), _floats(table, "seconds")
    own, wait = _floats(table, "own_s"), _floats(table, "wait_s")
    ours = rows >= 0
    sane = np.isfinite(start) & np.isfinite(length) & (length > 0) & (length <= 2 * window_s)
    sane &= np.isfinite(own) & np.isfinite(wait) & (own >= 0) & (wait >= 0) & (own <= 2 * window_s)
    absurd = int((ours & ~sane).sum())
    if absurd:
        notes.append(f"{absurd} steps had impossible durations and were left out")
    keep = ours & sane
    row, start = rows[keep], start[keep]
    columns = {name: np.nan_to_num(_floats(table, name)[keep]) for name in _STEP_COLUMNS}
    if len(row) == 0:
        empty = np.empty((ranks, 0))
        return Steps(np.empty(0), *(empty for _ in _STEP_COLUMNS))
    counts = np.bincount(row, minlength=ranks)
    usual = int(np.median(counts[counts > 0]))
    reference = int(np.argmin(np.abs(counts - usual)))
    if (np.abs(counts - usual) > max(2, 0.2 * usual)).any():
        odd = int((np.abs(counts - usual) > max(2, 0.2 * usual)).sum())
        notes.append(f"{odd} ranks show another number of steps than the others ({usual})")
    grid = np.sort(start[row == reference])
    cell = np.clip(np.searchsorted(grid, start), 1, max(len(grid) - 1, 1))
    cell = np.where(
        np.abs(start - grid[cell - 1]) <= np.abs(grid[np.minimum(cell, len(grid) - 1)] - start),
        cell - 1,
        cell,
    )
    cell = np.minimum(cell, len(grid) - 1)
    near = np.abs(start - grid[cell]) <= 0.75 * np.median(columns["seconds"])
    matrices = []
    for name in _STEP_COLUMNS:
        matrix = np.full((ranks, len(grid)), np.nan)
        matrix[row[near], cell[near]] = columns[name][near]
        matrices.append(matrix)
    number = np.full((ranks, len(grid)), -1, dtype=np.int64)
    number[row[near], cell[near]] = _ints(table, "step")[keep][near]
    return Steps(grid, *matrices, number=number)


def patterns(table: pa.Table, rows: Ints) -> Patterns:
    """This job's patterns; `rows` is the row in Ranks of every table row, -1 for others."""
    keep = rows >= 0
    table = table.filter(pa.array(keep))
    per_step = _floats(table, "per_step_s")
    return Patterns(
        rank=rows[keep],
        thread=_labels(table, "thread"),
        kind=_labels(table, "kind"),
        name=_labels(table, "name"),
        file=_labels(table, "file"),
        line=_ints(table, "line"),
        detail=_labels(table, "detail"),
        caller=_labels(table, "caller"),
        stack=_labels(table, "stack"),
        beta=np.nan_to_num(_floats(table, "beta")),
        count=_ints(table, "count"),
        per_step_s=np.where(np.isfinite(per_step) & (per_step > 0), per_step, 0.0),
        sd_s=_floats(table, "per_step_sd_s"),
        bytes=np.maximum(_ints(table, "bytes"), 0),
        mu=_floats(table, "mu"),
        sigma=_floats(table, "sigma"),
        native=_labels(table, "native"),
    )


def flows(table: pa.Table, rows: Ints) -> Flows:
    """This job's TCP connections."""
    keep = rows >= 0
    table = table.filter(pa.array(keep))
    numbers = {
        name: np.nan_to_num(_floats(table, name))
        for name in (
            "sent_bytes",
            "retransmitted_bytes",
            "busy_s",
            "rwnd_limited_s",
            "sndbuf_limited_s",
            "rtt_s",
            "min_rtt_s",
        )
    }
    unacknowledged = numbers["busy_s"] - numbers["rwnd_limited_s"]
    return Flows(
        rank=rows[keep],
        local=tuple(address_of(text) for text in _texts(table, "local")),
        peer=tuple(address_of(text) for text in _texts(table, "peer")),
        interface=_texts(table, "interface"),
        sent_bytes=np.maximum(numbers["sent_bytes"], 0),
        retransmitted_bytes=np.maximum(numbers["retransmitted_bytes"], 0),
        sending_s=np.maximum(unacknowledged - numbers["sndbuf_limited_s"], 0),
        unacknowledged_s=np.maximum(unacknowledged, 0),
        rtt_s=numbers["rtt_s"],
        min_rtt_s=numbers["min_rtt_s"],
    )


def address_of(endpoint: str) -> str:
    """Address of 'address:port' or '[address]:port'; IPv4 mapped in IPv6 becomes IPv4."""
    address = endpoint.rpartition(":")[0].strip("[]") or endpoint
    return address.removeprefix("::ffff:")


def counters(table: pa.Table, rows: Ints) -> Counters:
    """Counters of this job's ranks and of their hosts; what is not a number is left out."""
    value = _floats(table, "value")
    keep = ((rows >= 0) | (_ints(table, "rank") < 0)) & np.isfinite(value)
    table = table.filter(pa.array(keep))
    return Counters(
        Columns(
            observed_on=_labels(table, "observed_on"),
            scope=_labels(table, "scope"),
            instance=_labels(table, "instance"),
            rank=rows[keep],
            name=_labels(table, "name"),
            unit=_labels(table, "unit"),
            kind=_labels(table, "kind"),
            value=value[keep],
            minimum=_floats(table, "minimum"),
            maximum=_floats(table, "maximum"),
            limit=_floats(table, "limit"),
        )
    )
