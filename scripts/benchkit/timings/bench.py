"""Files of timings that nothing was tuned to, judged: kind of fault, what was timed, when, how noisy, how bad.

right       the first suspect's ranks are culprits (of a slow link: those at the host, or the network); of what is uneven: nobody, or an
            imbalance; of a healthy job: nobody
among       the culprit is one of those who are accused, and these wait for one another inside of what was timed: shards, or a pipeline
abstains    unknown, or an imbalance where there is a fault
healthy     nothing was found; `seen`: although the file shows that ranks wait for a culprit
wrong       somebody else is accused
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchkit.timings import faults
from benchkit.timings.files import VIEWS, seconds_of, table
from benchkit.timings.job import Layout, Noise, Trace, simulate
from rankscope.diagnose.infer.fleet.timings.steps_file import check
from rankscope.diagnose.infer.solve.judge_steps_file import judge_timings
from rankscope.diagnose.infer.verdict.contract import Verdict

LAYOUTS = (
    Layout("data 16", replicas=16),
    Layout("zero 16", replicas=16, gathers=True),
    Layout("shards 4 x 4", shards=4, replicas=4, batches=2),
    Layout("stages 4 x 4", stages=4, replicas=4, batches=8),
    Layout("stages 2, shards 2 x 4", stages=2, shards=2, replicas=4, batches=8),
)
NOISES = {
    "quiet": Noise(), "noisy": Noise(0.06, 0.008, 0.02, 0.002), "wild": Noise(0.15, 0.01, 0.02, 0.01),
}  # fmt: skip
DOSES = {"weak": 0.12, "strong": 0.5}
STEPS = 60
RIGHT, AMONG, ABSTAINS, HEALTHY, WRONG = "right", "among", "abstains", "healthy", "wrong"


@dataclass(frozen=True, slots=True)
class Case:
    kind: str
    layout: Layout
    view: str
    timing: str
    noise: str
    dose: str
    seed: int
    warm_up: bool = True
    roles: bool = True

    @property
    def name(self) -> str:
        return "/".join((self.kind, self.layout.name, self.view, self.timing, self.noise, self.dose, str(self.seed)))


@dataclass(frozen=True, slots=True)
class Judged:
    case: Case
    outcome: str
    seen: bool
    said: str
    lost_percent: float
    true_percent: float


def cases(seeds: int = 1) -> Iterator[Case]:
    """All that make sense, thinned: each kind meets each layout and view, with timings, noises and doses in turn."""
    rng = np.random.default_rng(11)
    for seed in range(seeds):
        for kind in faults.KINDS:
            for layout in LAYOUTS:
                if kind == "heavy stage" and layout.stages == 1:
                    continue
                for view in VIEWS:
                    timing = str(rng.choice(list(faults.TIMINGS)))
                    noise = str(rng.choice(list(NOISES), p=[0.45, 0.35, 0.2]))
                    dose = str(rng.choice(list(DOSES)))
                    yield Case(kind, layout, view, timing, noise, dose, seed)


def made(case: Case, steps: int = STEPS) -> tuple[Trace, faults.Wrong, Trace]:
    """The job, its truth, and the same job without the fault."""
    seed = [case.seed, *case.name.encode()]
    rng = np.random.default_rng(seed)
    when = faults.TIMINGS[case.timing](steps)
    wrong = faults.KINDS[case.kind](case.layout, when, DOSES[case.dose], rng)
    if case.warm_up:
        wrong.plan.speed[:, :2] *= np.array([6.0, 1.5])
    drawn = int(rng.integers(1 << 31))
    nothing = faults.healthy(case.layout, when, 0.0, rng).plan
    well = replace(nothing, length=wrong.plan.length) if wrong.truth == faults.UNEVEN else nothing
    noise = NOISES[case.noise]
    return (
        simulate(case.layout, wrong.plan, noise, np.random.default_rng(drawn)),
        wrong,
        simulate(case.layout, well, noise, np.random.default_rng(drawn)),
    )


def judged(case: Case) -> Judged:
    trace, wrong, well = made(case)
    verdict = judge_timings(check(table(trace, case.view, case.roles, first=100), "file"), "job")
    # Of an episode and of what began in the middle, the part with the fault is what is judged.
    usual = (np.arange(trace.step.shape[1]) >= 2) & ((wrong.when > 0) | (case.timing == "now and then"))
    step_s = float(np.mean(trace.step[:, usual]))
    true = 100 * (1 - float(np.mean(well.step[:, usual])) / step_s)
    lost_s = sum(each.lost_seconds_per_step for each in verdict.suspects) if verdict.status == "fault" else 0.0
    first = verdict.suspects[0] if verdict.suspects else None
    said = verdict.status if first is None else (
        f"{verdict.status}: {first.component}/{first.cause} ranks {list(first.ranks)} "
        f"{first.function.name if first.function else ''} {first.lost_percent:.0f} %"
    )  # fmt: skip
    return Judged(
        case, outcome(verdict, wrong, case.layout), visible(trace, case.view, wrong), said, 100 * lost_s / step_s, true
    )


def outcome(verdict: Verdict, wrong: faults.Wrong, layout: Layout) -> str:
    """One of right, among, abstains, healthy, wrong."""
    first = verdict.suspects[0] if verdict.suspects else None
    if wrong.truth in (faults.NOBODY, faults.UNEVEN):
        return WRONG if verdict.status == "fault" else RIGHT
    if first is None or verdict.status != "fault":
        return HEALTHY if verdict.status == "healthy" else ABSTAINS
    if wrong.truth == faults.LINK and first.component in ("network", "nic"):
        return RIGHT
    if set(first.ranks) <= set(wrong.ranks):
        return RIGHT
    return AMONG if any(set(first.ranks) <= group for rank in wrong.ranks for group in _groups(layout, rank)) else WRONG


def _groups(layout: Layout, rank: int) -> tuple[set[int], ...]:
    """Who waits for a rank within forward and backward: its pipeline, with all shards of it."""
    number = np.arange(layout.ranks).reshape(layout.shape)
    replica = int(np.argwhere(number == rank)[0][1])
    return (set(number[:, replica, :].reshape(-1).tolist()),)


def visible(trace: Trace, view: str, wrong: faults.Wrong, share: float = 0.10) -> bool:
    """Whether the file shows that others wait for one culprit: it waits least of all in 90 % of the steps, by a tenth of the step."""
    if wrong.truth != faults.FAULT or len(wrong.ranks) != 1 or wrong.when.min() <= 0:
        return False
    waiting = [part for part in VIEWS[view](trace) if part[3] or (part[3] is None and part[1] == "collective")]
    waiting = [part for part in waiting if part[2] != ("*",)]
    if not waiting:
        return False
    stays = np.sum([seconds_of(trace, part) for part in waiting], axis=0)[:, 2:]
    step = trace.step[:, 2:]
    mine, others = stays[wrong.ranks[0]], np.delete(stays, wrong.ranks[0], axis=0).min(axis=0)
    return bool(np.mean(others - mine >= share * np.median(step)) >= 0.9)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument("--bad", action="store_true", help="print what was said of each case that is not right")
    parser.set_defaults(run=run, anywhere=True)


def run(options: argparse.Namespace) -> int:
    """Print the tables; 0 where nobody innocent is accused and nothing visible is called healthy."""
    done = [judged(case) for case in cases(options.seeds) if options.only in case.name]
    if options.bad:
        for each in done:
            if each.outcome != RIGHT:
                print(f"{each.outcome:9}{' seen' if each.seen else '     '} {each.case.name}: {each.said}")
    print_table("kind", done, lambda case: case.kind)
    faulty = [each for each in done if each.case.kind not in ("healthy", "heavy stage", "lengths")]
    print_table("timed", faulty, lambda case: case.view)
    off = [abs(each.lost_percent - each.true_percent) for each in faulty if each.outcome == RIGHT]
    if off:
        print(f"\nlost time of {len(off)} right accusations, in points of the true step: off by {np.median(off):.1f} points in the median, "
              f"{np.percentile(off, 90):.1f} at the 90th percentile")  # fmt: skip
    bad = [each for each in done if each.outcome == WRONG or (each.outcome == HEALTHY and each.seen)]
    print(f"{len(done)} files; {sum(each.outcome == WRONG for each in done)} accuse somebody else, "
          f"{sum(each.outcome == HEALTHY and each.seen for each in done)} are called healthy though ranks wait visibly")  # fmt: skip
    return 1 if bad else 0


def print_table(title: str, done: Sequence[Judged], key: Callable[[Case], str]) -> None:
    print(f"\n{title:<24}{'files':>6}{'right':>7}{'among':>7}{'abst.':>7}{'healthy':>9}{'wrong':>7}")
    for name in dict.fromkeys(key(each.case) for each in done):
        mine = Counter(each.outcome for each in done if key(each.case) == name)
        right = 100 * mine[RIGHT] / mine.total()
        print(
            f"{name:<24}{mine.total():>6}{right:>6.0f}%{mine[AMONG]:>7}{mine[ABSTAINS]:>7}{mine[HEALTHY]:>9}{mine[WRONG]:>7}"
        )
