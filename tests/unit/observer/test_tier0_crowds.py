"""Tier 0 beside users who want all of it: ranks, looks into libraries, notes, the ring and the maps are shared."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from polled import UPDATES, Host

from rankscope.observer.live import kernel_probes
from rankscope.observer.watch import newcomers, pulse, shares, tier0
from rankscope.observer.watch.marker import MARKERS
from rankscope.observer.watch.shares import LOOK_EACH_S, RANKS_EACH, RANKS_MOST, Notes
from rankscope.probes.bpf import ring
from rankscope.probes.bpf.compiler.compiled import BpfUnavailable
from rankscope.probes.calls.probe import LIBRARIES_MOST, LOOK_MOST_S


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
    assert len(told) == 33 and "not reported" in told[-1] and all(len(words) <= 400 for words in told)
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
    assert len(told) == 33 and told[-1] == "more of user 1666 is not reported in this hour"
    for number in range(20):
        notes.add(f"pid {number} is silent", "user 1000")
        notes.add(f"libtorch.so.{number}", "user 1666")
    notes.add("processes were not listed")
    told = notes.take(1.0)
    assert "processes were not listed" in told and not any("libtorch" in words for words in told)
    assert sum("is silent" in words for words in told) == 8
    assert told[-1] == "more of user 1000 is not reported in this hour"
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
    assert said.startswith("4996 libraries of pid 7 were not searched")
    for _ in range(10):
        listening.listen(7)
    assert len(looked) == LIBRARIES_MOST, "the rest of the first ones, the next time"


def test_no_process_can_fill_the_map_of_calls_in_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def loaded(*_: Any, **how: Any) -> Any:
        asked.update(how)
        raise BpfUnavailable("not here")

    monkeypatch.setattr(pulse.loader, "load", loaded)
    monkeypatch.setattr(pulse, "in_initial_pid_namespace", lambda _: True)
    with pytest.raises(BpfUnavailable):
        pulse.load()
    assert asked["entries"]["rs_calls"] >= asked["numbers"]["RS_CALLS_EACH"] * RANKS_MOST
    assert not any(row.summed for row in MARKERS), "sums have no room there"


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
