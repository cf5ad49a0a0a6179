"""Probabilities of our own: against SciPy's, in the middle and far out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special as scipy_special

from rankscope.diagnose.stats import special

_EXACT, _EXACT_FAR_OUT = 1e-10, 1e-8


def relative(ours: object, theirs: object) -> float:
    """The largest relative error, of what is no smaller than a double can hold in full."""
    mine, other = np.asarray(ours), np.asarray(theirs)
    seen = np.abs(other) > 1e-290
    return float(np.abs(mine[seen] / other[seen] - 1).max())


@pytest.mark.parametrize("most_freedom", [30.0, 5e3, 4e15])
def test_student_is_as_scipy_has_it_from_one_degree_of_freedom_to_the_normal(most_freedom: float) -> None:
    rng = np.random.default_rng(1)
    freedom = np.exp(rng.uniform(0, math.log(most_freedom), 3000))
    t = rng.normal(0, 1, 3000) * 10 ** rng.uniform(-3, 1.4, 3000)
    assert relative(special.student_below(freedom, t), scipy_special.stdtr(freedom, t)) < _EXACT_FAR_OUT
    near = np.abs(t) < 12
    assert relative(special.student_below(freedom[near], t[near]), scipy_special.stdtr(freedom[near], t[near])) < _EXACT


def test_student_at_its_ends() -> None:
    found = special.student_below(np.array([3.0, 3.0, 1e9, 5.0]), np.array([-np.inf, np.inf, 0.0, np.nan]))
    assert found[:3].tolist() == [0.0, 1.0, 0.5]
    assert math.isnan(found[3])
    assert special.student_below(np.array(4.0), np.zeros((2, 3))).shape == (2, 3)


def test_binomial_tails_are_as_scipy_has_them() -> None:
    rng = np.random.default_rng(2)
    trials = rng.integers(1, 5000, 3000)
    count, share = (trials * rng.random(3000)).astype(int), rng.random(3000) ** 2
    ours = [special.binomial_above(int(k), int(n), float(p)) for k, n, p in zip(count, trials, share, strict=True)]
    assert relative(ours, scipy_special.bdtrc(count, trials, share)) < _EXACT
    assert [special.binomial_above(*ends) for ends in ((-1, 5, 0.2), (5, 5, 0.9), (2, 5, 0.0), (2, 5, 1.0))] == [
        1,
        0,
        0,
        1,
    ]


def test_the_normal_distribution_is_as_scipy_has_it_however_far_out() -> None:
    x = np.concatenate([-(10 ** np.linspace(-3, 3, 500)), np.linspace(-3, 8, 200)])
    assert relative([special.log_normal_below(float(at)) for at in x], scipy_special.log_ndtr(x)) < _EXACT
    shares = (np.arange(1001) + 0.5) / 1001
    assert np.abs(special.normal_quantiles(shares) - scipy_special.ndtri(shares)).max() < 1e-13
