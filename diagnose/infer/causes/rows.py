"""Rows of the table of hypotheses on ranks, links, roles, hosts or the whole job, and their joint selection.

taken(r,s) = seconds that the mechanism took from the own time of rank r in step s, and from every
             step, whichever rank works
score      = -ln P(t >= z) + ln(s / (1 - s)) - ln N, in nats: z how clear the loss is, s the
             support of the witness, N the number of such targets examined; for a rank's own
             excess the score of rank/selection.py
gain(S)    = how much shorter a step is without what the rows of the set S took
             (model/replay.py; model/waiting.py where roles work in turn; model/slots.py where
             single collectives are known and ranks have an excess)

1. Admit rows whose score is at least `limits.SCORE_LEAST`.
2. While some row gains less than its effect floor beyond the others, drop the one that gains least:
   the others explain its loss. Two hosts that are slowed alike gain nothing alone and the whole
   step together.
3. Where one mechanism has rows in two scopes, keep the narrower: a cause common to all does not
   explain one rank that has more of it.
4. Divide the gain of the whole set, with each row's price, by what each gains beyond the others.

In jobs of 16 ranks or more another rank stalls in each step, so that no step is shorter without a
rank that is slow in all of them (`lasting`): such a row is tested by what it takes itself and no
other row explains.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist

import numpy as np

from rankscope.diagnose import budgets, limits
from rankscope.diagnose.infer.causes.hypothesis import SCORE_MOST, Hypothesis, log_odds, suspect_from, with_gain
from rankscope.diagnose.infer.causes.rank.selection import Admitted
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.model import slots
from rankscope.diagnose.infer.model.replay import share_out, shrink, unmet_s
from rankscope.diagnose.infer.model.scene import Scene, mean_step_s
from rankscope.diagnose.infer.model.waiting import gain_in_turn
from rankscope.diagnose.infer.verdict.contract import Suspect
from rankscope.diagnose.infer.verdict.function import Function
from rankscope.diagnose.stats.robust import trimmed, trimmed_mean
from rankscope.diagnose.stats.student import chance, combined_freedom, nats
from rankscope.probes.base.arrays import Floats, Ints

CLEAR = limits.SCORE_LEAST / 2  # z² at which the certainty is one half


@dataclass(frozen=True, slots=True, eq=False)
class Taken:
    """Seconds that a mechanism took: `step_s` from every step, `own_s` from own times of `ranks`.

    `ranks`: rows of the fleet; `own_s`: these ranks x steps.
    """

    step_s: float = 0.0
    ranks: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    own_s: Floats = field(default_factory=lambda: np.empty((0, 0)))

    @property
    def most_s(self) -> float:
        """Mean seconds per step taken from the rank that lost most, plus those taken from every step (`step_s`)."""
        return self.step_s + (float(np.nan_to_num(self.own_s).mean(axis=1).max()) if len(self.ranks) else 0.0)


@dataclass(frozen=True, slots=True)
class Clear:
    """How clear a loss is: `z` standard errors from zero, with `freedom` degrees of freedom.

    `looked_at`: number of such targets that were examined.
    """

    z: float
    freedom: float = np.inf
    looked_at: int = 1

    def score(self, support: float) -> float:
        """Score of admission with a witness of this support, in nats."""
        behaviour = float(nats(chance(np.array([self.z]), np.array([self.freedom])))[0])
        return behaviour + log_odds(support) - float(np.log(self.looked_at))


@dataclass(frozen=True, slots=True)
class Floor:
    """Share of the step that rows must gain together among which one loss was divided.

    `part`: this row's share of the loss.
    """

    share: float = limits.EFFECT_SHARE
    part: float = 1.0


@dataclass(frozen=True, slots=True)
class OfRank:
    """An admitted hypothesis on one rank that is slower than its peers in all steps.

    `lasting`: in nearly every step of a job of many ranks. `before`: in the baseline too.
    """

    why: Admitted
    lasting: bool = False
    before: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A hypothesis, the seconds that it took, and how clear they are.

    `found`: component, cause, scope, ranks, witness; its lost time is set only when it is selected.
    `price`: replaces `taken` in the reported loss: a repaired rank is still as uneven as its peers,
        and other ranks still queue behind it as long as behind one another.
    `with_it`: what is taken with seconds that accompany it but that no counter attributes to it:
        part of the price and of the effect test, but no reason for admission.
    `rare`: it occurred in few steps only, which are no part of the usual step.
    `rank`: set where it is about the excess of one rank over its peers (causes/rank/odd_ranks.py).
    """

    found: Hypothesis
    taken: Taken
    clear: Clear
    floor: Floor = field(default_factory=Floor)
    price: Taken | None = None
    with_it: Taken | None = None
    rare: bool = False
    rank: OfRank | None = None

    @property
    def score(self) -> float:
        """The score of admission, in nats."""
        return self.clear.score(self.found.support) if self.rank is None else self.rank.why.score

    @property
    def is_excess(self) -> bool:
        """Whether it removes a rank's excess over its peers, or a part of it, from own times."""
        return self.rank is not None and len(self.taken.ranks) > 0

    @property
    def lasting(self) -> bool:
        """Whether its rank is slow in nearly every step of a job of many ranks."""
        return self.rank is not None and self.rank.lasting

    @property
    def before(self) -> bool:
        """Whether its rank was as slow in the baseline."""
        return self.rank is not None and self.rank.before

    @property
    def priced(self) -> Row:
        """A copy whose `taken` is its `price`, to compute the reported loss; the row itself without a price."""
        return self if self.price is None else replace(self, taken=self.price)

    @property
    def of_itself(self) -> Row:
        """A copy that removes only its first rank's time, not other ranks'; the row itself if it has `with_it`."""
        taken = self.taken
        if self.with_it is not None or len(taken.ranks) < 2:
            return self
        return replace(self, taken=replace(taken, ranks=taken.ranks[:1], own_s=taken.own_s[:1]))

    def is_wider(self, other: Row) -> bool:
        """Whether it has the mechanism of `other` in another scope, for more ranks, some of them the same.

        False if it removes no rank's own time.
        """
        mine, theirs = set(self.found.rows), set(other.found.rows)
        alike = _mechanism(self.found) == _mechanism(other.found) and self.found.scope != other.found.scope
        return alike and len(self.taken.ranks) > 0 and len(mine) > len(theirs) and not mine.isdisjoint(theirs)

    @property
    def sure(self) -> float:
        """z² / (z² + CLEAR) · support, in 0..1: a factor of the confidence."""
        return self.clear.z**2 / (self.clear.z**2 + CLEAR) * min(self.found.support, SCORE_MOST)


