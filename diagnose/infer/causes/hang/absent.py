"""Why a running rank does not enter a collective in which the others wait, by its training thread.

  spinning        it computes, or sleeps and wakes                      process
  gil             it wants the GIL; the function is its holder's        python
  dataloader      it waits for a process of its own that has ended      python
  lock            another thread of the rank must wake it (futex)       python
  stalled         one file operation does not return                    storage
  deadlock        any other wait                                        process

A rank is working, and nothing hangs, where its file operations return and move as many bytes as a
checkpoint does, or where it downloads (loading.py). It is also working if all of the window is
silent and it computes at ten places or more with 1 % each, as a rank that evaluates a model for all
does; an endless loop is at one place, or at the few that it calls. Where the window has steps as
well, the places of the silence cannot be separated from those of the steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rankscope.diagnose import budgets, limits
from rankscope.diagnose.infer.causes.hang.loading import LOCKS, loads, longest_pattern
from rankscope.diagnose.infer.causes.rank.servers import evidence_of, server_of
from rankscope.diagnose.infer.causes.rank.storage import is_write
from rankscope.diagnose.infer.causes.registry import cause
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.model.still.peer import peer_of
from rankscope.diagnose.infer.model.still.whereabouts import Place, place_of, places_of_threads
from rankscope.diagnose.infer.verdict.contract import Evidence
from rankscope.diagnose.infer.verdict.function import Function
from rankscope.observer.sources import Source
from rankscope.observer.window.schema import ENDED


@dataclass(frozen=True, slots=True)
class Absence:
    """Why a rank does not come to a collective.

    `what`: the place, in words. `instance`: the file or mount that does not respond; '' otherwise.
    """

    component: str
    cause: str
    function: Function | None
    evidence: tuple[Evidence, ...]
    what: str
    instance: str = ""
    peer: str = ""  # the address of a socket's other end, where it waits for that


def is_at_work(fleet: Fleet, row: int, stalled_s: float) -> bool:
    """Whether a rank that the others wait for makes progress: files, a download, or computation.

    Its files move as many bytes as a checkpoint does, it downloads, or it computes at many places.
    `stalled_s`: seconds without progress of the others.
    """
    table, enough = fleet.patterns, limits.BYTES_LEAST * fleet.seconds
    mine = (table.rank == row) & (table.thread.codes == table.thread.code("training"))
    files = mine & (table.kind.codes == table.kind.code("io"))
    if table.bytes is not None and float(table.bytes[files].sum()) >= enough:
        return True
    if loads(fleet, row, stalled_s) is not None:
        return True
    if stalled_s < limits.NEARLY_ALWAYS * fleet.seconds:
        return False
    python = table.kind.codes == table.kind.code("python")
    computes, rest = table.beta[mine & python], table.beta[mine & ~python].sum()
    return bool(computes.sum() > rest) and int((computes >= limits.NOTHING).sum()) >= limits.STEPS_FEW


@cause("storage", "stalled", witness="a hang: one file call does not end", rests_on=[Source.FILE_CALLS],
       says="{place|a file system} does not answer")  # fmt: skip
@cause("process", "deadlock", witness="others wait, it waits elsewhere",
       says="{function|it} waits for something that never comes")  # fmt: skip
@cause("process", "spinning", witness="others wait, it computes", says="{function|it} runs without getting on")
def why(fleet: Fleet, row: int) -> Absence:
    """Return why a running rank (row) does not enter the collective: component and cause, place, evidence."""
    each = longest_pattern(fleet, row)
    found_at = place_of(fleet.patterns, row)
    if each is None or found_at is None:
        return Absence("process", "deadlock", None, (), "what it does")
    place, share = found_at
    kind = fleet.patterns.kind.at(each)
    component, cause = _cause(fleet, each, share)
    function = Function(kind, place.name, place.file, place.line) if place.name else None
    evidence = [Evidence("stacks", "where it is", place.of_one, None, ""), _share(share)]
    holder = fleet.patterns.holder.at(each) if fleet.patterns.holder is not None else None
    if cause == "gil" and holder is not None and holder.name:
        function = Function("python", holder.name, holder.file, holder.line)
    if cause in ("lock", "gil"):
        evidence.extend(_other_threads(fleet, row))
    instance, what = "", _what(place, function, cause)
    if component == "storage":
        instance = fleet.patterns.detail.at(each)
        writing = is_write(fleet.patterns.name.at(each))
        server = server_of(fleet, row, instance, writing)
        if server is not None:
            evidence.extend(evidence_of(server, writing))
            what = f"{server.server.name}, whose file {what} waits for,"
    peer = peer_of(fleet.patterns.detail.at(each)) if cause == "deadlock" else ""
    return Absence(component, cause, function, tuple(evidence), what, instance, peer)


def _cause(fleet: Fleet, each: int, share: float) -> tuple[str, str]:
    """Return (component, cause) by what the training thread mostly does.

    `each`: row of the pattern table; `share`: its share of the window.
    """
    table = fleet.patterns
    kind, name, detail = table.kind.at(each), table.name.at(each), table.detail.at(each)
    if kind in ("python", "gpu"):
        return "process", "spinning"
    if kind == "sync" and name == "gil":
        return "python", "gil"
    if kind in ("sync", "io") and ENDED in detail:
        return "python", "dataloader"
    if kind == "sync" and name in LOCKS:
        return "python", "lock"
    # A single operation fills the window: if there were several, each returned.
    if kind == "io" and name != "file lock" and table.count[each] <= 1 and share >= limits.NEARLY_ALL:
        return "storage", "stalled"
    return "process", "deadlock"


def _share(share: float) -> Evidence:
    """Return the evidence of the share (0..1) of the window for which the rank is there."""
    return Evidence("stacks", "for this much of the window", 100 * min(share, 1.0), None, "%")


def _other_threads(fleet: Fleet, row: int) -> Iterator[Evidence]:
    """Yield where the rank's other Python threads are: one of them may own the lock."""
    for place, _ in places_of_threads(fleet.patterns, row)[: budgets.TOLD]:
        yield Evidence("stacks", "another thread of the rank", place.of_one, None, "")


def _what(place: Place, function: Function | None, cause: str) -> str:
    """Return what the rank is in, in words: the function that keeps the GIL for cause "gil", else the place."""
    if cause == "gil" and function is not None:
        return f"{function.place}, which keeps the GIL,"
    return Function("", place.name, place.file, place.line).place if place.name else "what it does"
