"""Convert the tables of windows into columns of a fleet, without a Python loop over steps or
patterns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rankscope.diagnose import budgets
from rankscope.diagnose.infer.fleet.counters import Columns, Counters
from rankscope.diagnose.infer.fleet.enclosing import with_holders
from rankscope.diagnose.infer.fleet.labels import (
    GilHolder,
    Holders,
    Labels,
    distinct_rows,
    equals,
    floats,
    ints,
    labels,
    texts,
)
from rankscope.diagnose.infer.fleet.model import Flows, Gone, Patterns, Pauses, Ranks, numbers_missing
from rankscope.diagnose.infer.fleet.stacks import Stacks, merged
from rankscope.diagnose.infer.verdict.note import Note, NoteCode
from rankscope.diagnose.text import rank_list
from rankscope.observer.window.counter_names import NCCL_SILENT, RANK_GONE
from rankscope.observer.window.missing import LocalRank, missing_ranks
from rankscope.observer.window.stacks import StackFrame
from rankscope.observer.window.store.summary import address_of
from rankscope.probes.base.arrays import Bools, Floats, Ints
from rankscope.probes.base.errors import NoRanks


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Concatenate tables of several windows.

    Merge the dictionaries of their label columns into one.
    """
    return pa.concat_tables([table.replace_schema_metadata(None) for table in tables]).unify_dictionaries()


