"""Threads: another thread of the process delays the training thread, by the GIL or the CPU.

taken = waiting for the GIL above the peers' + queueing behind threads of the own process above the
        peers' (model/own_threads.py)

Evidence for: waiting for the GIL, and its holder; a queue for a CPU while no other process ran, and
threads of the process that computed as much more than the peers'. The user's lowest function in
which the threads compute more is named: python/gil where most of it is the GIL's, else
python/slow-function; for threads without Python the thread and its library's function:
cpu/contended. The cost includes what the threads take from ranks on the same CPUs
(causes/rank/odd_ranks.py). Evidence against: threads that compute as much on the peers; other processes
that ran meanwhile; threads that carry what the job sends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.causes.hypothesis import NO_COUNTER, SEEN, Hypothesis
from rankscope.diagnose.infer.causes.rank.case import Case
from rankscope.diagnose.infer.causes.registry import cause
from rankscope.diagnose.infer.model.attribute import Located
from rankscope.diagnose.infer.model.functions import FunctionExcess
from rankscope.diagnose.infer.verdict.contract import Evidence
from rankscope.diagnose.infer.verdict.function import Function
from rankscope.observer.window.stacks import StackFrame
from rankscope.observer.window.users_code import users_code


def held_gil(case: Case) -> FunctionExcess | None:
    """Return the training thread's worst wait for another thread if it is for the GIL; else None."""
    waits = [each for each in case.functions if each.kind == "sync"]
    worst = max(waits, key=lambda each: each.excess_s, default=None)
    return worst if worst is not None and worst.name == "gil" and case.excess_of("sync") > 0 else None


def takes_cpu(found: Hypothesis, case: Case) -> bool:
    """Whether the hypothesis is about threads behind which the training thread queues for a CPU."""
    threads = case.threads
    named = threads.function.function if threads.function is not None and threads.in_python else None
    return threads.queue_s > 0 and (found.function == named if named is not None else found.instance == threads.native)


@cause("python", "gil", witness="waiting for the GIL, and its holder",
       says="another thread holds Python's lock (the GIL)[, in {function}]")  # fmt: skip
def judge(case: Case) -> Iterator[Hypothesis]:
    """Propose the other Python threads of the process, or its threads without Python, as the cause."""
    threads, gil = case.threads, held_gil(case)
    gil_s = case.excess_of("sync") if gil is not None else 0.0
    lost_s = gil_s + (threads.queue_s if threads.in_python else 0.0)
    if gil is not None and gil_s >= limits.HOLDS_LEAST * lost_s:
        yield _gil_charge(case, gil, lost_s)
    elif lost_s > 0 and threads.function is not None:
        yield _function_charge(case, threads.function, gil, lost_s)
    if not threads.in_python and threads.queue_s > 0:
        yield _native_charge(case)


def _gil_charge(case: Case, gil: FunctionExcess, lost_s: float) -> Hypothesis:
    """Return the hypothesis on the function of the thread that has the GIL."""
    seen = gil.holder
    holder = Function("python", seen.name, seen.file, seen.line) if seen is not None and seen.name else None
    found = case.threads.function
    if found is not None and holder in (found.function, found.leaf):
        holder = found.function  # the user's function, which calls it
    return case.charge(
        component="python",
        cause="gil",
        lost_s=lost_s,
        support=SEEN if holder is not None else NO_COUNTER,
        evidence=(_gil_evidence(case, gil), *(_queue_evidence(case) if case.threads.in_python else ())),
        action=f"Move {_owner(case, holder)} into a process of its own.",
        function=holder,
    )


def _owner(case: Case, holder: Function | None) -> str:
    """Return what is to be moved out of the process, in words; `holder`: the function that has the GIL.

    That is `holder` itself if it is the user's, else the user's function that calls it.
    """
    if holder is None:
        return "the work of the other Python threads"
    table, spent = case.fleet.patterns, list[tuple[list[StackFrame], float]]()
    for row in np.flatnonzero((table.rank == case.rank) & (table.stack.codes >= 0)).tolist():
        spent.append((table.stack.of(int(table.stack.codes[row])), float(np.nan_to_num(table.per_step_s[row]))))
    users, callers = users_code(spent), dict[StackFrame, float]()
    if users.has(holder.file):
        return holder.name
    for frames, seconds in spent:
        at = next((i for i, frame in enumerate(frames) if frame[:2] == (holder.name, holder.file)), -1)
        caller = next((frame for frame in reversed(frames[: max(at, 0)]) if users.has(frame.file)), None)
        if caller is not None:
            callers[caller] = callers.get(caller, 0.0) + seconds
    if not callers:
        return f"what calls {holder.name}"
    name, file, line = max(callers, key=lambda frame: callers[frame])
    return f"{Function('python', name, file, line).place}, which calls {holder.name},"


def _function_charge(case: Case, found: Located, gil: FunctionExcess | None, lost_s: float) -> Hypothesis:
    """Return the hypothesis on a Python thread for whose CPU the training thread queues."""
    function, peers = found.function, len(case.peers)
    charge = case.charge(
        component="python",
        cause="slow-function",
        lost_s=lost_s,
        support=SEEN,
        evidence=(
            Evidence(
                "stacks", f"another thread of the rank in {function.name}", found.own_s, found.peers_s, "s/step", peers
            ),
            *_queue_evidence(case),
            *([_gil_evidence(case, gil)] if gil is not None else ()),
        ),
        action=f"Make {function.name} cheaper, or move it into a process with CPUs of its own: it takes the CPU from the training thread.",
        function=function,
    )
    return replace(charge, says="another thread, in {function|Python code}, takes the CPU from its training thread")


def _native_charge(case: Case) -> Hypothesis:
    """Return cpu/contended by threads without Python of the rank's process, which take its training thread's CPU."""
    who = case.threads.native
    return case.charge(
        component="cpu",
        cause="contended",
        lost_s=case.threads.queue_s,
        support=NO_COUNTER,
        evidence=_queue_evidence(case),
        action=f"Give {who} of this rank fewer threads or CPUs of their own: they take the CPU from its training thread.",
        instance=who,
    )


def _gil_evidence(case: Case, gil: FunctionExcess) -> Evidence:
    """Return the evidence of all waits for the GIL; `gil`: the wait that names the place and the holder."""
    own, peers = (
        sum(getattr(each, name) for each in case.functions if each.name == "gil") for name in ("own_s", "peers_s")
    )
    waiting = f"the training thread{f', in {gil.caller},' if gil.caller else ''} waits for the GIL"
    held = f", {gil.detail}" if gil.detail else ""
    return Evidence("scheduler", waiting + held, own, peers, "s/step", len(case.peers))


def _queue_evidence(case: Case) -> tuple[Evidence, ...]:
    """Return the evidence of queueing behind threads of the own process, and of their CPU time; () without any."""
    threads = case.threads
    if threads.queue_s <= 0:
        return ()
    behind = "waiting for a CPU behind threads of its own process, longer than its peers"
    return (Evidence("scheduler", behind, threads.queue_s, None, "s/step"), beside_evidence(case))


def beside_evidence(case: Case) -> Evidence:
    """Evidence of the CPU time of the process's other threads, compared with the peers'."""
    what, threads = "CPU time of its process beside the training thread", case.threads
    return Evidence("scheduler", what, threads.ran_s, threads.peers_ran_s, "s/step", len(case.peers))
