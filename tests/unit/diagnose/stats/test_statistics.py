"""The statistics against what their docstrings say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import builders
import numpy as np
import pytest
from builders import sure

from rankscope.diagnose import limits
from rankscope.diagnose.infer.fleet.model import Pipelines
from rankscope.diagnose.infer.model.excess import differences
from rankscope.diagnose.infer.model.replay import busy, gain, in_order_of, repaired, share_out, shrink
from rankscope.diagnose.infer.model.waiting import transfer, waited_for
from rankscope.diagnose.stats import robust
from rankscope.diagnose.stats.onset import find_onset
from rankscope.diagnose.stats.robust import benjamini_hochberg, peers_median, trimmed, trimmed_mean


def test_trimmed_mean_leaves_the_extremes_out_and_ignores_nan() -> None:
    values = np.array([[1.0, 2.0, 3.0, 4.0, 1000.0], [np.nan, 2.0, 2.0, np.nan, 2.0], [np.nan] * 5])
    assert trimmed_mean(values)[:2].tolist() == [3.0, 2.0]
    assert np.isnan(trimmed_mean(values)[2])
    whole = values[:1].repeat(3, axis=0)  # as many of each row: another way to the same
    assert trimmed_mean(whole).tolist() == [3.0] * 3


def test_trimmed_error_covers_the_spread_of_repeated_experiments() -> None:
    rng = np.random.default_rng(7)
    values = rng.normal(0, 1, (997, 61))
    assert np.median(trimmed(values).error()) == pytest.approx(trimmed_mean(values).std(), rel=0.25)


def test_the_rank_itself_is_not_among_its_peers() -> None:
    own = np.array([[1.0], [2.0], [9.0]])
    assert peers_median(own, np.zeros(3, dtype=np.int64))[:, 0].tolist() == [5.5, 5.0, 1.5]


def test_ranks_of_another_role_are_no_peers() -> None:
    own = np.tile([[1.0], [1.0], [5.0], [5.0]], (1, 11))
    found = differences(own, np.array([0, 0, 1, 1]), 6.0)
    assert np.allclose(found.excess_s, 0)


def test_one_bad_rank_of_3400_is_found_and_nobody_else() -> None:
    rng = np.random.default_rng(3)
    own = 0.2 * np.exp(rng.normal(0, 0.02, (3400, 1))) * np.exp(rng.normal(0, 0.15, (3400, 67)))
    own[2341] += 0.05
    assert sure(differences(own, np.zeros(3400, dtype=np.int64), 0.3)) == [2341]


def test_a_third_of_the_ranks_bad_is_found() -> None:
    rng = np.random.default_rng(5)
    own = 0.2 * np.exp(rng.normal(0, 0.01, (9, 1))) * np.exp(rng.normal(0, 0.05, (9, 67)))
    own[:3] += 0.06
    assert sure(differences(own, np.zeros(9, dtype=np.int64), 0.3)) == [0, 1, 2]


def test_benjamini_hochberg_by_hand() -> None:
    # k q / m with q = 0.014 and m = 5: 0.003, 0.006, 0.009, 0.011, 0.014
    p = np.array([0.0035, 0.2, 0.001, 0.0095, 0.9])
    assert benjamini_hochberg(p).tolist() == [True, False, True, False, False]


def test_no_package_that_takes_long_to_load_is_needed_to_accuse_somebody() -> None:
    # GIVEN a process that has judged a window with a culprit
    code = (
        "import sys; from builders import BUSY, Job, build; from rankscope.diagnose.infer.solve.judge import diagnose; "
        "print(diagnose(build(Job(extra={2: [(BUSY, 0.1)]}))).status, "
        "[name for name in ('statsmodels', 'scipy.stats') if name in sys.modules])"
    )
    folder = Path(builders.__file__).parent
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.stdout == "fault []\n", done.stderr


def test_false_discoveries_are_as_rare_as_promised() -> None:
    # GIVEN many families of 101 tests, 7 of which are true
    rng = np.random.default_rng(13)
    shares = []
    for _ in range(211):
        p = np.concatenate([rng.random(94), rng.random(7) / 1e4])
        rejected = benjamini_hochberg(p)
        shares.append(rejected[:94].sum() / max(rejected.sum(), 1))
        assert rejected[94:].sum() >= 5
    assert np.mean(shares) <= 0.02
    assert not benjamini_hochberg(np.ones(3)).any() and len(benjamini_hochberg(np.empty(0))) == 0


@pytest.mark.parametrize("bad", [3, 4, 7])
def test_almost_half_of_the_ranks_may_be_bad(bad: int) -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        own = 0.2 * np.exp(rng.normal(0, 0.01, (2 * bad + 1, 1))) * np.exp(rng.normal(0, 0.08, (2 * bad + 1, 67)))
        own[:bad] += 0.05
        assert sure(differences(own, np.zeros(len(own), dtype=np.int64), 0.3)) == list(range(bad))


def test_a_pipeline_is_paced_by_its_slowest_stage_and_filled_once() -> None:
    # GIVEN two pipelines of three stages and 4 micro-batches; stage 1 of the first is slow
    own = np.tile([[4.0], [4.0], [8.0], [4.0], [4.0], [4.0]], (1, 7))
    once = np.zeros_like(own)
    pipelines = Pipelines(np.array([0, 1, 0, 1, 0, 1]), 4, once, once, np.zeros(7))
    roles = np.array([0, 0, 1, 1, 2, 2])
    # THEN 8 · 3/4 + 16/4 = 10 becomes 4 · 3/4 + 12/4 = 6
    assert busy(own, pipelines).tolist() == [10.0] * 7
    assert gain(own, roles, np.array([2]), pipelines) == pytest.approx(4.0)
    # AND no more is gained than the step that was measured allows
    assert gain(own, roles, np.array([2]), pipelines, np.full(7, 9.0)) == pytest.approx(3.0)
    # AND what is done once per step is not repeated per micro-batch
    once[2] = 4.0
    assert busy(own, pipelines).tolist() == [4 * 0.75 + 3.0 + 4.0] * 7


def test_gain_is_what_the_next_slowest_leaves() -> None:
    own = np.tile([[1.0], [1.0], [1.0], [1.4], [2.0]], (1, 7))
    roles = np.zeros(5, dtype=np.int64)
    assert gain(own, roles, np.array([4])) == pytest.approx(0.6)
    assert gain(own, roles, np.array([3, 4])) == pytest.approx(1.0)
    assert share_out(1.0, np.array([0.4, 1.0])).sum() == pytest.approx(1.0)


def test_two_equal_culprits_gain_only_together() -> None:
    own = np.tile([[1.0], [1.0], [1.0], [2.0], [2.0]], (1, 7))
    roles = np.zeros(5, dtype=np.int64)
    assert gain(own, roles, np.array([3])) == 0
    assert gain(own, roles, np.array([3, 4])) == pytest.approx(1.0)


def test_waiting_is_what_peers_stay_longer() -> None:
    wait = np.tile([[0.5], [0.5], [0.1]], (1, 7))
    assert transfer(wait).tolist() == [0.1] * 7
    assert waited_for(wait, np.zeros(3, dtype=np.int64))[2] == pytest.approx(0.4)


def test_an_onset_is_found_where_it_is_and_not_in_noise() -> None:
    rng = np.random.default_rng(11)
    series = np.exp(rng.normal(0, 0.05, 71))
    assert find_onset(series[:23]) is None or abs(find_onset(series[:23]).after_s - 1) < 0.1  # type: ignore[union-attr]
    series[43:] += 0.4
    onset = find_onset(series)
    assert onset is not None and abs(onset.column - 43) <= 1 and onset.after_s > 1.3
    assert find_onset(np.ones(71)) is None


def test_the_best_of_many_places_for_an_onset_must_be_clearer_than_a_single_one() -> None:
    rng = np.random.default_rng(12)
    # GIVEN series of noise alone THEN few of them have an onset: of 300 places one is often good by accident
    found = [find_onset(np.exp(rng.normal(0, 0.5, 300))) for _ in range(2000)]
    assert sum(onset is not None for onset in found) <= limits.FALSE_DISCOVERY_RATE * len(found) / 2
    # WHEN a level changes by as much as the noise in a series of as many values THEN it is found where it is
    changed = np.exp(rng.normal(0, 0.3, 300) + np.where(np.arange(300) < 120, 0.0, 0.3))
    onset = find_onset(changed)
    assert onset is not None and abs(onset.column - 120) < 25
    # WHEN of few values all are half as much more from the middle on THEN that is an onset too
    few = np.exp(rng.normal(0, 0.05, 24)) * np.where(np.arange(24) < 12, 1.0, 1.5)
    onset = find_onset(few)
    assert onset is not None and onset.column == 12


def test_false_discoveries_are_controlled_over_all_tests_however_few_are_small() -> None:
    from statsmodels.stats.multitest import multipletests

    rng = np.random.default_rng(17)
    p = np.concatenate([rng.random(997), rng.random(31) / 1e4])
    expected = multipletests(p, 0.01, "fdr_bh")[0]
    assert benjamini_hochberg(p).tolist() == expected.tolist()
    assert benjamini_hochberg(p[990:], len(p)).tolist() == expected[990:].tolist()


@pytest.mark.parametrize("holes", [False, True])
def test_what_is_worked_on_in_parts_comes_out_as_in_one(holes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more rows than are worked on at once, columns and rows are taken by several threads."""
    values = np.random.default_rng(5).standard_normal((500, 7))
    if holes:
        values[np.random.default_rng(6).random(values.shape) < 0.3] = np.nan
        values[:, 3] = np.nan
    whole = robust.nan_median(values, 0), robust.trimmed_mean(values)
    monkeypatch.setattr(robust, "ROWS", 64)
    np.testing.assert_array_equal(robust.nan_median(values, 0), whole[0])
    np.testing.assert_array_equal(robust.trimmed_mean(values), whole[1])
    assert np.isnan(whole[0][3]) == holes


