"""What one observation may take: where a budget ends the window ends or something is counted, and memory stays what it is."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from rankscope.observer.finish.windows import _over_budget
from rankscope.observer.live import kernel_probes, limits, observation, process_watch
from rankscope.observer.live.kernel_probes import map_sizes
from rankscope.observer.live.observation import Observation
from rankscope.observer.live.process_watch import LOADER, ProcessWatch
from rankscope.probes.bpf import loader, ring
from rankscope.probes.bpf.compiler.compiled import BpfUnavailable
from rankscope.probes.calls.row import LAUNCH
from rankscope.probes.calls.table import CALL_TABLE
from rankscope.probes.files import probe as files
from rankscope.probes.host import procfs

REPOSITORY = Path(__file__).resolve().parents[4]


@pytest.fixture(autouse=True)
def what_other_tests_left_counts_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that runs the tests may hold more than an observer may."""
    monkeypatch.setattr(limits, "RESIDENT_BYTES", limits.resident_bytes() + limits.RESIDENT_BYTES)


def events(count: int, kind: int = ring.OFFCPU) -> ring.Events:
    found = np.zeros(count, ring.EVENT)
    found["type"] = kind
    return found


class Source:
    """Gives the same events at each drain."""

    def __init__(self, batch: ring.Events) -> None:
        self.batch = batch

    def drain(self) -> ring.Events:
        return self.batch


def an_observation(batch: ring.Events, **more: Any) -> Observation:
    calls = SimpleNamespace(enforce_budget=lambda ranks: None)
    probes = SimpleNamespace(
        events=Source(batch), stack=lambda identity: None, calls=calls, forget_process=lambda *_: None,
        room=lambda table: 8192,
    )  # fmt: skip
    nothing = SimpleNamespace(sample=lambda: None)
    given = {"ranks": [], "processes": {}, "gauges": nothing, "flows": nothing, "hardware": nothing, **more}
    return Observation(probes=cast(Any, probes), root=Path("/"), **cast(Any, given))


def test_a_window_with_more_events_than_there_is_room_for_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EVENTS", 1000)
    running = an_observation(events(300))
    began = time.monotonic()
    running.run_until(time.monotonic() + 30)
    assert time.monotonic() - began < 5
    assert (sum(map(len, running.batches)), running.lost_events) == (1000, 200)
    assert [(loss.source, loss.name, loss.count) for loss in running.losses()] == [
        ("observer", "events_over_budget", 200)
    ]
    assert any("ended early" in said for said in _over_budget(running))


def test_a_window_ends_early_where_memory_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RESIDENT_BYTES", limits.resident_bytes() - 1)
    running = an_observation(events(300))
    running.run_until(time.monotonic() + 30)
    assert (len(running.batches[0]), running.lost_events) == (0, 300)


def test_that_a_process_ended_is_kept_beyond_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EVENTS", 10)
    running = an_observation(np.concatenate([events(20), events(3, ring.EXIT)]))
    running.drain()
    assert int((running.batches[0]["type"] == ring.EXIT).sum()) == 3
    assert running.lost_events == 10


def test_stacks_are_put_into_words_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STACKS", 5)
    batch = events(9, ring.SAMPLE)
    batch["stack"] = np.arange(1, 10)
    process = SimpleNamespace(name_stack=lambda raw: raw)
    running = an_observation(batch, processes={0: process})
    running.probes.stack = lambda identity: cast(Any, identity)  # type: ignore[method-assign]
    running.drain()
    assert len(running.stacks) == 5
    assert running.lost_stacks == 4


def test_workers_are_sought_only_where_something_was_started(monkeypatch: pytest.MonkeyPatch) -> None:
    sought: list[int] = []
    newest = iter((7, 7, 8, -1, -1))
    monkeypatch.setattr(observation, "children", lambda pid, root: sought.append(pid) or ())
    monkeypatch.setattr(observation.procfs, "newest_pid", lambda root: next(newest))
    running = an_observation(events(0), ranks=[SimpleNamespace(pid=1, owner=1000, cgroup="")])
    counts = []
    for _ in range(5):
        running.refresh()
        counts.append(len(sought))
    assert counts == [1, 1, 2, 3, 4]