def of_ranks(ranks: Sequence[int] | Ints, own_s: Floats) -> Taken:
    """Build a Taken of seconds `own_s` (these ranks x steps), to remove from own times of `ranks` (fleet rows)."""
    return Taken(0.0, np.asarray(ranks, dtype=np.int64), own_s)


def ranks_of(rows: Iterable[Row]) -> Ints:
    """Return the ranks (rows of the fleet) that these rows are about, sorted."""
    return np.array(sorted({rank for row in rows for rank in row.found.rows}), dtype=np.int64)


def _mechanism(found: Hypothesis) -> tuple[str, str, Function | None]:
    """Return (component, cause, function): rows that are equal in these are about one mechanism."""
    return found.component, found.cause, found.function


def clearness(per_step: Floats, step_s: float) -> Clear:
    """Clearness of one value per step: z = trimmed mean / √(error² + scale floor²).

    `per_step`: seconds per step; `step_s`: step length, of which `limits.SCALE_FLOOR` is the spread
        of healthy steps.
    """
    kept = trimmed(per_step[None, :])
    mean, error = kept.mean(), kept.error()
    known = np.array([limits.SCALE_FLOOR * step_s])
    freedom = combined_freedom(known, error, kept.freedom())
    return Clear(float(np.nan_to_num(mean / np.hypot(known, error))[0]), float(freedom[0]))


