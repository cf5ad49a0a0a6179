"""Causes of a hang by process state: ranks that are stopped, gone, or in no collective.

Where all ranks wait in a collective, NCCL's RAS says which have launched fewer operations than the
others and made no progress between two queries.
"""

from __future__ import annotations

import signal
from dataclasses import replace

import numpy as np

from rankscope.diagnose import budgets
from rankscope.diagnose.infer.causes.hang.absent import is_at_work, why
from rankscope.diagnose.infer.causes.hang.gone import gone_before
from rankscope.diagnose.infer.causes.hang.silence import Standstill, patience_s, silent_s, stalled_s
from rankscope.diagnose.infer.causes.hypothesis import CONVICTED, REPORTED, Hypothesis
from rankscope.diagnose.infer.causes.registry import cause
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.model.still.starting import is_starting, is_unbegun
from rankscope.diagnose.infer.verdict.contract import DETAIL, Evidence
from rankscope.diagnose.infer.verdict.function import Function
from rankscope.diagnose.infer.verdict.note import Note, NoteCode
from rankscope.diagnose.text import after
from rankscope.observer.sources import Source
from rankscope.probes.base.arrays import Bools, Floats

_AGAIN = "Start the job again, unless its launcher does."
_ASKED = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})


@cause("process", "exited", witness="it ended first, or is no process", says="the process has ended")
@cause("process", "missing-collective", witness="NCCL's account, dumps, other stacks",
       says="it does not come to the collective in which the others wait[, in {function}]")  # fmt: skip
def by_process(fleet: Fleet, step_s: float | None) -> Standstill | None:
    """Detect a hang and explain it by process states; None if the job moves or has ended.

    `step_s`: an ordinary step, in seconds; None where no step is known.
    """
    ranks = fleet.ranks
    stopped = np.array([state == "stopped" for state in ranks.state], dtype=bool)
    gone = np.array([state == "exited" for state in ranks.state], dtype=bool)
    silent = silent_s(fleet)
    failed = gone & (ranks.exit_status > 0)
    if told_to_end(fleet):
        return None
    never = ~ranks.seen
    if failed.any():
        # The others end an instant after the first: their connections break, or the launcher ends
        # them.
        first = failed & (ranks.ended_s <= np.nanmin(ranks.ended_s[failed]))
        return _in_state(fleet, first, "exited", silent, np.zeros(len(ranks), dtype=bool))
    if gone[~never].all():
        return None  # the job ended
    patience = patience_s(fleet, step_s)
    waiting = ranks.in_collective_s >= min(patience, 0.5 * fleet.seconds)
    stalled: Bools = (silent >= min(patience, 0.9 * fleet.seconds)) & ~gone
    if stopped.any() and _misses_it(fleet, stopped, gone, silent):
        return _in_state(fleet, stopped, "stopped", silent, waiting)
    if not (stalled | gone).all() or not waiting[~gone].any():
        return None
    if never.any():
        return _gone_before(fleet, silent, waiting)
    if gone.any():
        return _in_state(fleet, gone, "exited", silent, waiting)
    if is_starting(fleet) and not fleet.flight:
        return None
    outside = ~waiting
    if (behind := _behind(fleet)) and not outside.any():
        return _late(fleet, behind, silent, waiting)
    if outside.any() and (outside.sum() <= waiting.sum() or is_unbegun(fleet)):
        return _absent(fleet, outside, silent, waiting)
    missing = int(ranks.world_size.max(initial=0)) - len(ranks)
    where = f"look at the {missing} ranks that were not seen" if missing > 0 else "the network may have lost a message"
    who = "every rank seen here waits" if not outside.any() else f"{waiting.sum()} of {len(ranks)} ranks wait"
    note = Note(NoteCode.ALL_WAIT, f"{who} in a collective; {where}")
    return Standstill(float(silent[~gone].min()), (), (note,))


def _gone_before(fleet: Fleet, silent: Floats, waiting: Bools) -> Standstill:
    """Explain the hang by ranks that had ended when the window began."""
    never = ~fleet.ranks.seen
    stalled = stalled_s(silent, never)
    return Standstill(stalled, gone_before(fleet, _waiting_evidence(fleet, waiting, never, stalled)))


def _misses_it(fleet: Fleet, stopped: Bools, gone: Bools, silent: Floats) -> bool:
    """Return whether other ranks wait for a stopped rank, or soon will.

    True if any rank that is neither stopped nor gone has been silent, or any stopped rank has been
    stopped, for at least 1 s or 5 % of the window, whichever is shorter; also if no other rank is left.
    `stopped`, `gone`: masks by rank; `silent`: seconds without progress by rank.
    """
    others = ~stopped & ~gone
    brief = min(1.0, 0.05 * fleet.seconds)
    still = float(silent[others].max()) if others.any() else fleet.seconds
    return still >= brief or float(fleet.ranks.stopped_s[stopped].max()) >= brief