def test_the_number_given_last_is_that_of_what_was_started_last() -> None:
    child = subprocess.Popen(["true"])
    assert procfs.newest_pid() >= child.pid
    child.wait()
    assert procfs.newest_pid(Path("/nothing")) == -1


def test_workers_that_come_and_go_are_forgotten_and_a_number_that_comes_again_is_another_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[int] = []
    alive: set[int] = set()

    class Worker(ProcessWatch):
        def refresh(self, probes: object, room: int = 0) -> None:
            self.gone = self.gone or self.pid not in alive

        def close(self) -> None:
            closed.append(self.pid)

    monkeypatch.setattr(observation, "children", lambda pid, root: tuple(sorted(alive)))
    monkeypatch.setattr(observation, "feeds", lambda pid, root: True)
    monkeypatch.setattr(observation.procfs, "newest_pid", lambda root: -1)
    monkeypatch.setattr(observation.process_watch, "watch", lambda pid, owner, *_: Worker(pid, owner, LOADER, None, ""))
    monkeypatch.setattr(limits, "PROCESSES", 8)
    running = an_observation(events(0), ranks=[SimpleNamespace(pid=1, owner=1000, cgroup="")])
    seen: list[ProcessWatch] = []
    for first in (100, 104, 100):
        alive.clear()
        running.refresh()
        alive.update(range(first, first + 4))
        running.refresh()
        seen += [process for process in running.processes.values() if not any(process is one for one in seen)]
    assert len(running.processes) == 8
    assert len(seen) == 12
    assert {100, 104} <= set(closed)
    alive.add(300)
    running.refresh()
    assert 300 not in running.processes
    assert [(loss.name, loss.count) for loss in running.losses()] == [("processes_over_budget", 1)]


def test_of_a_process_with_absurdly_many_threads_the_oldest_are_looked_at_and_the_rest_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads = tuple(SimpleNamespace(host_tid=tid, tstate_address=tid << 12, thread_id=tid) for tid in range(100, 2350))
    monkeypatch.setattr(process_watch, "list_threads", lambda *_, **__: threads)
    some, many = (
        ProcessWatch(pid, pid, LOADER, cast(Any, object()), "", memory=cast(Any, object())) for pid in (50, 100)
    )
    kernel = SimpleNamespace(set_thread=lambda *_: None, forget_thread=lambda *_: None)
    many.refresh(cast(Any, kernel))
    assert list(many.threads) == list(range(100, 100 + limits.PYTHON_THREADS))
    monkeypatch.setattr(process_watch, "list_threads", lambda *_, **__: threads[:20])
    some.refresh(cast(Any, kernel))
    running = an_observation(events(0), processes={50: some, 100: many})
    assert [(loss.name, loss.count) for loss in running.losses()] == [("threads_over_budget", 2250 - 256)]
    assert _over_budget(running) == ["pid 100: 1994 of its Python threads were not followed: there were too many"]


def test_maps_have_room_for_twice_what_the_census_found() -> None:
    assert map_sizes(8, 400) == {}
    assert map_sizes(512, 16_000) == {}
    many = map_sizes(32 * 33, 32 * 200)
    assert many["rs_targets"] == many["rs_interpreters"] == 2112
    assert many["rs_pythreads"] == 16 * 1056
    assert "rs_threads" not in many
    assert map_sizes(200, 40_000)["rs_threads"] == 80_000
    assert set(map_sizes(1 << 20, 1 << 24).values()) == {1 << 18}


@pytest.mark.parametrize("processes", [1, 8, 512, 513, 600, 1024, 1025, 5000, 100_000])
def test_no_process_can_fill_a_map_that_all_share(processes: int) -> None:
    """Of as many as may be watched at once each has as much as it may have."""
    sized = kernel_probes._USUAL_ENTRIES | map_sizes(processes, 100)
    watched = sized["rs_targets"]
    assert kernel_probes.calls_each(processes) * watched <= sized["rs_calls"]
    assert (kernel_probes.calls_each(processes) == 128) == (processes <= 1024)
    assert sized["rs_awake"] >= watched
    assert sized["rs_calls_open"] >= 2 * watched or watched > 1 << 17
    sums = sum(8 if row.direction else 1 for row in CALL_TABLE if row.summed or row.role == LAUNCH)
    if processes <= 1024:
        assert sums * watched <= sized["rs_call_sums"]
    assert len(files.OPERATIONS) * limits.PROCESSES <= sized["rs_file_sums"]
    assert sized["rs_ended"] >= limits.PROCESSES


