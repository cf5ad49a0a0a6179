"""Counters over a window, read from files that stand in for the kernel's."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from rankscope.observer.live.gauges import Gauges, Member
from rankscope.probes.host.procfs import TICKS_PER_S


def _stat(root: Path, softirq: dict[int, int]) -> None:
    """/proc/stat with these ticks in softirq per CPU; all CPUs are busy for 97 ticks besides."""
    lines = [f"cpu{cpu} 97 0 0 0 0 3 {ticks} 0 0 0" for cpu, ticks in softirq.items()]
    total = f"cpu  {97 * len(softirq)} 0 0 0 0 {3 * len(softirq)} {sum(softirq.values())} 0 0 0"
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc/stat").write_text("\n".join([total, *lines, "intr 1"]) + "\n")


def test_only_cpus_full_of_interrupts_have_rows_of_their_own(tmp_path: Path) -> None:
    gauges = Gauges((), tmp_path)
    _stat(tmp_path, dict.fromkeys(range(3), 0))
    gauges.begin()
    # WHEN one CPU of three is in softirq for far longer than this test takes
    _stat(tmp_path, {0: 0, 1: 100_003 * TICKS_PER_S, 2: 0})
    rows = [row for row in gauges.host_rows() if row.name in ("cpu.softirq_s", "cpu.irq_s")]
    by_cpu = {(row.name, row.instance): row.value for row in rows if row.instance}
    assert by_cpu == {("cpu.softirq_s", "cpu1"): pytest.approx(100_003), ("cpu.irq_s", "cpu1"): 0.0}
    assert {row.instance for row in rows if row.value == pytest.approx(100_003)} == {"", "cpu1"}


def test_a_host_without_interrupts_to_speak_of_has_only_its_total(tmp_path: Path) -> None:
    gauges = Gauges((), tmp_path)
    _stat(tmp_path, dict.fromkeys(range(5), 0))
    gauges.begin()
    rows = [row for row in gauges.host_rows() if row.name == "cpu.softirq_s"]
    assert [row.instance for row in rows] == [""]


def test_minor_faults_of_a_rank_are_counted_from_the_beginning(tmp_path: Path) -> None:
    """A program that touches 97 new pages, counted by the kernel and by the gauges."""
    pages = 97
    memory = mmap.mmap(-1, pages * mmap.PAGESIZE)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    member = Member(5, os.getpid(), 0)
    gauges = Gauges([member.pid])
    gauges.begin()
    memory[:: mmap.PAGESIZE] = bytes(pages)
    rows = [row for row in gauges.member_rows([member]) if row.name == "memory.minor_faults"]
    assert [(row.scope, row.rank) for row in rows] == [("rank", 5)]
    assert pages <= rows[0].value <= 100 * pages  # reading the counters faults, too


def test_a_rank_that_ended_has_no_faults_to_tell(tmp_path: Path) -> None:
    gauges = Gauges([1_000_003], tmp_path)
    gauges.begin()
    assert gauges.member_rows([Member(0, 1_000_003, 0)]) == []
