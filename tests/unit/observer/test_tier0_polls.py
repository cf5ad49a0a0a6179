"""The poll of tier 0 with probes and a census that are made by hand: ranks come, are learnt, step, stop and go."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from rankscope.observer.census.found import RankCensus
from rankscope.observer.watch import pulse, tier0
from rankscope.observer.watch.marker import MARKERS
from rankscope.observer.watch.tier0 import Beat, Tier0
from rankscope.probes.bpf import ring
from rankscope.probes.bpf.ring import Events
from rankscope.probes.calls.probe import Library
from rankscope.probes.calls.table import UPDATE
from rankscope.probes.errors import BadData
from rankscope.probes.host.maps import Mapping

UPDATES = next(place for place, row in enumerate(MARKERS) if row.name == UPDATE)
BROADCAST = next(place for place, row in enumerate(MARKERS) if row.name == "broadcast" and row.family == "mpi")
LIBRARY = ("08:01", 7)
START_TICKS = 500
SIGKILL = 9


class FakePulse:
    """Probes that are told what to see."""

    def __init__(self) -> None:
        self.queue: list[tuple[int, int, int, float, float, int]] = []  # type, pid, row, start, stay, status
        self.watched: set[int] = set()
        self.loaded: set[int] = set()
        self.looked: list[int] = []
        self.kept: set[tuple[int, tuple[str, int]]] | None = None
        self.notes: dict[str, None] = {}
        self.events = self

    def drain(self) -> Events:
        events = np.zeros(len(self.queue), ring.EVENT)
        for at, (kind, pid, row, start_s, stay_s, status) in enumerate(self.queue):
            events["type"][at], events["tgid"][at], events["what"][at], events["arg"][at] = kind, pid, row, status
            events["ts_ns"][at], events["dur_ns"][at] = round(start_s * 1e9), round(stay_s * 1e9)
        self.queue.clear()
        return events

    def watch(self, pid: int) -> None:
        self.watched.add(pid)

    def maps_a_library(self, pid: int) -> bool:
        self.looked.append(pid)
        return pid in self.loaded

    def forget(self, pid: int) -> None:
        self.watched.discard(pid)

    def listen(self, pid: int, rows: Any = None) -> frozenset[tuple[int, tuple[str, int]]]:
        return frozenset((row, LIBRARY) for row in (UPDATES, BROADCAST))

    def keep(self, places: Any) -> None:
        self.kept = set(places)


class Host:
    """Two ranks on a host whose clock is turned by hand."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.now, self.pulse = root, 1000.0, FakePulse()
        self.pids = [101, 102]
        for pid in self.pids:
            self.state(pid, "S")
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        self.tier = Tier0(cast(Any, self.pulse), root, cast(Any, self.census))

    def state(self, pid: int, letter: str, start_ticks: int = START_TICKS) -> None:
        folder = self.root / "proc" / str(pid)
        folder.mkdir(parents=True, exist_ok=True)
        fields = [letter, *["0"] * 18, str(start_ticks), *["0"] * 30]
        (folder / "stat").write_text(f"{pid} (python) {' '.join(fields)}\n")

    def census(self, root: Path) -> Any:
        ranks = tuple(
            SimpleNamespace(pid=pid, start_ticks=START_TICKS, identity=SimpleNamespace(job="job", rank=pid - 101, world_size=2))
            for pid in self.pids
        )  # fmt: skip
        return SimpleNamespace(ranks=ranks, starting=(), alone=())

    def poll(self, seconds: float = 1.0) -> Beat:
        self.now += seconds
        return self.tier.poll()

    def calls(self, row: int, period_s: float, count: int) -> None:
        starts = self.now + period_s * (np.arange(count) + 0.01 * np.random.default_rng(count).standard_normal(count))
        for pid in self.pids:
            self.pulse.queue += [(ring.CALL, pid, row, float(start_s), 0.01, 0) for start_s in starts]
        self.now += period_s * count


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


@pytest.fixture
def known(host: Host) -> Host:
    host.poll()
    host.calls(UPDATES, 0.1, 40)
    host.poll()
    assert host.tier.markers["job"].row == UPDATES
    return host


def test_ranks_are_found_once_and_listened_to(host: Host) -> None:
    assert [rank.pid for rank in host.poll().born] == [101, 102]
    assert host.poll(10.0).born == ()
    assert host.pulse.watched == {101, 102}
    assert host.tier.is_learning("job")


def test_a_rank_that_loads_its_library_late_is_found_when_it_has(host: Host) -> None:
    host.pids.remove(102)
    host.poll()
    host.state(103, "R")
    host.poll(10.0)
    assert host.poll(10.0).born == ()
    host.pids.append(103)
    host.pulse.loaded.add(103)
    born = [rank.pid for _ in range(10) for rank in host.poll(4.0).born]
    assert born == [103]


