"""Hosts that share a store and nothing else: all look from the same moment on, one judges, another where that one does not."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import Job, build, slow_python
from hardware_builders import Machine, gpu
from stored import send

from rankscope.diagnose.infer.solve import large_fleet
from rankscope.diagnose.service.alarms import Alarm, AlarmKind
from rankscope.diagnose.service.hosts.board import TRIGGER, TURN, VERDICT, Board
from rankscope.diagnose.service.hosts.courier import Courier
from rankscope.diagnose.service.hosts.judging import broken_by, judge_all
from rankscope.diagnose.service.hosts.share import Share, judged_as_json, judged_of
from rankscope.diagnose.service.hosts.together import Alone, Begin, Judged, Remark, Task, Together, Turn
from rankscope.diagnose.service.hosts.trigger import Pace, Trigger, trigger_of
from rankscope.observer.window.store import objects, tidy
from rankscope.observer.window.store.age import Clocks
from rankscope.observer.window.store.keys import key_of
from rankscope.observer.window.store.place import open_store
from rankscope.observer.window.store.spool import Spool
from rankscope.observer.window.store.users import called
from rankscope.probes.base.folders import UnsafePlace

SOMEBODY = 65534
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files away")
BEGIN = 1_760_000_000.0  # a slot
JOBS = {"job": 3}


Hosts = Callable[[str, int], list[Together]]


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    """Hosts by the store that they share, and how many they are."""
    with ExitStack() as closing:

        def start(store: str, count: int) -> list[Together]:
            found = [Together(f"host{number}", Courier(store)) for number in range(count)]
            for one in found:
                closing.callback(one.close)
            return found

        yield start


def alarm(words: str = "slower", kind: AlarmKind = AlarmKind.SLOWER) -> Alarm:
    return Alarm(kind, "job", 0.0, words)


def settle(one: Together, now: float, jobs: dict[str, int] | None = None, unready: tuple[str, ...] = ()) -> list[Task]:
    """What a host does at this moment, when the store has answered all that it asked."""
    told = list(one.take(now, JOBS if jobs is None else jobs, unready))
    deadline = time.monotonic() + 60
    while one.courier.waits:
        assert time.monotonic() < deadline
        time.sleep(0.005)
        told += one.take(now, JOBS if jobs is None else jobs, unready)
    return told


def test_all_hosts_look_from_one_moment_and_who_noticed_judges(store: str, hosts: Hosts) -> None:
    three = hosts(store, 3)
    assert [settle(one, BEGIN + 2.6) for one in three] == [[], [], []], "nothing was asked for"
    three[1].propose(alarm(), 5.0, BEGIN + 3.0)
    assert settle(three[1], BEGIN + 3.1) == []
    told = [settle(one, BEGIN + 7.6) for one in three]
    begun = [task for each in told for task in each if isinstance(task, Begin)]
    assert [len(each) for each in told] == [1, 1, 1]
    assert {(one.trigger.start, one.trigger.seconds, one.trigger.host) for one in begun} == {(BEGIN + 10, 5.0, "host1")}
    assert [one.ours for one in begun] == [False, True, False]
    assert [one.alarm is not None for one in begun] == [False, True, False]
    assert [settle(one, BEGIN + 8.6) for one in three] == [[], [], []], "asked once"

    trigger = begun[0].trigger
    for one in (three[0], three[2]):
        one.sent(trigger, 3, BEGIN + 16)
    assert settle(three[0], BEGIN + 22) == []
    Board(store).put(VERDICT, "job", trigger.start, judged_as_json("host1", {"status": "fault"}))
    for one in (three[0], three[2]):
        (judged,) = settle(one, BEGIN + 28)
        assert isinstance(judged, Judged) and judged.content["host"] == "host1"
        assert settle(one, BEGIN + 200) == []


def test_hosts_that_call_a_job_otherwise_look_together_and_those_of_another_users_job_do_not(
    store: str, hosts: Hosts
) -> None:
    """What a host calls a job depends on who else works there; another user's alarms must not use up its looks."""
    three = hosts(store, 3)
    there = ("job", "job of user 1000", "job")
    for one, name, whose in zip(three, there, (1000, 1000, 1666), strict=True):
        one.in_common = {name: f"job of user {whose}"}
    three[0].propose(alarm(), 5.0, BEGIN + 3.0)
    assert settle(three[0], BEGIN + 3.1) == []
    (first,), (second,), none = (settle(one, BEGIN + 7.6, {name: 3}) for one, name in zip(three, there, strict=True))
    assert isinstance(first, Begin) and isinstance(second, Begin)
    assert (first.job, first.ours, second.job, second.ours, none) == ("job", True, "job of user 1000", False, [])


