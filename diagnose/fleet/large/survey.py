"""Windows of many hosts → their ranks and steps as two tables, and what each rank is like, as columns of the table of ranks.

Of each object only its summary is read (observer/window/store/summary.py says what is in it); of one without it is computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rankscope.diagnose.fleet import from_windows
from rankscope.diagnose.fleet.labels import ints
from rankscope.diagnose.fleet.roll_call import RollCall
from rankscope.diagnose.fleet.sources import Source, Unread, read_summaries
from rankscope.observer.window.manifest import Manifest
from rankscope.observer.window.store.same_names import told_apart
from rankscope.observer.window.store.summary import STEP_COLUMNS, WINDOW

ROW = "row"  # column of the steps: the row of their rank in the table of ranks
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
    manifests: list[Manifest] = []
    source: list[int] = []
    ranks: list[pa.Table] = []
    before: list[int] = []  # windows before those of each table
    unread: Unread = []
    for place, found in enumerate(read_summaries(sources, unread)):
        for each in found:
            before.append(len(manifests))
            ranks.append(each.ranks)
            manifests += (replace(about, costs=()) for about in each.manifests)
            source += [place] * len(each.manifests)
    if not manifests:
        return Survey((), (), pa.table({}), pa.table({}), unread)
    everyone = pa.concat_tables(ranks).combine_chunks()
    window = ints(everyone, WINDOW) + np.repeat(before, [table.num_rows for table in ranks])
    everyone = everyone.set_column(0, WINDOW, pa.array(window.astype(np.int32)))
    return Survey(
        tuple(manifests), tuple(source), _short(everyone.drop_columns(list(STEP_COLUMNS))), _steps(everyone), unread
    )


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
            steps.append(from_windows.shifted(each.steps, ROW, rows))
            rows += each.ranks.num_rows
        manifests += each.manifests
        source += [place * group + number for number in each.source]
        unread += each.unread
    joined = [from_windows.joined(pieces) if pieces else pa.table({}) for pieces in (ranks, steps)]
    return Survey(told_apart(manifests), tuple(source), joined[0], joined[1], unread)


def _steps(ranks: pa.Table) -> pa.Table:
    """One row per step."""
    lists = {name: ranks[name].combine_chunks() for name in STEP_COLUMNS}
    counts = pc.list_value_length(lists[STEP_COLUMNS[0]]).to_numpy()
    row = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    return pa.table({ROW: pa.array(row), **{name: column.flatten() for name, column in lists.items()}})


def _short(ranks: pa.Table) -> pa.Table:
    """Texts as labels: of a million ranks few are different."""
    for place, column in enumerate(ranks.schema):
        if pa.types.is_string(column.type):
            ranks = ranks.set_column(place, column.name, ranks[column.name].dictionary_encode())
    return ranks.unify_dictionaries().combine_chunks()
