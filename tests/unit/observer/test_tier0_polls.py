"""The poll of tier 0 with probes and a census that are made by hand: ranks come, are learnt, step, stop and go."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from rankscope.observer.census.found import RankCensus
from rankscope.observer.live import kernel_probes
from rankscope.observer.watch import newcomers, pulse, shares, tier0
from rankscope.observer.watch.marker import MARKERS
from rankscope.observer.watch.shares import LOOK_EACH_S, RANKS_EACH, RANKS_MOST, Notes
from rankscope.observer.watch.tier0 import Beat, Tier0
from rankscope.probes.bpf import ring
from rankscope.probes.bpf.compiler.compiled import BpfUnavailable
from rankscope.probes.bpf.ring import Events
from rankscope.probes.calls import in_progress
from rankscope.probes.calls.probe import LIBRARIES_MOST, LOOK_MOST_S, Library
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
        self.maps_s: dict[int, float] = {}
        self.kept: set[tuple[int, tuple[str, int]]] | None = None
        self.notes = Notes()
        self.put_off = 0
        self.room = 1 << 20
        self.takes_s = 0.0
        self.heard: list[int] = []
        self.tidied: list[bool] = []
        self.lost = 0
        self.turn: Any = lambda _: None
        self.events = self

    def drain(self) -> Events:
        events = np.zeros(len(self.queue), ring.EVENT)
        for at, (kind, pid, row, start_s, stay_s, status) in enumerate(self.queue):
            events["type"][at], events["tgid"][at], events["what"][at], events["arg"][at] = kind, pid, row, status
            events["ts_ns"][at], events["dur_ns"][at] = round(start_s * 1e9), round(stay_s * 1e9)
        self.queue.clear()
        return events

    def watch(self, pid: int) -> None:
        if len(self.watched) >= self.room:
            raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))
        self.watched.add(pid)

    def later(self, what: str, error: OSError) -> None:
        pulse.Pulse.later(cast(Any, self), what, error)

    def maps_a_library(self, pid: int) -> bool:
        self.looked.append(pid)
        self.turn(self.maps_s.get(pid, 0.0))
        return pid in self.loaded

    def forget(self, pid: int) -> None:
        self.watched.discard(pid)

    def listen(self, pid: int, rows: Any = None, user: str = "") -> frozenset[tuple[int, tuple[str, int]]]:
        self.heard.append(pid)
        self.turn(self.takes_s)
        return frozenset((row, LIBRARY) for row in (UPDATES, BROADCAST))

    def keep(self, places: Any) -> None:
        self.kept = set(places)

    def missed(self) -> int:
        return self.lost

    def tidy(self, now_s: float, ended: bool) -> None:
        self.tidied.append(ended)


class Host:
    """Two ranks on a host whose clock is turned by hand."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.now, self.pulse = root, 1000.0, FakePulse()
        self.pids = [101, 102]
        self.owners: dict[int, int] = {}
        self.pulse.turn = self.turn
        for pid in self.pids:
            self.state(pid, "S")
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        self.tier = Tier0(cast(Any, self.pulse), root, cast(Any, self.census))

    def turn(self, seconds: float) -> None:
        self.now += seconds

    def come(self, owner: int, pids: range) -> None:
        """Ranks of a user, each of a job of his own."""
        self.pids += pids
        for pid in pids:
            self.owners[pid] = owner
            self.state(pid, "S")

    def state(self, pid: int, letter: str, start_ticks: int = START_TICKS, uid: int = 1000) -> None:
        folder = self.root / "proc" / str(pid)
        folder.mkdir(parents=True, exist_ok=True)
        fields = [letter, *["0"] * 18, str(start_ticks), *["0"] * 30]
        (folder / "stat").write_text(f"{pid} (python) {' '.join(fields)}\n")
        lines = {"Name": "x", "State": "S (x)", "Tgid": pid, "Pid": pid, "PPid": 1, "Uid": f"{uid}\t{uid}\t{uid}\t{uid}",
                 "NSpid": pid, "Threads": 1, "Cpus_allowed_list": 0}  # fmt: skip
        (folder / "status").write_text("".join(f"{name}:\t{value}\n" for name, value in lines.items()))

    def census(self, root: Path) -> Any:
        ranks = tuple(
            SimpleNamespace(
                pid=pid, start_ticks=START_TICKS, owner=self.owners.get(pid, 1000), container=None,
                identity=SimpleNamespace(job=f"job {pid}" if pid in self.owners else "job", rank=pid - 101, world_size=2),
            )
            for pid in self.pids
        )  # fmt: skip
        return SimpleNamespace(ranks=ranks, starting=(), rejected=(), alone=())

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


