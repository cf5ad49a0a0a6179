"""All results in a table, and what only all cases of a kind show together. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from chaoskit.case import Result
from chaoskit.scene import Kind

# The median over the cases of a kind of how much slower the job stepped, to that of the kind `nothing`. Of 590 cases on two cores the
# kinds lay between 0.97 and 1.13 (commands that end in half a second, most of it importing), `nothing` at 1.00; with ten more at work
# on them a crowd was at 1.21. The noise of a single case, +-0.2, is +-0.05 in a median of twenty.
MOST_SLOWER_THAN_NOTHING = 1.3
_FEWEST = 10  # cases of a kind: the median of fewer says nothing
_NOTHING = "nothing"


def table(shown: Mapping[Kind, Sequence[Result]], sources: Mapping[str, str]) -> list[str]:
    """One line per kind. `today`: cases that ran what the sources are now; seconds without those in the queue for a CPU, behind others."""
    lines = [
        f"{'kind':16}{'cases':>6}{'today':>6}{'verdict':>8}{'one line':>9}{'killed':>7}{'bad':>4}{'slowest s':>10}{'steps':>7}{'gap s':>6}"
    ]
    for kind, found in shown.items():
        if found:
            counts = [sum(one.outcome == outcome for one in found) for outcome in ("verdict", "one line", "killed")]
            slower = sorted(one.slower for one in found)[len(found) // 2]
            lines.append(
                f"{kind.name:16}{len(found):>6}{_today(found, sources):>6}{counts[0]:>8}{counts[1]:>9}{counts[2]:>7}"
                f"{sum(bool(one.problems) for one in found):>4}{max(one.seconds - one.queued_s for one in found):>10.1f}{slower:>6.2f}x"
                f"{max(one.gap_s for one in found):>6.2f}"
            )
    every = [one for found in shown.values() for one in found]
    lines.append(
        f"{'all':16}{len(every):>6}{_today(every, sources):>6}{'':>24}{sum(bool(one.problems) for one in every):>4}"
    )
    lines += [f"  {one.key}: {'; '.join(one.problems)}: {one.said}" for one in every if one.problems]
    return lines


def _today(found: Sequence[Result], sources: Mapping[str, str]) -> int:
    return sum(one.source == sources[one.key.split()[1].rpartition("-")[0]] for one in found)


def slowed(shown: Mapping[Kind, Sequence[Result]]) -> list[str]:
    """Kinds whose cases disturb the job more than the command does without a fault, all together."""
    medians = {
        kind.name: statistics.median(one.slower for one in found)
        for kind, found in shown.items()
        if len(found) >= _FEWEST
    }
    usual = min(max(medians.get(_NOTHING, 1.0), 1.0), MOST_SLOWER_THAN_NOTHING)
    allowed = {name: (1.0 if name == _NOTHING else usual) * MOST_SLOWER_THAN_NOTHING for name in medians}
    return [
        f"{name}: steps took {median:.2f} times as long in the median of its cases; {allowed[name]:.2f} are allowed"
        for name, median in medians.items()
        if median > allowed[name]
    ]
