"""The buffer between kernel and observer is as large as the ranks of the host need it."""

from __future__ import annotations

import pytest

from rankscope.observer.live.kernel_probes import ring_pages


@pytest.mark.parametrize("ranks, pages", [
    (0, 512), (1, 512), (8, 512), (9, 1024), (16, 1024), (17, 2048), (32, 2048), (64, 4096), (65, 8192), (512, 8192),
])  # fmt: skip
def test_each_rank_has_the_room_of_one_in_eight(ranks: int, pages: int) -> None:
    assert ring_pages(ranks) == pages