def test_thousands_of_processes_with_endless_mappings_keep_no_poll_and_no_other_user_waiting(host: Host) -> None:
    """Each takes 0.2 s to look at, seven times: a poll that took minutes would be no poll."""
    host.poll()
    for pid in range(1000, 3000):
        host.state(pid, "S", uid=1666)
        host.pulse.maps_s[pid] = 0.2
    host.pids.append(9000)
    host.state(9000, "R", uid=1000)
    host.pulse.loaded.add(9000)
    born, longest = [], 0.0
    for _ in range(6):
        before = host.now
        born += [rank.pid for rank in host.poll(4.0).born]
        longest = max(longest, host.now - before - 4.0)
    assert born == [9000]
    assert longest < 1.5
    seen = len(set(host.pulse.looked))
    host.poll(4.0)
    assert len(set(host.pulse.looked)) > seen, "who was not looked at is later"


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
    beat = host.poll()
    assert beat.born == () and beat.notes == ("ranks were not sought: so it is",)
    assert host.poll(700.0).notes == (), "said once"


def test_a_census_for_which_there_is_no_process_is_made_later(host: Host) -> None:
    """Any user can use processes up: then a fork is refused."""
    census, tried = host.tier.census, []

    def refused(root: Path) -> Any:
        tried.append(host.now)
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    host.tier.census = refused
    told = [words for _ in range(25) for words in host.poll(4.0).notes]
    assert told == ["ranks were not sought: not now (Resource temporarily unavailable)"]
    assert 3 <= len(tried) <= 4 and host.pulse.put_off == len(tried)
    host.tier.census = census
    assert [rank.pid for _ in range(9) for rank in host.poll(4.0).born] == [101, 102]


def test_a_census_that_somebody_makes_slow_takes_no_more_than_its_share_and_still_finds_others(host: Host) -> None:
    """What one user may make of it takes a dozen seconds; the processes that he starts are reason for one after the other."""
    census, tried = host.tier.census, []

    def slow(root: Path) -> Any:
        tried.append(host.now)
        host.now += 12.0
        return census(root)

    host.tier.census = slow
    host.come(2000, range(1000, 1002))
    began, born = host.now, [rank.pid for rank in host.poll().born]
    for pid in range(5000, 5200):
        host.state(pid, "S")
        host.pulse.loaded.add(pid)
        host.poll(3.0)
    assert born == [101, 102, 1000, 1001]
    assert 3 <= len(tried) <= 1 + (host.now - began) / 100
    assert newcomers._CENSUS_MOST_S > 2 * 12.0


def test_where_processes_cannot_be_listed_ends_are_told_all_the_same(
    known: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: Path) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(newcomers.procfs, "pids", refused)
    known.pulse.queue.append((ring.EXIT, 102, 0, known.now, 0.0, SIGKILL))
    beat = known.poll(4.0)
    assert [death.rank for death in beat.died] == [1]
    assert beat.notes == ("processes were not listed: not now (Too many open files)",)


def test_a_user_with_many_ranks_leaves_room_for_those_of_others(host: Host) -> None:
    crowd = range(1000, 1000 + RANKS_EACH + 50)
    host.come(2000, crowd)
    host.come(3000, range(5000, 5003))
    beat = host.poll()
    born = [rank.pid for rank in beat.born]
    assert {101, 102, 5000, 5001, 5002} <= set(born) and len(born) == RANKS_EACH + 5
    assert host.tier.left_out == 50
    assert [words for words in beat.notes if "user 2000" in words] == list(beat.notes) and len(beat.notes) == 1
    assert host.poll(700.0).notes == ()
    # Whoever ends makes room.
    host.pulse.queue.append((ring.EXIT, crowd[0], 0, host.now, 0.0, 0))
    host.pids.remove(crowd[0])
    assert len([rank for _ in range(3) for rank in host.poll(4.0).born]) == 1


