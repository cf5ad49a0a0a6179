"""fs.stuck looks at processes twice: when it does, what ran between both looks, and what fails on the way."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from sweep_trees import NOW_S, NV, UPTIME_S, host, look, process, put

from rankscope.diagnose.sweep.checks import fs_stuck
from rankscope.diagnose.sweep.context import Context
from rankscope.diagnose.sweep.readings.filesystems import Usage


@pytest.fixture
def waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with one process in state D, whose mounts answer at once."""
    monkeypatch.setattr(fs_stuck, "usages", lambda *_: ())
    return host(tmp_path, {**process(11, "D", 1, "cp"), "proc/11/stack": NV})


def context_of(root: Path, **settings: float) -> Context:
    return Context("fs.stuck", {**fs_stuck.SETTINGS, **settings}, root, NOW_S, UPTIME_S)


def test_a_process_that_ran_between_both_looks_does_not_hang(waiting: Path) -> None:
    first = fs_stuck._FirstLook(context_of(waiting))
    found, _ = first.result()
    later = {"proc/11/status": "Name:\tcp\nTgid:\t11\nvoluntary_ctxt_switches:\t8\n"}
    timer = threading.Timer(0.1, put, (waiting, later))
    timer.start()
    # by its defaults it looks again after half a second, while the process ran after a tenth
    assert [one.value for one in fs_stuck.run(context_of(waiting))] == [0.0]
    timer.join()
    assert [one.pid for one in found] == [11]


def test_the_first_look_waits_for_mounts_that_answer_and_no_longer(
    waiting: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    real = fs_stuck._uninterruptible

    def answering(*_: object) -> list[Usage]:
        time.sleep(0.2)
        order.append("mounts")
        return []

    def looking(context: Context, among: set[int] | None) -> list[fs_stuck._Waiting]:
        order.append("processes")
        return real(context, among)

    monkeypatch.setattr(fs_stuck, "usages", answering)
    monkeypatch.setattr(fs_stuck, "_uninterruptible", looking)
    began = time.monotonic()
    assert [one.instance for one in look(waiting, "fs.stuck", patience_s=30.0, wait_s=0.01)] == ["cp (11)"]
    assert order == ["mounts", "processes", "processes"] and time.monotonic() - began < 10


def test_what_fails_in_the_first_look_is_the_checks(waiting: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> list[fs_stuck._Waiting]:
        raise RecursionError("too deep")

    monkeypatch.setattr(fs_stuck, "_uninterruptible", fail)
    look_of = fs_stuck._FirstLook(context_of(waiting, patience_s=0.01))
    look_of._asked.set()
    with pytest.raises(RecursionError, match="too deep"):
        look_of._found.result(10)


def test_a_thread_that_does_not_start_for_another_reason_is_an_error(
    waiting: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Odd(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("threads can only be started once")

    monkeypatch.setattr(fs_stuck, "threading", SimpleNamespace(Thread=Odd, Event=threading.Event))
    with pytest.raises(RuntimeError, match="only be started once"):
        next(fs_stuck.run(context_of(waiting)))


def test_where_a_process_hangs_is_said_or_that_it_cannot_be_seen(waiting: Path) -> None:
    (seen,) = look(waiting, "fs.stuck", wait_s=0.01)
    assert seen.action == "cat /proc/11/stack says where."
    put(waiting, {"proc/11/stack": "", "proc/11/wchan": "0"})
    (unseen,) = look(waiting, "fs.stuck", wait_s=0.01)
    assert unseen.action == "cat /proc/11/stack says where; the sweep has no right to (CAP_SYS_ADMIN)."