def distance(probability: float) -> float:
    """z of the standard normal distribution that is exceeded with this probability."""
    return -NormalDist().inv_cdf(max(probability, 1e-300))


def standing(scene: Scene, rows: Iterable[Row]) -> list[Row]:
    """Select rows that pass score and effect floor; return them with lost time, largest first."""
    chosen = sorted((row for row in rows if row.score >= limits.SCORE_LEAST), key=_largest_first)
    del chosen[2 * budgets.EXAMINED :]  # at most EXAMINED ranks, and as many other rows
    replay = _Replay(scene, chosen)
    while chosen:
        together = replay.gain_s(chosen)
        others = [chosen[:i] + chosen[i + 1 :] for i in range(len(chosen))]
        beside = np.array([together - replay.gain_s(each) for each in others])
        more = replay.with_more_s(chosen, beside, together)
        # Where several ranks have the same mechanism, each by itself may have caused what
        # accompanies it.
        doubtful = np.array([row.with_it is not None and _is_uneven(row, chosen) for row in chosen])
        # A preempted rank cannot delay others for longer than it was preempted itself.
        driven_s = [0.0 if row.with_it is None else replay.own_s(row, ()) for row in chosen]
        gained_s = beside + np.where(doubtful, 0.0, np.fmin(more, driven_s))
        over = np.array(
            [
                (max(replay.own_s(row, rest), gained) if row.lasting else gained)
                - row.floor.part * max(row.floor.share * scene.step_s, scene.least_s)
                for row, rest, gained in zip(chosen, others, gained_s.tolist(), strict=True)
            ]
        )
        least = int(np.argmin(over))
        if over[least] >= 0:
            uneven = [row for row in chosen if _is_uneven(row, chosen)]
            if uneven:
                chosen.remove(min(uneven, key=lambda row: row.taken.most_s))
                continue
            priced = [row.priced for row in chosen]
            # Report at least the effect floor that admitted the row.
            least_s = max(limits.EFFECT_SHARE * scene.step_s, scene.least_s)
            together = max(replay.gain_s(priced, told=True), min(together, least_s))
            lost = share_out(together, beside) + replay.with_more_s(priced, beside, together)
            found = [
                replace(row, found=replace(row.found, lost_s=each))
                for row, each in zip(chosen, lost.tolist(), strict=True)
            ]
            return sorted(found, key=lambda row: -row.found.lost_s)
        del chosen[least]
    return []


def _largest_first(row: Row) -> tuple[float, str, str, str, tuple[int, ...], str]:
    """Sort key: by seconds taken; equal ones by name, so that no order of proposing matters."""
    found = row.found
    return -row.taken.most_s, found.component, found.cause, found.scope, found.rows, found.instance


def of_one_device(rows: Sequence[Row]) -> list[Row]:
    """Merge each link's row into the row about a rank that has the same device; return all rows then.

    Their lost times are added, their evidence is united: copies over a narrow PCIe link delay their
    rank, and prolong the transfer of all.
    """
    late = {(row.found.component, row.found.instance): row for row in reversed(rows) if row.rank and row.found.instance}
    links = [row for row in rows if row.rank is None and (row.found.component, row.found.instance) in late]
    for link in links:
        row = late[link.found.component, link.found.instance]
        more = tuple(each for each in link.found.evidence if each not in row.found.evidence)
        lost_s = row.found.lost_s + link.found.lost_s
        one = replace(row, found=replace(row.found, lost_s=lost_s, evidence=(*row.found.evidence, *more)))
        rows = [one if each is row else each for each in rows if each is not link]
        late[link.found.component, link.found.instance] = one
    return list(rows)


def _is_uneven(row: Row, others: Iterable[Row]) -> bool:
    """Return whether one of `others` has the row's mechanism in another scope, for fewer ranks, some the same.

    As Row.is_wider compares them; the narrower one then need not be a subset.
    """
    return any(row.is_wider(other) for other in others)


