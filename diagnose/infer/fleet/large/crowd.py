"""All ranks of a large fleet as columns that suffice to find odd ones: steps, state, and summary
values.

All else is read only for a few ranks. Rows are sorted by rank number; no Python loop runs over
ranks."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rankscope.diagnose.infer.fleet import from_windows
from rankscope.diagnose.infer.fleet.clocks.align import Clocks, clock_notes
from rankscope.diagnose.infer.fleet.gather import Setting, note_strangers, setting_of
from rankscope.diagnose.infer.fleet.labels import Labels, distinct_texts, floats, ints, labels
from rankscope.diagnose.infer.fleet.large.placed import ROW, SEEN
from rankscope.diagnose.infer.fleet.large.survey import Survey
from rankscope.diagnose.infer.fleet.roll_call import of_job
from rankscope.diagnose.infer.fleet.step_matrix import (
    Columns,
    Grid,
    Hosts,
    can_be,
    clocks_against,
    filled,
    grid_of,
    hold,
    note_absurd,
    note_counts,
    steps_of_each,
)
from rankscope.diagnose.infer.verdict.note import Note
from rankscope.diagnose.stats.integers import distinct
from rankscope.diagnose.stats.robust import side_by_side
from rankscope.observer.window.store.summary import WINDOW
from rankscope.probes.base.arrays import Bools, Floats, Ints, Singles

_USED = [
    ROW, "observed_on", "node", "role", "state", "stopped_s", "last_progress_s", "in_collective_s", "ended_s", "works", "messages", "moved",
    "rate_hz", "link_from", "link_to", "errors", "errors_hz",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class EveryStep:
    """Own time and wait as ranks x steps (like Steps in fleet/model.py).

    `usual_s`: usual step, 0: no steps.
    """

    usual_s: float
    own_s: Singles
    wait_s: Singles


@dataclass(frozen=True, slots=True)
class Crowd:
    """One row per rank, sorted by number. `called`: host names as operators know them."""

    setting: Setting
    number: Ints
    hosts: Hosts
    called: tuple[str, ...]
    role: Labels
    running: Bools
    stopped_s: Floats
    last_progress_s: Floats
    in_collective_s: Floats
    ended_s: Floats
    steps: EveryStep
    columns: Columns
    works: Ints  # set of functions hashed into 64 bits
    messages: Floats
    moved: Floats
    rate_hz: Floats
    link_from: Labels  # ends of the connection that `rate_hz` is about
    link_to: Labels
    errors: Floats
    errors_hz: Floats
    lacking: Bools  # a rank started by the same launcher is missing


def crowd_of(seen: Survey, job: str, windows: Sequence[int], grid: Grid | None, notes: list[Note]) -> Crowd:
    """Build the columns of a job's ranks in these windows.

    Append notes on windows and ranks to `notes`. `grid`: the grid by which the survey put this
    job's steps in columns, if it did.
    """
    manifests = [seen.manifests[number] for number in windows]
    names, host_of_window = distinct_texts([about.host for about in seen.manifests])
    begins_s = np.zeros(len(names))
    begins_s[host_of_window[list(windows)]] = [about.start for about in manifests]
    mine = np.flatnonzero(np.isin(ints(seen.ranks, WINDOW), windows))
    everyone = seen.ranks if len(mine) == seen.ranks.num_rows else seen.ranks.take(pa.array(mine))
    host = host_of_window[ints(everyone, WINDOW)]
    observed_on = pa.DictionaryArray.from_arrays(pa.array(host.astype(np.int32)), pa.array(names, pa.string()))
    everyone = everyone.append_column("observed_on", observed_on).append_column(ROW, pa.array(mine))
    setting = setting_of(job, manifests, everyone, notes)
    table = of_job(everyone, job)
    number, first, lacking = from_windows.present(table, notes)
    note_strangers(everyone, job, number, notes)
    table = table.select(_USED).take(pa.array(first))
    observed, node = labels(table, "observed_on"), labels(table, "node")
    place = {name: at for at, name in enumerate(names)}
    hosts = Hosts(names, np.array([place.get(name, -1) for name in observed.values])[observed.codes], begins_s)
    row_of = np.full(seen.ranks.num_rows + 1, -1, dtype=np.int64)  # index -1: steps of no rank
    row_of[ints(table, ROW)] = np.arange(len(number))
    window_s = grid.window_s if grid is not None else setting.seconds
    left_out = ~np.isin(np.arange(len(seen.manifests)), windows)
    of_window = np.where(left_out, -1, host_of_window)
    ranks = _Rows(row_of, number, hosts, of_window, window_s)
    with ThreadPoolExecutor(1) as beside:  # numpy releases the GIL while it assembles the steps
        steps = beside.submit(_steps, seen, job, ranks, grid, notes)
        return Crowd(
            setting=setting,
            number=number,
            hosts=hosts,
            called=_called(observed, node),
            role=labels(table, "role"),
            running=_says(labels(table, "state"), "running"),
            stopped_s=np.nan_to_num(floats(table, "stopped_s")),
            last_progress_s=floats(table, "last_progress_s"),
            in_collective_s=np.nan_to_num(floats(table, "in_collective_s")),
            ended_s=floats(table, "ended_s"),
            works=pc.fill_null(table["works"], 0).to_numpy().astype(np.uint64).view(np.int64),
            messages=floats(table, "messages"),
            moved=floats(table, "moved"),
            rate_hz=floats(table, "rate_hz"),
            link_from=labels(table, "link_from"),
            link_to=labels(table, "link_to"),
            errors=floats(table, "errors"),
            errors_hz=floats(table, "errors_hz"),
            lacking=lacking,
            columns=steps.result()[0],
            steps=steps.result()[1],
        )


@dataclass(frozen=True, slots=True)
class _Rows:
    """Ranks of a crowd by survey row, and hosts by window.

    `of`: rank row by row of the survey's table; `of_window`: host index by window; -1 for others.
    """

    of: Ints
    numbers: Ints
    hosts: Hosts
    of_window: Ints
    window_s: float


def _steps(seen: Survey, job: str, ranks: _Rows, grid: Grid | None, notes: list[Note]) -> tuple[Columns, EveryStep]:
    """Assemble the steps of all ranks, those already in columns (`seen.placed`) and the remaining ones.

    Returns the columns and the matrices. `grid`: None: choose one from the remaining steps. Adds
    notes.
    """
    hosts, pieces = ranks.hosts, seen.placed.get(job, ())
    rows = ranks.of[ints(seen.steps, ROW)]
    sane = can_be(seen.steps, ranks.window_s)
    absurd = int(((rows >= 0) & ~sane).sum())
    rows = np.where(sane, rows, -1)
    counts = steps_of_each(rows, len(ranks.numbers))
    for piece in pieces:
        at = ranks.of[piece.rows]
        counts[at[at >= 0]] = piece.counts[at >= 0]
        absurd += int(piece.absurd[at >= 0].sum())
    note_absurd(absurd, notes)
    note_counts(counts, notes)
    grid = grid or grid_of(seen.steps, rows, ranks.numbers, hosts, ranks.window_s)
    clocks = clocks_against(grid, seen.steps, rows, ranks.numbers, hosts)
    offset_s, unsure = clocks.offset_s.copy(), clocks.unsure.copy()
    for piece in pieces:
        host = ranks.of_window[piece.windows]
        offset_s[host[host >= 0]] = piece.clocks.offset_s[host >= 0]
        unsure[host[host >= 0]] = piece.clocks.unsure[host >= 0]
    clocks = Clocks(offset_s, unsure)
    notes += clock_notes(hosts.names, clocks)
    columns = Columns.of(grid, hosts, clocks)
    hold(len(counts), len(columns.grid_s), int(counts.sum()))
    shape, rows_there = (len(counts), len(columns.grid_s)), [ranks.of[piece.rows] for piece in pieces]
    # Each rank is in one piece at most: if all are, no cell needs initialising.
    whole = sum(int((at >= 0).sum()) for at in rows_there) == len(counts)
    matrices = {name: np.empty(shape, np.float32) if whole else np.full(shape, np.nan, np.float32) for name in SEEN}

    def put_in(name: str) -> None:
        """Copy the matrix of this name from the pieces into the rows of their ranks."""
        for piece, at in zip(pieces, rows_there, strict=True):
            known: slice | Bools = slice(None) if at.min(initial=0) >= 0 else at >= 0
            matrices[name][at[known]] = piece.matrices[name][known]

    side_by_side(put_in, SEEN)
    if len(few := np.unique(rows[rows >= 0])):
        there = Hosts(hosts.names, hosts.of_rank[few], hosts.begins_s)
        found = filled(seen.steps, np.where(rows >= 0, np.searchsorted(few, rows), -1), there, columns, SEEN)
        for name, matrix in matrices.items():
            matrix[few] = getattr(found, name)
    return columns, EveryStep(grid.step_s if grid is not None else 0.0, **matrices)


def _says(column: Labels, text: str) -> Bools:
    """Mark the rows whose label is `text`."""
    return np.asarray(column.codes == column.code(text), dtype=bool)


def _called(hosts: Labels, nodes: Labels) -> tuple[str, ...]:
    """Names of a job's hosts as operators know them, sorted.

    `hosts`, `nodes`: host and node name of each rank; where the ranks of a host see several node
    names, these.
    """
    several = from_windows.several_nodes(hosts, nodes)
    mine, inside = distinct(hosts.codes)[0], several[hosts.codes]
    names = {hosts.values[code] for code in mine.tolist() if not several[code]}
    names |= {nodes.values[code] for code in distinct(nodes.codes[inside])[0].tolist()}
    return tuple(sorted(names - {""}))
