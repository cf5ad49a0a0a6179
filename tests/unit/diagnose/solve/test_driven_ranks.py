"""What strangers drive from a CPU stands in others' way, and for no longer than it was driven."""

from __future__ import annotations

import numpy as np
import pytest

from rankscope.diagnose import limits
from rankscope.diagnose.infer.causes.hypothesis import CONVICTED, Hypothesis
from rankscope.diagnose.infer.causes.rows import Clear, Floor, Row, of_ranks, standing
from rankscope.diagnose.infer.model.excess import differences
from rankscope.diagnose.infer.model.scene import Scene

RANKS, STEPS, STEP_S = 4, 40, 0.2


def scene() -> Scene:
    own, roles = np.full((RANKS, STEPS), 0.18), np.zeros(RANKS, dtype=np.int64)
    found = differences(own, roles, STEP_S)
    return Scene(
        own, np.full_like(own, 0.02), roles, STEP_S, found, lambda _: found, None, np.full(STEPS, 0.18)
    )  # fmt: skip


def taken(share: float, more: float) -> Row:
    """Strangers that take this share of a step from all ranks, who stand behind each other for `more` of it."""
    found = Hypothesis("cpu", "contended", tuple(range(RANKS)), float("nan"), CONVICTED, (), "", scope="host")
    seconds = np.full((RANKS, STEPS), share * STEP_S)
    taken = of_ranks(range(RANKS), seconds)
    return Row(
        found,
        taken,
        Clear(9.0, 39.0),
        Floor(limits.ALONE_SHARE),
        with_it=of_ranks(range(RANKS), seconds / share * more),
    )


@pytest.mark.parametrize(
    ("share", "more", "stands"),
    [
        (0.02, 0.16, False),  # who gives way takes little: that all stand in the queue is not of its making
        (0.06, 0.16, True),  # 6 % taken, and as much again in others' way
        (0.06, 0.07, False),
        (0.11, 0.11, True),
    ],
)
def test_it_is_asked_for_no_more_than_twice_what_it_takes(share: float, more: float, stands: bool) -> None:
    assert bool(standing(scene(), [taken(share, more)])) is stands
