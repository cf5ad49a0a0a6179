"""Estimate how much of a job's time would come back if its pauses, hangs and restarts were fixed. Pure.

Computing is never waste, nor is the first start-up. Checkpoints and evaluations are above a tenth
of the time. A restart costs the time without a job, its start-up, and the steps that were done
twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rankscope.diagnose import limits
from rankscope.diagnose.service.ledger import recurrence
from rankscope.diagnose.service.ledger.entry import PAUSES, TRIES, Entry, Kind, Ledger
from rankscope.diagnose.text import minutes

_BY_DESIGN = {
    Kind.CHECKPOINT: "write it in the background, or less often",
    Kind.EVALUATION: "evaluate less often, or beside the training",
}
_ACTIONS = {
    Kind.GC: "collect on all ranks in the same step, and gc.freeze() what lives on",
    Kind.LOADER: "more loader workers, kept between epochs (persistent_workers)",
    Kind.PAUSE: "do it less often, or beside the training",
    Kind.HANG: "`rankscope blackbox` has the minutes before it",
    Kind.SLOW: "mend what the verdict names; `rankscope diagnose` looks again",
}


@dataclass(frozen=True, slots=True)
class Gain:
    """Seconds of a job that would come back by one fix.

    `what`: to be fixed, in words; `action`: how; `count`: how often it cost time.
    """

    what: str
    seconds: float
    count: int
    action: str


def gains(ledger: Ledger) -> list[Gain]:
    """List the possible gains, the most seconds first."""
    return sorted(_gains(ledger), key=lambda one: -one.seconds)


def _gains(ledger: Ledger) -> Iterator[Gain]:
    """Yield a gain for each entry that can be fixed, and one for all restarts together."""
    for entry in ledger.entries:
        if entry.kind in _BY_DESIGN:
            over_s = entry.seconds - limits.FEW * ledger.total_s
            if over_s > 0:
                yield Gain(f"{label(entry)}, above a tenth of the time", over_s, entry.count, _BY_DESIGN[entry.kind])
        elif entry.kind is Kind.PAUSE and not entry.what:
            yield Gain(_often(entry, ledger), entry.seconds, entry.count, _how_to_name(entry, ledger))
        elif entry.kind in _ACTIONS:
            yield Gain(_often(entry, ledger), entry.seconds, entry.count, _ACTIONS[entry.kind])
    restarts = _restarts(ledger)
    if restarts is not None:
        yield restarts


def _often(entry: Entry, ledger: Ledger) -> str:
    """Name an entry and say how often it comes, in steps or in time."""
    rhythm = recurrence.find(entry.recent, ledger.step_s) if entry.kind in PAUSES else None
    if rhythm is None:
        return label(entry)
    often = f"{rhythm.steps} steps" if rhythm.steps is not None else minutes(rhythm.seconds)
    return f"{label(entry)}, every {often}"


def _how_to_name(entry: Entry, ledger: Ledger) -> str:
    """Say how to find a pause's function: a window of `rankscope watch` if one will come, else `rankscope diagnose`."""
    if entry.asked < TRIES and recurrence.find(entry.recent, ledger.step_s) is not None:
        return "`rankscope watch` looks when the next one is expected, and names the function"
    return "`rankscope diagnose` while it comes names the function"


def _restarts(ledger: Ledger) -> Gain | None:
    """Return what the restarts cost together: down time, start-ups and steps done twice; None if there were none."""
    downs = [entry for entry in ledger.entries if entry.kind is Kind.DOWN]
    if not downs:
        return None
    count = sum(entry.count for entry in downs)
    twice_s = sum(entry.seconds for entry in ledger.entries if entry.kind is Kind.REDONE)
    starts = [entry for entry in ledger.entries if entry.kind is Kind.STARTUP]
    again_s = sum(entry.seconds for entry in starts) * count / max(ledger.runs, 1)
    down_s = sum(entry.seconds for entry in downs)
    often = "save more often: most of it are steps done twice" if twice_s >= down_s + again_s else ""
    why = max(downs, key=lambda entry: entry.last).what
    return Gain("restarts", down_s + again_s + twice_s, count, often or (f"see why it ended: {why}" if why else ""))


def label(entry: Entry) -> str:
    """Name an entry: `gc`, `checkpoint: save (train.py:12)`, `pause, not named yet`."""
    if entry.kind is Kind.GC:
        return "gc"
    if entry.kind is Kind.PAUSE:
        return f"pause: {entry.what}" if entry.what else "pause, not named yet"
    if entry.kind is Kind.SLOW and not entry.what:
        return "slow, and nobody named"
    names = {Kind.REDONE: "done twice", Kind.UNSEEN: "not seen"}
    name = names.get(entry.kind, entry.kind.value)
    return f"{name}: {entry.what}" if entry.what else name


def lost_s(ledger: Ledger) -> float:
    """Return the seconds that were not productive, of those that were seen."""
    sums = ledger.seconds()
    return sum(seconds for kind, seconds in sums.items() if kind not in (Kind.PRODUCTIVE, Kind.UNSEEN))
