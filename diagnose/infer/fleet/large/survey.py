"""Survey windows of many hosts: their ranks with summary values, and their steps, as two tables.

Only the summary of each object is read (see observer/window/store/summary.py), or computed if it
has none. Steps of jobs with a known grid are put in columns at once (placed.py) and are in no
table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rankscope.diagnose.infer.fleet import from_windows
from rankscope.diagnose.infer.fleet.clocks import far_clocks
from rankscope.diagnose.infer.fleet.clocks.far_clocks import Shown
from rankscope.diagnose.infer.fleet.labels import equals, ints, texts
from rankscope.diagnose.infer.fleet.large.placed import ROW, Placed, placed
from rankscope.diagnose.infer.fleet.roll_call import RollCall
from rankscope.diagnose.infer.fleet.sources import Source, Unread, read_summaries
from rankscope.diagnose.infer.fleet.step_matrix import Grid
from rankscope.diagnose.infer.verdict.note import Note
from rankscope.observer.window.manifest import Manifest
from rankscope.observer.window.store.same_names import rename_hosts
from rankscope.observer.window.store.summary import STEP_COLUMNS, WINDOW
from rankscope.observer.window.store.users import ranks_by_user

GROUP = 1024  # hosts per task: megabytes, a quarter of a second; submitting a task to Ray takes 2 ms


@dataclass(frozen=True, slots=True)
class Survey:
    """Windows of a group of hosts.

    `source`: index of its source in the group, by window; `begins_s`: start by the host's own
    clock, by window; a rank names its window, a step the row of its rank; `placed`: by job, steps
    already in columns.
    """

    manifests: tuple[Manifest, ...]
    source: tuple[int, ...]
    begins_s: tuple[float, ...]
    ranks: pa.Table
    steps: pa.Table
    unread: Unread
    placed: Mapping[str, Sequence[Placed]] = field(default_factory=dict)

    @property
    def roll(self) -> RollCall:
        """Manifests and ranks of the survey, from which jobs and windows are chosen."""
        return RollCall(self.manifests, self.ranks)


def survey(sources: Sequence[Source], grids: Mapping[str, Grid] | None = None) -> Survey:
    """Read the summaries of a group of hosts. Runs on a worker.

    `grids`: by job, grids for placing steps in columns.
    """
    manifests: list[Manifest] = []
    source: list[int] = []
    ranks: list[pa.Table] = []
    before: list[int] = []  # index of the first window of each table
    unread: Unread = []
    for place, found in enumerate(read_summaries(sources, unread)):
        for each in found:
            before.append(len(manifests))
            ranks.append(each.ranks)
            manifests += (replace(about, costs=()) for about in each.manifests)
            source += [place] * len(each.manifests)
    if not manifests:
        return Survey((), (), (), pa.table({}), pa.table({}), unread)
    everyone = pa.concat_tables(ranks).combine_chunks()
    window = ints(everyone, WINDOW) + np.repeat(before, [table.num_rows for table in ranks])
    everyone = ranks_by_user(everyone.set_column(0, WINDOW, pa.array(window.astype(np.int32))))
    begins_s = tuple(about.start for about in manifests)
    short, steps = _short(everyone.drop_columns(list(STEP_COLUMNS))), _steps(everyone)
    in_columns = {
        job: (there,)
        for job, grid in (grids or {}).items()
        if (there := placed(job, grid, short, begins_s, steps)) is not None
    }
    if in_columns:
        done = np.concatenate([there.rows for (there,) in in_columns.values()])
        steps = steps.filter(pa.array(~np.isin(ints(steps, ROW), done)))
    return Survey(tuple(manifests), tuple(source), begins_s, short, steps, unread, in_columns)


def together(surveys: Iterable[tuple[int, Survey]]) -> Survey:
    """Join surveys of several groups in order.

    Each comes with the index of its first source among all.
    """
    manifests: list[Manifest] = []
    source: list[int] = []
    begins_s: list[float] = []
    unread: Unread = []
    ranks: list[pa.Table] = []
    steps: list[pa.Table] = []
    in_columns: dict[str, list[Placed]] = {}
    rows = 0
    for first, each in surveys:
        if each.manifests:
            for job, pieces in each.placed.items():
                windows = len(manifests)
                in_columns.setdefault(job, []).extend(
                    replace(piece, rows=piece.rows + rows, windows=piece.windows + windows) for piece in pieces
                )
            ranks.append(from_windows.shifted(each.ranks, WINDOW, len(manifests)))
            steps.append(from_windows.shifted(each.steps, ROW, rows))
            rows += each.ranks.num_rows
        manifests += each.manifests
        source += [first + number for number in each.source]
        begins_s += each.begins_s
        unread += each.unread
    everyone, each_step = (from_windows.joined(tables) if tables else pa.table({}) for tables in (ranks, steps))
    return Survey(rename_hosts(manifests), tuple(source), tuple(begins_s), everyone, each_step, unread, in_columns)


def with_right_clocks(seen: Survey, some: Survey, elsewhere: Survey) -> tuple[Survey, list[Note]]:
    """Return windows of `elsewhere` that are of the same time, with corrected starts, and notes on clocks.

    Only of hosts missing in `seen`. Clocks are compared with `some` of the windows of `seen`.
    """
    others = {number: _shown(elsewhere, number) for number in range(len(elsewhere.manifests))}
    new = [each for each in others.values() if not _has(seen, each.ranks)]
    known = [_shown(some, number) for number in range(len(some.manifests))]
    windows, were, notes = far_clocks.with_right_clocks(known, new)
    right = windows[len(windows) - len(were) :]
    now = {id(was): each.manifest for was, each in zip(were, right, strict=True)}
    return _only(elsewhere, {number: now[id(each)] for number, each in others.items() if id(each) in now}), notes


def _has(seen: Survey, ranks: pa.Table) -> bool:
    """Whether the survey already contains one of these ranks."""
    same = np.isin(ints(seen.ranks, "rank"), ints(ranks, "rank"))
    return any(bool((same & equals(seen.ranks, "job", job)).any()) for job in set(texts(ranks, "job")))


def _only(seen: Survey, wanted: Mapping[int, Manifest]) -> Survey:
    """Restrict a survey to the windows with these numbers, which get the manifests given in `wanted`."""
    numbers = np.array(sorted(wanted), dtype=np.int64)
    window = ints(seen.ranks, WINDOW)
    rows = np.flatnonzero(np.isin(window, numbers))
    place = np.full(len(window), -1, dtype=np.int32)
    place[rows] = np.arange(len(rows))
    ranks = seen.ranks.take(pa.array(rows))
    ranks = ranks.set_column(0, WINDOW, pa.array(np.searchsorted(numbers, window[rows]).astype(np.int32)))
    mine = place[ints(seen.steps, ROW)]
    steps = seen.steps.filter(pa.array(mine >= 0)).set_column(0, ROW, pa.array(mine[mine >= 0]))
    return Survey(
        tuple(wanted[number] for number in numbers.tolist()),
        tuple(seen.source[number] for number in numbers.tolist()),
        tuple(seen.begins_s[number] for number in numbers.tolist()),
        ranks, steps, [],
    )  # fmt: skip


def _shown(seen: Survey, window: int) -> Shown:
    """Extract what is needed to compare clocks from one window of the survey (by number)."""
    ranks, rows = seen.ranks, np.flatnonzero(ints(seen.ranks, WINDOW) == window)
    row = ints(seen.steps, ROW)
    mine = np.flatnonzero((row >= rows[0]) & (row <= rows[-1])) if len(rows) else np.empty(0, dtype=np.int64)
    steps = (
        seen.steps.take(pa.array(mine))
        .select([ROW, "start_s", "seconds"])
        .rename_columns(["rank", "start_s", "seconds"])
    )
    return Shown(seen.manifests[window], ranks.take(pa.array(rows)).select(["job", "rank"]), steps)


def _steps(ranks: pa.Table) -> pa.Table:
    """Table with one row per step, from the list columns of the ranks."""
    lists = {name: ranks[name].combine_chunks() for name in STEP_COLUMNS}
    counts = pc.list_value_length(lists[STEP_COLUMNS[0]]).to_numpy()
    row = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    return pa.table({ROW: pa.array(row), **{name: column.flatten() for name, column in lists.items()}})


def _short(ranks: pa.Table) -> pa.Table:
    """Dictionary-encode the text columns of a table, to save memory.

    A million ranks have few distinct texts.
    """
    for place, column in enumerate(ranks.schema):
        if pa.types.is_string(column.type):
            ranks = ranks.set_column(place, column.name, ranks[column.name].dictionary_encode())
    return ranks.unify_dictionaries().combine_chunks()
