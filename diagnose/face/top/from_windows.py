"""Snapshots from windows just observed and judged: times from the latest, suspects from the last few."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from dataclasses import fields as fields_of

import numpy as np

from rankscope.diagnose.face.report.chosen import choose
from rankscope.diagnose.face.report.content import Heat
from rankscope.diagnose.face.report.sections.heat import heat_of
from rankscope.diagnose.face.top.host import counters_now
from rankscope.diagnose.face.top.snapshot import (
    CPU,
    FILES,
    LOCKS,
    OTHERS,
    OWN,
    PARTS,
    JobNow,
    RankNow,
    Snapshot,
    SuspectNow,
)
from rankscope.diagnose.infer.fleet.gather import gather
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.model.waits import waits
from rankscope.diagnose.infer.solve.judge import judge
from rankscope.diagnose.infer.verdict.contract import Suspect, Verdict
from rankscope.diagnose.infer.verdict.sentence import accusation_of
from rankscope.diagnose.stats.robust import nan_median
from rankscope.diagnose.text import clean, short
from rankscope.observer.window.folder import Window
from rankscope.observer.window.rows import CounterRow
from rankscope.probes.base.errors import BadData

LOOKS = 6  # windows over which suspects are counted
_STEPS = 200  # longest sparkline
_PART_OF = {"io": FILES, "sched": CPU, "sync": LOCKS}  # other kinds are work or waiting


@dataclass(slots=True)
class Course:
    """Steps and suspects of one job over its windows."""

    steps_s: deque[float] = field(default_factory=lambda: deque(maxlen=_STEPS))
    accused: deque[dict[tuple[object, ...], str]] = field(default_factory=lambda: deque(maxlen=LOOKS))

    def take(self, window: Window) -> JobNow:
        """Add a window of the job, judge it, and return the job's present state."""
        try:
            fleet = gather([window])
            verdict = judge(fleet)
        except BadData as error:
            return self._unknown(window, error)
        per_step = nan_median(fleet.steps.seconds, 0) if fleet.steps.count else np.empty(0)
        self.steps_s.extend(per_step[np.isfinite(per_step)].tolist())
        self.accused.append({_who(one): accusation_of(one, verdict.guessed, True) for one in verdict.suspects})
        remark = clean(verdict.notes[0].text, 200) if verdict.status == "unknown" and verdict.notes else ""
        return JobNow(
            title=short(verdict.title or verdict.job, 60),
            ranks=_ranks(fleet, verdict),
            steps_s=tuple(self.steps_s),
            status=verdict.status,
            suspects=self._suspects(),
            remark=remark,
        )

    def _unknown(self, window: Window, error: BadData) -> JobNow:
        """Return the state of a job whose window cannot be evaluated, with the error as remark."""
        self.accused.append({})
        return JobNow(
            title=short(window.manifest.jobs[0], 60),
            ranks=(),
            steps_s=tuple(self.steps_s),
            status="unknown",
            suspects=self._suspects(),
            remark=clean(str(error), 200),
        )

    def _suspects(self) -> tuple[SuspectNow, ...]:
        """Return the suspects of the last windows: the latest window's first, then the most frequent."""
        latest = self.accused[-1]
        words: dict[tuple[object, ...], str] = {}
        for found in self.accused:
            words |= found
        seen = {who: sum(who in found for found in self.accused) for who in words}
        order = sorted(words, key=lambda who: (who not in latest, -seen[who]))
        return tuple(SuspectNow(words[who], seen[who], len(self.accused), who in latest) for who in order)


