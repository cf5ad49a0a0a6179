"""Does the job stand still? Then nothing is slow: somebody is missing.

A rank stalls if its last marker (collective, backward) is older than max(5 ordinary steps, 3 s). The job hangs if every
rank that is left stalls. The suspects are then the ranks that are stopped; else those that are gone; else those that are in
no collective while the others wait in one; else those that NCCL itself (RAS) says have launched fewer operations than the
others, and moved none between two questions. Hardware that failed (failures.py) beats all but the first: ranks die of their GPU.
Where all wait alike it is the link that data waits for (causes/unacknowledged.py).
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.fleet.model import Fleet
from rankscope.diagnose.hypotheses.hang import unacknowledged
from rankscope.diagnose.hypotheses.hang.failed_hardware import (
    Failure,
    application_failures,
    failed_gpus,
    failed_ports,
    orphaned_gpus,
)
from rankscope.diagnose.verdict.contract import Evidence, Suspect
from rankscope.diagnose.verdict.function import Function
from rankscope.probes.arrays import Bools, Floats, Ints

_LINK_SURE = 0.9  # that the message that is missing is the one that is sent again and again


@dataclass(frozen=True, slots=True)
class Hang:
    """The job makes no progress for `stalled_s` seconds."""

    stalled_s: float
    suspects: tuple[Suspect, ...]
    notes: tuple[str, ...]


def find_hang(fleet: Fleet, step_s: float | None) -> Hang | None:
    """A hang at the end of the window, with who causes it; None if the job moves. `step_s`: an ordinary step."""
    hang = _by_process(fleet, step_s)
    failed = failed_gpus(fleet)
    if hang is None:
        return _without_gpu(fleet, failed, step_s)
    if not failed:
        row_of = {int(number): row for row, number in enumerate(fleet.ranks.number)}
        ended = [row_of[rank] for suspect in hang.suspects for rank in suspect.ranks]
        failed = application_failures(fleet, ended)
    if not failed and not hang.suspects:
        failed = orphaned_gpus(fleet) or failed_ports(fleet)
    if failed:
        return _by_hardware(fleet, hang, failed, step_s)
    return hang if hang.suspects else _by_link(fleet, hang, step_s)


def _without_gpu(fleet: Fleet, failed: tuple[Failure, ...], step_s: float | None) -> Hang | None:
    """Nobody is seen to wait, and a GPU is lost: its rank does nothing more, however soon after it the window ends.

    Or it ended before the window: then all others are silent.
    """
    silent = _silent_s(fleet)
    lost = tuple(
        each for each in failed if each.cause == "lost" and silent[each.row] >= max(step_s or 0.0, limits.LOST_SECONDS)
    )
    if lost:
        return _by_hardware(fleet, Hang(min(float(silent[each.row]) for each in lost), (), ()), lost, step_s)
    stalled_s = float(silent.min(initial=np.inf))
    if stalled_s >= min(_patience(fleet, step_s), 0.9 * fleet.seconds) and (orphans := orphaned_gpus(fleet)):
        return _by_hardware(fleet, Hang(stalled_s, (), ()), orphans, step_s)
    return None


def _by_hardware(fleet: Fleet, hang: Hang, failed: tuple[Failure, ...], step_s: float | None) -> Hang:
    """The same hang, explained by hardware that failed. A rank that somebody stopped stays the first suspect."""
    ended = {rank: suspect for suspect in hang.suspects for rank in suspect.ranks}
    suspects = [suspect for suspect in hang.suspects if suspect.cause == "stopped"]
    for each in failed[:8]:
        numbers = _numbers(fleet, each)
        evidence = [*each.evidence]
        if numbers and numbers[0] in ended:
            evidence.extend(ended[numbers[0]].evidence[:2])
        else:
            state = fleet.ranks.state[each.row] if each.row >= 0 else "not there"
            evidence.append(Evidence("process", "state at the end of the window", state, "running", ""))
        silent = float(_silent_s(fleet)[each.row]) if each.row >= 0 else hang.stalled_s
        evidence.append(Evidence("calls", "no progress of the rank" if each.row >= 0 else "no progress of the others",
                                 silent, None, "s"))  # fmt: skip
        suspects.append(
            Suspect(
                component=each.component, cause=each.cause, instance=each.instance, ranks=numbers, function=None,
                host=fleet.ranks.host[each.row] if each.row >= 0 else each.observed_on,
                lost_seconds_per_step=max(hang.stalled_s - (step_s or 0.0), 0.0),
                lost_percent=100.0, confidence=each.confidence,
                since=_since(fleet, hang.stalled_s),
                evidence=tuple(evidence), action=each.action,
            )
        )  # fmt: skip
    return Hang(hang.stalled_s, tuple(suspects), hang.notes if not suspects else ())


def _by_link(fleet: Fleet, hang: Hang, step_s: float | None) -> Hang:
    """The same hang, explained by a link on which what was sent does not arrive; or who it was sent to, who was not seen here."""
    stuck = unacknowledged.stuck_pairs(fleet, hang.stalled_s)
    link = unacknowledged.judge(fleet, stuck, hang.stalled_s)
    if link is not None:
        waiting = Evidence("calls", "no progress of any rank", hang.stalled_s, None, "s", len(fleet.ranks))
        suspect = Suspect(
            component=link.component, cause=link.cause, host=link.host, instance=link.instance, function=None,
            ranks=tuple(sorted(int(fleet.ranks.number[row]) for row in link.ranks)),
            lost_seconds_per_step=max(hang.stalled_s - (step_s or 0.0), 0.0), lost_percent=100.0,
            confidence=_LINK_SURE * link.support, since=_since(fleet, hang.stalled_s),
            evidence=(*link.evidence, waiting), action=link.action,
        )  # fmt: skip
        return Hang(hang.stalled_s, (suspect,), ())
    unseen = sorted({peer for _, peer in stuck})
    notes = tuple(f"what is sent to {peer} is not acknowledged: look there first" for peer in unseen[:8])
    return Hang(hang.stalled_s, (), (*hang.notes, *notes))


def _since(fleet: Fleet, stalled_s: float) -> float | None:
    """When it began; None if it was so before the window."""
    return fleet.start + fleet.seconds - stalled_s if stalled_s < fleet.seconds else None


def _numbers(fleet: Fleet, failure: Failure) -> tuple[int, ...]:
    """The rank of a failure; of a rank that is gone, its number if it is the only one that is missing."""
    ranks = fleet.ranks
    if failure.row >= 0:
        return (int(ranks.number[failure.row]),)
    missing = sorted(set(range(int(ranks.world_size.max(initial=0)))) - set(ranks.number.tolist()))
    return (missing[0],) if len(missing) == 1 else ()


def _patience(fleet: Fleet, step_s: float | None) -> float:
    """How long a silence is none yet. No complete step: steps may be long, so be patient."""
    return max(limits.STALL_STEPS * step_s if step_s else 0.5 * fleet.seconds, limits.STALL_SECONDS)


def _silent_s(fleet: Fleet) -> Floats:
    """How long ago each rank's last marker is. Without one in the whole window the silence is as long as the window."""
    last = fleet.ranks.last_progress_s
    return np.where(np.isfinite(last), last, fleet.seconds)


