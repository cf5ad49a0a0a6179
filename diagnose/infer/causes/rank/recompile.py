"""Compilation: the rank compiles its model again and again, unlike its peers.

As for a new input shape in each step.

compiling(r) = seconds per step of the training thread, computing or waiting, with a compiler's
               function on its stack
excess       = compiling(rank) - median over its peers

Evidence for: an excess of half of the rank's own. The user's function that leads to it is named.
Evidence against: peers that compile as long, as all do at the start; a slow function of compiled
code that is only run. Not observed: a backward pass compiled on a thread of autograd, as with GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.diagnose import limits
from rankscope.diagnose.infer.causes.hypothesis import SEEN, Hypothesis
from rankscope.diagnose.infer.causes.rank.case import Case
from rankscope.diagnose.infer.causes.registry import cause
from rankscope.diagnose.infer.model.evidence.known_code import COMPILER_FILES
from rankscope.diagnose.infer.model.functions import sample
from rankscope.diagnose.infer.verdict.contract import Evidence
from rankscope.diagnose.stats.robust import median

_KINDS = ("python", "sync", "io")  # computing, waiting for a compiler's thread or process, its files


@cause("python", "recompile", witness="stacks: compiling, unlike its peers",
       refines=["python/slow-function", "python/blocking-call", "python/lock"],
       says="its code is compiled again and again[, below {function}]",
       action="See what changes from step to step (TORCH_LOGS=recompiles, JAX_LOG_COMPILES=1): pad or bucket the shapes of the input, mark "
       "them as dynamic, or compile all of them before the first step.")  # fmt: skip
def judge(case: Case) -> Iterator[Hypothesis]:
    """Propose python/recompile if compiling longer than the peers is half of the rank's excess."""
    own, least = _compiling_s(case, case.rank), limits.HOLDS_LEAST * case.excess_s
    if own <= 0 or own < least:
        return  # most ranks end here, without a look at their peers
    peers = [_compiling_s(case, int(peer)) for peer in sample(case.peers)]
    expected = median(peers) if peers else 0.0
    if own <= expected or own - expected < least:
        return
    found = case.python if case.python is not None and not case.python.spread else None
    yield case.charge(
        "python", "recompile", own - expected + case.queue_of_function_s, SEEN,
        (Evidence("stacks", "compiling", own, expected, "s/step", len(case.peers)),),
        function=found.function if found is not None else None,
    )  # fmt: skip


def _compiling_s(case: Case, rank: int) -> float:
    """Return the seconds per step that a rank (row) computes or waits with a compiler's function on its stack."""
    return sum(case.profiles.seconds_through(rank, kind, COMPILER_FILES) for kind in _KINDS)
