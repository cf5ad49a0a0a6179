"""Memory: pages that the rank needs were reclaimed, and it waits until they are read again.

faults    = excess of the time in which the training thread waits for pages (io, 'page fault')
besides   = excess of the functions in which it does: the kernel's work for these pages, and the
            queue after each, at most 5 · faults, or 50 µs for each reclaim of pages (from a fast
            disk a page comes without waiting); also the run-queue wait that accompanies computing,
            per second as on the peers
explained = faults + besides

Evidence for: its control group hit its memory limit (1/s and ten times the peers in other groups):
reclaim. Half of the host's major faults came from swap: swap. Tasks of its host waited for memory
(PSI) for half as long as the rank waited for pages: reclaim. Evidence against: no waiting for pages
above the peers'; no such counter: then a mapped file is slow to read, which is storage. A control
group full of page cache hits its limit all day: without faults above the peers' that is normal.

Page faults without waiting: a function that allocates and touches new memory in each step spends
its time in the kernel, which supplies and clears the pages. Evidence for: the function's time is in
the kernel (native stacks), and the process has five times the minor faults of its peers, enough to
have taken half of the time if all were huge pages.

By chance the allocators of two equal processes may return memory in one and retain it in the other:
not a fault, but reported. That applies to a function that is in the kernel on the peers as well and
takes as long per page as theirs, or to so many more pages than the peers' that they take half of
the excess at 1 us each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.causes.hypothesis import ALIKE, CONVICTED, REPORTED, Hypothesis
from rankscope.diagnose.infer.causes.rank.case import Case
from rankscope.diagnose.infer.causes.rank.device import Beside, beside
from rankscope.diagnose.infer.causes.registry import cause
from rankscope.diagnose.infer.model.attribute import Located
from rankscope.diagnose.infer.model.functions import FunctionExcess, sample
from rankscope.diagnose.infer.verdict.contract import Evidence
from rankscope.diagnose.stats.robust import median
from rankscope.observer.sources import Source

FAULT = "page fault"
SEE_ALLOCATOR = (
    "see whether its allocator gives memory back and takes it anew (MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_)"
)


@dataclass(frozen=True, slots=True)
class Pressure:
    """The counter that shows that memory is short."""

    cause: str
    instance: str
    support: float
    events: float  # number of reclaims of pages, in the window
    evidence: Evidence
    action: str


@cause("memory", "reclaim", witness="waiting for pages, at its limit", rests_on=[Source.HOST],
       says="it waits for memory that the kernel has to free first")  # fmt: skip
@cause("memory", "swap", witness="waiting for pages, from swap", rests_on=[Source.HOST],
       says="its memory is swapped out")  # fmt: skip
@cause("memory", "page-faults", witness="function in the kernel, minor faults", rests_on=[Source.HOST],
       says="it takes new memory again and again")  # fmt: skip
def judge(case: Case) -> Iterator[Hypothesis]:
    """Propose memory shortage if the rank waits for pages, else page faults of new memory."""
    short = pressure(case)
    yield from _given_pages(case) if short is None else _taken_pages(case, short)


def _given_pages(case: Case) -> Iterator[Hypothesis]:
    """Propose memory/page-faults for new pages without waiting: of a function that allocates anew, or by chance.

    By chance (ALIKE): support 0, so it is no suspect but is reported.
    """
    faults = beside(case, "memory.minor_faults")
    if faults is None or not faults.known:
        return
    told = faults.evidence("host", "events", "minor page faults of its process")
    found = case.python
    if found is not None and not found.spread and _makes_anew(case, found, faults):
        function = found.function
        yield case.charge(
            "memory", "page-faults", found.excess_s + case.queue_of_function_s, CONVICTED,
            (Evidence("stacks", f"time in {function.name}, mostly in the kernel", found.own_s, found.peers_s, "s/step", len(case.peers)),
             told),
            f"{function.place} takes new memory in each step, which the kernel gives and clears page by "
            "page: keep the buffers, or let the allocator keep them (MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_; huge pages).",
            function=function,
        )  # fmt: skip
        return
    by_luck_s = (faults.value - faults.expected) * limits.SMALL_FAULT_S / max(case.steps, 1)
    if found is not None and as_long_per_page(case):
        by_luck_s = max(by_luck_s, found.excess_s + case.queue_of_function_s)
    if by_luck_s > 0:
        yield case.charge(
            "memory", "page-faults", min(by_luck_s, case.excess_s), ALIKE, (told,),
            SEE_ALLOCATOR,
        )  # fmt: skip


def _makes_anew(case: Case, found: Located, faults: Beside) -> bool:
    """Return whether the odd function allocates new memory in each step while its peers reuse theirs."""
    more = faults.value - faults.expected
    return (
        more * limits.MINOR_FAULT_S >= limits.HOLDS_LEAST * found.excess_s * max(case.steps, 1)
        and faults.value >= limits.LINK_RATIO * faults.expected
        and case.profiles.in_kernel(case.rank, found.deepest) >= limits.HOLDS_LEAST
    )


def as_long_per_page(case: Case) -> bool:
    """Return whether the function found is in the kernel, also on its peers, and as fast per page as theirs."""
    found, faults = case.python, beside(case, "memory.minor_faults")
    if found is None or faults is None or not faults.known or not faults.value > faults.expected > 0:
        return False
    if found.own_s * faults.expected > (1 + limits.ALONE_SHARE) * found.peers_s * faults.value:
        return False
    deepest, profiles = found.deepest, case.profiles
    if profiles.in_kernel(case.rank, deepest) < limits.HOLDS_LEAST:
        return False
    return median([profiles.in_kernel(int(peer), deepest) for peer in sample(case.peers)]) >= limits.HOLDS_LEAST


def _taken_pages(case: Case, short: Pressure) -> Iterator[Hypothesis]:
    """Propose the shortage `short` as cause of waiting for pages, with the work and queueing that goes with it."""
    faults = _faults(case)
    waited = sum(f.excess_s for f in faults)
    places = {f.caller for f in faults if f.caller}
    besides = [f for f in case.functions if _goes_with(f, places)]
    work = sum(f.excess_s for f in besides)
    own, peers = sum(f.own_s for f in faults), sum(f.peers_s for f in faults)
    worst = max(faults, key=lambda f: f.excess_s)
    most = max(limits.LINK_RATIO * waited, limits.FAULT_WORK_S * short.events / max(case.steps, 1))
    queue = case.queue_of_function_s if case.python is not None and case.python.function.name in places else 0.0
    work = float(np.clip(work - queue, 0.0, most)) + queue
    evidence = [Evidence("files", "waiting for pages", own, peers, "s/step", len(case.peers)), short.evidence]
    if worst.caller:
        evidence.append(Evidence("stacks", "it waits most in", worst.caller, None, ""))
    found = case.profiles.locate(case.rank, case.beside, ("io",), 0.0)
    yield case.charge(
        component="memory",
        cause=short.cause,
        lost_s=waited + work,
        support=short.support,
        evidence=tuple(evidence),
        action=short.action,
        instance=short.instance,
        function=found.function if found is not None and found.function.kind == "python" else None,
        computing_s=min(sum(max(f.excess_s, 0.0) for f in besides if f.kind == "python"), work),
    )


def pressure(case: Case) -> Pressure | None:
    """Return the shortage by which the rank's pages were reclaimed; None without a counter or waiting for pages."""
    waited = sum(f.excess_s for f in _faults(case))
    if waited <= 0:
        return None
    return _limit(case) or _swap(case) or _host(case, waited)