def _by_process(fleet: Fleet, step_s: float | None) -> Hang | None:
    """A hang, and what the processes tell about it."""
    ranks = fleet.ranks
    stopped = np.array([state == "stopped" for state in ranks.state], dtype=bool)
    gone = np.array([state == "exited" for state in ranks.state], dtype=bool)
    silent = _silent_s(fleet)
    failed = gone & (ranks.exit_status > 0)
    if failed.any():
        # The others end because of the first, an instant later: their connections break, or the launcher ends them.
        first = failed & (ranks.ended_s <= np.nanmin(ranks.ended_s[failed]))
        return _verdict(fleet, first, "exited", silent, step_s, np.zeros(len(ranks), dtype=bool))
    if gone.all():
        return None  # the job ended
    patience = _patience(fleet, step_s)
    waiting = ranks.in_collective_s >= min(patience, 0.5 * fleet.seconds)
    stalled: Bools = (silent >= min(patience, 0.9 * fleet.seconds)) & ~gone
    if stopped.any():
        # A stopped rank is a fault by itself; the others need only be on their way to the collective it misses.
        others = ~stopped & ~gone
        brief = min(1.0, 0.05 * fleet.seconds)
        still = float(silent[others].max()) if others.any() else fleet.seconds
        if still >= brief or float(ranks.stopped_s[stopped].max()) >= brief:
            return _verdict(fleet, stopped, "stopped", silent, step_s, waiting)
    if not (stalled | gone).all() or not waiting[~gone].any():
        return None
    if gone.any():
        return _verdict(fleet, gone, "exited", silent, step_s, waiting)
    outside = ~waiting
    if (behind := _behind(fleet)) and not outside.any():
        return _late(fleet, behind, silent, step_s, waiting)
    if outside.any() and outside.sum() <= waiting.sum():
        return _absent(fleet, outside, silent, step_s, waiting)
    missing = int(ranks.world_size.max(initial=0)) - len(ranks)
    note = "every rank seen here waits in a collective"
    note += (
        f"; look at the {missing} ranks that were not seen" if missing > 0 else "; the network may have lost a message"
    )
    return Hang(float(silent[~gone].min()), (), (note,))


