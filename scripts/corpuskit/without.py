"""A recorded window with one source knocked out, as an observer would have written it whose kernel or host refused that source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rankscope.observer.sources import Seen, Source, SourceState, states
from rankscope.observer.window.folder import Window

Tables = dict[str, pa.Table]
_WHY = "knocked out"


def without(window: Window, source: Source, *, said: bool = True) -> Window:
    """The window without the rows of this source. `said`: its manifest says so, as observers do."""
    manifest = window.manifest
    if said:
        manifest = replace(manifest, sources=states((*manifest.sources, SourceState(source, Seen.NOT, _WHY))))
    return replace(window, manifest=manifest, **_WITHOUT[source](window))


def _no_samples(window: Window) -> Tables:
    """Running functions have no names; what is off a CPU keeps its stack."""
    table = window.patterns
    running = pc.and_(_among(table["kind"], "python"), _among(table["detail"], ""))
    return {
        "patterns": _with(table.filter(pc.invert(running)), native=None),
        "pauses": window.pauses.slice(0, 0),
        "ranks": _with(window.ranks, samples=0, failed_samples=0),
    }


def _no_run_queue(window: Window) -> Tables:
    """Threads never leave their CPU: nothing waits, queues or sleeps."""
    table, counters = window.patterns, window.counters
    away = pc.or_(_among(table["kind"], "sync", "sched"), _among(table["detail"], "sleep"))
    of_threads = pc.match_substring_regex(counters["name"].cast(pa.string()), "^(cpu|thread)\\.")
    return {
        "patterns": table.filter(pc.invert(away)),
        "steps": _with(window.steps, sched_s=0.0, sync_s=0.0),
        "counters": counters.filter(
            pc.or_(pc.invert(of_threads), pc.invert(_among(counters["scope"], "rank", "thread")))
        ),
    }


def _no_collectives(window: Window) -> Tables:
    """No marker and no wait: all of a step is its rank's own time, and no progress is seen."""
    steps = _moved(window.steps, "wait_s", "own_s")
    return {
        "patterns": window.patterns.filter(pc.invert(_among(window.patterns["kind"], "collective"))),
        "collectives": window.collectives.slice(0, 0),
        "steps": steps,
        "ranks": _with(window.ranks, last_progress_s=None, in_collective_s=0.0),
    }


def _no_calls(window: Window) -> Tables:
    table = window.patterns
    gone = pc.or_(_among(table["kind"], "memory"), _among(table["detail"], "gc"))
    return {"patterns": table.filter(pc.invert(gone))}


def _no_file_calls(window: Window) -> Tables:
    """Who reads waits somewhere in the kernel: for what, for how many bytes and from where is not known."""
    table = window.patterns
    io = _among(table["kind"], "io")
    waits = _with(table.filter(io), kind="sync", name="other", detail="", bytes=0)
    return {
        "patterns": pa.concat_tables([table.filter(pc.invert(io)), waits]).unify_dictionaries(),
        "steps": _moved(window.steps, "io_s", "sync_s"),
    }


def _no_exits(window: Window) -> Tables:
    return {"ranks": _with(window.ranks, ended_s=None, exit_status=None)}


def _no_flows(window: Window) -> Tables:
    return {"flows": window.flows.slice(0, 0), "ranks": _with(window.ranks, addresses=[])}


def _no_gpus(window: Window) -> Tables:
    kept = window.patterns.filter(pc.invert(_among(window.patterns["kind"], "gpu")))
    return {**_no_scopes("gpu", "nvlink")(window), "patterns": kept}


def _no_scopes(*scopes: str) -> Callable[[Window], Tables]:
    return lambda window: {"counters": window.counters.filter(pc.invert(_among(window.counters["scope"], *scopes)))}


_WITHOUT: dict[Source, Callable[[Window], Tables]] = {
    Source.SAMPLES: _no_samples,
    Source.RUN_QUEUE: _no_run_queue,
    Source.COLLECTIVES: _no_collectives,
    Source.CALLS: _no_calls,
    Source.FILE_CALLS: _no_file_calls,
    Source.EXITS: _no_exits,
    Source.FLOWS: _no_flows,
    Source.GPU: _no_gpus,
    Source.PORTS: _no_scopes("nic", "pcie"),
    Source.HOST: _no_scopes("host", "cgroup", "disk"),
}


def _among(column: pa.ChunkedArray, *names: str) -> pa.ChunkedArray:
    return pc.is_in(column.cast(pa.string()), value_set=pa.array(names))


def _with(table: pa.Table, **values: Any) -> pa.Table:
    """The table with one value in all rows of each of these columns."""
    for name, value in values.items():
        at = table.schema.get_field_index(name)
        field = table.schema.field(at)
        plain = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        table = table.set_column(at, field, pa.array([value] * table.num_rows, plain).cast(field.type))
    return table


def _moved(table: pa.Table, source: str, target: str) -> pa.Table:
    """The table with the seconds of one column added to another."""
    at = table.schema.get_field_index(target)
    field = table.schema.field(at)
    both = pc.add(pc.fill_null(table[target], 0.0), pc.fill_null(table[source], 0.0)).cast(field.type)
    return _with(table.set_column(at, field, both), **{source: 0.0})