def _faults(case: Case) -> list[FunctionExcess]:
    """Return the rank's waits for pages (page faults of kind io)."""
    return [f for f in case.functions if f.kind == "io" and f.name == FAULT]


def _goes_with(function: FunctionExcess, places: set[str]) -> bool:
    """Return whether a function's excess accompanies waits for pages: computing or queueing in one of `places`.

    `places`: names of the functions that wait for pages.
    """
    if function.kind == "python":
        return function.name in places and function.detail not in ("sleep", "gc")
    return function.kind == "sched" and function.caller in places


def _limit(case: Case) -> Pressure | None:
    """Return reclaim if the rank's control group hit its memory limit once a second and ten times the peers; else None.

    Peers in the same group are left out.
    """
    worst = max(case.counters("memory.limit_hits", ("cgroup",)), key=lambda counter: counter.value, default=None)
    if worst is None or worst.value < limits.EVENTS_HZ * case.fleet.seconds:
        return None
    peers = sample(case.peers)
    hits = {int(peer): 0.0 for peer in peers}  # no row: no hit
    for counter in case.peers_of("memory.limit_hits"):
        if (counter.observed_on, counter.instance) == (worst.observed_on, worst.instance):
            hits.pop(counter.rank, None)  # the same group: no comparison with itself
        elif counter.rank in hits:
            hits[counter.rank] = max(hits[counter.rank], counter.value)
    expected = median(list(hits.values())) if hits else 0.0
    if worst.value < limits.OTHER_KIND * expected:
        return None
    return Pressure(
        "reclaim", worst.instance, CONVICTED, worst.value,
        Evidence("cgroup", "times that its control group was at its memory limit", worst.value, expected, "events", len(hits)),
        "Raise the memory limit (memory.max, resources.limits.memory) of this rank's control group, or let it hold less: "
        "its pages are taken away and read again.",
    )  # fmt: skip


def _swap(case: Case) -> Pressure | None:
    """Return swap if half of the host's major faults, and a page per second, came from swap; else None."""
    swapped = sum(counter.value for counter in case.host_counters("memory.swapped_in_pages"))
    major = sum(counter.value for counter in case.host_counters("memory.major_faults"))
    if swapped < limits.EVENTS_HZ * case.fleet.seconds or swapped < limits.HOLDS_LEAST * major:
        return None
    action = f"{case.host or 'Its host'} swaps: give it more memory, or run less on it; swapoff where memory allows."
    return Pressure(
        "swap",
        "",
        CONVICTED,
        swapped,
        Evidence("host", "read back from swap on its host", swapped, None, "pages"),
        action,
    )


def _host(case: Case, waited: float) -> Pressure | None:
    """Return reclaim if tasks of the host waited for memory (PSI) half as long as the rank for pages; else None.

    `waited`: seconds per step that the rank waited for pages above its peers.
    """
    stalled = sum(counter.value for counter in case.host_counters("psi.memory.some_s"))
    if stalled < max(limits.HOLDS_LEAST * waited * case.steps, limits.EFFECT_SECONDS * case.steps):
        return None
    where = case.host or "its host"
    action = f"Memory of {where} is short (free, /proc/pressure/memory): see who uses it, and the memory limits of its groups."
    return Pressure(
        "reclaim",
        "",
        REPORTED,
        0.0,
        Evidence("host", "tasks of its host waited for memory", stalled, None, "s"),
        action,
    )
