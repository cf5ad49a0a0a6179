"""Workload: the rank has more to do. Every function of its step grew alike and no counter says the CPU was held back.

Convicts: Python (and GPU) excess without an odd function. Acquits: one odd function; a counter. Nobody is guilty:
the verdict is an imbalance.
"""

from __future__ import annotations

from collections.abc import Iterator

from diagnose.causes.case import GUESS, Case, Charge
from diagnose.verdict import Evidence


def judge(case: Case) -> Iterator[Charge]:
    """One charge if the excess has no place of its own."""
    found = case.python
    if found is None or not found.spread:
        return
    yield Charge(
        "workload", "data-imbalance", found.excess_s, GUESS,
        (Evidence("stacks", "own Python time, all functions alike", found.own_s, found.peers_s, "s/step", len(case.peers)),),
        "This rank has more work per step: compare its batch shapes and sequence lengths with its peers'.",
    )  # fmt: skip
