"""What was so in the baseline is by design: an imbalance, and nobody's fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rankscope.diagnose import limits
from rankscope.diagnose.fleet.model import Fleet
from rankscope.diagnose.hypotheses.hypothesis import NO_COUNTER
from rankscope.diagnose.model.scene import Scene
from rankscope.diagnose.past.baseline import Reference
from rankscope.diagnose.text import rank_list
from rankscope.diagnose.verdict.contract import AGAINST, Evidence, Suspect
from rankscope.diagnose.verdict.note import Note, NoteCode


def by_design(
    suspects: Sequence[Suspect], fleet: Fleet, scene: Scene, reference: Reference | None
) -> tuple[list[Suspect], list[Note]]:
    """The suspects, as an imbalance those whose excess was there in the baseline; of a part of it that is said against them."""
    if reference is None:
        return list(suspects), []
    now = dict(zip(fleet.ranks.number.tolist(), scene.differences.excess_s.tolist(), strict=True))
    designed: set[int] = set()
    result = []
    for suspect in suspects:
        earlier = [reference.excess.get(rank, 0.0) for rank in suspect.ranks]
        all_now = [now[rank] for rank in suspect.ranks]
        if all(before >= limits.MOST * excess for before, excess in zip(earlier, all_now, strict=True)):
            designed.update(suspect.ranks)
            result.append(_imbalance(suspect))
        elif any(earlier) and sum(earlier) >= limits.PART * sum(all_now):
            there = Evidence(f"{AGAINST}baseline", "excess that was there before", sum(earlier), 0.0, "s/step")
            result.append(replace(suspect, evidence=(*suspect.evidence, there)))
        else:
            result.append(suspect)
    text = f"{rank_list(tuple(sorted(designed)))}: slower than the peers, but so already in the baseline"
    return result, [Note(NoteCode.DESIGNED, text)] if designed else []


def _imbalance(suspect: Suspect) -> Suspect:
    return replace(
        suspect,
        component="workload",
        cause="data-imbalance",
        confidence=min(suspect.confidence, NO_COUNTER),
        action="It was so in the baseline too: balance the work of the ranks, or leave it.",
    )
