"""What campaigns came to: one row per case, day and source, with the commit that ran, in one file that merges line by line.

Rows of one case add up while the sources that it rests on are the same. A row of other sources is stale, and goes when the case is run
again.
"""

from __future__ import annotations

import fcntl
import json
import os
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from pathlib import Path

from labkit.machine.shell import EXIT_USAGE, REPOSITORY, LabError

RECORDED = REPOSITORY / "tests/data/campaigns.jsonl"
LOCAL = REPOSITORY / "campaign-out"
_MOST_PROBLEMS = 20  # kept of one row


def today() -> str:
    """The day of a row, in UTC."""
    return time.strftime("%Y-%m-%d", time.gmtime())


@dataclass(frozen=True, slots=True)
class Result:
    """What one case came to. `count`: inputs, runs or minutes. `sums` add up over rows, of `most` the largest stays, `series` go on.

    `commit`, `source`: what ran, and the digest of the sources that the case rests on (`sources.py`). `problems`: why it is not good.
    """

    campaign: str
    case: str
    day: str
    commit: str
    source: str
    count: float
    sums: Mapping[str, float] = field(default_factory=dict)
    most: Mapping[str, float] = field(default_factory=dict)
    series: Mapping[str, Sequence[float]] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    def median(self, name: str) -> float:
        """Median of a series; 0 where there is none."""
        return statistics.median(self.series[name]) if self.series.get(name) else 0.0


def merged(one: Result, more: Result) -> Result:
    """Both rows of one case as one; commit and day are those of the later."""
    last = max(one, more, key=lambda row: row.day)
    return replace(
        last,
        count=one.count + more.count,
        sums={name: round(one.sums.get(name, 0) + more.sums.get(name, 0), 3) for name in {**one.sums, **more.sums}},
        most={name: max(one.most.get(name, 0), more.most.get(name, 0)) for name in {**one.most, **more.most}},
        series={
            name: [*one.series.get(name, ()), *more.series.get(name, ())] for name in {**one.series, **more.series}
        },
        problems=tuple(dict.fromkeys((*one.problems, *more.problems)))[:_MOST_PROBLEMS],
    )


def read(path: Path) -> list[Result]:
    """All rows; none where there is no file."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        rows = [Result(**json.loads(line)) for line in lines if line.strip()]
        return [replace(row, problems=tuple(row.problems)) for row in rows]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError) as error:
        raise LabError(f"{path} holds no results of campaigns: {error}", exit_code=EXIT_USAGE) from error


def add(path: Path, row: Result) -> None:
    """Merge one row into the file; rows of the same case and other sources leave it."""
    with _locked(path.parent):
        rows: list[Result] = []
        for other in read(path):
            if (other.campaign, other.case) != (row.campaign, row.case):
                rows.append(other)
            elif other.source == row.source and (other.day, other.commit) == (row.day, row.commit):
                row = merged(other, row)
            elif other.source == row.source:
                rows.append(other)
        write(path, [*rows, row])


def forget(path: Path, campaign: str, cases: Iterable[str]) -> None:
    """Remove the rows of some cases."""
    gone = set(cases)
    with _locked(path.parent):
        write(path, [row for row in read(path) if row.campaign != campaign or row.case not in gone])


def write(path: Path, rows: Iterable[Result]) -> None:
    """Replace the file, whole or not at all."""
    partial = path.with_name(f"{path.name}.partial")
    ordered = sorted(rows, key=lambda row: (row.campaign, row.case, row.day, row.commit))
    try:
        partial.write_text("".join(json.dumps(asdict(row)) + "\n" for row in ordered), encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise LabError(f"{path} cannot be written: {error.strerror}", exit_code=EXIT_USAGE) from error


def current(rows: Iterable[Result], campaign: str, sources: Mapping[str, str]) -> dict[str, Result]:
    """By case, all rows together that rest on the sources of today."""
    found: dict[str, list[Result]] = {}
    for row in rows:
        if row.campaign == campaign and sources.get(row.case) == row.source:
            found.setdefault(row.case, []).append(row)
    return {case: reduce(merged, own) for case, own in found.items()}


def stale(rows: Iterable[Result], campaign: str, sources: Mapping[str, str]) -> list[Result]:
    """Rows of cases whose sources have changed since; rows of a case that is no more count as well."""
    return [row for row in rows if row.campaign == campaign and sources.get(row.case) != row.source]


def by_day(rows: Sequence[Result], campaign: str, sources: Mapping[str, str]) -> list[str]:
    """One line per day and commit: how many cases, how many of them stale, how many not good."""
    lines = [f"{'day':12}{'commit':15}{'cases':>6}{'stale':>7}{'bad':>5}{'count':>14}"]
    old = stale(rows, campaign, sources)
    days: dict[tuple[str, str], list[Result]] = {}
    for row in rows:
        if row.campaign == campaign:
            days.setdefault((row.day, row.commit), []).append(row)
    for (day, commit), found in sorted(days.items()):
        bad, others = sum(bool(row.problems) for row in found), sum(row in old for row in found)
        lines.append(
            f"{day:12}{commit or '?':15}{len(found):>6}{others:>7}{bad:>5}{sum(row.count for row in found):>14,.0f}"
        )
    return lines


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Several runs add to one file, one at a time."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LabError(f"{folder} cannot be written: {error.strerror}", exit_code=EXIT_USAGE) from error
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
