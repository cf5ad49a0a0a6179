"""The rule that chooses ranks of jobs of one rank: `python train.py`, a notebook that trains.

Nothing names such a rank, so it must show that it works. A process with a training library, and
with no rank above or below it, is a rank if it or its loader workers want half of a CPU at present,
or if it holds a GPU and uses a CPU a little. One that may still be importing is none yet, a
notebook must be busy, and what listens on a port is a service. A process that is asked for by its
pid is a rank whatever it does, with or without a training library.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rankscope.observer.census.candidates import Candidate
from rankscope.observer.census.identity import Claim
from rankscope.observer.census.launchers import NOTEBOOK, launcher_name, purpose, ray_actor
from rankscope.observer.census.rules import effort
from rankscope.observer.census.rules.draft import Draft
from rankscope.observer.census.rules.taken import Chosen
from rankscope.observer.census.workers import is_compiler

LAUNCHER = "alone"
BUSY = 0.5  # CPUs: a training loop computes, or its workers do
IDLE = 0.05  # CPUs: a loop that only launches kernels uses more
STARTED_S = 3.0  # CPU seconds: importing a training library takes 1 to 2


def choose_alone(draft: Draft) -> None:
    """Apply rule 4: choose processes that train alone."""
    related = {above for pid in draft.chosen for above in draft.above(pid)}
    for pid in draft.asked & draft.loaded.keys() - draft.chosen.keys() - related:
        if not launcher_name(draft.loaded[pid].cmdline) and not _below_a_rank(draft, pid):
            draft.rejected.pop(pid, None)
            _choose(draft, pid)
    lonely = [pid for pid in draft.in_order(draft.loaded) if pid not in related and _may_train(draft, pid)]
    if not lonely or not draft.seeks_alone:
        return
    families = _families(draft, lonely)
    shares = effort.cpu_shares({each for family in families.values() for each in family}, draft.root)
    for pid in lonely:
        family = families[pid]
        if not _below_a_rank(draft, pid) and _trains(draft, family, sum(shares[each] for each in family)):
            _choose(draft, pid)


def _choose(draft: Draft, pid: int) -> None:
    """Choose a process as rank 0 of a job of its own."""
    claim = Claim(LAUNCHER, f"local-{draft.host}-{pid}", 0, 0, 1, 1, "", True)
    draft.chosen[pid] = Chosen(draft.loaded[pid], claim.by(draft.loaded[pid].owner))


def _may_train(draft: Draft, pid: int) -> bool:
    """Tell whether a process may be a rank that works alone, before its CPU use is measured.

    It has a training library but no claim, no rule has decided on it, and it is no server, no actor of
    Ray and no worker of an ancestor.
    """
    one = draft.loaded[pid]
    if pid in draft.chosen or pid in draft.rejected or one.claim is not None or not one.libraries.framework:
        return False
    if ray_actor(one.cmdline) or any(map(draft.serves, (pid, *draft.above(pid)))):
        return False
    above = draft.ancestor(pid, launchers=True)
    return above is None or not _works_for(one, above)


def _works_for(one: Candidate, above: Candidate) -> bool:
    """Tell whether a process is a worker of its ancestor, and no program that this started."""
    spawned = one.comm == "pt_data_worker" or any("multiprocessing" in word for word in one.cmdline[:64])
    return spawned or one.cmdline == above.cmdline or is_compiler(one.comm, one.cmdline)


def _families(draft: Draft, lonely: Iterable[int]) -> dict[int, list[int]]:
    """Return, by pid, each of these processes followed by the processes with a training library below it.

    Compilers are left out.
    """
    found = {pid: [pid] for pid in lonely}
    for pid, one in draft.loaded.items():
        if pid not in found and not is_compiler(one.comm, one.cmdline):
            above = next((each for each in draft.above(pid) if each in found), None)
            if above is not None:
                found[above].append(pid)
    return found


def _below_a_rank(draft: Draft, pid: int) -> bool:
    return any(above in draft.chosen for above in draft.above(pid))


def _trains(draft: Draft, family: list[int], cpus: float) -> bool:
    """Tell whether a process that works alone, the first of its `family`, trains; `cpus`: CPUs that all of them want.

    A process that would, but listens on a port as a service does, is rejected with that reason. A loop
    that waits for its workers uses next to no CPU itself: what they used counts as well.
    """
    pid = family[0]
    one = draft.loaded[pid]
    used_s, cpus_so_far = effort.used_so_far(pid, draft.root)
    used_s += sum(effort.used_so_far(each, draft.root)[0] for each in family[1:])
    busy = cpus >= BUSY and used_s >= STARTED_S
    if purpose(one.cmdline) == NOTEBOOK:
        return busy
    works = max(cpus, cpus_so_far) >= IDLE and effort.holds_gpu(pid, draft.root)
    if not busy and not works:
        return False
    if draft.connections.listens(pid):
        draft.rejected[pid] = (
            f"{one.libraries.framework} is loaded, but it listens on a port, as a service does: "
            f"`--pid {pid}` observes it"
        )
        return False
    return True


def pids_alone(ranks: Iterable[tuple[int, str]]) -> Iterator[int]:
    """Yield the pids of ranks that this rule chose, given (pid, launcher) of each."""
    return (pid for pid, launcher in ranks if launcher == LAUNCHER)
