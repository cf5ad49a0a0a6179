"""Python: a function of the rank takes longer than on its peers, by computing or by waiting of its own will.

Convicts: Python time above the peers', concentrated in one function (attribute.py). Time in a lock or under the GIL
accuses the lock. Acquits: every function grew alike (then the CPU or the workload is charged).
"""

from __future__ import annotations

from collections.abc import Iterator

from diagnose.attribute import Located
from diagnose.causes.case import GUESS, NO_COUNTER, SEEN, Case, Charge
from diagnose.verdict import Evidence

_LOADER_FILES = ("dataloader", "data_loader", "/utils/data/")
_LOCKS = ("futex", "lock", "gil", "semaphore", "condition")


def judge(case: Case) -> Iterator[Charge]:
    """Charges of the rank's own Python code."""
    if case.python is not None and not case.python.spread:
        yield _function_charge(case, case.python)
    elif not len(case.functions):
        left = case.excess_s - max(case.sched_excess_s, 0) - max(case.io_excess_s, 0) - max(case.sync_excess_s, 0)
        yield Charge("python", "slow-function", left, GUESS,
                     (Evidence("steps", "own time", case.own_s, case.own_s - case.excess_s, "s/step", len(case.peers)),),
                     "No stacks were taken of this rank: `rankscope doctor` says why.")  # fmt: skip
    yield from _waiting_charges(case)


def _function_charge(case: Case, found: Located) -> Charge:
    function = found.function
    asleep = case.profiles.locate(case.rank, case.peers, ("python",), 0.0, details=("sleep",))
    blocking = asleep is not None and asleep.excess_s >= 0.5 * found.excess_s
    evidence = [Evidence("stacks", f"time in {function.name}", found.own_s, found.peers_s, "s/step", len(case.peers))]
    if found.leaf is not None:
        leaf = found.leaf
        evidence.append(Evidence("stacks", "deepest frame", f"{leaf.name} ({leaf.file}:{leaf.line})", None, ""))
    evidence.append(Evidence("stacks", "state in it", "waiting by its own will" if blocking else "computing", None, ""))
    place = f"{function.name} ({function.file}:{function.line})"
    return Charge(
        component="python",
        cause="blocking-call" if blocking else "slow-function",
        explained_s=found.excess_s,
        support=SEEN,
        evidence=tuple(evidence),
        action=f"Look at {place}: only on this rank it takes so long.",
        function=function,
    )


def _waiting_charges(case: Case) -> Iterator[Charge]:
    """Time the training thread waits for a thread or process of its own rank."""
    excess = max(case.excess_of("sync"), 0.0)
    if excess <= 0:
        return
    found = case.profiles.locate(case.rank, case.peers, ("sync",), 0.0)
    worst = max((f for f in case.functions if f.kind == "sync"), key=lambda f: f.excess_s)
    evidence = [Evidence("scheduler", f"waiting in {worst.name} for {worst.detail or 'another thread'}",
                         sum(f.own_s for f in case.functions if f.kind == "sync"),
                         sum(f.peers_s for f in case.functions if f.kind == "sync"), "s/step", len(case.peers))]  # fmt: skip
    function = found.function if found is not None and found.function.kind == "python" else None
    files = [part.file for part in (function, found.leaf if found else None) if part is not None]
    if any(mark in file for file in files for mark in _LOADER_FILES) or "loader" in worst.detail:
        yield from _loader_charges(case, excess, tuple(evidence))
        return
    text = f"{worst.name} {worst.detail}".lower()
    cause = "gil" if "gil" in text else "lock" if any(mark in text for mark in _LOCKS) else "blocking-call"
    name = f"{function.name} ({function.file}:{function.line})" if function else worst.caller or "the training thread"
    yield Charge("python", cause, excess, NO_COUNTER, tuple(evidence),
                 f"See what {name} waits for: another thread or process of the same rank.", function=function)  # fmt: skip


def _loader_charges(case: Case, excess: float, evidence: tuple[Evidence, ...]) -> Iterator[Charge]:
    """The batch was late: name what the loader workers of this rank do more than those of its peers."""
    work = [f for f in case.profiles.functions(case.rank, case.peers, "loader") if f.excess_s > 0]
    if work and work[0].excess_s >= 0.5 * excess:
        worst = work[0]
        more = Evidence(
            "stacks", f"loader workers in {worst.name}", worst.own_s, worst.peers_s, "s/step", len(case.peers)
        )
        if worst.kind == "io":
            yield Charge("storage", "slow-read", excess, NO_COUNTER, (*evidence, more),
                         f"Reads of the loader workers from {worst.detail or 'their files'} are slow.",
                         instance=worst.detail)  # fmt: skip
            return
        found = case.profiles.locate(case.rank, case.peers, (worst.kind,), 0.0, thread="loader")
        yield Charge("python", "dataloader", excess, SEEN, (*evidence, more),
                     f"The data-loader workers spend their time in {worst.name}: make it cheaper or add workers.",
                     function=found.function if found else None)  # fmt: skip
        return
    yield Charge("python", "dataloader", excess, NO_COUNTER, evidence,
                 "The next batch comes late: add loader workers or look at what they do.")  # fmt: skip