@dataclass(slots=True)
class Scene:
    """The jobs of a host, window after window. `source`: description of the observer."""

    source: str
    courses: dict[str, Course] = field(default_factory=dict)
    latest: dict[str, tuple[Window, JobNow]] = field(default_factory=dict)

    def take(self, window: Window) -> Snapshot:
        """Add a window of one job and return a snapshot of all; a job without a window for twice its length is dropped."""
        job, about = window.manifest.jobs[0], window.manifest
        self.latest[job] = window, self.courses.setdefault(job, Course()).take(window)
        for other, (last, _) in list(self.latest.items()):
            if about.start - last.manifest.start > 2 * about.seconds:
                del self.latest[other], self.courses[other]
        rows = [row for each, _ in self.latest.values() for row in _counter_rows(each, each is window)]
        return Snapshot(
            at=about.start + about.seconds,
            host=short(about.host, 40),
            source=self.source,
            jobs=tuple(told for _, told in self.latest.values()),
            counters=counters_now(rows, about.seconds),
        )


def _who(suspect: Suspect) -> tuple[object, ...]:
    """Return a key by which suspects of different windows are the same."""
    function = suspect.function
    return (
        suspect.component,
        suspect.cause,
        suspect.ranks,
        suspect.instance,
        function and (function.name, function.file),
    )


def _ranks(fleet: Fleet, verdict: Verdict) -> tuple[RankNow, ...]:
    """Build the state of each rank in a judged window."""
    chosen = choose(fleet, verdict)
    heat = heat_of(fleet, verdict, chosen)
    step_s = nan_median(fleet.steps.seconds, 1) if fleet.steps.count else np.full(len(fleet.ranks), np.nan)
    parts = _parts(fleet)
    told = []
    for row in range(len(fleet.ranks)):
        number, state = int(fleet.ranks.number[row]), fleet.ranks.state[row]
        most, place = _most(heat, row)
        told.append(
            RankNow(
                number=number,
                guessed=number in fleet.ranks.guessed,
                step_s=float(step_s[row]) if np.isfinite(step_s[row]) else None,
                parts=parts[row],
                most=most,
                place=place,
                state="" if state == "running" else clean(state, 20),
                accused=bool(chosen.accused[row]),
            )
        )
    return tuple(told)


def _parts(fleet: Fleet) -> list[tuple[float, ...]]:
    """Return the shares of each rank's critical path in the order of PARTS; () if nothing was seen."""
    table = fleet.patterns
    part_of = np.array([_PART_OF.get(kind, OWN) for kind in table.kind.values], dtype=np.int64)
    training = table.thread.codes == table.thread.code("training")
    shares = np.zeros((len(fleet.ranks), len(PARTS)))
    if len(part_of):
        part = np.where(waits(table), OTHERS, part_of[table.kind.codes])[training]
        np.add.at(shares, (table.rank[training], part), table.share[training])
    whole = shares.sum(axis=1)
    return [
        tuple((shares[row] / max(whole[row], 1.0)).tolist()) if whole[row] > 0 else () for row in range(len(shares))
    ]


def _most(heat: Heat | None, row: int) -> tuple[str, str]:
    """Return what a rank works on most, with its share, and the location; '' and '' if unknown.

    A suspect's function comes first, else the largest besides waiting. `row`: the rank's row.
    """
    if heat is None or row >= len(heat.ranks):
        return "", ""
    share = heat.share[row]
    mine = [
        each for each, one in enumerate(heat.functions) if one.accused and share[each] > 0 and heat.ranks[row].accused
    ]
    work = mine or [each for each, one in enumerate(heat.functions) if not one.waits and share[each] > 0]
    if not work:
        return "", ""
    largest = max(work, key=lambda each: float(share[each]))
    one = heat.functions[largest]
    return f"{100 * share[largest]:.0f} % {one.name}", one.place


def _counter_rows(window: Window, host_too: bool) -> list[CounterRow]:
    """Return the counter rows of a window; the host's own only if `host_too`, as every job's window repeats them."""
    names = [each.name for each in fields_of(CounterRow)]
    rows = [CounterRow(**{name: row[name] for name in names}) for row in window.counters.select(names).to_pylist()]
    return [row for row in rows if host_too or row.scope != "host"]