def test_no_more_ranks_are_watched_than_the_kernel_has_room_for(host: Host) -> None:
    assert kernel_probes._USUAL_ENTRIES["rs_targets"] >= RANKS_MOST
    for user in range(6):
        host.come(2000 + user, range(10_000 + 1000 * user, 10_000 + 1000 * user + RANKS_EACH))
    host.poll()
    assert len(host.pulse.watched) == len(host.tier.ranks) == RANKS_MOST


def test_a_rank_for_which_the_kernel_has_no_room_is_watched_later(host: Host) -> None:
    host.pulse.room = 1
    beat = host.poll()
    assert [rank.pid for rank in beat.born] == [101]
    assert beat.notes == ("a rank is not watched: not now (Argument list too long)",) and host.pulse.put_off == 1
    host.pulse.room = 2
    assert [rank.pid for _ in range(9) for rank in host.poll(4.0).born] == [102]


def test_slow_libraries_of_one_user_keep_no_beat_waiting_and_no_other_user(host: Host) -> None:
    """Each look takes 10 s: as those into thousands of files of one process would."""
    host.pulse.takes_s = 10.0
    host.come(2000, range(1000, 1100))
    began = host.now
    host.poll()
    assert host.now - began <= 1 + tier0._LISTEN_MOST_S + 10.0
    host.come(3000, range(5000, 5002))
    host.pulse.loaded |= {5000, 5001}
    told: list[str] = []
    for _ in range(30):
        before = host.now
        told += host.poll(4.0).notes
        assert host.now - before <= 4 + tier0._LISTEN_MOST_S + 10.0
    heard = [host.owners.get(pid, 1000) for pid in host.pulse.heard]
    assert heard.count(2000) == LOOK_EACH_S / 10 and heard.count(3000) == 2
    assert heard.index(3000) <= 3, "who has had nothing is first"
    assert sum("libraries of user 2000" in words for words in told) == 1


def test_of_root_each_container_counts_as_one() -> None:
    def rank(owner: int, container: str) -> Any:
        inside = SimpleNamespace(container_id=container) if container else None
        return SimpleNamespace(owner=owner, container=inside)

    assert shares.user_of(rank(0, "abc")) == shares.user_of(rank(-1, "abc")) != shares.user_of(rank(0, "def"))
    assert shares.user_of(rank(7, "abc")) == shares.user_of(rank(7, "def")) == shares.user_of(rank(7, "")) == "user 7"


def test_notes_with_text_of_jobs_are_few_and_each_is_told_once() -> None:
    notes = Notes()
    for number in range(10_000):
        notes.add(f"libnccl.so.{number}" + "x" * 10_000)
    told = notes.take(0.0)
    assert len(told) == 33 and "not told" in told[-1] and all(len(words) <= 400 for words in told)
    notes.add("in the same hour")
    assert len(notes.take(10.0)) <= 1
    notes.add("later")
    assert notes.take(3700.0) == ("later",)
    notes.add("later")
    assert notes.take(8000.0) == ()


def test_many_notes_of_one_user_keep_nobody_elses_away() -> None:
    notes = Notes()
    for number in range(1000):
        notes.add(f"libnccl.so.{number}", "user 1666")
    told = notes.take(0.0)
    assert len(told) == 33 and told[-1] == "more of user 1666 is not told in this hour"
    for number in range(20):
        notes.add(f"pid {number} is silent", "user 1000")
        notes.add(f"libtorch.so.{number}", "user 1666")
    notes.add("processes were not listed")
    told = notes.take(1.0)
    assert "processes were not listed" in told and not any("libtorch" in words for words in told)
    assert sum("is silent" in words for words in told) == 8
    assert told[-1] == "more of user 1000 is not told in this hour"
    for number in range(20):
        notes.add(f"pid {number} is silent", "user 1000")
    assert notes.take(3700.0) == (), "each once"


def test_notes_of_many_users_are_bounded_and_what_they_leave_no_room_for_is_told_in_the_next_hour() -> None:
    notes = Notes()
    for number in range(5000):
        for each in range(3):
            notes.add(f"note {each}", f"user {number}")
    told = notes.take(0.0)
    assert len(told) == 256 == told.count("note 0"), "of each user the first, before any second"
    assert notes.take(1.0) == ()
    assert len(notes.take(3700.0)) == 256


