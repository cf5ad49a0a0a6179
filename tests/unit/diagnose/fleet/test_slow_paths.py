"""A rank that does what its peers never do, and for which all of them wait, is compared with them and named."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankscope.diagnose.infer.fleet.gather import gather
from rankscope.diagnose.infer.fleet.roles import roles
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.observer.window.bundle import read_bundle

RECORDED = Path(__file__).parents[3] / "data" / "slow_paths"


@pytest.mark.parametrize(
    ("name", "rank", "cause"),
    [("fallback", 1, "slow-function"), ("recompiles", 2, "recompile"), ("scan", 3, "slow-function")],
)
def test_the_rank_is_a_peer_of_the_others_and_the_first_suspect(name: str, rank: int, cause: str) -> None:
    windows = read_bundle(RECORDED / f"{name}.rankscope").windows
    assert len(set(roles(gather(windows)).tolist())) == 1
    verdict = diagnose(windows)
    first = verdict.suspects[0]
    assert (verdict.status, first.component, first.cause, first.ranks) == ("fault", "python", cause, (rank,))


def test_no_function_is_named_by_the_mark_of_frames_that_were_left_out() -> None:
    """Stacks of a compiler are longer than a window keeps."""
    verdict = diagnose(read_bundle(RECORDED / "recompiles.rankscope").windows)
    assert "…" not in str([each.value for each in verdict.suspects[0].evidence])
