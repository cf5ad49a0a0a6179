"""Python: a function of the rank takes longer than on its peers, by computing or by waiting.

Evidence for: Python time above the peers', concentrated in one function (model/attribute.py). Time
in a lock points to the lock; waiting for a thread or process of the rank that does more than that
of the peers, to what it does. The GIL: threads.py. Evidence against: every function grew alike
(then the CPU or the workload is the cause); it takes as long per page of memory as on the peers
(memory.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.causes.hypothesis import GUESS, NO_COUNTER, SEEN, Hypothesis
from rankscope.diagnose.infer.causes.rank.case import Case
from rankscope.diagnose.infer.causes.rank.device import called_by
from rankscope.diagnose.infer.causes.rank.memory import as_long_per_page
from rankscope.diagnose.infer.causes.rank.object_host import SOCKET_WAITS, object_host
from rankscope.diagnose.infer.causes.rank.threads import held_gil
from rankscope.diagnose.infer.causes.rank.workload import has_no_more_input
from rankscope.diagnose.infer.causes.registry import cause
from rankscope.diagnose.infer.model.attribute import Located
from rankscope.diagnose.infer.model.evidence.known_code import INTERPRETER, LOADER_FILES
from rankscope.diagnose.infer.model.evidence.native_words import native_words
from rankscope.diagnose.infer.model.functions import FunctionExcess
from rankscope.diagnose.infer.model.still.peer import peer_of
from rankscope.diagnose.infer.verdict.contract import ASLEEP, Evidence
from rankscope.diagnose.infer.verdict.function import NOT_TIMED, Function
from rankscope.diagnose.text import seconds
from rankscope.observer.sources import Source

_HAND_OVER_FILES = ("/threading.py", "/queue.py", "/concurrent/futures/", "/multiprocessing/")
_LOCKS = ("futex", "lock", "semaphore", "condition")


@cause("python", "slow-function", witness="stacks: one function has the excess",
       says="{function|its Python code} takes longer there than on its peers")  # fmt: skip
@cause("python", "blocking-call", witness="the same, asleep or waiting",
       says="{function|its Python code} waits for another thread, process or connection")  # fmt: skip
@cause("python", "gc", witness="stacks: time in garbage collection", rests_on=[Source.CALLS],
       says="Python's garbage collection stops it[, in {function}]",
       action="Collect less often: where the code calls gc.collect() itself, call it less; else gc.freeze() after start-up, a higher "
       "gc.set_threshold, fewer cyclic objects.")  # fmt: skip
@cause("python", "lock", witness="waiting for another thread", says="{function|it} waits for a lock")
@cause("python", "dataloader", witness="waiting for the next batch",
       says="its data comes late[: the loader's time goes into {function}]")  # fmt: skip
def judge(case: Case) -> Iterator[Hypothesis]:
    """Propose causes in the rank's own Python code: collection, one function, or waiting."""
    collected = case.excess_of("python", "gc")
    if collected > 0 and collected >= 0.5 * (case.python.excess_s if case.python is not None else case.excess_s):
        yield _collector_charge(case, collected)
    elif case.python is not None and not case.python.spread:
        if not as_long_per_page(case):
            yield _function_charge(case, case.python)
    elif not len(case.functions):
        left = case.excess_s - max(case.sched_excess_s, 0) - max(case.io_excess_s, 0) - max(case.sync_excess_s, 0)
        yield case.charge("python", "slow-function", left, GUESS,
                     (Evidence("steps", "own time", case.own_s, max(case.own_s - case.excess_s, 0.0), "s/step", len(case.peers)),),
                     "No stacks were taken of this rank: `rankscope doctor` says why.")  # fmt: skip
    yield from _waiting_charges(case)


