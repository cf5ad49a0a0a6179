"""Convert admitted hypotheses on ranks to suspects, and merge those that are the same.

weight(hypothesis) = lost seconds · support; the largest is the suspect. Another hypothesis on the
                     same rank becomes a suspect as well if it is of another component and explains
                     30 % of the excess; it takes its part of the rank's lost time. workload is only
                     what remains. Ranks of one host with the same cause in the same place and about
                     equal losses are one suspect.
score(suspect)     = z² / (z² + CLEAR) · (0.4 + 0.6 · min(1, explained / 0.8)) · support, explained:
                     its part of the excess, support with what speaks against it
                     (contrary_evidence.py); ../../solve/calibration.py maps it to a confidence
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rankscope.diagnose import budgets, limits
from rankscope.diagnose.infer.causes.hypothesis import Hypothesis, instances_of, suspect_from
from rankscope.diagnose.infer.causes.rank.case import Case, innocent_peers
from rankscope.diagnose.infer.causes.rank.contrary_evidence import weighed
from rankscope.diagnose.infer.causes.rank.device import beside
from rankscope.diagnose.infer.causes.rank.memory import SEE_ALLOCATOR
from rankscope.diagnose.infer.causes.rank.selection import Admitted, Selection, Unexplained, cannot_be_told, excuses
from rankscope.diagnose.infer.causes.rows import CLEAR
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.model.evidence.pattern_distance import distance_evidence
from rankscope.diagnose.infer.model.evidence.programs import takers
from rankscope.diagnose.infer.model.functions import sample
from rankscope.diagnose.infer.model.scene import Scene
from rankscope.diagnose.infer.model.slots import late_evidence
from rankscope.diagnose.infer.model.waiting import least_waiter_share
from rankscope.diagnose.infer.past.compared import Compared
from rankscope.diagnose.infer.verdict.contract import DETAIL, DEVICES, Evidence, Instance, Suspect
from rankscope.diagnose.infer.verdict.note import Note, NoteCode
from rankscope.diagnose.stats.robust import nan_median, trimmed_mean
from rankscope.diagnose.text import rank_list, seconds
from rankscope.probes.base.arrays import Ints


@dataclass(frozen=True, slots=True)
class _Charged:
    """A selected hypothesis on one rank (row): its part of the lost time, and of the rank's excess (`explained`)."""

    row: int
    lost_s: float
    found: Hypothesis
    explained: float  # 0..1
    score: float


def merged_suspects(
    among: Compared, selection: Selection, standing: Sequence[tuple[Admitted, float]], step_s: float
) -> list[Suspect]:
    """Convert the selected hypotheses to suspects, merging those that are the same on ranks of one host.

    `standing`: each with its lost seconds per step, of a step of `step_s`.
    """
    fleet, scene = among.fleet, replace(among.scene, differences=selection.differences)
    charged = [
        _Charged(
            each.row,
            lost_s,
            _weighed(each, selection),
            min(each.found.lost_s / max(each.whole_s, 1e-12), 1.0),
            each.score,
        )
        for each, lost_s in standing
    ]
    return _merged(fleet, scene, charged, step_s)


def why_not(among: Compared, selection: Selection) -> list[Note]:
    """Return notes on ranks that are slow but unexplained, and on those that were not examined."""
    fleet = among.fleet
    notes = [_not_accused(fleet, each) for each in selection.unexplained]
    if len(selection.more):
        others = rank_list(tuple(sorted(fleet.ranks.number[selection.more].tolist())))
        text = f"the {budgets.EXAMINED} slowest were examined; {len(selection.more)} more are slower than their peers: {others}"
        notes.append(Note(NoteCode.WORST_ONLY, text))
    return notes


def _weighed(each: Admitted, selection: Selection) -> Hypothesis:
    """Return an admitted hypothesis with the evidence against it, its support lowered accordingly."""
    return weighed(each.case, each.found, each.others, selection.differences, each.whole_s)