def _in_state(fleet: Fleet, culprits: Bools, cause: str, silent: Floats, waiting: Bools) -> Standstill:
    """Explain the hang by ranks (`culprits`, a mask) that are stopped or exited, one hypothesis per host.

    `cause`: "stopped" or "exited"; `silent`: seconds without progress by rank; `waiting`: mask of the ranks
    in a collective.
    """
    stalled, ranks = stalled_s(silent, culprits), fleet.ranks
    by_host: dict[str, list[int]] = {}
    for row in np.flatnonzero(culprits).tolist():
        by_host.setdefault(ranks.host[row], []).append(row)
    found = []
    for host, rows in by_host.items():
        evidence = [
            Evidence("process", "state at the end of the window", cause, _others(ranks.ended_s[~culprits]), "", int((~culprits).sum()))
        ]  # fmt: skip
        tracer = ""
        if cause == "stopped":
            evidence.append(Evidence("process", "stopped (state T)", float(ranks.stopped_s[rows].max()), 0.0, "s"))
            tracer = next((ranks.tracer[row] for row in rows if ranks.tracer and ranks.tracer[row]), "")
        if tracer:
            evidence.append(Evidence("process", "traced by", tracer, None, ""))
        if cause == "exited" and np.isfinite(ranks.exit_status[rows[0]]):
            words = _exit_words(int(ranks.exit_status[rows[0]]))
            evidence.append(Evidence("process", "ended first, with", words, None, ""))
        evidence.extend(_waiting_evidence(fleet, waiting, culprits, stalled))
        pids = ", ".join(str(int(ranks.pid[row])) for row in rows[:8])
        action = (
            f"kill -CONT {pids.replace(',', '')}{after('on', host)}, and find who stopped it." if cause == "stopped"
            else _see_why_it_ended(ranks.exit_status[rows[0]], pids, host)
        )  # fmt: skip
        charged = _hypothesis(fleet, rows, cause, CONVICTED, evidence, action)
        if tracer:
            action = f"{tracer} holds it{after('on', host)}: end that, or let it detach."
            charged = replace(charged, action=action, instance=tracer, says="{instance|a program} holds it by tracing")
        if cause == "exited":
            charged = replace(charged, says=_ended(ranks.exit_status[rows[0]]))
        found.append(_for_want_of_memory(fleet, rows, charged) if cause == "exited" else charged)
    return Standstill(stalled, tuple(found))


@cause("memory", "oom-kill", witness="a hang: killed, its group's count", rests_on=[Source.HOST],
       says="the kernel killed a process for want of memory")  # fmt: skip
def _for_want_of_memory(fleet: Fleet, rows: list[int], ended: Hypothesis) -> Hypothesis:
    """Turn the end of a killed rank into an OOM kill if its control group counted one."""
    counters = fleet.counters
    for row in rows:
        status = fleet.ranks.exit_status[row]
        moved = [one for one in map(counters.at, counters.rows_of("memory.oom_kills", row).tolist()) if one.value > 0]
        if moved and np.isfinite(status) and int(status) & 0x7F == signal.SIGKILL:
            told = Evidence(
                "cgroup", "processes that the kernel ended for want of memory", moved[0].value, 0.0, "events"
            )
            action = f"Give {moved[0].instance} more memory, or find what grew (`dmesg -T | grep -i 'out of memory'`)."
            return replace(
                ended, component="memory", cause="oom-kill", evidence=(*ended.evidence, told), action=action, says=""
            )
    return ended


def told_to_end(fleet: Fleet) -> str:
    """Return the signals that ended all ranks seen, where a scheduler or operator ended the job.

    '' otherwise: a rank that fails by itself ends by another signal or with an exit code, and its
    launcher ends only the others.
    """
    ranks = fleet.ranks.taken(np.flatnonzero(fleet.ranks.seen))
    if not len(ranks) or not all(state == "exited" for state in ranks.state):
        return ""
    numbers = {int(status) & 0x7F or (int(status) >> 8) - 128 for status in ranks.exit_status[ranks.exit_status > 0]}
    if not (ranks.exit_status > 0).all() or not numbers <= _ASKED:
        return ""
    return ", ".join(sorted(signal.Signals(number).name for number in numbers))


def _others(ended_s: Floats) -> str:
    """Return the state of the ranks that are not named, in words; `ended_s`: when each ended, NaN while it runs."""
    ended: Bools = np.isfinite(ended_s)
    return "running" if not ended.any() else "ended later" if ended.all() else "running, or ended later"


def _exit_words(status: int) -> str:
    """Return the wait status of a process in words: 'exit code 1', or the signal's name."""
    number = status & 0x7F
    if not number:
        return f"exit code {status >> 8}"
    names = {each.value: each.name for each in signal.Signals}
    return names.get(number, f"signal {number}")


def _ended(status: float) -> str:
    """Return the sentence on how a process ended, by its wait status; '' where that is not known."""
    if not np.isfinite(status):
        return ""
    words = _exit_words(int(status))
    return f"the process was ended by {words}" if int(status) & 0x7F else f"the process has ended with {words}"


