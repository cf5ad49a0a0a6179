"""Processes that the kernel ended for want of memory, by its log."""

from __future__ import annotations

from rankscope.probes.host.kmsg import KernelMessage
from rankscope.probes.host.oom import MemoryKill, memory_kills


def test_who_was_killed_and_for_whose_limit_is_read_from_the_log() -> None:
    texts = (
        "Memory cgroup out of memory: Killed process 19618 (python) total-vm:1937392kB, anon-rss:152064kB, UID:0 oom_score_adj:0",
        "Out of memory: Killed process 77 (trainer) total-vm:9kB",
        "python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
        "fake: Out of memory: Killed process 5 (x)",
    )
    found = memory_kills(KernelMessage(3, number, 1.0, text) for number, text in enumerate(texts))
    assert found == (MemoryKill(19618, limited=True), MemoryKill(77, limited=False))
    assert "limit" in found[0].words and "host" in found[1].words