def _busy_host(case: Case, excess_s: float) -> Note | None:
    """Return a note if other processes took at least `excess_s` per step of the rank's CPUs; else None.

    The rank is slower by `excess_s` seconds per step in every function.
    """
    taken = takers(case.fleet, (case.rank,))
    total = sum(each for _, each in taken) / max(case.steps, 1)
    if not taken or total < excess_s:
        return None
    text = (
        f"rank {int(case.fleet.ranks.number[case.rank])} is {seconds(excess_s)} per step slower than its peers in every function; "
        f"others took {seconds(total)} per step of its CPUs meanwhile, {taken[0][0]} most"
    )
    return Note(NoteCode.HOST_BUSY, text)


def _given_pages(case: Case) -> str:
    """Return words on the rank's minor page faults, where they are far more than the peers'; else ''.

    An allocator that returns memory and takes it again slows everything. The time per page, from a
    microsecond to 200 for a huge one, is not counted.
    """
    faults = beside(case, "memory.minor_faults")
    if (
        faults is None
        or not faults.known
        or faults.value < limits.OTHER_KIND * max(faults.expected, limits.EVENTS_HZ * case.fleet.seconds)
    ):
        return ""
    return f"; the kernel gave it {faults.value:.0f} pages meanwhile, and its peers {faults.expected:.0f} each: {SEE_ALLOCATOR}"


def _by_pages(each: Unexplained, told: Evidence, who: str) -> str:
    """Return words on small pages that make a rank slower; `told`: the evidence of its pages and its peers'.

    `who`: the rank, in words.
    """
    steps = max(each.case.steps, 1)
    mine, peers = (float(pages or 0.0) / steps for pages in (told.value, told.expected))
    return (
        f"{who} is {seconds(each.excess_s)} per step slower than its peers, as the kernel gives its process {mine:.0f} pages in each "
        f"step, and theirs {peers:.0f}. That is nobody's fault, but {SEE_ALLOCATOR}"
    )


def _behind_threads(each: Unexplained) -> str:
    """Return words on queueing behind threads of the own process, where it is half of the excess; else ''."""
    threads = each.case.threads
    if threads.behind_s < limits.HOLDS_LEAST * each.excess_s:
        return ""
    which = f", {threads.native} most" if threads.native else ""
    return f"; for {seconds(threads.behind_s)} of it threads of its own process have its CPUs{which}"


def _not_accused(fleet: Fleet, each: Unexplained) -> Note:
    """Return the note on why a clearly slower rank is no suspect."""
    rank, made = int(fleet.ranks.number[each.case.rank]), each.made
    who = f"rank {rank}"
    for charge in made:
        if charge.component == "memory" and excuses(charge, each.case):
            return Note(NoteCode.PAGES_GIVEN, _by_pages(each, charge.evidence[0], who), rank)
    if made and cannot_be_told(made[0], each.case):
        if (busy := _busy_host(each.case, made[0].lost_s)) is not None:
            return busy
        text = (
            f"{who} is {seconds(each.excess_s)} per step slower than its peers in every function: not accused, with so few peers "
            f"only earlier windows (--baseline) could tell why{_behind_threads(each)}{_given_pages(each.case)}"
        )
        return Note(NoteCode.FEW_PEERS, text, rank)
    text = f"{who} seems {seconds(each.excess_s)} per step slower than its peers, but no function of its own is slower: not accused"
    return Note(NoteCode.NO_FUNCTION, text, rank)


def _merged(fleet: Fleet, scene: Scene, admitted: Sequence[_Charged], step_s: float) -> list[Suspect]:
    """Merge hypotheses on ranks of one host with the same cause and place and about equal loss; return the suspects."""
    groups: list[list[_Charged]] = []
    for each in sorted(admitted, key=lambda one: -one.lost_s):
        for group in groups:
            if _is_same(group[0].found, each.found) and each.lost_s >= limits.PART * group[0].lost_s:
                group.append(each)
                break
        else:
            groups.append([each])
    accused: Ints = np.array([each.row for each in admitted], dtype=np.int64)
    least = least_waiter_share(scene.wait)
    return [_suspect(fleet, scene, group, accused, float(least[group[0].row]), step_s) for group in groups]