def test_a_host_without_descriptors_buries_nobody(known: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any user can use them up."""
    read, missing = newcomers.procfs.read_stat, [errno.EMFILE]

    def refused(pid: int, root: Path) -> Any:
        if missing[0]:
            raise OSError(missing[0], os.strerror(missing[0]))
        return read(pid, root)

    monkeypatch.setattr(newcomers.procfs, "read_stat", refused)
    told = []
    for _ in range(4):
        beat = known.poll(4.0)
        assert beat.died == () and sorted(known.tier.ranks) == [101, 102]
        told += beat.notes
    assert told == ["whether ranks still run was not read: not now (Too many open files)"]
    assert known.pulse.put_off == 4
    missing[0] = 0
    assert known.poll(4.0).died == ()
    missing[0] = errno.ESRCH
    assert sorted(death.pid for _ in range(3) for death in known.poll(4.0).died) == [101, 102]


def test_of_a_process_with_thousands_of_libraries_some_are_looked_at_for_some_seconds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "proc/7"
    folder.mkdir(parents=True)
    lines = (f"{at:012x}-{at + 1:012x} r-xp 00000000 08:01 {at} /a/libnccl.so.{at}" for at in range(1, 5001))
    (folder / "maps").write_text("\n".join(lines) + "\n")
    now, looked = [0.0], []

    def slow(at: Any, *_: Any, longest_s: float) -> Any:
        looked.append(at)
        now[0] += longest_s / 4
        return pulse._Functions({})

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(pulse, "look", slow)
    listening = pulse.Pulse(cast(Any, None), cast(Any, None), tmp_path)
    listening.listen(7)
    assert len(looked) == 4 and now[0] <= LOOK_MOST_S + pulse._FIND_MOST_S
    (said,) = listening.notes.take(0.0)
    assert said.startswith("4996 libraries of pid 7 were not looked at")
    for _ in range(10):
        listening.listen(7)
    assert len(looked) == LIBRARIES_MOST, "the rest of the first ones, the next time"


def test_a_library_that_could_not_be_looked_at_for_want_of_a_process_is_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = Library(1, Mapping(0, 1, "r-xp", 0, "08:01", 7, "/a/libtorch.so"))
    listening = pulse.Pulse(cast(Any, None), cast(Any, None))

    def refused(*_: Any, **__: Any) -> Any:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(pulse, "look", refused)
    assert listening._functions_in(library) == {} and listening.put_off == 1
    monkeypatch.setattr(pulse, "look", lambda *_, **__: pulse._Functions({7: pulse._Function((1,), None)}))
    assert list(listening._functions_in(library)) == [7]


def test_calls_that_never_return_are_taken_out_each_minute_and_soon_after_a_process_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[float] = []
    now = 0.0
    monkeypatch.setattr(in_progress, "take_out_ended", lambda *_: taken.append(now))
    listening = pulse.Pulse(cast(Any, SimpleNamespace(maps={})), cast(Any, None))
    for second in range(200):
        now = float(second)
        listening.tidy(now, ended=second in (70, 71, 72))
    assert taken == [0.0, 60.0, 75.0, 135.0, 195.0]


def test_maps_that_are_not_read_now_are_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> int:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(in_progress, "take_out_ended", refused)
    listening = pulse.Pulse(cast(Any, SimpleNamespace(maps={})), cast(Any, None))
    listening.tidy(0.0, ended=False)
    assert listening.put_off == 1


def test_no_process_can_fill_the_map_of_calls_in_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def loaded(*_: Any, **how: Any) -> Any:
        asked.update(how)
        raise BpfUnavailable("not here")

    monkeypatch.setattr(pulse.loader, "load", loaded)
    monkeypatch.setattr(pulse, "in_initial_pid_namespace", lambda _: True)
    with pytest.raises(BpfUnavailable):
        pulse.load()
    assert asked["entries"]["rs_calls"] >= asked["defines"]["RS_CALLS_EACH"] * RANKS_MOST


def _flood(host: Host, pid: int, calls: int) -> None:
    host.pulse.queue += [(ring.CALL, pid, UPDATES, host.now + n / calls, 1e-6, 0) for n in range(calls)]
    host.pulse.lost += 1


def test_who_fills_the_ring_is_listened_to_no_more_where_others_are_lost(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tier0, "_SHARE_HZ", 300.0)
    host.come(1666, range(200, 202))
    host.poll()
    host.calls(UPDATES, 0.1, 40)
    host.poll()
    assert {rank.marker is not None for rank in host.tier.ranks.values()} == {True}
    _flood(host, 200, 1000)
    host.pulse.queue += [(ring.CALL, pid, UPDATES, host.now, 0.01, 0) for pid in (101, 102, 201)]
    beat = host.poll()
    assert host.pulse.watched == {101, 102, 201}
    assert [note for note in beat.notes if note.startswith("pid 200 makes so many calls")]
    assert [pid for pid, rank in host.tier.ranks.items() if rank.marker is None] == [200]
    host.tier.ranks[200].begin(host.tier.markers["job"])
    assert host.tier.ranks[200].marker is None, "it would be silent"


def test_where_nothing_was_lost_or_nobody_else_is_there_everybody_is_listened_to(
    known: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tier0, "_SHARE_HZ", 300.0)
    _flood(known, 101, 1000)
    known.poll()
    assert known.pulse.watched == {101, 102}, "all of one user"
    known.come(1666, range(200, 201))
    known.pulse.loaded.add(200)
    for _ in range(20):
        known.poll(4.0)
    _flood(known, 200, 1000)
    known.pulse.lost -= 1
    known.poll()
    assert known.pulse.watched == {101, 102, 200}


def test_jobs_that_are_learnt_may_crowd_others_out_for_so_long_an_hour(
    known: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each job that comes anew has as long as it is learnt: here until the poll after its first calls."""
    monkeypatch.setattr(tier0, "_SHARE_HZ", 50.0)
    monkeypatch.setattr(tier0, "CROWD_EACH_S", 10.0)
    crowded = []
    for pid in range(200, 230):
        crowded.append(0)
        known.come(1666, range(pid, pid + 1))
        known.pulse.loaded.add(pid)
        for _ in range(5):
            known.poll(4.0)
        for _ in range(3):
            if pid in known.tier.ranks and pid in known.pulse.watched:
                crowded[-1] += 1
                _flood(known, pid, 100)
            known.poll()
    assert (crowded[:10], crowded[-10:]) == ([2] * 10, [1] * 10)
    assert {101, 102} <= known.pulse.watched


def test_a_step_is_not_told_across_calls_that_were_lost(known: Host) -> None:
    known.pulse.queue.append((ring.CALL, 101, UPDATES, known.now, 0.01, 0))
    known.pulse.lost += 1
    known.poll()
    known.pulse.queue.append((ring.CALL, 101, UPDATES, known.now, 0.01, 0))
    assert known.poll(3.0).steps == {}
    known.pulse.queue.append((ring.CALL, 101, UPDATES, known.now, 0.01, 0))
    assert known.poll(3.0).steps[101].seconds == pytest.approx([3.0])


def test_the_probes_hear_of_ends(known: Host) -> None:
    known.pulse.tidied.clear()
    known.poll()
    known.pulse.queue.append((ring.EXIT, 102, 0, known.now, 0.0, SIGKILL))
    known.poll()
    assert known.pulse.tidied == [False, True]


def test_whoever_reads_what_others_wrote_is_not_the_service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    service = os.getpid()

    def note(_: Path) -> RankCensus:
        return RankCensus((), (), (f"by the service: {os.getpid() == service}",))

    monkeypatch.setattr(newcomers, "find_ranks", note)
    assert Tier0(cast(Any, FakePulse()), tmp_path).census(tmp_path).notes == ("by the service: False",)

    def find(_: Any) -> pulse._Functions:
        return pulse._Functions({7: pulse._Function((os.getpid(),), None)})

    monkeypatch.setattr(pulse, "_find", find)
    listening = pulse.Pulse(cast(Any, None), cast(Any, None))
    library = Library(1, Mapping(0, 1, "r-xp", 0, "08:01", 7, "/a/libtorch.so"))
    (found,) = listening._functions_in(library).values()
    assert found.offsets[0] not in (0, service)
