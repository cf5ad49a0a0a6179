"""Counters of the shown rank and its host next to those of others: same counter, same kind of device.

A window contains a counter's growth or mean level, not its course, so only steps show when it moved.
"""

from __future__ import annotations

import fnmatch
import re

import numpy as np

from rankscope.diagnose.face.report.chosen import Chosen
from rankscope.diagnose.face.report.content import CounterLine
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.verdict.contract import Verdict
from rankscope.diagnose.stats.robust import median
from rankscope.diagnose.text import clean, rate, seconds
from rankscope.observer.window.counter_names import COUNTER_NAMES
from rankscope.probes.base.arrays import Floats, Ints

LINES_MOST = 12
# Parts of a description that only matter in the table of names.
_ASIDE = re.compile(
    r"^scope \w+(, instance [^:]*)?: |^instance ('[^']*'|= \w+)(: )?|^gauge: |[;,] (instance|likewise|scope) .*$"
    r"| \((observer/|limit|\w+\.py)[^)]*\)"
)
_RATIO = 1.5  # ratio to the others' median (or its inverse) that is highlighted; not a threshold of the verdict


def counters_of(fleet: Fleet, verdict: Verdict, chosen: Chosen) -> tuple[CounterLine, ...]:
    """Build the lines of counters: first those that the verdict rests on, then those that differ most from the others'.

    Those similar to the others' are left out.
    """
    told = " ".join(evidence.measure for suspect in verdict.suspects for evidence in suspect.evidence)
    found: list[tuple[bool, float, CounterLine]] = []
    for name in fleet.counters.names():
        rows = fleet.counters.rows(name)
        mine = rows[_is_mine(fleet, chosen, rows)]
        for row in _worst(fleet, mine).tolist():
            line, apart = _line(fleet, name, row, _others(fleet, chosen, rows, row))
            if name in told or line.odd:
                found.append((name in told, apart, line))
    found.sort(key=lambda each: (not each[0], -each[1], each[2].name))
    return tuple(line for _, _, line in found)[:LINES_MOST]


def _is_mine(fleet: Fleet, chosen: Chosen, rows: Ints) -> Ints:
    """Tell which of these counter rows are of the shown rank or of its host."""
    table = fleet.counters.table
    host = table.observed_on.code(fleet.ranks.observed_on[chosen.culprit])
    whole_host = (table.rank[rows] < 0) & (table.observed_on.codes[rows] == host)
    mine: Ints = (table.rank[rows] == chosen.culprit) | whole_host
    return mine


def _worst(fleet: Fleet, rows: Ints) -> Ints:
    """Return the row with the largest value, in an array; empty if there are no rows."""
    if not len(rows):
        return rows
    value = fleet.counters.table.value[rows]
    return rows[[int(np.argmax(np.where(np.isfinite(value), value, -np.inf)))]]


def _others(fleet: Fleet, chosen: Chosen, rows: Ints, mine: int) -> Floats:
    """Return the values of a counter on the peers (of a host's counter: on other hosts), the largest of each.

    `rows`: all rows of the counter; `mine`: the row that is shown.
    """
    table = fleet.counters.table
    if table.rank[mine] >= 0:
        rows = rows[np.isin(table.rank[rows], chosen.peers)]
        key = table.rank[rows]
    else:
        rows = rows[(table.rank[rows] < 0) & (table.observed_on.codes[rows] != table.observed_on.codes[mine])]
        key = table.observed_on.codes[rows]
    if not len(rows):
        return np.empty(0)
    groups, which = np.unique(key, return_inverse=True)
    most = np.full(len(groups), -np.inf)
    np.maximum.at(most, which.reshape(-1), np.nan_to_num(table.value[rows]))
    return most


def _line(fleet: Fleet, name: str, row: int, others: Floats) -> tuple[CounterLine, float]:
    """Build the line of one counter; also returns the relative difference (0..1) to the median of the others."""
    counter = fleet.counters.at(row)
    middle = median(others) if len(others) else float("nan")
    largest = max(abs(each) for each in (counter.value, middle, counter.limit, 1e-300) if np.isfinite(each))
    bars = [abs(each) / largest if np.isfinite(each) else -1.0 for each in (counter.value, middle, counter.limit)]
    whole = max(abs(counter.value), abs(middle)) if np.isfinite(middle) else 0.0
    apart = abs(counter.value - middle) / whole if whole > 0 else 0.0
    odd = bool(whole > 0 and min(abs(counter.value), abs(middle)) * _RATIO < whole)
    who = f"{counter.comm} ({counter.pid})" if counter.comm and counter.pid >= 0 else counter.comm
    where = " ".join(part for part in (counter.scope, counter.instance, f"by {who}" if who else "") if part)
    peers = f"{amount_of(middle, counter.unit)}" if np.isfinite(middle) else ""
    limit = amount_of(counter.limit, counter.unit) if np.isfinite(counter.limit) else ""
    line = CounterLine(
        name=clean(name, 60), meaning=meaning_of(name), where=clean(where, 80), value=amount_of(counter.value, counter.unit),
        peers=peers, limit=limit, bar=bars[0], peers_bar=bars[1], limit_bar=bars[2], odd=odd,
    )  # fmt: skip
    return line, apart


def amount_of(value: float, unit: str) -> str:
    """Format a counter's value for people."""
    if unit == "s":
        return seconds(value) if value >= 0 else f"{value:.3g} s"
    if unit in ("bytes", "bytes/s") and value >= 0:
        return rate(value).removesuffix("/s") + unit[len("bytes") :]
    if unit == "Hz":
        return f"{value / 1e9:.3g} GHz" if value >= 1e9 else f"{value / 1e6:.4g} MHz"
    if unit == "share":
        return f"{100 * value:.3g} %"
    return f"{value:,.4g} {'°C' if unit == 'celsius' else clean(unit, 20)}".rstrip()


def meaning_of(name: str) -> str:
    """Description of a counter from the shared table of names; '' if it is not there."""
    told = COUNTER_NAMES.get(name)
    if told is None:
        told = next((text for known, text in COUNTER_NAMES.items() if "<" in known and _fits(name, known)), "")
    said = told
    while (shorter := _ASIDE.sub("", said)) != said:
        said = shorter
    return said


def _fits(name: str, known: str) -> bool:
    """Tell whether a counter's name fits a known one with a part in angle brackets, which stands for any text."""
    begin, _, rest = known.partition("<")
    return fnmatch.fnmatchcase(name, f"{begin}*{rest.partition('>')[2]}")
