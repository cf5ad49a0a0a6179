"""Garbage collections on all ranks: time that none loses more than another.

collecting(r) = seconds per step of the training thread in the collector, and of the queue for a CPU
                that goes with it

Evidence for: samples in the collector. Where the observer saw in which steps it paused a rank,
these; else the steps in which the rank is longer than usual, as far as its collections reach. Ranks
that collect in steps of their own are waited for one after another: what each loses all lose. The
function in which most of it runs only triggers it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.causes.hypothesis import SEEN
from rankscope.diagnose.infer.causes.registry import asked
from rankscope.diagnose.infer.causes.rows import Row
from rankscope.diagnose.infer.causes.waste.rows import Waste, by_turns, often, row_of
from rankscope.diagnose.infer.causes.waste.spending import Spending
from rankscope.diagnose.infer.verdict.budget import Kind
from rankscope.diagnose.infer.verdict.contract import Evidence
from rankscope.diagnose.stats.robust import median

_APART = (
    "Collect on all ranks at the same step: gc.disable(), and gc.collect() every N steps; what lives for ever is scanned no more after "
    "gc.freeze() at the end of the start-up."
)
_TOGETHER = (
    "Collect less often: gc.freeze() at the end of the start-up, a higher gc.set_threshold, fewer cyclic objects; where the code calls "
    "gc.collect() itself, call it less."
)


@asked
def collections(spending: Spending) -> Iterator[Row]:
    """Propose python/gc for the time that ranks collect; ../job/moving_work.py registers it."""
    rows = spending.of_kind(Kind.GC)
    collecting = spending.seconds(rows)
    if not collecting.any():
        return
    pauses = spending.fleet.pauses
    named = (pauses.name.codes == pauses.name.code("gc")) & (pauses.file.codes == pauses.file.code(""))
    taken = spending.ran(collecting, np.flatnonzero(named).tolist())
    most_s = float(taken.max(initial=0.0))
    events = taken >= limits.HOLDS_LEAST * most_s
    evidence = [Evidence("stacks", "time in garbage collection, median over ranks", median(collecting), None, "s/step")]
    apart = by_turns(taken)
    columns = np.flatnonzero(events.any(axis=0)).astype(np.int64)
    if most_s >= limits.LARGE_SHARE * spending.scene.step_s and len(columns) >= limits.SEVERAL and len(events) > 1:
        how = "each rank in steps of its own" if apart else "all ranks in the same steps"
        evidence.append(
            Evidence("stacks", "a long collection on some rank", f"{often(spending, columns)}, {how}", None, "")
        )
    waste = Waste("python", "gc", SEEN, tuple(evidence), _APART if apart else _TOGETHER, spending.function_of(rows))
    yield from row_of(spending, waste, taken)