def _verdict(fleet: Fleet, culprits: Bools, cause: str, silent: Floats, step_s: float | None, waiting: Bools) -> Hang:
    stalled_s = _stalled(silent, culprits)
    by_host: dict[str, list[int]] = {}
    for row in np.flatnonzero(culprits):
        by_host.setdefault(fleet.ranks.host[row], []).append(int(row))
    suspects = []
    for host, rows in by_host.items():
        evidence = [Evidence("process", "state at the end of the window", cause, "running", "", int((~culprits).sum()))]
        if cause == "stopped":
            evidence.append(
                Evidence("process", "stopped (state T)", float(fleet.ranks.stopped_s[rows].max()), 0.0, "s")
            )
        if cause == "exited" and np.isfinite(fleet.ranks.exit_status[rows[0]]):
            evidence.append(
                Evidence("process", "ended first, with", _exit_words(int(fleet.ranks.exit_status[rows[0]])), None, "")
            )
        evidence.extend(_waiting_evidence(fleet, waiting, culprits, stalled_s))
        pids = ", ".join(str(int(fleet.ranks.pid[row])) for row in rows[:8])
        action = (
            f"kill -CONT {pids.replace(',', '')} on {host}, and find who stopped it." if cause == "stopped"
            else f"See the log of the rank on {host}: its process {pids} ended first."
        )  # fmt: skip
        suspects.append(_suspect(fleet, rows, host, cause, None, stalled_s, 0.98, tuple(evidence), action, step_s))
    return Hang(stalled_s, tuple(suspects), ())


def _exit_words(status: int) -> str:
    number = status & 0x7F
    if not number:
        return f"exit code {status >> 8}"
    names = {each.value: each.name for each in signal.Signals}
    return names.get(number, f"signal {number}")


def _absent(fleet: Fleet, outside: Bools, silent: Floats, step_s: float | None, waiting: Bools) -> Hang:
    """Ranks that run but did not come: what are they doing?"""
    stalled_s = _stalled(silent, outside)
    suspects = []
    for row in np.flatnonzero(outside)[:8]:
        kind, function, beta = _busiest(fleet, int(row))
        cause = "spinning" if kind in ("python", "gpu") else "deadlock"
        what = f"{function.name} ({function.file}:{function.line})" if function else "nothing that was seen"
        evidence = [Evidence("stacks", f"most of the window in {what}", beta, None, "share")]
        evidence.extend(_waiting_evidence(fleet, waiting, outside, stalled_s))
        host = fleet.ranks.host[row]
        action = f"Look at {what} in pid {int(fleet.ranks.pid[row])} on {host}: all others wait for this rank."
        suspects.append(
            _suspect(fleet, [int(row)], host, cause, function, stalled_s, 0.8, tuple(evidence), action, step_s)
        )
    return Hang(stalled_s, tuple(suspects), ())