def test_a_step_that_the_suspect_does_not_show_tells_nothing_of_what_it_costs() -> None:
    # GIVEN a rank that is 0.1 s slower, and half of whose steps are not known
    own = np.full((3, 20), 0.2)
    own[1] = 0.3
    own[1, ::2] = np.nan
    assert gain(own, np.zeros(3, dtype=np.int64), np.array([1])) == pytest.approx(0.1)


def test_a_healed_rank_is_as_uneven_as_its_peers_and_not_late_in_the_same_steps() -> None:
    # GIVEN two ranks that are uneven by themselves, one of which takes a second longer in each step
    rng = np.random.default_rng(1)
    healthy = 1.0 + rng.exponential(0.2, (2, 400))
    own = healthy + np.array([[0.0], [1.0]])
    # WHEN it is healed in an order of its own
    alike = repaired(own, np.zeros(2, dtype=np.int64), np.array([1]))
    uneven = alike.copy()
    uneven[1:] = in_order_of(own[1:], alike[1:])
    # THEN what is gained is what was lost; as fast as its peer in each step it would be never late by itself
    true_s = shrink(own, healthy)
    assert shrink(own, uneven) == pytest.approx(true_s, abs=0.02)
    assert shrink(own, alike) > true_s + 0.05


def test_steps_that_are_not_known_are_put_in_no_order() -> None:
    own = np.array([[3.0, np.nan, 2.0, 5.0]])
    healed = np.array([[1.0, 1.5, np.nan, 0.5]])
    found = in_order_of(own, healed)
    assert found[0, [0, 1, 3]].tolist() == [0.5, 1.5, 1.0]
    assert np.isnan(found[0, 2])


def test_what_wanders_for_seconds_has_no_onset_and_what_changes_for_good_has() -> None:
    wandering, changed = 0, 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        noise, slow = rng.normal(0, 3, 300), np.zeros(300)
        for step in range(1, 300):  # far less than the noise of single steps, and for a hundred of them
            slow[step] = 0.97 * slow[step - 1] + rng.normal(0, 0.36)
        wandering += find_onset(30 + slow + noise) is not None
        changed += find_onset(30 + noise + 3 * (np.arange(300) >= 180)) is not None
    assert wandering <= 12  # 31 where only neighbours are asked
    assert changed >= 55