def test_windows_of_another_users_job_are_not_judged_with_those_of_this_one(store: str, tmp_path: Path) -> None:
    def sent(owner: int, job: Job, called_there: str, host: str) -> None:
        owned = replace(job, ranks_columns={rank: {"owner": owner} for rank in range(job.ranks)})
        for number, each in enumerate(build(owned)):
            window = replace(each, manifest=replace(each.manifest, host=f"{host}{number}"))
            spool = Spool(tmp_path / f"spool-{host}{number}", store)
            spool.add(called(window, {"job-a": called_there}) if number == 0 else window)
            assert spool.deliver(5.0, spread_s=0.0).trouble == ""

    sent(1000, slow_python(3, 0.08, hosts=2, steps=40), "job-a of user 1000", "host")
    sent(1666, Job(ranks=12, hosts=3, steps=40), "job-a", "evil")
    trigger = Trigger("job-a", 1_760_000_000.0, 20.0, AlarmKind.SLOWER, "slower", "host0")
    share = Share(store, tmp_path / "spool", trigger, True, 2, "host0", called="job-a of user 1000")
    first = judge_all(share, tmp_path / "history")
    assert first.verdict is not None and first.trouble == ""
    assert first.verdict["job"] == "job-a"
    assert (first.verdict["hosts"], first.verdict["suspects"][0]["ranks"]) == (["host0", "host1"], [3])
    heard = Board(store).get(VERDICT, "job-a of user 1000", trigger.start) or {}
    assert judged_of(heard, "job-a of user 1000")[0] == "host0"
    with pytest.raises(ValueError, match="something else"):
        judged_of(heard, "job-a of user 1666")


def test_of_two_alarms_at_once_one_wins_and_both_hear_of_it(store: str, hosts: Hosts) -> None:
    both = hosts(store, 2)
    for number, one in enumerate(both):
        one.propose(alarm(f"seen by {number}"), 5.0 + number, BEGIN + 1)
        assert settle(one, BEGIN + 1.1) == []
    (first,), (second,) = (settle(one, BEGIN + 2.6) for one in both)
    assert isinstance(first, Begin) and isinstance(second, Begin)
    assert first.trigger == second.trigger
    assert [first.ours, second.ours].count(True) == 1
    assert first.alarm is not None and second.alarm is not None


