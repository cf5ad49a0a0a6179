"""What the kernel says when two tools disagree about a probe, and what may be done about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankscope.probes.bpf.functions.shared_uprobes import PlaceTaken, attach, disagreements
from rankscope.probes.host.kmsg import KernelMessage

SAID = (
    "ref_ctr_offset mismatch. inode: 0x52a764 offset: 0x8b67030 ref_ctr_offset(old): 0x{:x} ref_ctr_offset(new): 0x{:x}"
)


def said(old: int, new: int) -> KernelMessage:
    return KernelMessage(4, 1, 4659.75, SAID.format(old, new))


def test_the_counter_of_the_other_probe_is_read_from_the_refusal() -> None:
    assert disagreements([said(6, 0)], {}) == {0x8B67030: 6}
    assert disagreements([said(0, 6)], {0x8B67030: 6}) == {0x8B67030: 0}


def test_answers_to_another_question_and_other_messages_tell_nothing() -> None:
    assert disagreements([said(0, 6), KernelMessage(4, 2, 1.0, "eth0: link up")], {}) == {}


def test_without_the_kernels_log_the_operator_is_told_where_the_reason_is(tmp_path: Path) -> None:
    def refused(counters: object) -> tuple[int, ...]:
        raise OSError(22, "Invalid argument")

    with pytest.raises(PlaceTaken, match=r"Invalid argument; the kernel's log, which says why, cannot be read"):
        attach(refused, tmp_path / "lib.so", (16,), root=tmp_path)


def test_other_errors_are_what_they_are(tmp_path: Path) -> None:
    def missing(counters: object) -> tuple[int, ...]:
        raise FileNotFoundError(2, "No such file or directory")

    with pytest.raises(FileNotFoundError):
        attach(missing, tmp_path / "lib.so", (16,), root=tmp_path)
