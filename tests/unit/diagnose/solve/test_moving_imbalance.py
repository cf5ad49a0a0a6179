"""More work for another rank in every step is nobody's fault; noise that moves is not taken for it, nor is a fault."""

from __future__ import annotations

from dataclasses import replace

import builders
import numpy as np
import pyarrow as pa
import pytest
from builders import TRAIN, Job, Work, build, codes, columns, own_of, retimed

from rankscope.diagnose import limits
from rankscope.diagnose.infer.fleet.gather import gather
from rankscope.diagnose.infer.fleet.timings.steps_file import check
from rankscope.diagnose.infer.solve.judge import diagnose, judge
from rankscope.diagnose.infer.solve.judge_steps_file import judge_timings
from rankscope.diagnose.infer.verdict.contract import Verdict
from rankscope.diagnose.infer.verdict.note import NoteCode
from rankscope.observer.window.folder import Window
from rankscope.observer.window.stacks import StackFrame


def moved(job: Job, more: np.ndarray, kind: str = "") -> Window:
    """The job's window with `more` seconds (ranks x steps) of work, or of a kind of waiting ('sched', 'io')."""
    window = build(job)[0]
    return retimed(window, own_of(window) + more, None, **({f"{kind}_s": more} if kind else {}))


def in_turn(ranks: int, steps: int, seconds: float) -> np.ndarray:
    return np.array([[seconds if step % ranks == rank else 0.0 for step in range(steps)] for rank in range(ranks)])


def at_random(ranks: int, steps: int, seconds: float, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    more = np.zeros((ranks, steps))
    more[rng.integers(0, ranks, steps), np.arange(steps)] = seconds
    return more


def is_moving(verdict: Verdict) -> bool:
    return (verdict.status, [(s.component, s.cause) for s in verdict.suspects]) == (
        "imbalance",
        [("workload", "data-imbalance")],
    )


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("seed", range(3))
def test_longer_sequences_in_turn_are_an_imbalance(ranks: int, seed: int) -> None:
    job = Job(ranks=ranks, seed=seed)
    verdict = diagnose([moved(job, in_turn(ranks, job.steps, 0.15))])
    assert is_moving(verdict), (verdict.suspects, verdict.notes)
    suspect = verdict.suspects[0]
    assert suspect.ranks == tuple(range(ranks))
    assert suspect.lost_seconds_per_step == pytest.approx(0.15 * (1 - 1 / ranks), rel=0.25)


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("seed", range(3))
def test_as_much_work_for_all_together_that_is_shared_out_otherwise_in_each_step_is_an_imbalance(
    ranks: int, seed: int
) -> None:
    """As two ranks had it whose pieces come in several sizes, several in a step: not two kinds, but what one has the others lack."""
    rng = np.random.default_rng(seed)
    job = Job(ranks=ranks, seed=seed, noise=0.01)
    parts = rng.dirichlet(np.ones(ranks), job.steps).T
    assert is_moving(diagnose([moved(job, 0.3 * parts)]))


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
@pytest.mark.parametrize("seed", range(3))
def test_longer_sequences_at_random_are_an_imbalance(ranks: int, seed: int) -> None:
    job = Job(ranks=ranks, seed=seed)
    assert is_moving(diagnose([moved(job, at_random(ranks, job.steps, 0.15, seed))]))


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("seed", range(3))
def test_one_rank_that_always_has_longer_sequences_is_the_one(ranks: int, seed: int) -> None:
    verdict = diagnose(build(Job(ranks=ranks, seed=seed, scale={seed % ranks: 1.6})))
    assert verdict.suspects == () if ranks < 4 else verdict.suspects[0].ranks == (seed % ranks,)
    assert not is_moving(verdict) or verdict.suspects[0].instance == ""


@pytest.mark.parametrize("kind", ["sched", "io"])
def test_lateness_that_moves_but_is_no_work_is_noise_and_is_said(kind: str) -> None:
    job = Job(ranks=4)
    verdict = diagnose([moved(job, in_turn(4, job.steps, 0.15), kind)])
    assert verdict.status == "healthy"
    assert NoteCode.MOVING_NOISE in codes(verdict)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 16])
@pytest.mark.parametrize("noise", [0.1, 0.2, 0.3])
@pytest.mark.parametrize("shape", ["normal", "exponential", "stalls"])
def test_noise_is_not_taken_for_an_imbalance(ranks: int, noise: float, shape: str) -> None:
    for seed in range(3):
        job, rng = Job(ranks=ranks, seed=seed), np.random.default_rng(seed + 31)
        size = (ranks, job.steps)
        more = {
            "normal": 0.25 * np.maximum(1 + rng.normal(0, noise, size), 0.2),
            "exponential": rng.exponential(0.25 * noise, size),
            "stalls": (rng.random(size) < 0.1) * rng.exponential(noise, size),
        }[shape]
        verdict = diagnose([moved(job, more)])
        assert not verdict.suspects, (seed, verdict.suspects)


def test_a_fault_beside_moving_work_is_still_the_fault() -> None:
    job = builders.slow_python(2, 0.2, ranks=4)
    verdict = diagnose([moved(job, in_turn(4, job.steps, 0.05))])
    assert verdict.status == "fault" and verdict.suspects[0].ranks == (2,)