def constant(text: str, rows: int) -> pa.DictionaryArray:
    """A label column that holds the same text in each of `rows` rows."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([text], pa.string()))


def shifted(table: pa.Table, column: str, by: int) -> pa.Table:
    """Add `by` to the row numbers in a column of the table; -1 (none) stays -1."""
    numbers = ints(table, column)
    moved = pa.array(np.where(numbers >= 0, numbers + by, -1))
    return table.set_column(table.schema.get_field_index(column), column, moved)


def rows_of(table: pa.Table, numbers: Ints) -> Ints:
    """Row in Ranks for each table row, by its column `rank`; -1 where the rank is not of this job.

    `numbers`: the job's rank numbers, rising.
    """
    wanted = ints(table, "rank")
    if len(numbers) == 0:
        return np.full(len(wanted), -1, np.int64)
    place = np.clip(np.searchsorted(numbers, wanted), 0, len(numbers) - 1)
    return np.where(numbers[place] == wanted, place, -1)


def ranks(table: pa.Table, notes: list[Note]) -> Ranks:
    """Build `Ranks`: one row per rank of the job, sorted by number.

    Adds notes on ranks that are reported twice, missing or guessed. Raises NoRanks if there is
    none.
    """
    unique, first, _ = present(table, notes)
    table = table.take(pa.array(first))
    host, node = labels(table, "observed_on"), labels(table, "node")
    return Ranks(
        number=unique,
        host=_host_names(host, node),
        observed_on=texts(table, "observed_on"),
        netns=ints(table, "netns"),
        role=texts(table, "role"),
        world_size=_worlds(table),
        pid=ints(table, "pid"),
        addresses=tuple(tuple(each or ()) for each in table["addresses"].to_pylist()),
        cpus=texts(table, "cpus"),
        state=texts(table, "state"),
        stopped_s=np.nan_to_num(floats(table, "stopped_s")),
        last_progress_s=floats(table, "last_progress_s"),
        in_collective_s=np.nan_to_num(floats(table, "in_collective_s")),
        ended_s=floats(table, "ended_s"),
        exit_status=floats(table, "exit_status"),
        gpus=tuple(tuple(each or ()) for each in table["gpus"].to_pylist()),
        nics=tuple(tuple(each or ()) for each in table["nics"].to_pylist()),
        guessed=_guessed(table),
        gpu_ids=texts(table, "gpu_ids"),
        machine=texts(table, "machine"),
        tracer=texts(table, "tracer"),
        age_s=floats(table, "age_s"),
    )


def present(table: pa.Table, notes: list[Note]) -> tuple[Ints, Ints, Bools]:
    """Find the distinct ranks of a job's table.

    Returns their numbers, rising; the row of the first report of each; and whether a rank that the
    same launcher started is missing. Adds notes on ranks reported twice or missing. Raises NoRanks.
    """
    if table.num_rows == 0:
        raise NoRanks("no rank was found in the window")
    numbers = ints(table, "rank")
    unique, first = np.unique(numbers, return_index=True)
    order = first
    if len(unique) < len(numbers):
        text = f"{len(numbers) - len(unique)} ranks were reported twice; the first report of each is used"
        notes.append(Note(NoteCode.RANKS_TWICE, text))
        table, order = table.take(pa.array(first)), np.arange(len(first))
    lacking = _incomplete(table)
    notes.extend(_not_here(table, lacking))
    world = int(_worlds(table).max(initial=0))
    absent = world - len(unique)
    if absent > 0:
        text = f"{absent} of {world} ranks were not seen: they run on hosts without a window, or are gone"
        gone = numbers_missing(unique, world)
        if len(gone) == absent:
            text += f" ({rank_list(tuple(gone.tolist()))})"
        notes.append(Note(NoteCode.RANKS_MISSING, text))
    return unique, first, lacking[order]


def _worlds(table: pa.Table) -> Ints:
    """World size of the job by table row; 0 where unknown or above budgets.WORLD_MOST."""
    said = ints(table, "world_size")
    return np.where(said <= budgets.WORLD_MOST, said, 0)


def _not_here(table: pa.Table, lacking: Bools) -> Iterator[Note]:
    """Yield notes on ranks missing from a host that has a window, and on guessed rank numbers.

    `lacking`: mask of the rows at a place where some rank is missing.
    """
    some = table.filter(pa.array(lacking))
    if some.num_rows:
        for gone in missing_ranks(_places(some, "job")).values():
            which = rank_list(gone.numbers) if len(gone.numbers) == gone.count else _count(gone.count)
            verb = "was" if gone.count == 1 else "were"
            text = f"{which} should run on a host that was observed, and {verb} not seen there"
            yield Note(NoteCode.RANKS_MISSING_HERE, text)
    guessed = _guessed(table)
    if guessed:
        text = f"of {rank_list(guessed)} it is guessed which process is which: no variable and no argument of a process names its number"
        yield Note(NoteCode.RANKS_GUESSED, text)


def gone(table: pa.Table, counters: pa.Table, ranks: Ranks, seen: Ints) -> tuple[Gone, ...]:
    """Find ranks that no window shows although they should exist.

    A rank is gone if the census missed it on the host it should run on, or if NCCL says that it
    does not answer. `table`: the ranks of the job; `seen`: the numbers of all observed ranks,
    possibly more than in `table`. Ranks that are only not selected (--pid) do not count.
    """
    claimed = (equals(counters, "name", RANK_GONE) | equals(counters, "name", NCCL_SILENT)) & (
        floats(counters, "value") > 0
    )
    claimed &= (ints(counters, "rank") >= 0) & ~np.isin(ints(counters, "rank"), seen)
    if not claimed.any():
        return ()
    claims = counters.filter(pa.array(claimed))
    names, instances, observers = (texts(claims, name) for name in ("name", "instance", "observed_on"))
    shown = dict(zip(ranks.observed_on, ranks.host, strict=True))
    should_be_on, world = _should_be_here(table), int(ranks.world_size.max(initial=0))
    found: dict[int, Gone] = {}
    for name, number, instance, observer in zip(
        names, ints(claims, "rank").tolist(), instances, observers, strict=True
    ):
        host = should_be_on.get(number, "")
        if number >= world or (name == RANK_GONE and observer != host):
            continue
        one = found.setdefault(number, Gone(number, shown.get(host, ""), host))
        found[number] = replace(one, by_census=True) if name == RANK_GONE else replace(one, communicator=instance)
    return tuple(found[number] for number in sorted(found))


def _should_be_here(table: pa.Table) -> dict[int, str]:
    """Map each missing rank number to its host, where the numbers of its siblings determine it."""
    some = table.filter(pa.array(_incomplete(table)))
    by_host = missing_ranks(_places(some, "observed_on"))
    return {
        number: host for host, each in by_host.items() if len(each.numbers) == each.count for number in each.numbers
    }


def _places(table: pa.Table, job: str) -> Iterator[LocalRank]:
    """Yield where each rank runs; the column named by `job` tells jobs (or hosts) apart."""
    columns = (texts(table, job), texts(table, "observed_on"), texts(table, "container"))
    names = ("netns", "rank", "local_rank", "world_size", "local_world_size")
    places = zip(*columns, *(ints(table, name).tolist() for name in names), strict=True)
    return (LocalRank(*place) for place in places)


def _incomplete(table: pa.Table) -> Bools:
    """Mark ranks at a place (host, container, network) that lacks a local rank or has one twice.

    Unmarked where the local world size is unknown.
    """
    local, size = ints(table, "local_rank"), ints(table, "local_world_size")
    codes = (labels(table, "observed_on").codes, labels(table, "container").codes, ints(table, "netns"))
    place = distinct_rows(codes)
    most = np.zeros(int(place.max(initial=-1)) + 1, dtype=np.int64)
    np.maximum.at(most, place, size)
    inside = (local >= 0) & (local < size)
    seat = distinct_rows((place, local))
    first = np.empty(int(seat.max(initial=-1)) + 1, dtype=np.int64)
    first[seat[::-1]] = np.arange(len(seat))[::-1]  # the last write wins: the first row of each seat
    once = np.bincount(place[first], inside[first], len(most))
    whole = (once == most) & (np.bincount(place, minlength=len(most)) == most)
    return np.asarray(~whole[place] & (size > 0), dtype=bool)


def _count(ranks: int) -> str:
    """Number of ranks in words: '1 rank', '3 ranks'."""
    return f"{ranks} ranks" if ranks != 1 else "1 rank"


def _guessed(table: pa.Table) -> tuple[int, ...]:
    """Numbers of the ranks whose number is a guess."""
    return tuple(table.filter(table["guessed"])["rank"].to_pylist())


def _host_names(hosts: Labels, nodes: Labels) -> tuple[str, ...]:
    """Return the host name by rank: its host, or its node name where ranks of one host see several.

    Several node names on one host: containers.
    """
    several = several_nodes(hosts, nodes)
    pairs = zip(hosts.codes.tolist(), nodes.codes.tolist(), several[hosts.codes].tolist(), strict=True)
    return tuple(
        nodes.values[node] if inside and nodes.values[node] else hosts.values[host] for host, node, inside in pairs
    )


def several_nodes(hosts: Labels, nodes: Labels) -> Bools:
    """Mark each value of `hosts` whose ranks see more than one node name."""
    least, most = (np.full(len(hosts.values), start, dtype=np.int64) for start in (len(nodes.values), -1))
    np.minimum.at(least, hosts.codes, nodes.codes)
    np.maximum.at(most, hosts.codes, nodes.codes)
    return np.asarray(least < most)


def patterns(table: pa.Table, stacks: pa.Table, rows: Ints) -> Patterns:
    """Build this job's `Patterns`; `rows` is the row in Ranks of every table row, -1 for others."""
    keep = rows >= 0
    table = table.filter(pa.array(keep))
    per_step = floats(table, "per_step_s")
    holder = _holders(table)
    found = Patterns(
        rank=rows[keep],
        thread=labels(table, "thread"),
        kind=labels(table, "kind"),
        name=labels(table, "name"),
        file=labels(table, "file"),
        line=ints(table, "line"),
        detail=_told(labels(table, "detail"), holder),
        caller=labels(table, "caller"),
        stack=_stacks(table, stacks),
        beta=np.nan_to_num(floats(table, "beta")),
        count=ints(table, "count"),
        per_step_s=np.where(np.isfinite(per_step) & (per_step > 0), per_step, 0.0),
        sd_s=floats(table, "per_step_sd_s"),
        bytes=np.maximum(ints(table, "bytes"), 0),
        mu=floats(table, "mu"),
        sigma=floats(table, "sigma"),
        holder=holder,
        native=labels(table, "native"),
        native_share=floats(table, "native_share"),
        growth_s=floats(table, "growth_s"),
        kernel_share=floats(table, "kernel_share"),
        kernel_for=labels(table, "kernel_for"),
    )
    return with_holders(found)