def test_a_process_that_ran_long_before_the_service_is_not_looked_at_again(host: Host) -> None:
    host.state(7, "S")  # started 5 s after the host
    host.poll()
    host.state(8, "S")  # came when the service ran already
    for _ in range(20):
        host.poll(4.0)
    assert set(host.pulse.looked) == {8}


def test_when_the_marker_is_known_everything_else_is_let_go(known: Host) -> None:
    assert known.pulse.kept == {(UPDATES, LIBRARY)}
    known.calls(UPDATES, 0.2, 5)
    steps = known.poll().steps
    assert steps[101].seconds.tolist() == pytest.approx([0.2] * 4, rel=0.1)
    assert steps[101].waited_s.tolist() == pytest.approx([0.01] * 4)
    assert not known.tier.is_learning("job")


def test_calls_that_come_too_often_are_not_kept_and_that_is_said(host: Host) -> None:
    host.poll()
    host.calls(UPDATES, 0.002, 3000)
    host.poll()
    assert "times a second" in host.tier.notes["job"]
    assert host.pulse.kept == set()


def test_a_job_that_calls_nothing_is_tried_again_later(host: Host) -> None:
    host.poll()
    host.poll(tier0.LEARN_S + 1)
    assert "not seen" in host.tier.notes["job"]
    assert not host.tier.is_learning("job")
    host.poll(400.0)
    assert host.tier.is_learning("job")


def test_an_end_that_the_kernel_told_has_its_status(known: Host) -> None:
    known.pulse.queue.append((ring.EXIT, 102, 0, known.now, 0.0, SIGKILL))
    (death,) = known.poll().died
    assert (death.rank, death.words, death.failed) == (1, "killed by SIGKILL", True)


def test_an_end_that_nobody_told_is_seen_at_the_second_look(known: Host) -> None:
    known.state(102, "S", start_ticks=900)  # another process has the number
    assert known.poll().died == ()
    (death,) = known.poll().died
    assert (death.rank, death.failed) == (1, False)
    assert known.pulse.watched == {101}


def test_a_process_that_is_dying_is_told_with_its_status(known: Host) -> None:
    known.state(102, "Z")
    assert known.poll().died == ()
    known.pulse.queue.append((ring.EXIT, 102, 0, known.now, 0.0, 1 << 8))
    (death,) = known.poll().died
    assert death.words == "ended with 1"


@pytest.mark.parametrize("letter", ["T", "t"])
def test_a_stop_counts_from_the_second_look_on(known: Host, letter: str) -> None:
    known.state(102, letter)
    assert known.poll().still == frozenset()
    assert known.poll().still == {102}
    known.state(102, "R")
    assert known.poll().still == frozenset()


def test_a_job_without_ranks_is_forgotten_and_its_probes_are_let_go(known: Host) -> None:
    known.pids.clear()
    for pid in (101, 102):
        known.pulse.queue.append((ring.EXIT, pid, 0, known.now, 0.0, 0))
    assert len(known.poll().died) == 2
    assert known.tier.jobs() == ()
    assert known.pulse.kept == set()


def test_what_ranks_write_is_told_as_a_rate(known: Host) -> None:
    def write(count: int) -> None:
        (known.root / "proc/101/io").write_text(f"rchar: 1\nwrite_bytes: {count}\ncancelled_write_bytes: 0\n")

    write(0)
    assert known.tier.write_hz("job") == 0.0
    known.now += 2.0
    write(8 << 20)
    assert known.tier.write_hz("job") == pytest.approx(4 << 20)


def test_a_census_that_fails_is_said_and_costs_no_beat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(tmp_path, monkeypatch)

    def fail(_: Path) -> Any:
        raise BadData("so it is")

    host.tier.census = fail
    assert host.poll().born == () and list(host.pulse.notes) == ["ranks were not sought: so it is"]


def test_whoever_reads_what_others_wrote_is_not_the_service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    service = os.getpid()

    def note(_: Path) -> RankCensus:
        return RankCensus((), (), (f"by the service: {os.getpid() == service}",))

    monkeypatch.setattr(tier0, "find_ranks", note)
    assert Tier0(cast(Any, FakePulse()), tmp_path).census(tmp_path).notes == ("by the service: False",)

    def find(_: Any) -> pulse._Functions:
        return pulse._Functions({7: pulse._Function((os.getpid(),), None)})

    monkeypatch.setattr(pulse, "_find", find)
    listening = pulse.Pulse(cast(Any, None), cast(Any, None))
    library = Library(1, Mapping(0, 1, "r-xp", 0, "08:01", 7, "/a/libtorch.so"))
    (found,) = listening._functions_in(library).values()
    assert found.offsets[0] not in (0, service)
