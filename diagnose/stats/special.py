"""Probabilities of four distributions, by their textbook series: normal, Student's t, beta and binomial.

SciPy has them too, but takes a fifth of a second and 40 MB to load, and its own linear algebra
library hangs for ever if it gets no memory. Relative errors are below 1e-8 down to 1e-290, below
1e-11 to 1e-50 (tests/unit/diagnose/stats/test_special.py, against SciPy).
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from rankscope.probes.base.arrays import Floats

_NORMAL = NormalDist()
_TINY = 1e-300
_ENOUGH = 1e-16
_MOST_TERMS = (
    # of a continued fraction; usually some tens, and the root of its parameters where both are
    # large
    100_000
)
_MANY = 1000.0  # degrees of freedom from which on Hill's expansion is exact to the stated errors
_FAR = -20.0  # below this the asymptotic series of the normal tail is exact to the last bits


def normal_quantiles(shares: Floats) -> Floats:
    """Return x with P(N <= x) = share, for shares between 0 and 1."""
    return np.array([_NORMAL.inv_cdf(share) for share in shares.tolist()], dtype=np.float64)


def log_normal_below(x: float) -> float:
    """Return ln P(N <= x), also for extreme x."""
    if x > _FAR:
        return (
            math.log(0.5 * math.erfc(-x / math.sqrt(2.0)))
            if x < 0
            else math.log1p(-0.5 * math.erfc(x / math.sqrt(2.0)))
        )
    # P = exp(-x²/2) / (-x sqrt(2 pi)) · (1 - 1/x² + 3/x⁴ - 15/x⁶ + …), Abramowitz & Stegun 26.2.12
    series, term = 1.0, 1.0
    for number in range(1, 12):
        term *= -(2 * number - 1) / (x * x)
        series += term
    return -0.5 * x * x - math.log(-x) - 0.5 * math.log(2 * math.pi) + math.log(series)


def student_below(freedom: Floats, t: Floats) -> Floats:
    """Return P(T <= t) for each pair of freedom and t, arrays of compatible shapes; NaN where t is.

    `freedom`: degrees of freedom, at least 1, up to infinity (the normal distribution).
    """
    pairs = zip(*(part.ravel().tolist() for part in np.broadcast_arrays(freedom, t)), strict=True)
    found = np.array([_student_below(each, at) for each, at in pairs], dtype=np.float64)
    return found.reshape(np.broadcast_shapes(np.shape(freedom), np.shape(t)))


def _student_below(freedom: float, t: float) -> float:
    """Return P(T <= t) of Student's distribution with so many degrees of freedom; NaN where either is."""
    if math.isnan(t) or math.isnan(freedom):
        return math.nan
    if math.isinf(t):
        return 0.0 if t < 0 else 1.0
    square = t * t / freedom
    if freedom < _MANY:  # x = nu / (nu + t²); 2 P(T >= |t|) = I_x(nu/2, 1/2)
        tail = 0.5 * _incomplete_beta(0.5 * freedom, 0.5, -math.log1p(square), square / (1.0 + square))
    else:
        tail = 0.5 * math.erfc(_as_normal(freedom, square) / math.sqrt(2.0))
    return tail if t < 0 else 1.0 - tail


def _as_normal(freedom: float, square: float) -> float:
    """Return the z, 0 or above, with the same tail as t; `square`: t² / freedom (Hill 1970, Algorithm 395 of the ACM)."""
    a = freedom - 0.5
    b, y = 48.0 * a * a, a * math.log1p(square)
    more = (((-0.4 * y - 3.3) * y - 24.0) * y - 85.5) / (0.8 * y * y + 100.0 + b)
    return ((more + y + 3.0) / b + 1.0) * math.sqrt(y)


def binomial_above(count: int, trials: int, share: float) -> float:
    """Return P(Binomial(trials, share) > count)."""
    if count < 0:
        return 1.0
    if count >= trials or share <= 0.0:
        return 0.0
    if share >= 1.0:
        return 1.0
    return _incomplete_beta(count + 1.0, float(trials - count), math.log(share), 1.0 - share)


def _incomplete_beta(a: float, b: float, log_x: float, rest: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b); `log_x`: ln x, `rest`: 1 - x.

    x is given as both, since each is exact at one end only.
    """
    x = math.exp(log_x)
    if rest <= 0.0:
        return 1.0
    front = math.exp(a * log_x + b * math.log(rest) - _log_beta(a, b))
    if x < (a + 1.0) / (a + b + 2.0):
        return front * _fraction(a, b, x) / a
    return 1.0 - front * _fraction(b, a, rest) / b


def _log_beta(a: float, b: float) -> float:
    """Return ln B(a, b); exact also for a large and a small number, without a difference of two large ones."""
    small, large = sorted((a, b))
    if large < 50.0:
        return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    # Stirling's series: ln Γ(z) = (z - 1/2) ln z - z + ln(2 pi)/2 + rest(z)
    whole = large + small
    more = (large - 0.5) * math.log1p(small / large) + small * math.log(whole) - small
    return math.lgamma(small) - more - (_stirling(whole) - _stirling(large))


def _stirling(z: float) -> float:
    """Return the rest of Stirling's series for ln Γ(z): 1/(12 z) - 1/(360 z³) + …"""
    square = z * z
    return (1 / 12 - (1 / 360 - (1 / 1260 - 1 / (1680 * square)) / square) / square) / z


def _fraction(a: float, b: float, x: float) -> float:
    """Evaluate the continued fraction of the incomplete beta function by Lentz's method (Numerical Recipes, 6.4)."""
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1.0)
    d = 1.0 / (d if abs(d) > _TINY else _TINY)
    value = d
    for m in range(1, _MOST_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0))
        for part in (even, odd):
            d, c = 1.0 + part * d, 1.0 + part / c
            d, c = 1.0 / (d if abs(d) > _TINY else _TINY), c if abs(c) > _TINY else _TINY
            step = d * c
            value *= step
        if abs(step - 1.0) < _ENOUGH:
            break
    return value