def _stacks(patterns: pa.Table, stacks: pa.Table) -> Stacks:
    """Build the column of stacks of the table `patterns`: equal stacks of all windows become one node.

    `stacks`: table of stack nodes (caller, function, file, line), which the patterns refer to.
    """
    name, file, line = labels(stacks, "name"), labels(stacks, "file"), ints(stacks, "line")
    each, frame = np.unique(np.column_stack([name.codes, file.codes, line]), axis=0, return_inverse=True)
    frames = tuple(StackFrame(name.values[n], file.values[f], at) for n, f, at in each.tolist())
    return merged(ints(patterns, "stack"), ints(stacks, "parent"), frame.reshape(-1), frames)


def _holders(table: pa.Table) -> Holders:
    """Read the GIL holder of each pattern row; -1 where none is given."""
    thread = labels(table, "holder_thread")
    rows = np.flatnonzero(thread.codes != thread.code(""))
    codes = np.full(table.num_rows, -1, dtype=np.int64)
    if not len(rows):
        return Holders(codes, ())
    name, file, line = labels(table, "holder_name"), labels(table, "holder_file"), ints(table, "holder_line")
    key = np.column_stack([name.codes[rows], file.codes[rows], line[rows], thread.codes[rows]])
    each, number = np.unique(key, axis=0, return_inverse=True)
    codes[rows] = number.reshape(-1)
    values = (GilHolder(name.values[n], file.values[f], at, thread.values[t]) for n, f, at, t in each.tolist())
    return Holders(codes, tuple(values))