def _see_why_it_ended(status: float, pids: str, host: str) -> str:
    """Return the advice for ranks that ended first, by their wait status; SIGKILL leaves nothing in their logs."""
    if np.isfinite(status) and int(status) & 0x7F == signal.SIGKILL:
        return (
            f"Find who sent SIGKILL to process {pids}{after('on', host)}, which ended first: the kernel for want of memory "
            f"(`dmesg -T | grep -i -e oom -e killed`, memory.events), the scheduler (job cancelled, evicted), or a person. {_AGAIN}"
        )
    return f"See the log of the rank{after('on', host)}: its process {pids} ended first. {_AGAIN}"


def _absent(fleet: Fleet, outside: Bools, silent: Floats, waiting: Bools) -> Standstill | None:
    """Explain the hang by ranks that run but did not come; None where one of them is working.

    `outside`, `waiting`: masks of the ranks in no collective, and in one; `silent`: seconds without
    progress by rank.
    """
    stalled = stalled_s(silent, outside)
    rows = np.flatnonzero(outside)[: budgets.INSTANCES_SHOWN].tolist()
    if any(is_at_work(fleet, row, stalled) for row in rows):
        return None
    found = []
    for row in rows:
        reason = why(fleet, row)
        evidence = [*reason.evidence, *_waiting_evidence(fleet, waiting, outside, stalled)]
        pid, host = int(fleet.ranks.pid[row]), fleet.ranks.host[row]
        action = f"Look at {reason.what} in pid {pid}{after('on', host)}: all others wait for this rank."
        if reason.peer:
            port = reason.peer.rpartition(":")[2]
            action = (
                f"See who listens on {reason.peer} (there: `ss -tlnp 'sport = :{port}'`) and why it does not answer pid {pid}"
                f"{after('on', host)}: all others wait for this rank."
            )
        charged = _hypothesis(fleet, [row], reason.cause, REPORTED, evidence, action, reason.function)
        says = f"{{function|it}} waits for an answer from {reason.peer}" if reason.peer else ""
        found.append(
            replace(charged, component=reason.component, instance=reason.instance or charged.instance, says=says)
        )
    return Standstill(stalled, tuple(found))


def _behind(fleet: Fleet) -> dict[int, list[Evidence]]:
    """Return the evidence of NCCL's RAS by rank (row) that it reports as missing or behind.

    Empty where it reports more than half of the ranks.
    """
    found: dict[int, list[Evidence]] = {}
    for name, words in (("ras.behind", "operations behind the others in"), ("ras.missing", "no answer to NCCL in")):
        for counter in fleet.counters.moved(name):
            if counter.rank >= 0:
                said = Evidence("nccl ras", f"{words} {counter.instance}", counter.value, 0.0, counter.unit)
                found.setdefault(counter.rank, []).append(said)
    return found if len(found) <= 0.5 * len(fleet.ranks) else {}


def _late(fleet: Fleet, behind: dict[int, list[Evidence]], silent: Floats, waiting: Bools) -> Standstill:
    """Explain the hang by ranks that NCCL's RAS reports, where every rank waits in some collective."""
    culprits = np.zeros(len(fleet.ranks), dtype=bool)
    culprits[list(behind)] = True
    stalled = stalled_s(silent, culprits)
    found = []
    for row, said in sorted(behind.items())[: budgets.INSTANCES_SHOWN]:
        host, pid = fleet.ranks.host[row], int(fleet.ranks.pid[row])
        evidence = [*said, *_waiting_evidence(fleet, waiting, culprits, stalled)]
        action = f"Compare what pid {pid}{after('on', host)} does with the others: it has not called a collective that they wait in."
        found.append(_hypothesis(fleet, [row], "missing-collective", REPORTED, evidence, action))
    return Standstill(stalled, tuple(found))


def _waiting_evidence(fleet: Fleet, waiting: Bools, culprits: Bools, stalled: float) -> list[Evidence]:
    """Return the evidence of the others: `stalled` seconds without progress, and how many wait in a collective.

    `waiting`, `culprits`: masks of ranks.
    """
    others = waiting & ~culprits
    evidence = [Evidence("calls", "others without progress", stalled, None, "s", int((~culprits).sum()), DETAIL)]
    if others.any():
        longest = float(fleet.ranks.in_collective_s[others].max())
        waits = "1 other waits" if others.sum() == 1 else f"{int(others.sum())} others wait"
        evidence.append(Evidence("calls", f"{waits} in a collective", longest, None, "s"))
    return evidence


def _hypothesis(
    fleet: Fleet, rows: list[int], cause: str, support: float, evidence: list[Evidence], action: str, function: Function | None = None,
) -> Hypothesis:  # fmt: skip
    """Return the hypothesis of component process on these ranks (rows), host and pid of the first."""
    return Hypothesis(
        component="process",
        cause=cause,
        rows=tuple(rows),
        lost_s=float("nan"),
        support=support,
        evidence=tuple(evidence),
        action=action,
        host=fleet.ranks.host[rows[0]],
        instance=f"pid {int(fleet.ranks.pid[rows[0]])}",
        function=function,
    )