def test_one_rank_with_rare_long_steps_is_no_imbalance() -> None:
    job = Job(ranks=4)
    more = np.zeros((4, job.steps))
    more[1, ::7] = 0.4
    assert not is_moving(diagnose([moved(job, more)]))


@pytest.mark.parametrize("seed", range(3))
def test_the_longest_of_a_large_fleet_are_of_another_kind_by_choice(seed: int) -> None:
    """Of 20,000 ranks with accidents now and then, a sample and those who are the longest in a step are read."""
    longest, rng = 4, np.random.default_rng(seed)
    job = Job(ranks=20_000, steps=30)
    size = (job.ranks, job.steps)
    accidents = (rng.random(size) < 0.01) * rng.exponential(0.05, size) + rng.exponential(0.002, size)
    chosen = np.unique(np.argsort(-accidents, axis=0)[:longest])
    few = np.concatenate([accidents[chosen], accidents[rng.integers(0, job.ranks, 200)]])
    part = gather([moved(Job(ranks=len(few), steps=job.steps), few)])
    part = replace(part, looked_at=job.ranks)
    assert is_moving(judge(part)), "as if all had been read"
    assert not judge(replace(part, longest=longest)).suspects


@pytest.mark.parametrize("seed", range(3))
def test_longer_sequences_in_a_large_fleet_are_seen_without_the_longest(seed: int) -> None:
    job, rng = Job(ranks=200, steps=30), np.random.default_rng(seed)
    more = (rng.random((job.ranks, job.steps)) < 0.15) * 0.15
    assert is_moving(judge(replace(gather([moved(job, more)]), looked_at=100_000, longest=4)))


# ---- timings: every function of every step is known -----------------------------------------------------------------------


def timings(ranks: int, steps: int, seed: int, together: bool, spread: float) -> Verdict:
    """Sequence lengths that spread without classes; or as much noise in every function by itself."""
    rng = np.random.default_rng(seed)
    rows = []
    for step in range(steps):
        own = np.zeros(ranks)
        for rank in range(ranks):
            length = np.exp(rng.normal(0, spread))
            for name, mean in (("forward", 0.05), ("backward", 0.1), ("loss", 0.05)):
                factor = length if together else np.exp(rng.normal(0, 1.7 * spread))
                value = mean * factor * np.exp(rng.normal(0, 0.01))
                own[rank] += value
                rows.append({"rank": rank, "step": step, "function": name, "kind": "gpu", "seconds": value})
        for rank in range(ranks):
            rows.append({"rank": rank, "step": step, "function": "allreduce", "kind": "collective",
                         "seconds": own.max() - own[rank] + 0.02})  # fmt: skip
    return judge_timings(check(pa.Table.from_pylist(rows), "file"), "job")


@pytest.mark.parametrize("seed", range(3))
def test_functions_that_grow_together_are_sequence_lengths(seed: int) -> None:
    assert is_moving(timings(8, 37, seed, True, 0.2))


@pytest.mark.parametrize("seed", range(3))
def test_functions_that_vary_each_by_itself_are_noise(seed: int) -> None:
    assert timings(8, 37, seed, False, 0.2).status == "healthy"


def test_a_slow_down_of_everybody_is_seen_beside_an_imbalance() -> None:
    before = moved(Job(ranks=4, start=1_759_990_000.0, seed=9), in_turn(4, 70, 0.15))
    slow = Job(ranks=4, extra={rank: [(builders.BUSY, 0.1)] for rank in range(4)})
    assert is_moving(diagnose([moved(Job(ranks=4), in_turn(4, 70, 0.15))], [before]))
    verdict = diagnose([moved(slow, in_turn(4, 70, 0.15))], [before])
    assert verdict.status == "fault"
    assert [suspect.cause for suspect in verdict.suspects] == ["slow-everywhere", "data-imbalance"]


LOAD = (StackFrame("load_samples", TRAIN, 30),)
READS, PARSES = (Work("python", name, 0, 40, frames=LOAD) for name in ("read_shard", "parse"))


def with_spread(window: Window, names: tuple[str, ...], share: float) -> Window:
    """The window in which these functions are done in so many of the steps, and take nothing in the others, as samples show it."""
    rows = window.patterns.to_pylist()
    for row in rows:
        if row["name"] in names:
            sampled = limits.SAMPLING_S * row["per_step_s"]
            row["per_step_sd_s"] = np.sqrt(row["per_step_s"] ** 2 * (1 - share) / share + sampled)
    return columns(window, "patterns", rows)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("seed", range(3))
def test_files_that_are_read_now_by_this_rank_now_by_that_are_no_longer_input(ranks: int, seed: int) -> None:
    # GIVEN ranks each of which reads and parses a file in steps of its own, 0.15 s, and does nothing of that in the others
    both = [(READS, 0.09 / ranks), (PARSES, 0.06 / ranks)]
    job = Job(ranks=ranks, seed=seed, extra=dict.fromkeys(range(ranks), both))
    more = in_turn(ranks, job.steps, 0.15) - 0.15 / ranks
    window = with_spread(moved(job, more), ("read_shard", "parse"), 1 / ranks)

    # THEN the input is even, and the note says what they do
    verdict = diagnose([window])
    assert (verdict.status, verdict.suspects) == ("healthy", ()), verdict.suspects
    assert any("in some steps of each rank" in note.text for note in verdict.notes), verdict.notes