def _told(detail: Labels, holder: Holders) -> Labels:
    """Return each row's detail for people: for a wait for the GIL, the function and thread that held it."""
    if not holder.values:
        return detail
    place = {text: code for code, text in enumerate(detail.values)}
    number = np.array([place.setdefault(each.text, len(place)) for each in holder.values], dtype=np.int64)
    return Labels(np.where(holder.codes >= 0, number[holder.codes], detail.codes), tuple(place))


def pauses(table: pa.Table, rows: Ints) -> Pauses:
    """Build this job's `Pauses`, without impossible rows.

    `rows` is the row in Ranks by table row, -1: other jobs.
    """
    total, p50 = floats(table, "total_s"), floats(table, "p50_s")
    keep = (rows >= 0) & (ints(table, "count") > 0) & (total > 0) & (p50 > 0) & np.isfinite(total + p50)
    table = table.filter(pa.array(keep))
    steps = table["steps"].combine_chunks()
    lengths = pc.fill_null(pc.list_value_length(steps), 0).to_numpy(zero_copy_only=False)
    return Pauses(
        rank=rows[keep],
        name=labels(table, "name"),
        file=labels(table, "file"),
        line=ints(table, "line"),
        inside=labels(table, "inside"),
        more=ints(table, "more") > 0,
        count=ints(table, "count"),
        total_s=total[keep],
        p50_s=p50[keep],
        wait_s=np.clip(np.nan_to_num(floats(table, "wait_s")), 0.0, total[keep]),
        step=pc.fill_null(steps.flatten(), -1).to_numpy(zero_copy_only=False).astype(np.int64),
        first=np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
    )


def flows(table: pa.Table, rows: Ints) -> Flows:
    """Build this job's `Flows` (TCP connections).

    `rows` is the row in Ranks by table row, -1 for other jobs.
    """
    keep = rows >= 0
    table = table.filter(pa.array(keep))
    numbers = {
        name: np.nan_to_num(floats(table, name))
        for name in (
            "sent_bytes",
            "received_bytes",
            "retransmitted_bytes",
            "busy_s",
            "rwnd_limited_s",
            "sndbuf_limited_s",
            "rtt_s",
            "min_rtt_s",
        )
    }
    unacknowledged = numbers["busy_s"] - numbers["rwnd_limited_s"]
    between = np.isin(texts(table, "peer"), texts(table, "local"))
    return Flows(
        rank=rows[keep],
        local=tuple(address_of(text) for text in texts(table, "local")),
        peer=tuple(address_of(text) for text in texts(table, "peer")),
        interface=texts(table, "interface"),
        sent_bytes=np.maximum(numbers["sent_bytes"], 0),
        received_bytes=np.maximum(numbers["received_bytes"], 0),
        retransmitted_bytes=np.maximum(numbers["retransmitted_bytes"], 0),
        sending_s=np.maximum(unacknowledged - numbers["sndbuf_limited_s"], 0),
        unacknowledged_s=np.maximum(unacknowledged, 0),
        rtt_s=numbers["rtt_s"],
        min_rtt_s=numbers["min_rtt_s"],
        exchanged_bytes=np.where(between, floats(table, "carried_bytes"), np.nan),
    )


def counters(table: pa.Table, rows: Ints) -> Counters:
    """Build `Counters` of this job's ranks and of their hosts, without values that are not
    finite."""
    value = floats(table, "value")
    keep = ((rows >= 0) | (ints(table, "rank") < 0)) & np.isfinite(value)
    table = table.filter(pa.array(keep))
    return Counters(
        Columns(
            observed_on=labels(table, "observed_on"),
            scope=labels(table, "scope"),
            instance=labels(table, "instance"),
            rank=rows[keep],
            name=labels(table, "name"),
            unit=labels(table, "unit"),
            kind=labels(table, "kind"),
            value=value[keep],
            minimum=_finite(table, "minimum"),
            maximum=_finite(table, "maximum"),
            limit=_finite(table, "limit"),
            comm=labels(table, "comm"),
            pid=ints(table, "pid"),
        )
    )


def _finite(table: pa.Table, name: str) -> Floats:
    """A table column as floats with NaN in place of infinities."""
    values = floats(table, name)
    endless = np.isinf(values)
    return np.where(endless, np.nan, values) if endless.any() else values
