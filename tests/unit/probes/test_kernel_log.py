"""The kernel's log: record by record, Xids as the driver's kernel module writes them, and processes that were ended for want of memory."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.probes.gpu.xid import LoggedXid, logged_xids
from rankscope.probes.host import kmsg
from rankscope.probes.host.kmsg import KernelMessage
from rankscope.probes.host.oom import MemoryKill, memory_kills


def test_what_was_overwritten_or_does_not_fit_hides_nothing_and_another_error_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kmsg").touch()
    answers = iter([errno.EPIPE, b"6,7,1000,-;first\n", errno.EINVAL, b"6,8,2000,-;second\n", b"", errno.EIO])

    def read(descriptor: int, size: int) -> bytes:
        answer = next(answers)
        if isinstance(answer, int):
            raise OSError(answer, "broken")
        return answer

    with kmsg.following(tmp_path) as since, monkeypatch.context() as patch:
        patch.setattr(kmsg.os, "read", read)
        assert [[one.text for one in since()] for _ in range(2)] == [["first"], ["second"]]
        with pytest.raises(OSError, match="broken"):
            since()


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


def message(text: str) -> KernelMessage:
    return KernelMessage(3, 7, 1009.5, text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            ("0000:3b:00", 79),
        ),
        ("NVRM: Xid (PCI:0000:C1:00.0): 94, pid=4711, Contained: SM (0x1)", ("0000:c1:00", 94)),
        ("NVRM: Xid (PCI:00000001:00:00): 13, Graphics SM Warp Exception", ("0001:00:00", 13)),
        ("NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 31, pid=7, name=python", ("0000:3b:00", 31)),
        ("usb 1-1: NVRM: Xid (PCI:0000:3b:00): 79", None),
        ("NVRM: GPU 0000:3b:00.0: RmInitAdapter failed!", None),
    ],
)
def test_number_and_place(text: str, expected: tuple[str, int] | None) -> None:
    found = logged_xids([message(text)])
    assert found == (() if expected is None else (LoggedXid(*expected, 1009.5),))


@given(st.text(max_size=120))
def test_any_text_is_read_without_complaint(text: str) -> None:
    logged_xids([message(text), message("NVRM: Xid (PCI:" + text)])
