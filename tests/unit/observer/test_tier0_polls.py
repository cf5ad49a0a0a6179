"""The poll of tier 0 with probes and a census that are made by hand: ranks come, are learnt, step, stop and go."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from polled import LIBRARY, SIGKILL, UPDATES, FakePulse, Host

from rankscope.observer.census.found import RankCensus
from rankscope.observer.watch import newcomers, pulse, tier0
from rankscope.observer.watch.tier0 import Tier0
from rankscope.probes.base.errors import BadData
from rankscope.probes.bpf import ring
from rankscope.probes.bpf.functions.walks import Withdrawn
from rankscope.probes.calls import in_progress
from rankscope.probes.calls.probe import Library
from rankscope.probes.host.maps import Mapping


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
    assert "not visible" in host.tier.notes["job"]
    assert not host.tier.is_learning("job")
    host.poll(400.0)
    assert host.tier.is_learning("job")


def test_a_marker_that_was_found_meanwhile_is_kept_when_the_next_try_was_due(host: Host) -> None:
    host.poll()
    host.poll(tier0.LEARN_S + 1)
    assert not host.tier.is_learning("job")
    # A rank that comes later begins a search of its own, which finds the marker.
    host.state(103, "R")
    host.pids.append(103)
    host.pulse.loaded.add(103)
    while not host.tier.is_learning("job"):
        host.poll(4.0)
    while host.tier.is_learning("job"):
        host.calls(UPDATES, 0.2, 20)
        host.poll(4.0)
    marker = host.tier.markers["job"]
    host.poll(400.0)
    assert not host.tier.is_learning("job") and host.tier.markers["job"] is marker


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
    assert beat.born == () and beat.notes == ("ranks were not searched for: so it is",)
    assert host.poll(700.0).notes == (), "said once"


def test_a_census_for_which_there_is_no_process_is_made_later(host: Host) -> None:
    """Any user can use processes up: then a fork is refused."""
    census, tried = host.tier.census, []

    def refused(root: Path) -> Any:
        tried.append(host.now)
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    host.tier.census = refused
    told = [words for _ in range(25) for words in host.poll(4.0).notes]
    assert told == ["ranks were not searched for: not now (Resource temporarily unavailable)"]
    assert 3 <= len(tried) <= 4 and host.pulse.put_off == len(tried)
    host.tier.census = census
    assert [rank.pid for _ in range(9) for rank in host.poll(4.0).born] == [101, 102]


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


def test_a_rank_for_which_the_kernel_has_no_room_is_watched_later(host: Host) -> None:
    host.pulse.room = 1
    beat = host.poll()
    assert [rank.pid for rank in beat.born] == [101]
    assert beat.notes == ("a rank is not watched: not now (Argument list too long)",) and host.pulse.put_off == 1
    host.pulse.room = 2
    assert [rank.pid for _ in range(9) for rank in host.poll(4.0).born] == [102]


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
    assert told == ["it could not be read whether ranks still run: not now (Too many open files)"]
    assert known.pulse.put_off == 4
    missing[0] = 0
    assert known.poll(4.0).died == ()
    missing[0] = errno.ESRCH
    assert sorted(death.pid for _ in range(3) for death in known.poll(4.0).died) == [101, 102]


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
    listening = pulse.Pulse(cast(Any, SimpleNamespace(maps={}, withdrawn=Withdrawn)), cast(Any, None))
    for second in range(200):
        now = float(second)
        listening.tidy(now, ended=second in (70, 71, 72))
    assert taken == [0.0, 60.0, 75.0, 135.0, 195.0]


def test_maps_that_are_not_read_now_are_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> int:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(in_progress, "take_out_ended", refused)
    listening = pulse.Pulse(cast(Any, SimpleNamespace(maps={}, withdrawn=Withdrawn)), cast(Any, None))
    listening.tidy(0.0, ended=False)
    assert listening.put_off == 1


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

    def note(_: Path, **__: bool) -> RankCensus:
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
