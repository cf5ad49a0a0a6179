"""Priority of the observing thread: what computes gives way for a time, and what it starts is scheduled as usual."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator

import pytest

from rankscope.observer.live import priority
from rankscope.observer.live.priority import Priorities, giving_way, going_first
from rankscope.probes.base import patience
from rankscope.probes.base.patience import patiently

OTHER, IDLE = os.SCHED_OTHER, os.SCHED_IDLE
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="raising a priority needs root")


def policy(tid: int = 0) -> int:
    return os.sched_getscheduler(tid)


@pytest.fixture(autouse=True)
def ordinary(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tests may run at any priority; these begin at the ordinary one."""
    usual, nice = policy(), os.getpriority(os.PRIO_PROCESS, 0)
    if os.geteuid() == 0:
        os.sched_setscheduler(0, OTHER, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    monkeypatch.setattr(priority, "_PRIORITIES", Priorities(OTHER))
    yield
    if os.geteuid() == 0:
        os.sched_setscheduler(0, usual, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, 0, nice)


@pytest.fixture
def priorities() -> Iterator[Priorities]:
    made = Priorities(OTHER)
    yield made
    made.close()


@needs_root
def test_a_thread_gives_way_only_while_it_computes() -> None:
    with giving_way():
        assert policy() == IDLE
    assert policy() == OTHER and os.getpriority(os.PRIO_PROCESS, 0) == 0


@needs_root
def test_what_reads_of_processes_for_it_does_not_give_way() -> None:
    with giving_way():
        assert patiently(policy) == OTHER


@needs_root
def test_a_reader_that_was_started_meanwhile_gives_way_no_longer() -> None:
    with giving_way():
        patience._idle.clear()  # one is left behind with a process that does not answer
        patiently(policy)
    assert patiently(policy) == OTHER


@needs_root
def test_it_gives_way_no_longer_than_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(priority, "YIELDS_S", 0.05)
    with giving_way():
        ends = time.monotonic() + 10
        while policy() == IDLE and time.monotonic() < ends:
            time.sleep(0.01)
        assert policy() == OTHER


@needs_root
def test_an_end_that_is_out_of_date_changes_nothing(priorities: Priorities) -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        priorities.set(child.pid, 0, yields_s=0.1)
        priorities.set(child.pid, -10)
        time.sleep(0.3)
        assert (policy(child.pid), os.getpriority(os.PRIO_PROCESS, child.pid)) == (OTHER, -10)
        child.kill()


@needs_root
def test_where_no_thread_is_to_be_had_nothing_gives_way(
    priorities: Priorities, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    with subprocess.Popen(["sleep", "60"]) as child:
        priorities.set(child.pid, 0, yields_s=60.0)
        assert policy(child.pid) == OTHER
        child.kill()


@needs_root
def test_draining_goes_before_ordinary_work_and_ends_so() -> None:
    with going_first():
        assert os.getpriority(os.PRIO_PROCESS, 0) == -10
    assert os.getpriority(os.PRIO_PROCESS, 0) == 0