def _behind(fleet: Fleet) -> dict[int, list[Evidence]]:
    """Ranks (rows) that NCCL's own account says are missing, with that account; not where it says so of half of them."""
    found: dict[int, list[Evidence]] = {}
    for name, words in (("ras.behind", "operations behind the others in"), ("ras.missing", "no answer to NCCL in")):
        for counter in fleet.counters.moved(name):
            if counter.rank >= 0:
                said = Evidence("nccl ras", f"{words} {counter.instance}", counter.value, 0.0, counter.unit)
                found.setdefault(counter.rank, []).append(said)
    return found if len(found) <= 0.5 * len(fleet.ranks) else {}


def _late(
    fleet: Fleet, behind: dict[int, list[Evidence]], silent: Floats, step_s: float | None, waiting: Bools
) -> Hang:
    """Every rank waits in some collective, but not all in the same one."""
    culprits = np.zeros(len(fleet.ranks), dtype=bool)
    culprits[list(behind)] = True
    stalled_s = _stalled(silent, culprits)
    suspects = []
    for row, said in sorted(behind.items())[:8]:
        host, pid = fleet.ranks.host[row], int(fleet.ranks.pid[row])
        evidence = (*said, *_waiting_evidence(fleet, waiting, culprits, stalled_s))
        action = (
            f"Compare what pid {pid} on {host} does with the others: it has not called a collective that they wait in."
        )
        suspects.append(
            _suspect(fleet, [row], host, "missing-collective", None, stalled_s, 0.85, evidence, action, step_s)
        )
    return Hang(stalled_s, tuple(suspects), ())


def _stalled(silent: Floats, culprits: Bools) -> float:
    """How long the others have been without progress; of all, if there are no others."""
    return float(np.median(silent[~culprits])) if (~culprits).any() else float(np.median(silent))


def _busiest(fleet: Fleet, row: int) -> tuple[str, Function | None, float]:
    table = fleet.patterns
    mine: Ints = np.flatnonzero((table.rank == row) & (table.thread.codes == table.thread.code("training")))
    if len(mine) == 0:
        return "", None, 0.0
    best = int(mine[np.argmax(table.beta[mine])])
    function = Function(table.kind.at(best), table.name.at(best), table.file.at(best), int(table.line[best]))
    return function.kind, function, float(table.beta[best])


def _waiting_evidence(fleet: Fleet, waiting: Bools, culprits: Bools, stalled_s: float) -> list[Evidence]:
    others = waiting & ~culprits
    evidence = [Evidence("calls", "others without progress", stalled_s, None, "s", int((~culprits).sum()))]
    if others.any():
        longest = float(fleet.ranks.in_collective_s[others].max())
        evidence.append(Evidence("calls", f"{int(others.sum())} others wait in a collective", longest, None, "s"))
    return evidence


def _suspect(
    fleet: Fleet, rows: list[int], host: str, cause: str, function: Function | None, stalled_s: float, confidence: float,
    evidence: tuple[Evidence, ...], action: str, step_s: float | None,
) -> Suspect:  # fmt: skip
    """While a job hangs the step in progress is lost altogether: lost time is the stall so far, 100 %."""
    return Suspect(
        component="process",
        cause=cause,
        host=host,
        instance=f"pid {int(fleet.ranks.pid[rows[0]])}",
        ranks=tuple(int(number) for number in fleet.ranks.number[rows]),
        function=function,
        lost_seconds_per_step=max(stalled_s - (step_s or 0.0), 0.0),
        lost_percent=100.0,
        confidence=confidence,
        since=_since(fleet, stalled_s),
        evidence=evidence,
        action=action,
    )
