"""What is said of a job of which something was not seen: recorded windows judged without each source in turn.

No suspect may rest on what was missing; without an essential source the verdict is unknown, and its first line says what was missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from corpuskit.without import without
from rankscope.diagnose.infer.causes.causes import rests_on
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.contract import Suspect, Verdict
from rankscope.diagnose.infer.verdict.note import LONGER_TELLS, NoteCode
from rankscope.observer.sources import ESSENTIAL, Source
from rankscope.observer.window.folder import Window

Seen = tuple[str, Sequence[Window], Sequence[Window]]  # name, windows, earlier windows


@dataclass(slots=True)
class Counted:
    """Verdicts without one source. `anew`: those that name a rank which the whole window does not."""

    statuses: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    anew: list[str] = field(default_factory=list)

    @property
    def windows(self) -> int:
        return self.statuses.total()

    def add(self, key: str, source: Source, verdict: Verdict) -> None:
        """One more."""
        self.statuses[verdict.status] += 1
        self.wrong += (f"{key}, no {source.value}: {what}" for what in wrong_in(source, verdict))


def judge_without(windows: Iterable[Window], baseline: Sequence[Window], source: Source) -> Verdict:
    """The verdict on these windows without one source."""
    return diagnose([without(window, source) for window in windows], baseline)


def judged_without(cases: Iterable[Seen], sources: Sequence[Source] = tuple(Source)) -> dict[Source, Counted]:
    """Each case judged once without each source."""
    found = {source: Counted() for source in sources}
    for key, windows, baseline in cases:
        whole = _named(diagnose(windows, baseline).suspects)
        for source, counted in found.items():
            verdict = judge_without(windows, baseline, source)
            counted.add(key, source, verdict)
            if more := _named(verdict.suspects) - whole:
                counted.anew.append(f"{key}, no {source.value}: ranks {sorted(more)} of {_said(verdict)}")
    return found


def wrong_in(source: Source, verdict: Verdict) -> Iterator[str]:
    """What must not be said without this source."""
    first = verdict.notes[0].code if verdict.notes else None
    if source in ESSENTIAL and (verdict.status != "unknown" or first is not NoteCode.UNSEEN):
        yield f"not unknown for what was missing, but {_said(verdict)}"
    if source in ESSENTIAL and first in LONGER_TELLS:
        yield f"a longer window is asked for: {_said(verdict)}"
    for one in verdict.suspects:
        if source in rests_on(one.component, one.cause, one.scope):
            yield f"{one.component}/{one.cause} rests on it: {_said(verdict)}"


def _named(suspects: Iterable[Suspect]) -> set[int]:
    return {rank for one in suspects if one.scope == "rank" for rank in one.ranks}


def _said(verdict: Verdict) -> str:
    who = "; ".join(f"{one.component}/{one.cause} {one.ranks}" for one in verdict.suspects[:2])
    return f"{verdict.status} {who or (verdict.notes[0].text[:120] if verdict.notes else '')}"


def table(found: dict[Source, Counted]) -> Iterator[str]:
    """One line for each source."""
    statuses = ("healthy", "inefficient", "fault", "imbalance", "hang", "unknown")
    yield (
        f"{'without':14}{'windows':>9}" + "".join(f"{one:>12}" for one in statuses) + f"{'wrong':>8}{'named anew':>12}"
    )
    for source, counted in found.items():
        essential = "*" if source in ESSENTIAL else ""
        yield (
            f"{source.value + essential:14}{counted.windows:9}"
            + "".join(f"{counted.statuses[one]:12}" for one in statuses)
            + f"{len(counted.wrong):8}{len(counted.anew):12}"
        )
    yield "* essential: without it nothing is judged"
