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


def test_only_what_came_since_is_read_and_no_descriptor_is_left(tmp_path: Path) -> None:
    log = tmp_path / "dev/kmsg"
    log.parent.mkdir()
    log.write_text("6,1,1000,-;old\n")
    open_before = len([*Path("/proc/self/fd").iterdir()])
    with kmsg.following(tmp_path) as since:
        assert since() == ()
        with log.open("a") as end:
            end.write("6,2,2000,-;new\n")
        assert [one.text for one in since()] == ["new"]
    # A file is a recorded log, of many records a read.
    assert [one.text for one in kmsg.read_kmsg(tmp_path)] == ["old", "new"]
    assert len([*Path("/proc/self/fd").iterdir()]) == open_before


def test_who_was_killed_and_for_whose_limit_is_read_from_the_log() -> None:
    texts = (
        "Memory cgroup out of memory: Killed process 19618 (python) total-vm:1937392kB, anon-rss:152064kB, UID:0 oom_score_adj:0",
        "Out of memory: Killed process 77 (trainer) total-vm:9kB",
        "python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
        "fake: Out of memory: Killed process 5 (x)",
    )
    found = memory_kills(KernelMessage(3, number, 1.0, text) for number, text in enumerate(texts))
    assert found == (MemoryKill(19618, True, "python", 1.0), MemoryKill(77, False, "trainer", 1.0))
    assert "limit" in found[0].words and "host" in found[1].words


@pytest.mark.parametrize(
    ("name", "group"),
    [("python", "/slurm/uid_1000/job_77/step_0"), ("x,pid=1,uid=0", "/a,task_memcg=/b,task=c,pid=9,uid=9"), ("", "/")],
)
def test_the_control_group_and_the_user_are_those_of_the_process_that_was_killed(name: str, group: str) -> None:
    """Whatever a user calls the process and its group."""
    before = "nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/slurm/uid_1000/job_77"
    texts = (
        f"oom-kill:constraint=CONSTRAINT_MEMCG,{before},task_memcg={group},task={name},pid=12,uid=-294967289",
        "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/init,task=a,pid=13,uid=0",
        f"Memory cgroup out of memory: Killed process 12 ({name}) total-vm:1kB, UID:1000 pgtables:1kB oom_score_adj:0",
        "Memory cgroup out of memory: Killed process 12 (again) total-vm:1kB",
    )
    one, two = memory_kills(KernelMessage(3, number, 1.0, text) for number, text in enumerate(texts))
    assert one.pid == two.pid == 12 and one.user == 4_000_000_007 and one.cgroup.endswith(group)
    assert (two.cgroup, two.user) == ("", None)


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