def _is_same(one: Hypothesis, other: Hypothesis) -> bool:
    """Return whether component, cause, function and host are the same."""
    return (one.component, one.cause, one.function, one.host) == (
        other.component,
        other.cause,
        other.function,
        other.host,
    )


def _suspect(
    fleet: Fleet, scene: Scene, group: Sequence[_Charged], accused: Ints, least: float, step_s: float
) -> Suspect:
    """Merge hypotheses on ranks of one host, the largest first, into a suspect with score, begin and evidence.

    `accused`: rows of all suspects; `least`: share of steps in which the first rank waits least of all.
    """
    first = group[0]
    z = float(scene.differences.z[first.row])
    # Certainty of the difference itself, of its attribution, and of its cause.
    score = z * z / (z * z + CLEAR) * (0.4 + 0.6 * min(first.explained / 0.8, 1.0)) * first.found.support
    merged = replace(
        first.found,
        rows=tuple(each.row for each in group),
        lost_s=sum(each.lost_s for each in group),
        since=_since(fleet, scene, first.row),
        evidence=(*first.found.evidence, *_hidden(group), *_behaviour(fleet, scene, first.row, accused, least)),
    )
    return suspect_from(fleet, merged, max(step_s, merged.lost_s), score, _instances(group))


def _hidden(group: Sequence[_Charged]) -> tuple[Evidence, ...]:
    """Return evidence of time not saved by mending these ranks alone, as others are as late; () below a quarter."""
    took, lost = group[0].found.lost_s, group[0].lost_s
    if not took - lost >= limits.LARGE_SHARE * took:
        return ()
    told = f"{seconds(took - lost)} of {seconds(took)}"
    return (
        Evidence(
            "steps", "not saved by mending this alone, as others are as late in these steps", told, None, "s/step"
        ),
    )


def _behaviour(fleet: Fleet, scene: Scene, row: int, accused: Ints, least: float) -> tuple[Evidence, ...]:
    """Return the evidence of the rank's steps, compared with peers that are not suspects.

    `least`: the share of steps in which it waited least of all; 0 in a large fleet: not shown.
    """
    found = scene.differences
    others = sample(innocent_peers(scene, row, accused))
    judged = scene.own.shape[1]
    part = f" in the last {judged} of {fleet.steps.count} steps" if judged < fleet.steps.count else ""
    wait = trimmed_mean(np.vstack([scene.wait[row], nan_median(scene.wait[others], 0)]))
    return (
        Evidence("steps", f"own time{part}", float(found.own_s[row]), float(found.peers_own_s[row]), "s/step",
                 int(found.peer_count[row])),
        Evidence("steps", "time in collectives (the culprit waits least)", float(wait[0]), float(wait[1]), "s/step",
                 len(others)),
        *([Evidence("steps", "waits least of all in", 100 * least, None, "% of steps", role=DETAIL)] if round(100 * least) else []),
        *distance_evidence(fleet, row, others),
        *late_evidence(scene.slots, scene.roles, row),
    )  # fmt: skip


def _instances(group: Sequence[_Charged]) -> tuple[Instance, ...]:
    """Return the devices of all ranks of a suspect, the first one's first.

    For a component that is no device, only the first one's instance.
    """
    told = group if group[0].found.component in DEVICES else group[:1]
    return tuple(dict.fromkeys(one for each in told for one in instances_of(each.found)))


def _since(fleet: Fleet, scene: Scene, row: int) -> float | None:
    """Return the Unix time at which the rank's own excess began, if it began at the onset; else None."""
    onset = scene.onset
    if onset is None or onset.after_s <= onset.before_s or not np.isfinite(fleet.start):
        return None
    peers = sample(np.flatnonzero(scene.roles == scene.roles[row]))
    gap = fleet.steps.own_s[row] - nan_median(fleet.steps.own_s[peers[peers != row]], 0)
    before, after = nan_median(gap[: onset.column], 0), nan_median(gap[onset.column :], 0)
    if not after - before >= 0.5 * float(scene.differences.excess_s[row]):
        return None
    return fleet.start + float(fleet.steps.start_s[onset.column])
