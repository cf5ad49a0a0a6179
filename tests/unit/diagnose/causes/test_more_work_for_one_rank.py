"""Where all ranks sleep in a function and one of them longer: a device that is slow for it, or more work than its peers have?"""

from __future__ import annotations

import pytest
from builders import ASLEEP, Job, build

from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.contract import Verdict

ASLEEP_S, COMPUTES_S = 0.12, 0.03


def judged(ranks: int, sleeps: float, computes: float, seed: int, others: float = 1.0) -> Verdict:
    """`sleeps`, `computes`: times its peers' sleep in the function, and CPU time of its training thread; `others`: of the process."""
    last = ranks - 1
    asleep = {rank: [(ASLEEP, ASLEEP_S * (sleeps if rank == last else 1.0))] for rank in range(ranks)}
    made = Job(ranks=ranks, seed=seed, extra=asleep)
    for rank in range(ranks):
        ran_s = COMPUTES_S * made.steps * (1 + 0.02 * (rank % 3 - 1))
        ran_s *= computes if rank == last else 1.0
        whole_s = ran_s + 0.5 * COMPUTES_S * made.steps * (others if rank == last else 1.0)
        made.counters += [
            {"rank": rank, "name": "cpu.run_s", "value": ran_s},
            {"rank": rank, "name": "cpu.process_run_s", "value": whole_s},
        ]
    return diagnose(build(made))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("ranks", "sleeps", "computes"), [(2, 1.75, 1.35), (3, 1.75, 1.24), (4, 1.9, 1.5), (8, 1.35, 1.18)]
)
def test_who_also_computes_more_has_more_to_do(ranks: int, sleeps: float, computes: float, seed: int) -> None:
    verdict = judged(ranks, sleeps, computes, seed)
    assert (verdict.status, verdict.suspects[0].cause) == ("imbalance", "data-imbalance")
    assert verdict.suspects[0].ranks == (ranks - 1,)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("computes", "others"), [(1.0, 1.0), (1.06, 1.0), (1.06, 2.0)])
def test_who_computes_as_much_as_its_peers_sleeps_for_something_else(computes: float, others: float, seed: int) -> None:
    # Whatever other threads of its process do beside.
    verdict = judged(8, 1.75, computes, seed, others)
    assert (verdict.status, verdict.suspects[0].component, verdict.suspects[0].cause) == (
        "fault",
        "python",
        "blocking-call",
    )


@pytest.mark.parametrize("seed", range(3))
def test_who_may_compute_more_or_not_is_told_as_the_guess_that_it_is(seed: int) -> None:
    # A third more input would be 9 % more to compute at least: as much as ranks differ by.
    verdict = judged(8, 1.35, 1.05, seed)
    assert (verdict.status, verdict.suspects[0].cause) == ("imbalance", "data-imbalance")
    assert verdict.suspects[0].confidence < 0.6 and verdict.suspects[0].ranks == (7,)


@pytest.mark.parametrize("seed", range(3))
def test_beside_one_peer_a_little_more_convicts_nobody_and_is_a_guess(seed: int) -> None:
    # What would be enough beside peers that agree: nobody knows how far one peer is from another. But no host makes a thread sleep longer.
    verdict = judged(2, 1.5, 1.15, seed)
    (suspect,) = verdict.suspects
    assert (verdict.status, suspect.cause, suspect.ranks, suspect.guess) == ("imbalance", "data-imbalance", (1,), True)
    assert suspect.confidence < 0.9
