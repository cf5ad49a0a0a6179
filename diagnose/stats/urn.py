"""Probability of so many marked things in a sample by chance (hypergeometric)."""

from __future__ import annotations

import math


def at_least(found: int, among: int, drawn: int, of_all: int) -> float:
    """Return the probability that at least `found` of `drawn` things are marked, if `among` of `of_all` are.

    P(Hypergeometric >= found).
    """
    most = min(among, drawn)
    least = max(found, drawn - (of_all - among), 0)
    return min(sum(math.exp(_ln_share(each, among, drawn, of_all)) for each in range(least, most + 1)), 1.0)


def _ln_share(found: int, among: int, drawn: int, of_all: int) -> float:
    """Return ln of the probability that exactly `found` of `drawn` things are marked, if `among` of `of_all` are."""
    return _ln_choose(among, found) + _ln_choose(of_all - among, drawn - found) - _ln_choose(of_all, drawn)


def _ln_choose(count: int, some: int) -> float:
    """Return ln of the number of ways to choose `some` of `count` things."""
    return math.lgamma(count + 1) - math.lgamma(some + 1) - math.lgamma(count - some + 1)
