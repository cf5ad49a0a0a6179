"""Select the hypotheses on single ranks that explain the slow ones, best first.

score(h, r) = B(r) · (1 - (1 - d/E)²) - m(h, r) + w(h) - ln N, in nats
d   seconds that h explains of the excess E, at most E. Where the peers queue longer for a CPU than
    the rank, that is added to E: they burst together when the late rank has come, which takes
    nothing from its excess.
B   how clearly rank r is slower than its unexplained peers: the larger of the strength by whole
steps (model/excess.py) and by single functions (model/function_tests.py); the latter counts where
the steps agree, though too weakly to prove it (z >= 2)
m   misfit (1 - d/E)² / (2 · 0.15²), d unbounded: functions are sampled, so that d is known to 15 %
w   witness ln(s / (1 - s)): s the support of h (infer/causes/hypothesis.py)
N   ranks examined, times the steps at which the judged part might have begun, where that was sought

1. Admit ranks with a score of `limits.SCORE_LEAST`; in a small role only the best one, because it
   was part of the others' reference. Remove them from the reference and repeat until none passes.
   Clearly slow but unexplained ranks leave the reference too, while more than half of the role
   remains: a few remaining ranks cannot show that another one is odd without a known reason.
2. Examine each of these ranks again, compared with the remaining ones. Several hypotheses on one
   rank are admitted in turn, each on what the ones before leave of its excess, E' = E - d, known to
   √(σ² + (0.05 d)²), and a sampled d less well; after a queue for a CPU σ may be that of the steps
   without it. Queueing behind other suspects, caused by their excess, is subtracted first.

A rank is examined only if its excess is above the effect floor and its peers wait for at least half
of it. The floor is a share of the step without the excess of ranks outside the reference; the
spread of healthy ranks is a share of the step as it is, since they are uneven because they wait for
the late one.

A quota is no noise: it was configured, and its effect comes and goes with the rank's budget.
Without it the rank would vary as its peers do: its excess counts as known as precisely as theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from rankscope.diagnose import budgets, limits
from rankscope.diagnose.infer.causes.hypothesis import EXCUSED, GUESS, ORDERED, SEEN, Hypothesis, log_odds
from rankscope.diagnose.infer.causes.rank.case import Case, case_of
from rankscope.diagnose.infer.causes.rank.cpu import behind_suspects_s, throttled
from rankscope.diagnose.infer.causes.rank.interrupts import interrupted
from rankscope.diagnose.infer.causes.rank.table import charges
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.model.attribute import Profiles
from rankscope.diagnose.infer.model.busy_host import busy_noise_s, own_without_queue
from rankscope.diagnose.infer.model.excess import Differences, differences, standardised, strength
from rankscope.diagnose.infer.model.function_tests import FunctionLevels
from rankscope.diagnose.infer.model.replay import gain
from rankscope.diagnose.infer.model.scene import Scene
from rankscope.diagnose.infer.model.waiting import waited_for
from rankscope.diagnose.infer.past.compared import Compared
from rankscope.diagnose.stats.robust import peers_median
from rankscope.diagnose.stats.student import chance, nats
from rankscope.probes.base.arrays import Bools, Floats, Ints

_MISFIT = 0.15


@dataclass(frozen=True, slots=True)
class Admitted:
    """One admitted hypothesis on a rank: it explains `part` (0..1) of the rank's excess.

    `others`: the rank's other hypotheses, for comparison.
    """

    case: Case
    found: Hypothesis
    part: float
    score: float
    whole_s: float  # the rank's excess as a mean over the whole window
    others: tuple[Hypothesis, ...]

    @property
    def row(self) -> int:
        return self.case.rank


@dataclass(frozen=True, slots=True)
class Unexplained:
    """A rank that is clearly slower than its peers, without an admitted hypothesis."""

    case: Case
    made: tuple[Hypothesis, ...]
    excess_s: float


@dataclass(frozen=True, slots=True)
class Selection:
    """Result of the selection on single ranks.

    `differences`: every rank compared with those that are neither suspects nor unexplained. `idle`:
        rows of slow ranks for which no peer waits. `by_function`: mask of ranks that a single
        function would admit. `more`: rows that might pass but were not examined, because
        `budgets.EXAMINED` others are clearer.
    """

    differences: Differences
    admitted: tuple[Admitted, ...]
    unexplained: tuple[Unexplained, ...]
    idle: Ints
    by_function: Bools
    more: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    @property
    def rows(self) -> Ints:
        """Ranks (rows) with an admitted hypothesis, ascending."""
        return np.array(sorted({each.row for each in self.admitted}), dtype=np.int64)


def select(among: Compared) -> Selection:
    """Select the hypotheses on single ranks, and the ranks for which none is admitted."""
    asking = _Asking(among)
    asking.leave_out(among.grown.tolist())
    while chosen := asking.one_round():
        asking.leave_out(chosen)
    return asking.again(np.flatnonzero(~asking.counted))


@dataclass(slots=True)
class _Asking:
    """State of a selection: ranks compared with a reference (`counted`) that shrinks, and hypotheses on each."""

    among: Compared
    fleet: Fleet = field(init=False)
    scene: Scene = field(init=False)
    counted: Bools = field(init=False)
    found: Differences = field(init=False)
    strength: Floats = field(init=False)
    by_function: Bools = field(init=False)
    _levels: FunctionLevels = field(init=False)
    _profiles: Profiles | None = None  # made for the first rank examined: most fleets are healthy
    # Compared with the current reference; most cases are built for their function alone.
    _cases: dict[int, Case] = field(default_factory=dict)
    _charges: dict[int, tuple[Hypothesis, ...]] = field(default_factory=dict)
    _ordered: Bools = field(init=False)
    _interrupted: Bools = field(init=False)
    _calm: Differences | None = None  # differences of the steps without queues, made on first use

    def __post_init__(self) -> None:
        self.fleet, self.scene = self.among.fleet, self.among.scene
        self.counted = np.ones(len(self.scene.own), dtype=bool)
        self.by_function = np.zeros(len(self.scene.own), dtype=bool)
        self._levels = FunctionLevels(self.fleet, self.scene.roles, self.scene.step_s)
        self._ordered, self._interrupted = throttled(self.fleet), interrupted(self.fleet)
        self._compare()

    def leave_out(self, rows: list[int]) -> None:
        """Remove these ranks (rows) from the reference and compare again."""
        if rows:
            self.counted[rows] = False
            self._compare()

    def one_round(self) -> list[int]:
        """Return rows to remove from the reference: explained, or clearly slow and unexplained.

        One of each small role, all of large ones.
        """
        scores: dict[int, float] = {}
        roles, sizes = self.scene.roles, np.bincount(self.scene.roles)
        left = np.bincount(roles[self.counted], minlength=len(sizes))
        for row in self._possible(self.counted)[: budgets.EXAMINED]:
            case, made = self._asked(row)
            stands = next(self._in_turn(case, made), None)
            if stands is not None:
                scores[row] = stands.score
            elif 2 * left[roles[row]] > sizes[roles[row]] and self._no_reason(case, made) is not None:
                scores[row] = limits.SCORE_LEAST
        chosen: list[int] = []
        taken: set[int] = set()
        for row in sorted(scores, key=lambda each: -scores[each]):
            if sizes[roles[row]] > limits.FLEET or int(roles[row]) not in taken:
                chosen.append(row)
                taken.add(int(roles[row]))
        return chosen

    def again(self, rows: Ints) -> Selection:
        """Examine these ranks (rows) compared with the remaining reference; return the selection."""
        admitted: list[Admitted] = []
        unexplained: list[Unexplained] = []
        possible = self._possible(np.isin(np.arange(len(self.counted)), rows))
        for row in possible[: budgets.EXAMINED]:
            case, made = self._asked(row)
            stands = list(self._in_turn(case, made))
            admitted += stands
            if not stands and (why := self._no_reason(case, made)) is not None:
                unexplained.append(why)
        return Selection(self.found, tuple(admitted), tuple(unexplained), self._idle(), self.by_function,
                         np.array(possible[budgets.EXAMINED :], dtype=np.int64))  # fmt: skip

    # ---- candidates --------------------------------------------------------------------------------------------------

    def _compare(self) -> None:
        """Compare all ranks with the present reference and forget cases and hypotheses made with the former one.

        The effect floor is a share of the step without the excess of ranks outside the reference.
        """
        scene = self.scene
        gone_s = gain(scene.own, scene.roles, np.flatnonzero(~self.counted), scene.pipelines, scene.busy_s)
        left = 1 - min(gone_s / max(scene.step_s, 1e-12), 1.0)
        found = scene.compare(self.counted)
        self.found = replace(found, floor_s=np.maximum(left * found.floor_s, scene.least_s))
        self.strength = strength(self.found)
        self._calm = None
        self._cases.clear()
        self._charges.clear()

    def _possible(self, among: Bools) -> list[int]:
        """Return the rows in the mask `among` whose score may pass, the clearest first.

        Raises `strength` and sets `by_function` where a single function is clearer than whole steps.
        """
        found = self.found
        among = among & (np.arange(len(among)) < self.among.count)  # a rank's earlier windows are never suspects
        effect = among & np.isfinite(found.excess_s) & (found.excess_s >= found.floor_s) & ~self._not_waited_for()
        few = found.peer_count < limits.FLEET
        clear = np.where(few, found.excess_s >= limits.Z_HINT * found.error_s, found.z_quiet >= limits.Z_HINT)
        hinted = effect & clear & (found.steady_s >= limits.PART * found.excess_s)
        for row in np.flatnonzero(hinted & ((self.strength < 2 * limits.SCORE_LEAST) | self._strongest(hinted))):
            alone = max(self._levels.strength(int(row), found, self.counted), self._of_stack(int(row)))
            self.by_function[row] = alone - self._looked_at() >= limits.SCORE_LEAST
            self.strength[row] = max(self.strength[row], alone)
        ordered = effect & self._ordered & (found.z > 0)
        if ordered.any():
            self.strength[ordered] = np.maximum(self.strength[ordered], self._of_quota()[ordered])
        most = np.where(self._ordered | self._interrupted, log_odds(ORDERED), log_odds(1.0))
        possible = np.flatnonzero(effect & (self.strength + most - self._looked_at() >= limits.SCORE_LEAST))
        order = possible[np.argsort(-self.strength[possible], kind="stable")]
        return [int(row) for row in order]

    def _strongest(self, among: Bools) -> Bools:
        """Return the mask of the budgets.EXAMINED clearest rows in the mask `among`.

        A function of these may be clearer still than their steps.
        """
        rows = np.flatnonzero(among)
        result = np.zeros(len(among), dtype=bool)
        result[rows[np.argsort(-self.strength[rows], kind="stable")[: budgets.EXAMINED]]] = True
        return result

    def _of_stack(self, row: int) -> float:
        """Return the evidence, in nats, of the user's function that has most of the rank's excess, by its stack.

        0 without one, and with limits.FLEET peers or more, whose single functions show as much.
        """
        if self.found.peer_count[row] >= limits.FLEET:
            return 0.0
        located = self._case(row).python
        return 0.0 if located is None else self._levels.strength_of(located, row, self.found)

    def _of_quota(self) -> Floats:
        """Return the evidence of every rank's excess, in nats, with its peers' median error where that is smaller.

        For throttled ranks, because a quota is no noise.
        """
        found, roles = self.found, self.scene.roles
        error_s = peers_median(np.where(self.counted, found.error_s, np.nan)[:, None], roles)[:, 0]
        steps = np.full(len(error_s), float(max(self.scene.own.shape[1] - 1, 1)))
        z, freedom = standardised(found.excess_s, found.between_s, np.fmin(found.error_s, error_s), steps)
        return np.maximum(nats(chance(np.nan_to_num(z), freedom)), nats(chance(found.z, found.freedom)))

    def _asked(self, row: int) -> tuple[Case, tuple[Hypothesis, ...]]:
        """Return the case of a rank (row) and all hypotheses on it, the strongest first; cached."""
        if row not in self._charges:
            self._charges[row] = charges(self._case(row))
        return self._case(row), self._charges[row]

    def _case(self, row: int) -> Case:
        """Return the case of a rank (row), compared with the present reference; cached."""
        if row not in self._cases:
            if self._profiles is None:
                self._profiles = Profiles(self.fleet)
            self._cases[row] = case_of(self.fleet, self.scene, self._profiles, row, np.flatnonzero(~self.counted))
        return self._cases[row]

    # ---- scores ------------------------------------------------------------------------------------------------------

    def _looked_at(self) -> float:
        """Return ln N: N ranks examined, times the steps at which the judged part might have begun if sought."""
        ranks = max(int(np.isfinite(self.found.excess_s[: self.among.count]).sum()), self.fleet.looked_at, 1)
        splits = self.fleet.steps.count if self.scene.own.shape[1] < self.fleet.steps.count else 1
        return float(np.log(ranks * splits))

    def _in_turn(self, case: Case, made: tuple[Hypothesis, ...]) -> Iterator[Admitted]:
        """Yield the admitted hypotheses on one rank, each on what is left of the excess."""
        whole = max(case.in_window_s + max(-case.sched_excess_s, 0.0), 1e-12)
        left, rest, doubt = whole, list(made), 0.0
        strong = float(self.strength[case.rank])
        if (theirs_s := behind_suspects_s(case)) > 0:
            left, doubt = whole - theirs_s, limits.EFFECT_SHARE * theirs_s
            strong = self._strength_of(case, left, doubt, whole)
        while rest and left > 0:
            scores = [
                strong * _explained(each.lost_s / left) - _misfit((left - each.lost_s) / whole) + log_odds(each.support)
                - self._looked_at()
                for each in rest
            ]  # fmt: skip
            best = int(np.argmax(scores))
            if scores[best] < limits.SCORE_LEAST or cannot_be_told(rest[best], case):
                return
            first = rest.pop(best)
            others = tuple(each for each in made if each is not first)
            part = min(first.lost_s, left) / whole
            yield Admitted(case, first, part, scores[best], whole, others)
            left -= first.lost_s
            doubt = float(np.hypot(doubt, _error_s(first, case)))
            rest = [each for each in rest if each.component not in (first.component, "workload")]
            strong = self._strength_of(case, left, doubt, whole)
            if first.component == "cpu":
                strong = max(strong, self._strength_without_queue(case, left, doubt))

    def _strength_of(self, case: Case, left: float, doubt: float, whole: float) -> float:
        """Evidence of what remains of a rank's excess, in nats; -inf below the effect floor.

        `left`: the rest, of `whole` seconds per step; `doubt`: seconds of error of what was
            subtracted.
        """
        found, row = self.found, case.rank
        if left < float(found.floor_s[row]) * min(1.0, whole / max(float(found.excess_s[row]), 1e-12)):
            return -np.inf
        sigma = float(np.hypot(whole / max(float(found.z[row]), 1e-9), doubt))
        return float(nats(chance(np.array([left / sigma]), np.array([found.freedom[row]])))[0])

    def _strength_without_queue(self, case: Case, left: float, doubt: float) -> float:
        """Return the evidence, in nats, of `left` seconds per step of a rank's excess, by steps without queueing.

        At most the excess without queueing for a CPU counts; -inf below the effect floor. `doubt`: seconds
        of error of what was subtracted.
        """
        if self._calm is None:
            own, noise_s = self._without_queue()
            self._calm = differences(own, self.scene.roles, self.scene.step_s, counted=self.counted, doubt_s=noise_s)
        calm, row = self._calm, case.rank
        left = min(left, float(calm.excess_s[row]))
        if not left >= calm.floor_s[row]:
            return -np.inf
        sigma = float(np.hypot(calm.excess_s[row] / max(float(calm.z[row]), 1e-9), doubt))
        return float(nats(chance(np.array([left / sigma]), np.array([calm.freedom[row]])))[0])

    def _without_queue(self) -> tuple[Floats, Floats]:
        """Return (own time without queueing for a CPU, ranks x steps; noise from other work, in seconds)."""
        without = own_without_queue(self.fleet)
        return without.steps.own_s[:, -self.scene.own.shape[1] :], busy_noise_s(without, self.scene.roles)

    def _no_reason(self, case: Case, made: tuple[Hypothesis, ...]) -> Unexplained | None:
        """Return a clearly slower rank as unexplained; None if not clear, or if a CPU cause rules out its fault."""
        row = case.rank
        if any(each.component == "cpu" and excuses(each, case) for each in made):
            return None
        if float(self.strength[row]) + log_odds(GUESS) - self._looked_at() < limits.SCORE_LEAST:
            return None
        return Unexplained(case, made, float(self.found.excess_s[row]))

    # ---- waiting -----------------------------------------------------------------------------------------------------

    def _not_waited_for(self) -> Bools:
        """Mask ranks whose peers wait for less than half of their excess; all False if waits were not timed."""
        scene = self.scene
        if self.fleet.timed and not np.nansum(scene.wait) > 0:  # waiting was not timed
            return np.zeros(len(scene.own), dtype=bool)
        waited = waited_for(scene.wait, scene.roles, self.counted)
        result = ~(waited >= limits.HOLDS_LEAST * self.found.excess_s)
        result[self.among.alone] = False
        return result

    def _idle(self) -> Ints:
        """Ranks (rows) that are clearly slow but for which no peer waits."""
        sure = self.counted & (self.strength - self._looked_at() >= limits.SCORE_LEAST - log_odds(SEEN))
        rows: Ints = np.flatnonzero((sure & self._not_waited_for())[: self.among.count])
        return rows


def _error_s(each: Hypothesis, case: Case) -> float:
    """Return the standard error of a hypothesis's seconds: 5 % of them and, if sampled, the sampling error.

    A sample represents sampling_s seconds: t seconds per step have a variance of t · sampling_s /
    steps, and those of a peer as well.
    """
    sampled = (
        each.lost_s * case.fleet.sampling_s / max(case.steps, 1) if each.component in ("python", "workload") else 0.0
    )
    return float(np.hypot(limits.EFFECT_SHARE * each.lost_s, np.sqrt(2 * max(sampled, 0.0))))


def _explained(part: float) -> float:
    """Return the share of an excess's evidence that a part (0..1) of it gets: 1 - (1 - part)²."""
    return 1 - (1 - min(part, 1.0)) ** 2


def _misfit(part: float) -> float:
    """Return the penalty, in nats, for a part of the excess that is left, or below 0 explained too much."""
    return part**2 / (2 * _MISFIT**2)


def excuses(each: Hypothesis, case: Case) -> bool:
    """Whether a hypothesis that rules out a fault of the rank explains half of its excess."""
    return each.support <= EXCUSED and each.lost_s >= limits.HOLDS_LEAST * case.in_window_s


def cannot_be_told(each: Hypothesis, case: Case) -> bool:
    """Whether only "all functions are slower" remains, with too few peers to know their spread.

    False for a rank that sleeps for half of it: no host makes a thread sleep longer, so it waits
    for a device that it uses.
    """
    if each.component != "workload" or each.support > GUESS or len(case.peers) >= 3:
        return False
    asleep = case.profiles.locate(case.rank, case.beside, ("python",), 0.0, details=("sleep",))
    return asleep is None or asleep.excess_s < limits.HOLDS_LEAST * each.lost_s