def _function_charge(case: Case, found: Located) -> Hypothesis:
    """Return the hypothesis on the odd function: slow, asleep, or asleep as on the peers, then an imbalance."""
    asleep = case.profiles.locate(case.rank, case.beside, ("python",), 0.0, details=("sleep",))
    blocking = asleep is not None and asleep.excess_s >= 0.5 * found.excess_s
    if asleep is not None and blocking and asleep.function != found.function:
        found = asleep  # report a sleep where it occurs, whatever else its callers do
    function = found.function
    leaf = found.leaf
    what = f"{leaf.name}, called from {function.name}" if leaf is not None and found.of_leaf else function.words
    evidence = [Evidence("stacks", f"time in {what}", found.own_s, found.peers_s, "s/step", len(case.peers))]
    if leaf is not None:
        evidence.append(Evidence("stacks", "deepest frame", leaf.place, None, ""))
    evidence.extend(called_by(found))
    if blocking or not case.fleet.timed:  # of timings no state was seen
        evidence.append(Evidence("stacks", "state in it", _state(case, found, blocking), None, ""))
    if case.queue_of_function_s >= limits.FEW * found.excess_s:
        evidence.append(Evidence("scheduler", "in the queue for a CPU meanwhile (as long per second as its peers)",
                                 case.queue_of_function_s, None, "s/step"))  # fmt: skip
    place, says = function.place, ""
    support, component, cause = SEEN, "python", "slow-function"
    action = f"Look at {place}: it takes so long on this rank alone. Compare its input, code and host with a peer's."
    if function.name == NOT_TIMED and not function.file:  # what it does is not known, nor that it is Python
        support, says = GUESS, "it spends time in something that this file does not time"
        action = (
            "Time the rest of its step in parts, work apart from waiting: what this rank does there is not in the file."
        )
    if asleep is not None and blocking:
        cause, action = "blocking-call", f"See why {place} sleeps so long on this rank."
        says = "{function|its Python code} sleeps"
        if asleep.shared and not has_no_more_input(case, asleep):
            # A device: it has more to do for this rank, or is slower.
            support, component, cause, says = GUESS, "workload", "data-imbalance", ""
            evidence.append(Evidence("stacks", "the peers sleep there, too, for as much of this time",
                                     100 * asleep.peers_s / asleep.own_s, None, "%"))  # fmt: skip
            action = "Compare its batch shapes and sequence lengths with its peers'; where they are alike, what it waits for there is slow."
    charged = case.charge(
        component=component,
        cause=cause,
        lost_s=found.excess_s + case.queue_of_function_s,
        support=support,
        evidence=tuple(evidence),
        action=action,
        function=function,
    )
    return replace(charged, says=says)


def _state(case: Case, found: Located, blocking: bool) -> str:
    """Return what the rank does in the function, in words: asleep (`blocking`), or computing, in which native code."""
    if blocking:
        return ASLEEP
    native = case.profiles.native_in(case.rank, found.deepest.name)
    return "computing" if not native or INTERPRETER.search(native) else f"computing, mostly in {native_words(native)}"


def _collector_charge(case: Case, excess: float) -> Hypothesis:
    """Return python/gc, `excess` seconds per step; the function in which the collection runs only triggers it."""
    own = sum(f.own_s for f in case.functions if f.kind == "python" and f.detail == "gc")
    found = case.profiles.locate(case.rank, case.beside, ("python",), 0.0, details=("gc",))
    function = found.function if found is not None and not found.spread else None
    return case.charge(
        component="python",
        cause="gc",
        lost_s=excess,
        support=SEEN,
        evidence=(
            Evidence("stacks", "time in garbage collection", own, max(own - excess, 0.0), "s/step", len(case.peers)),
        ),
        action=_collect_less(function, excess) if function is not None else "",
        function=function,
    )


def _collect_less(function: Function, excess_s: float) -> str:
    """Return the advice for a function that sets off garbage collection."""
    return (
        f"{function.place} sets off garbage collection, {seconds(excess_s)} a step: where it calls gc.collect() itself, call it less "
        "often; else gc.freeze() after start-up, a higher gc.set_threshold, fewer cyclic objects."
    )


def _waiting_charges(case: Case) -> Iterator[Hypothesis]:
    """Propose causes of waiting for a thread or process of the own rank; for the GIL see threads.py."""
    excess = max(case.excess_of("sync"), 0.0)
    if excess <= 0 or held_gil(case) is not None:
        return
    found = case.profiles.locate(case.rank, case.beside, ("sync",), 0.0)
    worst = max((f for f in case.functions if f.kind == "sync"), key=lambda f: f.excess_s)
    evidence = [Evidence("scheduler", f"waiting in {worst.name} for {worst.detail or 'another thread'}",
                         sum(f.own_s for f in case.functions if f.kind == "sync"),
                         sum(f.peers_s for f in case.functions if f.kind == "sync"), "s/step", len(case.peers))]  # fmt: skip
    function = found.function if found is not None and found.function.kind == "python" else None
    if case.profiles.seconds_through(case.rank, "sync", LOADER_FILES) >= 0.5 * excess or "loader" in worst.detail:
        # Without workers a loader may read ahead in a thread.
        late = (_helper_charges(case, excess, tuple(evidence), helper) for helper in (_LOADER, _THREAD))
        alike = [] if _loaders_alike(case) else [_late_batch(case, excess, tuple(evidence))]
        yield from next(filter(None, late), alike)
        return
    text = f"{worst.name} {worst.detail}".lower()
    cause = "lock" if any(mark in text for mark in _LOCKS) else "blocking-call"
    # A queue is waited for in a function written in Python; a lock is not.
    handed = case.profiles.seconds_through(case.rank, "sync", _HAND_OVER_FILES) >= 0.5 * excess
    evidence += called_by(found) if function is not None else ()
    helpers = [*([_PROCESS] if cause != "lock" else []), *([_THREAD] if handed else [])]
    if charges := [charge for helper in helpers for charge in _helper_charges(case, excess, tuple(evidence), helper)]:
        yield from charges
        return
    name = function.place if function else worst.caller or "the training thread"
    says, action = _of_wait(worst, name)
    if cause != "lock" and worst.name in SOCKET_WAITS and (host := object_host(case.fleet, case.rank, worst.detail)):
        evidence.extend(host.evidence())
        says = says or f"{{function|it}} waits for an answer from {host.address}"
        action = f"{name} waits for answers from {host.address}: look at that host and at the network to it."
    yield replace(
        case.charge("python", cause, excess, NO_COUNTER, tuple(evidence), action, function=function), says=says
    )