def test_what_is_compiled_is_the_same_however_many_processes_are_watched_and_whatever_the_kernel_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    def loaded(*sources: Any, **how: Any) -> Any:
        asked.append(
            (loader.text_of(*sources, folders=how["folders"], generated=how["generated"], names=how["numbers"]), how)
        )
        raise BpfUnavailable("not here")

    monkeypatch.setattr(kernel_probes.loader, "load", loaded)
    monkeypatch.setattr(kernel_probes, "in_initial_pid_namespace", lambda _: True)
    numbers = dict.fromkeys(kernel_probes._NUMBERS, 0)
    for processes, task_files in ((8, 0), (5000, 2592)):
        here = kernel_probes._Here({**numbers, "RS_TASK_FILES": task_files}, ())
        monkeypatch.setattr(kernel_probes, "_here", lambda _, here=here: here)
        with pytest.raises(BpfUnavailable):
            kernel_probes.load_module(hz=99, processes=processes)
    assert {text for text, _ in asked} == {kernel_probes.text()} and not any("defines" in how for _, how in asked)
    assert [how["numbers"]["RS_CALLS_EACH"] for _, how in asked] == [128, kernel_probes.calls_each(5000)]
    assert [how["numbers"]["RS_TASK_FILES"] for _, how in asked] == [0, 2592]


def test_the_usual_sizes_of_maps_are_those_of_the_programs() -> None:
    """The sources say them; where they change, the size that needs no more changes with them."""
    text = "".join(
        path.read_text() for folder in ("probes", "unwinder") for path in (REPOSITORY / folder).rglob("*.bpf.[ch]")
    )
    numbers = {name: int(value) for name, value in re.findall(r"#define (RS_MAX_\w+) (\d+)", text)}
    said = dict(re.findall(r"BPF_HASH\((rs_\w+), [^;]*?, (\w+)\);", text))
    said |= dict(re.findall(r'BPF_TABLE\("lru_hash", [^;]*?, (rs_\w+), (\w+)\);', text))
    assert {
        name: int(numbers.get(said[name], said[name])) for name in kernel_probes._USUAL_ENTRIES
    } == kernel_probes._USUAL_ENTRIES


def test_an_observer_is_killed_before_a_rank_and_may_open_many_files() -> None:
    text = (
        "import resource; from pathlib import Path; from rankscope.observer.live import limits\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))\n"
        "limits.set_process_limits()\n"
        "print(Path('/proc/self/oom_score_adj').read_text().strip(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    score, files = map(int, done.stdout.split())
    assert score == 1000
    assert files > 256


class Slow:
    """A process of a rank, at whose threads it takes 20 ms of the processor to look."""

    def __init__(self, pid: int, owner: int) -> None:
        self.pid, self.owner, self.gone, self.looks = pid, owner, False, 0
        self.threads = {pid: 0}

    def refresh(self, _: object, room: int) -> None:
        self.looks += 1
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            pass


def test_threads_without_number_of_one_user_keep_no_event_in_the_ring_and_hide_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(observation, "children", lambda pid, root: ())
    ranks = [SimpleNamespace(pid=pid, owner=1666 if pid < 900 else 1000, cgroup="/") for pid in (1, 900)]
    crowd, mine = [Slow(pid, 1) for pid in range(100, 200)], [Slow(pid, 900) for pid in (900, 901)]
    running = an_observation(events(0), ranks=ranks, processes={one.pid: one for one in (*crowd, *mine)})
    for _ in range(12):
        began = time.process_time()
        running.refresh()
        assert time.process_time() - began < observation.REFRESH_FREELY_S + 3 * observation.REFRESH_EACH_S
    assert min(one.looks for one in mine) >= 5
    assert min(one.looks for one in crowd) >= 1, "each in its turn"
