"""Compare the sweeps of many hosts and find outliers.

In: JSON of `rankscope sweep --json`, one file per host. A value is odd
- as text (versions, link speeds): if over two thirds of three or more hosts agree, and one differs;
- as a number: |value - median| ≥ 4 robust standard deviations (never below 5 % of the median),
  significant at 1 % after Benjamini and Hochberg over all comparisons;
- if missing: over two thirds have the finding, and this host does not.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rankscope.diagnose import budgets
from rankscope.diagnose.severity import OK, STATES, weight
from rankscope.diagnose.stats.robust import benjamini_hochberg, robust_sd_of
from rankscope.diagnose.sweep.output import SCHEMA
from rankscope.diagnose.text import clean
from rankscope.probes.base.errors import BadData, NoSuchPlace
from rankscope.probes.base.folders import read_plain

MAX_FILES, LEAST_HOSTS = 20_000, 3
_WRONG_MOST = 100  # findings of a host that are kept to be named
_AGREE, _Z, _FLOOR = 2 / 3, 4.0, 0.05
# Values that differ between healthy hosts, such as disk usage: not compared as numbers.
_NOT_NUMBERS = frozenset({"disk.full", "disk.slow", "mem.pressure", "os.limits", "os.kmsg", "fs.stuck", "job.orphans"})


@dataclass(frozen=True, slots=True)
class Wrong:
    """A finding of one host that is not ok, as its sweep told it."""

    id: str
    instance: str
    state: str
    why: str


@dataclass(frozen=True, slots=True)
class HostSweep:
    """Comparable part of one host's sweep: its state, values by (check, instance), and what is wrong, worst first."""

    host: str
    state: str
    values: dict[tuple[str, str], float | str | None]
    wrong: tuple[Wrong, ...] = ()


@dataclass(frozen=True, slots=True)
class Odd:
    """A value of one host that differs from the others'. `z`: robust z score, 0 for text."""

    host: str
    id: str
    instance: str
    value: str
    others: str
    hosts: int
    z: float


def read_sweeps(places: Sequence[Path]) -> tuple[tuple[HostSweep, ...], tuple[str, ...]]:
    """Read the newest sweep of each host from files and folders; return them, and notes on unusable files.

    Raises BadData if there is none, NoSuchPlace.
    """
    files: list[Path] = []
    for place in places:
        if place.is_dir():
            files += sorted(place.rglob("*.json"))
        elif place.exists():
            files.append(place)
        else:
            raise NoSuchPlace(f"{place}: no such file or folder")
    newest: dict[str, tuple[str, HostSweep]] = {}
    notes = []
    for file in files[:MAX_FILES]:
        try:
            when, found = parse_sweep(read_plain(file, budgets.FILE_BYTES_MOST))
        except (OSError, ValueError) as error:
            notes.append(f"{clean(file.name, 60)}: {clean(str(error), 100)}")
            continue
        if found.host not in newest or newest[found.host][0] <= when:
            newest[found.host] = (when, found)
    if not newest:
        raise BadData(f"no sweep could be read{': ' + notes[0] if notes else ''}")
    return tuple(sweep for _, sweep in (newest[host] for host in sorted(newest))), tuple(notes)


