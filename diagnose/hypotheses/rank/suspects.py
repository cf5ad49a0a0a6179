"""From odd ranks to suspects: build the case of each, let the components charge, merge what is one and the same.

weight(charge) = explained seconds · support; the heaviest is the suspect. Another charge on the same rank becomes one as well if it is of
another component and explains 30 % of the excess, and takes its part of the rank's lost time; workload is only ever what is left.
Ranks of one host with the same cause in the same place, which suffer about equally, are one suspect.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.fleet.model import Fleet
from rankscope.diagnose.hypotheses.rank.case import CONVICTED, GUESS, Case, Charge
from rankscope.diagnose.hypotheses.rank.charges import charges
from rankscope.diagnose.hypotheses.rank.counter_evidence import weighed
from rankscope.diagnose.hypotheses.rank.process import Pause
from rankscope.diagnose.model.attribute import Located, Profiles, sample
from rankscope.diagnose.model.episodes import Episodes
from rankscope.diagnose.model.pattern_distance import distance_evidence
from rankscope.diagnose.model.replay import share_out
from rankscope.diagnose.model.scene import Scene
from rankscope.diagnose.model.slots import late_evidence
from rankscope.diagnose.model.waiting import least_waiter_share
from rankscope.diagnose.stats.robust import nan_median, trimmed_mean
from rankscope.diagnose.text import seconds
from rankscope.diagnose.verdict.contract import CAUSES, DEVICES, Evidence, Suspect
from rankscope.probes.arrays import Bools, Floats, Ints


def convicted(fleet: Fleet, scene: Scene, nearly: Bools, ordered: Bools, odd: Bools) -> Bools:
    """Which of the ranks that are nearly odd (`nearly`) a counter convicts of at least half of their excess; of those that were
    throttled (`ordered`) only the count of their quota does."""
    asked = nearly | ordered
    result = np.zeros(len(asked), dtype=bool)
    if not asked.any():
        return result
    profiles = Profiles(fleet)
    for row in np.flatnonzero(asked)[: limits.SUSPECTS_EXAMINED]:
        case = _case(fleet, scene, profiles, int(row), np.flatnonzero(odd | asked))
        first = next(iter(charges(case)), None)
        result[row] = (
            first is not None
            and first.component != "workload"
            and (nearly[row] or first.cause == "quota")
            and first.support >= CONVICTED
            and first.explained_s >= limits.HOLDS_LEAST * max(case.excess_s, float(scene.differences.excess_s[row]))
        )
    return result


def rank_suspects(fleet: Fleet, scene: Scene, rows: Ints, gained: float, notes: list[str]) -> list[Suspect]:
    """Suspects for the odd ranks (`rows`), which cost `gained` seconds per step together.

    A rank whose patterns do not show the excess that its steps show is not accused: a note says so.
    """
    if len(rows) == 0:
        return []
    lost = share_out(gained, scene.differences.excess_s[rows])
    if len(rows) > limits.SUSPECTS_EXAMINED:
        notes.append(
            f"{len(rows)} ranks are slower than their peers; the worst {limits.SUSPECTS_EXAMINED} were examined"
        )
        worst = np.argsort(-lost)[: limits.SUSPECTS_EXAMINED]
        rows, lost = rows[worst], lost[worst]
    profiles = Profiles(fleet)
    charged: list[tuple[int, float, Charge, float]] = []  # row, lost, charge, share of the excess
    for row, lost_s in zip(rows.tolist(), lost.tolist(), strict=True):
        case = _case(fleet, scene, profiles, row, rows)
        made = charges(case)
        # Patterns are means over the whole window, the scene may be its later part only.
        expected = float(scene.differences.excess_s[row]) * scene.own.shape[1] / max(fleet.steps.count, 1)
        if not made or made[0].explained_s < limits.CONFIRMED_LEAST * expected:
            notes.append(
                f"rank {int(fleet.ranks.number[row])} seems {seconds(float(scene.differences.excess_s[row]))} per step slower "
                "than its peers, but no function of it is: not accused"
            )
            continue
        if made[0].component == "workload" and made[0].support <= GUESS and len(case.peers) < 3:
            notes.append(
                f"rank {int(fleet.ranks.number[row])} is slower than its peers in every function: not accused, with so few peers "
                "only earlier windows (--baseline) could tell why"
            )
            continue
        whole = max(expected, made[0].explained_s, 1e-9)
        kept, total = made[:1], made[0].explained_s
        for charge in made[1:]:
            # Two charges that together explain more than there is are about the same time: the stronger has it.
            new_s = charge.explained_s - (made[0].computing_s if charge.component == "python" else 0.0)
            fits = total + charge.explained_s <= limits.CHARGES_TOGETHER * whole
            if fits and new_s >= limits.CHARGE_LEAST * whole and _is_another(made[0], charge):
                kept, total = (*kept, charge), total + charge.explained_s
        floor = float(scene.differences.floor_s[row])
        for position, charge in enumerate(kept):
            part = lost_s * charge.explained_s / max(total, whole if position else total, 1e-9)
            if position == 0 or part >= floor:
                others = [each for each in made if each is not charge]
                said = weighed(case, charge, others, scene.differences, whole)
                charged.append((row, part, said, min(charge.explained_s / whole, 1.0)))
    return _merged(fleet, scene, charged)


def episode_suspects(
    fleet: Fleet, scene: Scene, episodes: Iterable[Episodes], odd: Ints, notes: list[str]
) -> list[Suspect]:
    """Suspects for ranks that are slow now and then; one of which no function shows it is not accused."""
    found: list[Suspect] = []
    profiles: Profiles | None = None
    for each in episodes:
        profiles = profiles or Profiles(fleet)
        made = charges(_case(fleet, scene, profiles, each.row, np.append(odd, each.row)))
        number = int(fleet.ranks.number[each.row])
        if not made or made[0].component == "workload" or made[0].explained_s < 0.5 * each.lost_s:
            notes.append(f"rank {number} was slow in {each.count} steps, but no function of it shows it: not accused")
            continue
        charge = made[0]
        behaviour = (
            Evidence("steps", "steps in which it alone was slow", float(each.count), None, "steps"),
            Evidence("steps", "such steps of all other ranks", float(each.of_all - each.count), None, "steps"),
            Evidence("steps", "longest step, own time", each.longest_s, each.usual_s, "s"),
            *((Evidence("steps", "it is so in every", f"{each.period}th step", None, ""),) if each.period else ()),
        )
        found.append(
            Suspect(
                component=charge.component,
                cause=_known_cause(charge),
                host=fleet.ranks.host[each.row],
                instance=charge.instance,
                ranks=(number,),
                function=charge.function,
                lost_seconds_per_step=each.lost_s,
                lost_percent=100 * each.lost_s / (scene.step_s + each.lost_s),  # step_s leaves the longest steps out
                confidence=float(np.clip((1 - each.chance) * 0.9 * charge.support, 0.05, 0.95)),
                since=None,
                evidence=(*behaviour, *charge.evidence),
                action=charge.action,
            )
        )
    return found


def _is_another(first: Charge, second: Charge) -> bool:
    """Whether two charges are about different time: imbalance is only what nothing else explains."""
    return second.component not in (first.component, "workload")


def _innocent(scene: Scene, row: int, suspects: Ints) -> Ints:
    """The peers of a rank (rows) that are no suspects themselves; all of them where none is left."""
    peers = np.flatnonzero(scene.roles == scene.roles[row])
    peers = peers[peers != row]
    innocent: Ints = peers[~np.isin(peers, suspects)]
    return innocent if len(innocent) else peers


def _case(fleet: Fleet, scene: Scene, profiles: Profiles, row: int, suspects: Ints) -> Case:
    peers = _innocent(scene, row, suspects)
    sampled = sample(peers)
    steps = fleet.steps

    def excess(matrix: Floats) -> float:
        own, expected = matrix[row], nan_median(matrix[sampled], 0)
        return float(np.nan_to_num(trimmed_mean((own - expected)[None, :])[0]))

    functions = profiles.functions(row, peers)
    own = float(np.nan_to_num(np.nanmean(steps.own_s[row]))) if np.isfinite(steps.own_s[row]).any() else 0.0
    by_steps = excess(steps.own_s)
    by_patterns = sum(function.excess_s for function in functions)
    whole = by_patterns if by_patterns >= 0.5 * by_steps else max(by_steps, by_patterns)
    python: Located | None = profiles.locate(row, peers, ("python",), max(whole, 0.0) / own if own > 0 else 0.0)
    return Case(
        fleet=fleet,
        rank=row,
        peers=peers,
        profiles=profiles,
        steps=int(np.isfinite(steps.seconds[row]).sum()),
        own_s=own,
        excess_s=whole,
        sched_excess_s=excess(steps.sched_s),
        io_excess_s=excess(steps.io_s),
        sync_excess_s=excess(steps.sync_s),
        functions=functions,
        python=python,
    )


def _merged(fleet: Fleet, scene: Scene, charged: list[tuple[int, float, Charge, float]]) -> list[Suspect]:
    """One suspect for ranks of one host with the same cause in the same place, if they suffer about equally."""
    groups: list[list[tuple[int, float, Charge, float]]] = []
    for entry in sorted(charged, key=lambda each: -each[1]):
        row, lost_s, charge, _ = entry
        for group in groups:
            first_row, first_lost, first, _ = group[0]
            same = (first.component, first.cause, first.function) == (
                charge.component,
                charge.cause,
                charge.function,
            )
            if same and fleet.ranks.host[first_row] == fleet.ranks.host[row] and lost_s >= 0.4 * first_lost:
                group.append(entry)
                break
        else:
            groups.append([entry])
    accused: Ints = np.array([row for row, *_ in charged], dtype=np.int64)
    return [_suspect(fleet, scene, group, accused) for group in groups]


def _suspect(fleet: Fleet, scene: Scene, group: list[tuple[int, float, Charge, float]], accused: Ints) -> Suspect:
    row, _, charge, explained = group[0]
    lost_s = sum(entry[1] for entry in group)
    found = scene.differences
    z = float(found.z[row])
    # Doubt of the difference itself, of its attribution, and of its reason.
    confidence = z * z / (z * z + 5) * (0.4 + 0.6 * min(explained / 0.8, 1.0)) * charge.support
    others = sample(_innocent(scene, row, accused))
    wait = trimmed_mean(np.vstack([scene.wait[row], nan_median(scene.wait[others], 0)]))
    behaviour = (
        Evidence("steps", "own time", float(found.own_s[row]), float(found.peers_own_s[row]), "s/step",
                 int(found.peer_count[row])),
        Evidence("steps", "time in collectives (the culprit waits least)", float(wait[0]), float(wait[1]), "s/step",
                 len(others)),
        Evidence("steps", "waits least of all in", 100 * float(least_waiter_share(scene.wait)[row]), None, "% of steps"),
    )  # fmt: skip
    told = (*distance_evidence(fleet, row, others), *late_evidence(scene.slots, scene.roles, row))
    return Suspect(
        component=charge.component,
        cause=_known_cause(charge),
        host=fleet.ranks.host[row],
        instance=_instances(group),
        ranks=tuple(sorted(int(fleet.ranks.number[entry[0]]) for entry in group)),
        function=charge.function,
        lost_seconds_per_step=lost_s,
        lost_percent=100 * lost_s / scene.step_s,
        confidence=float(np.clip(confidence, 0.05, 0.99)),
        since=_since(fleet, scene, row),
        evidence=(*charge.evidence, *behaviour, *told),
        action=charge.action,
    )


def _instances(group: list[tuple[int, float, Charge, float]]) -> str:
    """'gpu6, gpu4': the devices of all ranks of a suspect, that of the first charge first."""
    names = list(dict.fromkeys(entry[2].instance for entry in group if entry[2].instance))
    return ", ".join(names[:8]) if group[0][2].component in DEVICES else group[0][2].instance


def _known_cause(charge: Charge) -> str:
    if charge.cause not in CAUSES.get(charge.component, ()):
        raise AssertionError(f"{charge.component}/{charge.cause} is not in the verdict contract")
    return charge.cause


def _since(fleet: Fleet, scene: Scene, row: int) -> float | None:
    """When the rank's own excess began, if it began at the onset."""
    onset = scene.onset
    if onset is None or onset.after_s <= onset.before_s or not np.isfinite(fleet.start):
        return None
    peers = sample(np.flatnonzero(scene.roles == scene.roles[row]))
    gap = fleet.steps.own_s[row] - nan_median(fleet.steps.own_s[peers[peers != row]], 0)
    before, after = nan_median(gap[: onset.column], 0), nan_median(gap[onset.column :], 0)
    if not after - before >= 0.5 * float(scene.differences.excess_s[row]):
        return None
    return fleet.start + float(fleet.steps.start_s[onset.column])


def pause_suspect(fleet: Fleet, scene: Scene, pause: Pause) -> Suspect:
    """A rank that was stopped for a while: one long step, which no robust mean over steps shows."""
    return Suspect(
        component="process",
        cause="stopped",
        host=fleet.ranks.host[pause.row],
        instance=f"pid {int(fleet.ranks.pid[pause.row])}",
        ranks=(int(fleet.ranks.number[pause.row]),),
        function=None,
        lost_seconds_per_step=pause.lost_s,
        lost_percent=100 * pause.lost_s / (scene.step_s + pause.lost_s),
        confidence=0.95,
        since=None,
        evidence=pause.evidence,
        action=f"It runs again. Find who sent SIGSTOP to pid {int(fleet.ranks.pid[pause.row])}.",
    )