def test_an_alarm_for_a_later_slot_is_served_by_the_look_before_it(hosts: Hosts, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    both = hosts(tmp_path.as_uri(), 2)
    for number, one in enumerate(both):
        one.propose(alarm(), 5.0, BEGIN + 1 + number)
        assert settle(one, BEGIN + 2.1) == []
    (first,), (second,) = (settle(one, BEGIN + 2.6) for one in both)
    assert isinstance(first, Begin) and isinstance(second, Begin)
    assert first.trigger == second.trigger and not second.ours
    assert [settle(one, BEGIN + 7.6) for one in both] == [[], []], "the second trigger is of the same trouble"


def test_a_host_on_which_no_look_stands_by_hears_of_it_a_slot_before(store: str, hosts: Hosts) -> None:
    """Time to load: who proposes has chosen a later slot for want of it, too."""
    two = hosts(store, 2)
    two[0].propose(alarm(), 5.0, BEGIN + 1.0, ready=False)
    assert settle(two[0], BEGIN + 1.1) == []
    (early,) = settle(two[1], BEGIN + 2.6, unready=("job",))
    assert isinstance(early, Begin) and early.trigger.start == BEGIN + 10
    assert settle(two[0], BEGIN + 2.6) == []
    assert settle(two[1], BEGIN + 7.6, unready=("job",)) == [], "it looks already"
    assert [type(task) for task in settle(two[0], BEGIN + 7.6)] == [Begin]
    # AND what was not there yet is asked for again
    assert settle(two[0], BEGIN + 37.6, unready=("job",)) == []
    two[1].propose(alarm(), 5.0, BEGIN + 41.0)
    assert settle(two[1], BEGIN + 41.1) == []
    assert [type(task) for task in settle(two[0], BEGIN + 42.6, unready=("job",))] == [Begin]


def test_of_two_jobs_looks_for_one_slot_all_hosts_begin_the_same_first(store: str, hosts: Hosts) -> None:
    both = hosts(store, 2)
    jobs = [dict.fromkeys(names, 2) for names in (("a", "b", "c"), ("c", "b", "a"))]
    for name, kind in (("a", AlarmKind.ROUTINE), ("c", AlarmKind.SLOWER), ("b", AlarmKind.SLOWER)):
        both[0].propose(Alarm(kind, name, 0.0, "look"), 5.0, BEGIN + 1.0)
    assert settle(both[0], BEGIN + 1.1, jobs[0]) == []
    for one, mine in zip(both, jobs, strict=True):
        assert one.take(BEGIN + 2.6, mine) == []
        time.sleep(1.0)  # a beat: what was asked in one is answered in the next
        told = one.take(BEGIN + 3.6, mine)
        assert [task.job for task in told if isinstance(task, Begin)] == ["b", "c", "a"]


def test_the_verdict_on_a_look_is_heard_although_the_next_one_was_sent(store: str, hosts: Hosts) -> None:
    (one,) = hosts(store, 1)
    looks = [Trigger("job", BEGIN + begin, 5.0, AlarmKind.SLOWER, "slower", "host1") for begin in (0, 20)]
    one.take(BEGIN, JOBS)
    for trigger in looks:
        one.sent(trigger, 3, trigger.start + 6)
        Board(store).put(VERDICT, "job", trigger.start, judged_as_json("host1", {}))
    told = settle(one, BEGIN + 30) + settle(one, BEGIN + 33)
    assert [task.trigger.start for task in told if isinstance(task, Judged)] == [BEGIN, BEGIN + 20]


def test_where_the_store_is_away_a_host_looks_alone(hosts: Hosts, tmp_path: Path) -> None:
    (tmp_path / "store").write_text("no folder")
    (one,) = hosts((tmp_path / "store").as_uri(), 1)
    one.propose(alarm(), 5.0, BEGIN + 1)
    told = settle(one, BEGIN + 2.6)
    assert [type(task) for task in told] == [Remark, Alone]
    assert isinstance(told[1], Alone) and "the other" not in told[1].why
    one.propose(alarm(), 5.0, BEGIN + 6)
    assert [type(task) for task in settle(one, BEGIN + 7.6)] == [Alone], "it complains rarely"


def test_a_store_that_does_not_answer_keeps_nobody_from_looking(hosts: Hosts, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (one,) = hosts(tmp_path.as_uri(), 1)
    one.propose(alarm(), 5.0, BEGIN + 1)
    late = [task for task in one.take(BEGIN + 8, JOBS) if isinstance(task, Alone)]
    assert len(late) == 1 and not one.is_proposed("job")


def test_who_died_before_judging_is_replaced_by_one_other(store: str, hosts: Hosts) -> None:
    three = hosts(store, 3)
    trigger = Trigger("job", BEGIN, 5.0, AlarmKind.SILENT, "no step", "host0")
    for one in three[1:]:
        one.take(BEGIN, JOBS)
        one.sent(trigger, 3, BEGIN + 5)
    turns = []
    for second in range(6, 200):
        for one in three[1:]:
            if not turns:
                turns += [(one.host, task) for task in settle(one, BEGIN + second) if not isinstance(task, Remark)]
    assert len(turns) == 1 and isinstance(turns[0][1], Turn)
    (left,) = (one for one in three[1:] if one.host != turns[0][0])
    Board(store).put(VERDICT, "job", BEGIN, judged_as_json(turns[0][0], {}))
    told = [task for second in (60, 66, 72) for task in settle(left, BEGIN + second)]
    assert [type(task) for task in told] == [Judged]


def test_who_took_longer_than_the_judge_hears_the_verdict_and_does_not_judge_again(store: str, hosts: Hosts) -> None:
    (one,) = hosts(store, 1)
    trigger = Trigger("job", BEGIN, 5.0, AlarmKind.SILENT, "no step", "host1")
    Board(store).put(VERDICT, "job", BEGIN, judged_as_json("host1", {}))
    one.take(BEGIN, JOBS)
    one.sent(trigger, 3, BEGIN + 70)
    assert [type(task) for second in (70, 71, 72, 73, 80) for task in settle(one, BEGIN + second)] == [Judged]


def test_nobody_waits_for_ever(hosts: Hosts, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (one,) = hosts(tmp_path.as_uri(), 1)
    trigger = Trigger("job", BEGIN, 5.0, AlarmKind.SILENT, "no step", "gone")
    Board(tmp_path.as_uri()).put(TURN, "job", BEGIN, {"host": "gone too"})
    one.take(BEGIN, JOBS)
    one.sent(trigger, 3, BEGIN + 5)
    told = [task for second in range(6, 300, 3) for task in settle(one, BEGIN + second, {})]
    assert [type(task) for task in told] == [Remark]


@pytest.mark.parametrize("hosts", [2, 3, 1000, 20_000])
def test_turns_of_many_hosts_come_one_after_the_other_and_in_time(hosts: int) -> None:
    pace, trigger = Pace(), Trigger("job", BEGIN, 5.0, AlarmKind.SLOWER, "", "h")
    turns = sorted(pace.turn_at(trigger, f"host{number}", hosts) for number in range(hosts))
    assert turns[0] >= BEGIN + 5 + pace.gather_s + pace.turn_s
    assert turns[-1] + pace.turn_s + hosts / 100 < pace.given_up_at(trigger, hosts)


@pytest.mark.parametrize(("took_s", "waits_s"), [(0.5, 10.0), (5.0, 10.0), (8.0, 16.0), (60.0, 20.0)])
def test_hosts_that_took_long_give_the_others_longer(took_s: float, waits_s: float) -> None:
    pace, trigger = Pace(), Trigger("job", BEGIN, 5.0, AlarmKind.SLOWER, "", "h")
    assert pace.gathered_by(trigger, BEGIN + 5 + took_s) == BEGIN + 5 + waits_s
    assert BEGIN + 5 + waits_s < pace.turn_at(trigger, "host", 2)


def test_a_slot_is_far_enough_off_for_the_store_and_asked_for_by_a_beat_a_second() -> None:
    pace = Pace()
    for tenth in range(100):
        now = BEGIN + tenth / 10
        assert pace.put_s <= pace.slot_after(now) - now < pace.put_s + pace.slot_s
    for phase in range(10):
        asked = [slot for beat in range(50) if (slot := pace.slot_to_ask(BEGIN + beat + phase / 10)) is not None]
        assert set(asked) >= {BEGIN + 5 * number for number in range(1, 10)}


SUSPECT: dict[str, Any] = {
    "component": "gpu", "cause": "lost", "instance": "gpu2", "host": "b", "ranks": [3], "lost_seconds_per_step": 0.1, "function": None,
    "evidence": [{"measure": "Xid 79 on gpu2"}],
}  # fmt: skip
BAD: list[Any] = [
    {}, {"schema": "x"}, {"start": "soon"}, {"start": 1e400}, {"seconds": 1e9}, {"seconds": float("nan")}, {"kind": "tea"},
    {"job": "other"}, {"host": None, "schema": None}, {"start": BEGIN + 5},
]  # fmt: skip


@pytest.mark.parametrize("change", BAD)
def test_what_others_wrote_is_no_trigger(change: dict[str, Any]) -> None:
    sound = Trigger("job", BEGIN, 5.0, AlarmKind.SLOWER, "slower\x1b[31m", "h").as_json()
    assert "\x1b" not in trigger_of(sound, "job", BEGIN).words
    with pytest.raises(ValueError, match="trigger"):
        trigger_of(change and {**sound, **change}, "job", BEGIN)


@pytest.mark.parametrize(
    "verdict",
    [None, 3, [], {}, {"job": "job"}, {"job": "job", "status": "fault", "notes": [], "suspects": [3]},
     {"job": "job", "status": "fault", "notes": [], "suspects": [{**SUSPECT, "evidence": 3}]},
     {"job": "job", "status": "fault", "notes": [], "suspects": [{**SUSPECT, "evidence": ["x"]}]},
     {"job": "job", "status": "fault", "notes": [], "suspects": [{**SUSPECT, "ranks": [1e999]}]}],
)  # fmt: skip
def test_what_others_wrote_is_no_verdict(verdict: Any) -> None:
    with pytest.raises(ValueError, match="verdict"):
        judged_of({"schema": "rankscope.judged/1", "host": "h", "verdict": verdict}, "job")


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", "9" * 400])
def test_what_holds_a_number_that_is_none_is_not_heard(number: str, tmp_path: Path) -> None:
    """It could not be written into the service's own log."""
    board = Board((tmp_path / "store").as_uri())
    board.put(VERDICT, "job", BEGIN, {"host": "h", "lost": 77})
    (left,) = tmp_path.glob("store/*/*=*")
    left.write_text(left.read_text().replace("77", number))
    assert board.get(VERDICT, "job", BEGIN) is None
    left.write_text(left.read_text().replace(number, "1e300"))
    assert board.get(VERDICT, "job", BEGIN) == {"host": "h", "lost": 1e300}


@pytest.mark.parametrize("host", ["", "  "])
def test_a_verdict_of_no_host_does_not_pass_for_our_own(host: str) -> None:
    verdict = {"job": "job", "status": "fault", "notes": [], "suspects": [SUSPECT]}
    assert judged_of({"schema": "rankscope.judged/1", "host": "h", "verdict": verdict}, "job")[0] == "h"
    with pytest.raises(ValueError, match="verdict"):
        judged_of({"schema": "rankscope.judged/1", "host": host, "verdict": verdict}, "job")


def spoil(path: Path, how: str) -> None:
    if how == "another's":
        os.chown(path, SOMEBODY, SOMEBODY)
    elif how == "a link":
        path.rename(path.with_name("elsewhere"))
        path.symlink_to("elsewhere")
    else:
        path.chmod(path.stat().st_mode | 0o022)


@ROOT_ONLY
@pytest.mark.parametrize("how", ["another's", "open to others", "a link"])
@pytest.mark.parametrize("where", ["top", "job", "file"])
def test_what_others_could_have_left_in_a_folder_is_not_heard(
    where: str, how: str, tmp_path: Path, hosts: Hosts
) -> None:
    tmp_path.chmod(0o700)
    top = tmp_path / "store"
    if (where, how) == ("top", "a link"):
        pytest.skip("the way to a store may be a link of root's")
    board = Board(top.as_uri())
    trigger = Trigger("job", BEGIN + 5, 5.0, AlarmKind.SLOWER, "slower", "host1")
    for what, content in ((TRIGGER, trigger.as_json()), (TURN, {"host": "host0"}), (VERDICT, {"host": "host1"})):
        assert board.put(what, "job", BEGIN + 5, content) == content
    (job,) = top.iterdir()
    for what in (TRIGGER, TURN, VERDICT):
        path = {"top": top, "job": job, "file": next(job.glob(f"{what}=*"))}[where]
        if not (path.is_symlink() or path.stat().st_uid == SOMEBODY):
            spoil(path, how)
        with pytest.raises(UnsafePlace):
            board.get(what, "job", BEGIN + 5)
    (one,) = hosts(top.as_uri(), 1)
    told = settle(one, BEGIN + 2.6)
    assert [type(task) for task in told] == [Remark], "that is said, and nothing is done"
    # And who has an alarm of its own looks alone.
    one.propose(alarm(), 5.0, BEGIN + 6)
    assert [type(task) for task in settle(one, BEGIN + 7.6)][-1:] == [Alone if where != "file" else Begin]


@ROOT_ONLY
@pytest.mark.parametrize("where", ["window", "shard", "file"])
def test_windows_that_others_could_have_left_are_not_judged(where: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    uri = (tmp_path / "store").as_uri()
    windows = build(Job(ranks=8, hosts=4, steps=40))
    job, start = windows[0].manifest.jobs[0], windows[0].manifest.start
    send(uri, *windows)
    assert (len(Board(uri).windows(job, start).chosen), Board(uri).windows(job, start).notes) == (4, ())
    strange = Path(open_store(uri).path) / key_of(windows[0].manifest)
    spoil({"window": strange.parents[1], "shard": strange.parent, "file": strange}[where], "another's")
    found = Board(uri).windows(job, start)
    assert len(found.chosen) < 4 and "65534" in found.notes[0].text
    assert str(strange) not in [each.path for each in found.chosen]


def test_a_host_is_broken_by_its_own_window_where_that_shows_it() -> None:
    waits = {rank: {"last_progress_s": 8.0, "in_collective_s": 7.9} for rank in range(8)}
    lost = {"scope": "gpu", "instance": gpu(3), "rank": 3, "name": "gpu.lost", "value": 1.0}
    (mine,) = Machine(columns=waits, more=[lost], without=("gpu.lost",)).windows()
    assert broken_by(mine, mine.manifest.jobs[0]) == ("rankscope: gpu/lost gpu3",)
    (mine,) = Machine(columns=waits).windows()
    assert broken_by(mine, mine.manifest.jobs[0]) == ()
    assert broken_by(mine, "no such job") == ()


# 5: loading took so long that it began with the next slot; more than `large` hosts are judged in parts
@pytest.mark.parametrize(("late_s", "large"), [(2, 4), (5, 4), (10, 3)])
def test_the_windows_of_all_hosts_are_judged_once_and_old_triggers_are_pruned(
    store: str, late_s: int, large: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_fleet, "LARGE", large)
    windows = build(Job(ranks=8, hosts=4, steps=40))
    place, job = open_store(store), windows[0].manifest.jobs[0]
    start = windows[0].manifest.start
    late = replace(windows[-1], manifest=replace(windows[-1].manifest, start=start + late_s))
    send(store, *windows[:-1], late)
    trigger = Trigger(job, start, windows[0].manifest.seconds, AlarmKind.SLOWER, "slower", "host0")
    board = Board(store)
    board.put(TRIGGER, job, start, trigger.as_json())

    share = Share(store, tmp_path / "spool", trigger, True, 4, "host0")
    first = judge_all(share, tmp_path / "history")
    assert first.verdict is not None and first.trouble == ""
    assert (len(first.verdict["hosts"]), len(first.verdict["ranks"])) == (4, 8)
    host, heard = judged_of(board.get(VERDICT, job, start) or {}, job)
    assert (host, heard["status"]) == ("host0", first.verdict["status"])
    second = judge_all(replace(share, host="host1"), tmp_path / "history")
    assert "host0 judged it as well" in second.trouble
    five = judge_all(replace(share, hosts=5), tmp_path / "history")
    assert five.verdict is not None and any("of 5 hosts 4 sent" in note for note in five.verdict["notes"])

    there = objects.listing(place)
    assert (len(there.objects), len(there.told), there.foreign) == (4, 2, 0)
    assert tidy.prune(place, 60.0, Clocks(time.time()), clock_is_right=True).removed == 0
    assert tidy.prune(place, 60.0, Clocks(time.time() + 61), clock_is_right=True).removed == 6
    assert json.dumps(board.get(TRIGGER, job, start)) == "null"


@pytest.mark.parametrize("large", [4, 3, 2])  # of more hosts than that workers read the places of windows
def test_who_judges_takes_its_own_window_where_the_store_has_only_those_of_others(
    store: str, large: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_fleet, "LARGE", large)
    windows = build(Job(ranks=8, hosts=4, steps=40))
    job = windows[0].manifest.jobs[0]
    send(store, *windows[1:])
    about = windows[0].manifest
    trigger = Trigger(job, about.start, about.seconds, AlarmKind.SLOWER, "slower", "host0")
    share = Share(store, tmp_path / "spool", trigger, True, 4, "host0")
    found = judge_all(share, tmp_path / "history", windows[0], "the store was away").verdict
    assert found is not None and (len(found["hosts"]), len(found["ranks"])) == (4, 8)
    send(store, windows[0])
    found = judge_all(share, tmp_path / "history", windows[0]).verdict
    assert found is not None and (len(found["hosts"]), len(found["ranks"])) == (4, 8)