def parse_sweep(data: bytes) -> tuple[str, HostSweep]:
    """Parse one file into (time, sweep). Raises ValueError."""
    try:
        content = json.loads(data)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise ValueError(f"not {SCHEMA}")
    host, findings, summary = content.get("host"), content.get("findings"), content.get("summary")
    if not isinstance(host, str) or not host or not isinstance(findings, list) or not isinstance(summary, dict):
        raise ValueError("parts are missing")
    state = summary.get("state")
    if state not in STATES:
        raise ValueError("unknown state")
    values: dict[tuple[str, str], float | str | None] = {}
    wrong = []
    for one in findings[:10_000]:
        if not isinstance(one, dict) or not isinstance(one.get("id"), str) or not isinstance(one.get("instance"), str):
            raise ValueError("a finding without id or instance")
        value: Any = one.get("value")
        if isinstance(value, bool) or not isinstance(value, (int, float, str, type(None))):
            raise ValueError("a value of the wrong kind")
        if isinstance(value, (int, float)):
            try:
                value = float(value)
            except OverflowError:
                value = math.inf
            if not math.isfinite(value):
                raise ValueError("a value that is not finite")
        key = clean(one["id"], 60), clean(one["instance"], 60)
        values[key] = clean(value, 60) if isinstance(value, str) else value
        its = str(one.get("state"))
        if its in STATES and its != OK:
            wrong.append(Wrong(*key, its, clean(str(one.get("why") or ""), 300)))
    wrong.sort(key=lambda one: -weight(one.state))
    found = HostSweep(clean(host, 64), str(state), values, tuple(wrong[:_WRONG_MOST]))
    return str(content.get("time", ""))[:32], found


def odd_ones(sweeps: Sequence[HostSweep], per_process: Iterable[str] = ()) -> tuple[Odd, ...]:
    """Find values of hosts that differ from the others', the largest z first; none with fewer than three hosts.

    `per_process`: checks to leave out.
    """
    left_out = set(per_process)
    keys = sorted({key for sweep in sweeps for key in sweep.values if key[0] not in left_out})
    words: list[Odd] = []
    numbers: list[Odd] = []
    p_values: list[float] = []
    tests = 0
    for key in keys:
        holders = [sweep for sweep in sweeps if key in sweep.values]
        if len(sweeps) >= LEAST_HOSTS and len(holders) > _AGREE * len(sweeps) and key[1]:
            words += [
                Odd(sweep.host, *key, "missing", "present", len(holders), 0.0)
                for sweep in sweeps
                if key not in sweep.values
            ]
        values = [(sweep.host, sweep.values[key]) for sweep in holders]
        texts = [(host, value) for host, value in values if isinstance(value, str)]
        words += _odd_words(key, texts)
        levels = [(host, value) for host, value in values if isinstance(value, float)]
        if len(levels) >= LEAST_HOSTS and key[0] not in _NOT_NUMBERS:
            tests += len(levels)
            for odd, p in _odd_numbers(key, levels):
                numbers.append(odd)
                p_values.append(p)
    if p_values:
        kept = benjamini_hochberg(np.array(p_values), tests)
        numbers = [odd for odd, keep in zip(numbers, kept, strict=True) if keep]
    return tuple(sorted([*numbers, *words], key=lambda odd: (-abs(odd.z), odd.host, odd.id, odd.instance)))


def _odd_words(key: tuple[str, str], values: Sequence[tuple[str, str]]) -> list[Odd]:
    """Find hosts whose text for this (check, instance) differs from the one that over two thirds agree on.

    `values`: (host, text).
    """
    if len(values) < LEAST_HOSTS:
        return []
    common, count = Counter(value for _, value in values).most_common(1)[0]
    if count <= _AGREE * len(values) and not (len(values) == LEAST_HOSTS and count == LEAST_HOSTS - 1):
        return []
    return [Odd(host, *key, value, common, count, 0.0) for host, value in values if value != common]


def _odd_numbers(key: tuple[str, str], values: Sequence[tuple[str, float]]) -> list[tuple[Odd, float]]:
    """Find hosts whose number for this (check, instance) is far from the median, each with its p-value.

    `values`: (host, number).
    """
    numbers = np.array([value for _, value in values])
    median = float(np.median(numbers))
    scale = max(robust_sd_of(numbers), _FLOOR * abs(median), 1e-9 if median else 1.0)
    found = []
    for host, value in values:
        z = (value - median) / scale
        if abs(z) >= _Z:
            odd = Odd(host, *key, f"{value:g}", f"{median:g}", len(values) - 1, round(z, 1))
            found.append((odd, math.erfc(abs(z) / math.sqrt(2))))
    return found