def gain_s(scene: Scene, rows: Sequence[Row], told: bool = False) -> float:
    """Seconds per step by which the job is shorter without what these rows took together.

    `told`: as the mean over all steps, rare long ones too; else a trimmed mean.
    """
    return _Replay(scene, rows).gain_s(rows, told)


class _Replay:
    """Recompute the step length without what some of these rows removed.

    Of ranks that no row touches only the longest of each role is replayed, unless ranks are stages
    of pipelines.
    """

    def __init__(self, scene: Scene, rows: Iterable[Row]) -> None:
        rows = list(rows)
        self._scene = scene
        self._place = np.arange(len(scene.own))
        self._own, self._roles = scene.own, scene.roles
        self._seconds = _Seconds(rows)
        self._slots: slots.Regained | None = None
        self._transfer_s = scene.step_s - float(trimmed_mean(scene.busy_s[None, :])[0])
        if scene.slots is not None and scene.pipelines is None:
            asked = np.unique([row.found.rows[0] for row in rows if row.is_excess]).astype(np.int64)
            self._slots = slots.Regained(scene.slots, scene.roles, asked, scene.queue_s)
        touched = np.zeros(len(scene.own), dtype=bool)
        for taken in (each for row in rows for each in (row.taken, row.price, row.with_it) if each is not None):
            touched[taken.ranks] = True
        if scene.pipelines is None:
            self._place = np.cumsum(touched) - 1
            others = [(code, ~touched & (scene.roles == code)) for code in np.unique(scene.roles)]
            rest = [code for code, ranks in others if ranks.any()]
            longest = [
                np.fmax.reduce(scene.own, axis=0, where=ranks[:, None], initial=np.nan)
                for _, ranks in others
                if ranks.any()
            ]
            self._own = np.vstack([scene.own[touched], *longest])
            self._roles = np.concatenate([scene.roles[touched], np.array(rest, dtype=np.int64)])

    def gain_s(self, rows: Sequence[Row], told: bool = False) -> float:
        """Seconds per step by which the job is shorter without what these rows took together.

        `told`: as the mean over all steps, to be reported.
        """
        shorter, ranks = self._shorter(rows, told), _repaired(rows)
        if len(ranks) and self._scene.pipelines is None:
            shorter += self._hidden_s(rows, ranks, shorter, told)
        return shorter + sum(row.taken.step_s for row in rows)

    def _hidden_s(self, rows: Sequence[Row], ranks: Ints, shorter: float, told: bool) -> float:
        """Return the seconds per step that others wait for these ranks within a step, which sums over it do not show.

        `shorter`: the gain that the sums show for all rows; `told`: as the mean over all steps.
        """
        hidden_s, left_s = 0.0, self._transfer_s - sum(row.taken.step_s for row in rows)
        of_ranks = [row.of_itself for row in rows if row.is_excess]
        if self._slots is not None and (told or self._slots.apart):
            alone = shorter if [*map(id, of_ranks)] == [*map(id, rows)] else self._shorter(of_ranks, told)
            hidden_s = min(max(self._slots.by(ranks) - alone, 0.0), self._slots.hidden_s(ranks, left_s))
        scene = self._scene
        if told and scene.collectives > 1 and not scene.in_turn and (scene.slots is None or not scene.slots.whole):
            late_s = _removed(self._own, of_ranks, self._place, self._seconds)[self._place[ranks]].mean(axis=1)
            innocent = np.delete(scene.own, ranks, axis=0)
            hidden_s = max(hidden_s, min(unmet_s(innocent, late_s, scene.collectives), left_s))
        return hidden_s

    def with_more_s(self, rows: Sequence[Row], beside: Floats, together: float) -> Floats:
        """Return, by row, the seconds per step gained in addition where `with_it` is removed as well; 0 without it.

        `beside`: what each row gains beyond the others, the key of division; `together`: the gain
            without what accompanies them.
        """
        has = np.array([row.with_it is not None for row in rows])
        if not has.any():
            return np.zeros(len(rows))
        priced = [
            row if row.with_it is None else replace(row, taken=replace(row.with_it, step_s=row.taken.step_s))
            for row in rows
        ]
        return share_out(max(self.gain_s(priced) - together, 0.0), np.where(has, beside, 0.0))

    def _shorter(self, rows: Sequence[Row], told: bool) -> float:
        """Return the seconds per step saved without what these rows took from own times; 0 if nothing.

        Does not count their `step_s`, which is taken from every step. `told`: mean over all steps; else
        a trimmed mean.
        """
        if not any(len(row.taken.ranks) for row in rows):
            return 0.0
        scene, better = self._scene, self._better(rows)
        shorter = shrink(self._own, better, scene.pipelines, scene.busy_s, whole=told)
        return max(shorter, gain_in_turn(self._own, better, self._roles)) if scene.in_turn else shorter

    def _better(self, rows: Sequence[Row]) -> Floats:
        """Return the own times of the replayed ranks (ranks x steps) less what these rows removed."""
        return self._own - _removed(self._own, rows, self._place, self._seconds)

    def own_s(self, row: Row, others: Iterable[Row]) -> float:
        """Seconds per step that the row takes beyond what `others` take by the same mechanism.

        Trimmed mean over steps of the target that loses most.
        """
        if not len(row.taken.ranks):
            return row.taken.step_s
        left = self._seconds.of(row).copy()
        for other in others:
            if len(other.taken.ranks) and _mechanism(other.found) == _mechanism(row.found):
                for at, rank in enumerate(row.taken.ranks.tolist()):
                    left[at] -= self._seconds.of(other)[other.taken.ranks == rank].sum(axis=0)
        return float(trimmed_mean(np.maximum(left, 0.0)).max(initial=0.0))


