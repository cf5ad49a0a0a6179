"""Add ranks that were missing before and throughout a window as rows of the table `counters`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from rankscope.observer.census.found import RankCensus
from rankscope.observer.window.counter_names import RANK_GONE
from rankscope.observer.window.folder import Window
from rankscope.observer.window.rows import CounterRow
from rankscope.observer.window.tables import table_of


def with_gone(windows: Sequence[Window], before: RankCensus, after: RankCensus) -> list[Window]:
    """Add to each job's window a row for each of its ranks that was missing both before and after it.

    `before`, `after`: the host at begin and end.
    """
    gone = set(before.gone) & set(after.gone)
    return [
        _with_rows(window, sorted(each.rank for each in gone if each.job in window.manifest.jobs)) for window in windows
    ]


def _with_rows(window: Window, numbers: Sequence[int]) -> Window:
    """Append a row `RANK_GONE` to the window's counters for each of these rank numbers."""
    if not numbers:
        return window
    rows = [
        CounterRow("rank", rank=number, name=RANK_GONE, unit="ranks", kind="gauge", value=1.0) for number in numbers
    ]
    return replace(window, counters=pa.concat_tables([window.counters, table_of("counters", rows)]))
