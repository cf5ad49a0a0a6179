"""Tables of a window as text, for a reader who is to predict the verdict: the figures that `diagnose/infer/README.md` names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from rankscope.observer.window.folder import Window

_MOST_FUNCTIONS, _MOST_VALUES, _MOST_FLOWS, _MOST_STAYS = 10, 24, 12, 48
_OF_RANK = (
    "state", "role", "cpus", "stopped_s", "last_progress_s", "in_collective_s", "samples", "age_s", "ended_s",
)  # fmt: skip
_PARTS = ("own_s", "wait_s", "io_s", "sched_s", "sync_s")


def shown(windows: Sequence[Window], earlier: Sequence[Window]) -> list[str]:
    """Lines for all hosts of one job; then, where there are any, for its earlier windows."""
    lines = [line for window in windows for line in _host(window)]
    return lines + [
        line for number, window in enumerate(earlier, 1) for line in (f"EARLIER WINDOW {number}", *_host(window))
    ]


def _host(window: Window) -> Iterator[str]:
    about = window.manifest
    yield f"host {about.host}, {about.seconds:.1f} s; not seen: " + (
        ", ".join(f"{one.source.value} ({one.seen.value})" for one in about.sources if one.seen.value != "whole")
        or "nothing"
    )
    for part in (_ranks, _steps, _patterns, _pauses, _collectives, _counters, _flows):
        yield from part(window)


def _ranks(window: Window) -> Iterator[str]:
    for row in window.ranks.to_pylist():
        words = (f"{name} {row[name]}" for name in _OF_RANK)
        yield f"ranks: rank {row['rank']} of {row['world_size']}: " + ", ".join(words)


def _steps(window: Window) -> Iterator[str]:
    table = window.steps
    ranks = np.asarray(table.column("rank"))
    for rank in np.unique(ranks):
        own = table.filter(pa.array(ranks == rank))
        seconds = {name: np.asarray(own.column(name), float) * 1e3 for name in ("seconds", *_PARTS)}
        own_s, wait_s = (
            " / ".join(f"{part.mean():.1f}" for part in np.array_split(seconds[name], 3) if len(part))
            for name in ("own_s", "wait_s")
        )
        yield (
            f"steps: rank {rank}: {own.num_rows} steps, mean {seconds['seconds'].mean():.1f} ms, longest {seconds['seconds'].max():.1f}; "
            + ", ".join(f"{name} {seconds[name].mean():.1f}" for name in _PARTS)
            + f"; by thirds own_s {own_s}, wait_s {wait_s}; standard deviation of own_s {seconds['own_s'].std():.1f}"
        )


def _patterns(window: Window) -> Iterator[str]:
    """The functions of each rank that take most of its steps."""
    rows: list[dict[str, Any]] = window.patterns.to_pylist()
    for rank in sorted({row["rank"] for row in rows}):
        own = [row for row in rows if row["rank"] == rank]
        for row in sorted(own, key=lambda row: row["per_step_s"] or 0.0, reverse=True)[:_MOST_FUNCTIONS]:
            place = f" ({row['file']}:{row['line']})" if row["file"] else ""
            caller = f" from {row['caller']}" if row["caller"] else ""
            yield (
                f"patterns: rank {rank}: {row['thread']} {row['kind']} {row['name']}{place} {row['detail']}{caller}: "
                f"{(row['per_step_s'] or 0.0) * 1e3:.1f} ms a step, β {row['beta']:.3f}, μ {row['mu'] or 0.0:.2f}, "
                f"σ {row['sigma'] or 0.0:.2f}, {row['count']} times, grew by {(row['growth_s'] or 0.0) * 1e3:.1f} ms"
            )


def _pauses(window: Window) -> Iterator[str]:
    for row in window.pauses.to_pylist():
        seconds = f"{row['total_s']:.2f} s in all, {row['wait_s']:.2f} s of it in collectives"
        yield f"pauses: rank {row['rank']}: {row['name']} in {row['count']} steps, {seconds}"


def _collectives(window: Window) -> Iterator[str]:
    """How long each rank stays in each call of a step: the shortest stay of any rank is the transfer."""
    rows: list[dict[str, Any]] = window.collectives.to_pylist()
    stays: dict[tuple[int, str, int], list[float]] = defaultdict(list)
    for row in rows:
        stays[row["slot"], row["op"], row["rank"]].append(row["stay_s"] * 1e3)
    for (slot, op, rank), found in sorted(stays.items())[:_MOST_STAYS]:
        yield f"collectives: call {slot} of a step, {op}: rank {rank}: {len(found)} times, mean stay {np.mean(found):.2f} ms"


def _counters(window: Window) -> Iterator[str]:
    """A line for each counter that is not 0 everywhere: the value of each rank, or of each of those that it counts."""
    found: dict[str, list[str]] = defaultdict(list)
    for row in window.counters.to_pylist():
        if row["value"]:
            of = f"rank {row['rank']}" if row["rank"] >= 0 else row["scope"]
            words = [of, row["instance"], row["comm"], f"pid {row['pid']}" if row["pid"] >= 0 else ""]
            limit = f" of {row['limit']:.4g}" if row["limit"] is not None else ""
            found[f"{row['name']} ({row['unit']}, {row['kind']})"].append(
                f"{' '.join(filter(None, words))}: {row['value']:.4g}{limit}"
            )
    for name, values in found.items():
        yield f"counters: {name}: {'; '.join(values[:_MOST_VALUES])}"


def _flows(window: Window) -> Iterator[str]:
    for row in window.flows.to_pylist()[:_MOST_FLOWS]:
        said = {
            name: f"{value:.4g}" if isinstance(value, float) else value
            for name, value in row.items()
            if value and name != "rank"
        }
        yield f"flows: rank {row['rank']}: " + ", ".join(f"{name} {value}" for name, value in said.items())