class _Seconds:
    """Cache of the seconds that rows remove, with NaN as 0."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._rows = {id(row): (row, _known_s(row)) for row in rows}

    def of(self, row: Row) -> Floats:
        """Seconds that the row removes, its ranks x steps."""
        known = self._rows.get(id(row))
        return _known_s(row) if known is None else known[1]


def _known_s(row: Row) -> Floats:
    """Return the seconds that the row removes (its ranks x steps), with NaN as 0."""
    return np.asarray(np.nan_to_num(row.taken.own_s), dtype=np.float64)


def _repaired(rows: Sequence[Row]) -> Ints:
    """Return the ranks (rows of the fleet) whose whole excess these rows explain."""
    parts = dict[int, float]()
    for row in rows:
        if row.is_excess:
            parts[row.found.rows[0]] = parts.get(row.found.rows[0], 0.0) + row.floor.part
    return np.array(sorted(rank for rank, part in parts.items() if part >= 1 - limits.NOTHING), dtype=np.int64)


def removed(own: Floats, rows: Sequence[Row]) -> Floats:
    """Seconds that these rows took from own times together, ranks x steps; at most the own time."""
    return _removed(own, rows, np.arange(len(own)), _Seconds())


def _removed(own: Floats, rows: Sequence[Row], place: Ints, seconds: _Seconds) -> Floats:
    """Return the seconds that these rows took from `own` together (shape of `own`), at most `own` itself.

    `place`: row of `own` by row of the fleet; `seconds`: cache of what each row removes.
    """
    taken = np.zeros_like(own)
    for row in rows:
        if len(row.taken.ranks):
            taken[place[row.taken.ranks]] += seconds.of(row)
    return np.asarray(np.fmin(taken, np.nan_to_num(own)), dtype=np.float64)


def suspects(fleet: Fleet, scene: Scene, rows: Iterable[Row]) -> list[Suspect]:
    """Convert selected rows to suspects of the verdict, each with the mean step without it as evidence."""
    return [_suspect(fleet, scene, row) for row in rows]


def _suspect(fleet: Fleet, scene: Scene, row: Row) -> Suspect:
    """Convert one selected row to a suspect of the verdict, with the mean step without it as evidence."""
    step_s = mean_step_s(fleet.steps.seconds, scene)
    return suspect_from(fleet, with_gain(row.found, step_s), max(step_s, row.found.lost_s), row.sure)
