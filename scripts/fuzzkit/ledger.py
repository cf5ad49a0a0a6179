"""The committed record: how many inputs each target has stood with the source that it has now, over all runs on all machines.

A run's counts are added once (`kept_inputs`, `kept_cpu_seconds` of its own record). Where the source of a parser has changed, its
counts begin anew.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from fuzzkit.record import Record


@dataclass(frozen=True, slots=True)
class Entry:
    """Of one target. `source`: of the files that it runs (`sources.py`)."""

    source: str
    inputs: int
    cpu_seconds: float
    slowest_s: float
    most_bytes: int

    def as_record(self) -> Record:
        return Record(self.inputs, self.cpu_seconds, self.slowest_s, self.most_bytes, source=self.source)


Ledger = dict[str, Entry]


def read(path: Path) -> Ledger:
    """Nothing where no file is."""
    try:
        return {name: Entry(**entry) for name, entry in json.loads(path.read_text()).items()}
    except FileNotFoundError:
        return {}


def write(path: Path, ledger: Ledger) -> None:
    path.write_text(json.dumps({name: asdict(entry) for name, entry in sorted(ledger.items())}, indent=1) + "\n")


def current(ledger: Ledger, sources: Mapping[str, str]) -> Ledger:
    """What still counts: entries whose source is the one of today."""
    return {name: entry for name, entry in ledger.items() if sources.get(name) == entry.source}


def elsewhere(ledger: Ledger, name: str, here: Record) -> int:
    """How many inputs of the record other runs had: those that need not be run here. `ledger`: what still counts."""
    if name not in ledger:
        return 0
    return ledger[name].inputs - (here.kept_inputs if here.source == ledger[name].source else 0)


def added(ledger: Ledger, name: str, run: Record) -> Ledger:
    """With what a run has counted since it was last added; unchanged where it failed, or has no source."""
    inputs, cpu_seconds = run.inputs - run.kept_inputs, run.cpu_seconds - run.kept_cpu_seconds
    if run.failures or not run.source or inputs <= 0:
        return ledger
    before = ledger.get(name)
    if before is None or before.source != run.source:
        before = Entry(run.source, 0, 0.0, 0.0, 0)
    return ledger | {
        name: replace(
            before,
            inputs=before.inputs + inputs,
            cpu_seconds=round(before.cpu_seconds + cpu_seconds, 1),
            slowest_s=round(max(before.slowest_s, run.slowest_s), 3),
            most_bytes=max(before.most_bytes, run.most_bytes),
        )
    }
