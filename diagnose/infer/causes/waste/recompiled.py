"""Code that is compiled again and again, on all ranks.

compiling(r) = seconds per step of the training thread with a compiler's function on its stack, and
               of the queue for a CPU that goes with it

Evidence for: samples in a compiler, up to the last third of the judged steps. Evidence against: none
there: a program that begins compiles once. One rank that compiles unlike its peers:
../rank/recompile.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.causes.hypothesis import SEEN
from rankscope.diagnose.infer.causes.registry import cause
from rankscope.diagnose.infer.causes.rows import Row
from rankscope.diagnose.infer.causes.waste.rows import Waste, often, row_of
from rankscope.diagnose.infer.causes.waste.spending import Spending
from rankscope.diagnose.infer.verdict.budget import Kind
from rankscope.diagnose.infer.verdict.contract import Evidence
from rankscope.diagnose.stats.robust import median

_ACTION = (
    "See what changes from step to step (TORCH_LOGS=recompiles, JAX_LOG_COMPILES=1): pad or bucket the shapes of the input, mark them as "
    "dynamic, or compile all of them before the first step."
)


@cause("python", "recompile", scope="all", witness="stacks: compiling on all ranks",
       says="code is compiled again and again[, below {function}]")  # fmt: skip
def recompiled(spending: Spending) -> Iterator[Row]:
    """Propose python/recompile for the time that ranks compile, unless they stop early in the judged steps.

    Nothing if steps with long compiling (a quarter of a step or more) all lie in the first two thirds.
    Of scope "rank" if not nearly all ranks compile.
    """
    rows = spending.of_kind(Kind.COMPILING)
    compiling = spending.seconds(rows)
    if not compiling.any():
        return
    taken = spending.ran(compiling)
    events = taken >= limits.LARGE_SHARE * spending.scene.step_s
    columns = np.flatnonzero(events.any(axis=0)).astype(np.int64)
    if len(columns) and columns[-1] < 2 * spending.columns // 3:
        return
    evidence = [Evidence("stacks", "compiling, median over ranks", median(compiling), None, "s/step")]
    if len(columns):
        evidence.append(Evidence("steps", "long steps that it explains", often(spending, columns), None, ""))
    waste = Waste("python", "recompile", SEEN, tuple(evidence), _ACTION, spending.function_of(rows))
    yield from row_of(spending, waste, taken)