def _of_wait(worst: FunctionExcess, name: str) -> tuple[str, str]:
    """Return (sentence, advice) on what a function waits for; sentence '' where that of the cause is enough.

    `worst`: the longest wait; `name`: what waits, in words.
    """
    if (worst.name, worst.detail) == ("pipe", "write"):
        action = (
            f"The pipe that {name} writes to is full: whoever reads this rank's output (a log collector, tee) is slow. "
            "Print less, or to a file."
        )
        return "{function|it} writes into a pipe that is full", action
    if (worst.name, worst.detail) == ("pipe", "read"):
        return (
            "{function|it} waits for a process that writes into its pipe",
            f"See what writes into the pipe that {name} reads.",
        )
    if where := peer_of(worst.detail):
        return (
            f"{{function|it}} waits for an answer from {where}",
            f"See who listens on {where} (`ss -tlnp` there) and why it answers late: {name} waits for it.",
        )
    return "", f"See what {name} waits for: another thread or process of the same rank."


@dataclass(frozen=True, slots=True)
class _Helper:
    """A kind of thread or process that works for the training thread, and its words in a verdict."""

    thread: str
    who: str
    action: str


_LOADER = _Helper(
    "loader", "loader workers", "The data-loader workers spend their time in {}: make it cheaper or add workers."
)
_PROCESS = _Helper(
    "loader", "a process that the rank started", "A process that the rank started and waits for is slow in {}."
)
_THREAD = _Helper("other", "a thread of the rank", "A thread that the training waits for is slow in {}.")


def _helper_charges(case: Case, excess: float, evidence: tuple[Evidence, ...], helper: _Helper) -> list[Hypothesis]:
    """Propose what a helper does more than those of the peers, if that is half of the waiting.

    For loader workers any function counts, since they only load; for others what they compute or
    read, not what they wait for. `excess`: seconds per step of waiting for the helper.
    """
    more_than_peers = (
        f
        for f in case.profiles.functions(case.rank, case.beside, helper.thread)
        if helper is _LOADER or f.kind in ("python", "io")
    )
    worst = next(more_than_peers, None)  # the largest excess is first
    if worst is None or worst.excess_s < 0.5 * excess:
        return []
    more = Evidence("stacks", f"{helper.who} in {worst.name}", worst.own_s, worst.peers_s, "s/step", len(case.peers))
    if worst.kind == "io":
        where = worst.detail or "their files"
        text = f"Reads of {helper.who} from {where} are slow."
        return [case.charge("storage", "slow-read", excess, NO_COUNTER, (*evidence, more), text, instance=worst.detail)]
    found = case.profiles.locate(case.rank, case.beside, (worst.kind,), 0.0, thread=helper.thread)
    cause = "dataloader" if helper is _LOADER else "blocking-call" if worst.detail == "sleep" else "slow-function"
    return [case.charge("python", cause, excess, SEEN, (*evidence, more, *called_by(found)), helper.action.format(worst.name),
                 function=found.function if found else None)]  # fmt: skip


def _loaders_alike(case: Case) -> bool:
    """Return whether loader workers of rank and peers all work without a pause, and take as long for a batch.

    Then all wait for their input, and which rank waits longest is chance (../waste/input.py). A peer that
    is early waits in a collective for the rank, and less for its loader meanwhile.
    """
    busy, idle = np.zeros(2), np.zeros(2)
    for each in case.profiles.functions(case.rank, case.beside, _LOADER.thread):
        seconds = np.array([each.own_s, each.peers_s])
        if each.kind == "sync" and each.name == "poll":
            idle += seconds
        elif each.kind in ("io", "sched") or (each.kind == "python" and each.detail != "sleep"):
            busy += seconds
    if not (busy > 0).all() or busy[0] > (1 + limits.ALONE_SHARE) * busy[1]:
        return False
    return bool((busy >= limits.NEARLY_ALL * (busy + idle)).all())


def _late_batch(case: Case, excess: float, evidence: tuple[Evidence, ...]) -> Hypothesis:
    """Return python/dataloader for waiting for the next batch, where no work of the loader explains it."""
    return case.charge("python", "dataloader", excess, NO_COUNTER, evidence,
                 "The next batch comes late: add loader workers or look at what they do.")  # fmt: skip
