"""The ledger: all hours of a job by kind, from what tier 0 sees of it; restarts, fleets, files that others forged."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rankscope.diagnose.face.cli.main import run
from rankscope.diagnose.face.cli.service.ledger_table import lines
from rankscope.diagnose.service.alarms import Alarm, AlarmKind, JobWatch
from rankscope.diagnose.service.ledger.account import Account
from rankscope.diagnose.service.ledger.as_json import from_json, to_json
from rankscope.diagnose.service.ledger.book import Book
from rankscope.diagnose.service.ledger.entries import MOST, Entries
from rankscope.diagnose.service.ledger.entry import PAUSES, Entry, Event, Kind, Ledger, Scope, Whose
from rankscope.diagnose.service.ledger.naming import SeenPause
from rankscope.diagnose.service.ledger.recurrence import find
from rankscope.diagnose.service.ledger.store import FILE_BYTES, FILES, FILES_EACH, Store, name_of
from rankscope.diagnose.service.limits import Allowance
from rankscope.diagnose.service.looks.look import Seen
from rankscope.observer.watch.marker import StepMarker
from rankscope.observer.watch.ranks import Death, RankPulse, Steps
from rankscope.observer.watch.tier0 import Beat
from rankscope.probes.base.errors import BadData

MARKER = StepMarker(0, 1, 1.0, waits=True)
SIGKILL = 9
USER = "user 1000"
GC, SAVE, LOADER = ("gc", ""), ("save", "/job/train.py"), ("_next_data", "/lib/torch/utils/data/dataloader.py")
BOOT = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()


@dataclass(frozen=True)
class Planned:
    """A pause of the job: at this second, on this rank (-1: all), so long, in that function."""

    at_s: float
    rank: int
    seconds: float
    function: tuple[str, str]
    writes: bool = False


@dataclass
class Job:
    """A synchronous job of several ranks at tier 0: steps of a second, of which each rank computes 0.8 s and a bit, in beats of a second.

    It runs from second `now` of the test on, by CLOCK_MONOTONIC of a service that began at 0.
    """

    book: Book
    size: int = 8
    name: str = "job"
    run: str = ""
    user: str = USER
    plan: list[Planned] = field(default_factory=list)
    now: float = 0.0
    began: float = 0.0
    windows: list[tuple[Alarm, float]] = field(default_factory=list)
    noise: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))
    allowance: Allowance = field(default_factory=Allowance)
    ranks: list[RankPulse] = field(default_factory=list)
    ended: list[tuple[float, float, float]] = field(default_factory=list)  # end, seconds, own of the rank that works
    first_pid: int = 100
    done_s: float = 0.0
    happened: list[Planned] = field(default_factory=list)
    pending: list[Death] = field(default_factory=list)
    spent_s: float = 0.0  # of CPU, by the ledger

    def start(self, after_s: float = 20.0) -> None:
        """Its processes are there now, and their first step ends so much later."""
        self.began = self.now
        found = [self._rank(number) for number in range(self.size)]
        self.ranks = [RankPulse(one, self.now, self.now, MARKER) for one in found]
        self.watch = JobWatch(self.name)
        self.book.come(self.name, self.user, found, self.now)
        self.done_s = self.now + after_s
        for one in self.ranks:
            one._edge_s = self.done_s

    def _rank(self, number: int) -> Any:
        identity = SimpleNamespace(rank=number, job=self.name, world_size=self.size, title="train.py", run=self.run)
        return SimpleNamespace(
            pid=self.first_pid + number, start_ticks=int(100 * self.now) + number, start_s=self.now + BOOT, owner=int(self.user.split()[1]),
            container=None, identity=identity, libraries=SimpleNamespace(cuda="", torch_cuda=""),
        )  # fmt: skip

    def beat(self) -> None:
        """One second: steps that end in it, alarms, and windows that are asked for."""
        self.now += 1.0
        steps: dict[int, list[tuple[float, float, float]]] = {one.found.pid: [] for one in self.ranks}
        wrote = 0.0
        while self.ranks:
            own_s = 0.8 * np.exp(0.01 * self.noise.standard_normal(self.size))
            due = [one for one in self.plan if one.at_s <= self.done_s]
            more_s = np.zeros(self.size)
            for one in due:
                more_s[slice(None) if one.rank < 0 else one.rank] += one.seconds
            ends_s = self.done_s + float((own_s + more_s).max()) + 0.2
            if any(one.writes for one in due) and self.now > self.done_s + 3.0:
                wrote = 50e6
            if ends_s > self.now:
                break
            for one in due:
                self.plan.remove(one)
                self.happened.append(replace(one, at_s=self.done_s))
            for rank, each_s in zip(self.ranks, (own_s + more_s).tolist(), strict=True):
                row = (ends_s, ends_s - self.done_s, ends_s - self.done_s - each_s)
                rank.recent.append(row)
                rank.last_s = ends_s
                steps[rank.found.pid].append(row)
            self.done_s = ends_s
        columns = {pid: Steps(*np.array(rows).T) for pid, rows in steps.items() if rows}
        died, self.pending = tuple(self.pending), []
        beat = Beat(self.now, columns, (), died, frozenset())
        self.book.died(died)
        told = self.watch.take(self.now, self.ranks, beat.steps, (), died, wrote)
        began_s = time.process_time()
        self.book.take(self.name, self.ranks, beat, told, self.watch, wrote)
        expected = self.book.due(self.name, self.now)
        self.book.save(self.now)
        self.spent_s += time.process_time() - began_s
        for each in told:
            if (
                isinstance(each, Alarm)
                and each.kind is AlarmKind.SILENT
                and not self.allowance.allows(self.now, urgent=True, standstill=True)
            ):
                self.allowance.looked(self.now, standstill=True)
                self.windows.append((each, self.now + 4.0))
        if expected is not None and self.allowance.left(self.now) > 1:
            self.allowance.looked(self.now)
            assert expected.seconds is not None
            self.windows.append((expected, self.now + expected.seconds))
            self.book.begun(expected)
        self._look()
        if not self.ranks:
            self.book.gone(self.name, self.now)

    def _look(self) -> None:
        """Give the truth for windows that are over, some seconds later."""
        for alarm, end_s in [one for one in self.windows if self.now > one[1] + 5.0]:
            begin_s = end_s - (alarm.seconds or 4.0)
            unix = time.time() - time.monotonic()
            inside = [one for one in self.happened if begin_s <= one.at_s and one.at_s + one.seconds <= end_s]
            pauses = tuple(
                SeenPause(max(one.rank, 0), *one.function, 1, "", (unix + one.at_s,), one.seconds) for one in inside
            )
            stuck = [one for one in (*self.plan, *self.happened) if one.at_s <= end_s and one.function[0] == "search"]
            status = "hang" if alarm.kind is AlarmKind.SILENT and stuck else "healthy"
            suspects = (
                [{"component": "python", "cause": "blocking-call", "function": None, "ranks": [stuck[0].rank]}]
                if status == "hang"
                else []
            )
            self.book.learnt(Seen(alarm, {"status": status, "suspects": suspects, "notes": []}, "", 0.0, pauses=pauses))
            self.windows.remove((alarm, end_s))

    def run_until(self, second: float) -> None:
        while self.now < second:
            self.beat()

    def killed(self) -> None:
        """All ranks are killed, and another beat passes."""
        self.pending = [
            Death(self.name, one.found.pid, one.found.identity.rank, self.now + 0.1, SIGKILL) for one in self.ranks
        ]
        self.ranks, self.first_pid = [], self.first_pid + 1000
        self.beat()

    @property
    def ledger(self) -> Ledger:
        found = self.book.snapshot(self.name, self.now)
        assert found is not None
        return found


def a_plan(hours: float) -> list[Planned]:
    """gc every 5 minutes on each rank in turn, a checkpoint every 10 on rank 0, a loader stall every 15 on rank 5."""
    end_s = 3600 * hours
    collected = [Planned(at, int(at // 300) % 8, 1.4, GC) for at in np.arange(300.0, end_s, 300.0).tolist()]
    saved = [Planned(at, 0, 12.0, SAVE, writes=True) for at in np.arange(430.0, end_s, 600.0).tolist()]
    stalled = [Planned(at, 5, 4.0, LOADER) for at in np.arange(520.0, end_s, 900.0).tolist()]
    return [*collected, *saved, *stalled]


def entries_of(ledger: Ledger, kind: Kind) -> list[Entry]:
    return [one for one in ledger.entries if one.kind is kind]


def total(ledger: Ledger, kind: Kind) -> tuple[int, float]:
    mine = entries_of(ledger, kind)
    return sum(one.count for one in mine), sum(one.seconds for one in mine)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    tmp_path.chmod(0o700)
    return Store(tmp_path / "ledger", "node")


def test_two_hours_of_a_job_are_told_by_kind_within_five_percent(store: Store) -> None:
    # GIVEN two hours with pauses of three kinds, a hang, and a restart
    job = Job(Book(store, 0.0), plan=[*a_plan(2.0), Planned(1820.0, 3, 240.0, ("search", "/job/train.py"))])
    job.now = 1.0
    job.start()
    job.run_until(4590.0)
    job.killed()
    job.run_until(4650.0)
    job.start(after_s=40.0)
    job.plan = [one for one in job.plan if one.at_s > job.now + 40.0]
    job.run_until(7200.0)
    ledger = job.ledger
    text = "\n".join(lines(ledger, 80, time.time()))
    # THEN each kind has its count and its seconds, whoever was named for it
    happened = job.happened
    for kind, function in ((Kind.GC, GC), (Kind.CHECKPOINT, SAVE), (Kind.LOADER, LOADER)):
        mine = [one for one in happened if one.function == function]
        count, spent_s = total(ledger, kind)
        assert (count, spent_s) == (len(mine), pytest.approx(sum(one.seconds for one in mine), rel=0.05)), text
    assert total(ledger, Kind.HANG) == (1, pytest.approx(240.0, rel=0.05)), text
    assert total(ledger, Kind.DOWN) == (1, pytest.approx(60.0, rel=0.05)), text
    assert total(ledger, Kind.STARTUP) == (2, pytest.approx(60.0, rel=0.05)), text
    (twice,) = entries_of(ledger, Kind.REDONE)
    last_save = max(one.at_s for one in happened if one.function == SAVE and one.at_s < 4590.0)
    assert twice.seconds == pytest.approx(4590.0 - last_save - 12.0, rel=0.05), text
    # AND all adds up
    spent_s = ledger.productive_s + sum(one.seconds for one in ledger.entries) + ledger.others[1]
    assert spent_s == pytest.approx(ledger.total_s, abs=1.0)
    # AND it is read at 80 columns, with the recurrences
    assert max(map(len, text.splitlines())) <= 80, text
    for words in (
        "5 min",
        "10 min",
        "15 min",
        "each in turn",
        "save (train.py:1)",
        "GPU-hours" if ledger.gpus else "rank-hours",
    ):
        assert words in text, text
    assert len(json.dumps(to_json(ledger, "node"))) < 16_000


def test_a_service_that_is_killed_goes_on_with_the_ledger(store: Store) -> None:
    job = Job(Book(store, 0.0), plan=a_plan(2.0))
    job.now = 1.0
    job.start()
    job.run_until(3000.0)
    before = job.ledger
    # WHEN it is killed, and another one begins; nothing is closed
    job.book = Book(store, job.now)
    found = [one.found for one in job.ranks]
    unix = time.time() - time.monotonic()
    (stored,) = store.read()
    assert stored.until == pytest.approx(unix + 3000.0, abs=40.0)
    job.now += 20.0
    job.done_s = job.now
    job.plan = [one for one in job.plan if one.at_s > job.now]
    job.book.come(job.name, USER, found, job.now)
    job.run_until(5000.0)
    after = job.ledger
    assert (after.began, after.runs) == (before.began, 1)
    assert total(after, Kind.GC)[0] >= total(before, Kind.GC)[0] + 5
    assert total(after, Kind.UNSEEN)[1] == pytest.approx(20.0, abs=45.0)
    spent_s = after.productive_s + sum(one.seconds for one in after.entries)
    assert spent_s == pytest.approx(after.total_s, abs=1.0)
    # AND the same name of another user, or after it was finished, is another ledger
    other = Job(job.book, user="user 2000", name="job of user 2000", now=job.now)
    other.start()
    other.run_until(job.now + 100.0)
    assert job.ledger == replace(after, until=job.ledger.until)
    assert (other.ledger.began, other.ledger.user) != (after.began, after.user)


def test_a_thousand_ranks_cost_a_beat_no_more_than_eight(store: Store) -> None:
    def seconds_of(size: int) -> tuple[float, Ledger]:
        job = Job(
            Book(store, 0.0),
            size=size,
            name=f"job of {size}",
            plan=[Planned(at, int(at) % size, 2.0, GC) for at in range(200, 1200, 100)],
            now=1.0,
        )
        job.start()
        job.run_until(150.0)
        job.spent_s = 0.0
        job.run_until(650.0)
        return job.spent_s / 500, job.ledger

    few_s, small = seconds_of(8)
    many_s, large = seconds_of(1000)
    assert total(small, Kind.PAUSE)[0] + total(small, Kind.GC)[0] == 5
    assert total(large, Kind.PAUSE)[0] + total(large, Kind.GC)[0] == 5
    assert (small.here, large.here, large.world) == (8, 1000, 1000)
    # a beat is a second: 0.05 % of a core and rank is 0.5 ms for each; this takes a hundredth of it
    assert few_s < 8 * 0.0005 / 10 and many_s < 1000 * 0.0005 / 100
    assert max(map(len, lines(large, 80, time.time()))) <= 80


def test_a_ledger_does_not_grow_whatever_a_job_does(store: Store) -> None:
    entries, spent_s = Entries(step_s=1.0), 0.0
    noise = np.random.default_rng(3)
    for at in range(3000):  # of many lengths, on all ranks, as well as hangs with words of their own
        ranks = tuple(noise.integers(0, 1000, 5).tolist())
        seconds, scope = 0.001 * 2.5 ** (at % 24), (Scope.SOME, Scope.ALL, Scope.NONE)[at // 24 % 3]
        whose = Whose(scope, ranks if scope is Scope.SOME else ())
        spent_s += seconds
        entries.add(Event(Kind.PAUSE, 10.0 * at, seconds, at, "", whose))
        if at % 10 == 0:
            entries.add(Event(Kind.HANG, 10.0 * at, 1.0, at, f"no step {at}"))
    assert len(entries) <= MOST
    kept = sum(one.seconds for one in entries) + entries.others[1]
    assert kept == pytest.approx(spent_s + 300.0)
    ledger = a_ledger(entries=tuple(entries), others=entries.others)
    store.write(ledger)
    (path,) = store.folder.iterdir()
    assert path.stat().st_size < FILE_BYTES and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert store.read() == [from_json(to_json(ledger, "node"))]


def a_ledger(job: str = "job", user: str = USER, **more: Any) -> Ledger:
    return Ledger(job, user, "train.py", 8, 8, False, 1000.0, 5000.0, **more)


def spoilt() -> Iterator[Callable[[dict[str, Any]], object]]:
    yield lambda content: content | {"schema": "rankscope.ledger/2"}
    yield lambda content: {name: value for name, value in content.items() if name != "entries"}
    yield lambda content: content | {"entries": content["entries"] * 100}
    yield lambda content: content | {"until": float("nan")}
    yield lambda content: content | {"until": 10.0}
    yield lambda content: content | {"steps": -1}
    yield lambda content: content | {"steps": True}
    yield lambda content: content | {"job": ["job"]}
    yield lambda content: content | {"entries": [content["entries"][0] | {"kind": "productive"}]}
    yield lambda content: content | {"entries": [content["entries"][0] | {"recent": [[1.0]]}]}
    yield lambda content: content | {"entries": [content["entries"][0] | {"ranks": [[0, 1]] * 1000}]}
    yield lambda content: content | {"entries": [content["entries"][0] | {"seconds": "1"}]}
    yield lambda content: [content]


@pytest.mark.parametrize("spoil", list(spoilt()))
def test_what_is_no_ledger_is_refused(spoil: Callable[[dict[str, Any]], object]) -> None:
    one = Entry(
        Kind.GC,
        "garbage collection",
        Scope.SOME,
        3,
        3.0,
        1.0,
        1.0,
        9.0,
        ((0, 3),),
        recent=((1.0, 1), (5.0, 5), (9.0, 9)),
    )
    content = json.loads(json.dumps(to_json(a_ledger(entries=(one,)), "node")))
    assert from_json(content).entries == (one,)
    with pytest.raises(BadData):
        from_json(spoil(content))


def test_files_that_others_made_or_that_are_cut_are_left_out_and_names_are_escaped(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store.write(a_ledger("good"))
    store.write(a_ledger("evil \x1b[31m\u202e" + "x" * 400))
    whole = (store.folder / name_of(a_ledger("good"))).read_bytes()
    (store.folder / ("0" * 24 + ".json")).write_bytes(whole)  # under another name
    (store.folder / ("1" * 24 + ".json")).write_bytes(whole[: len(whole) // 2])
    (store.folder / ("2" * 24 + ".json")).write_bytes(b"[" * 30_000)
    (store.folder / ("3" * 24 + ".json")).write_bytes(b'{"schema": ' + b"9" * 60_000)
    os.mkfifo(store.folder / ("4" * 24 + ".json"))
    (store.folder / ("5" * 24 + ".json")).symlink_to("/dev/zero")
    theirs = store.folder / name_of(a_ledger("theirs"))
    store.write(a_ledger("theirs"))
    os.chown(theirs, 12345, 12345)
    assert [one.job for one in store.read() if "evil" not in one.job] == ["good"]
    assert run(["ledger", "--state", str(tmp_path)]) == 0
    listed = capsys.readouterr().out
    assert "\x1b" not in listed and "\u202e" not in listed and "good" in listed
    assert run(["ledger", "good", "--state", str(tmp_path), "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)
    assert (shown["schema"], shown["job"], shown["hours"]) == (
        "rankscope.ledger/1",
        "good",
        pytest.approx(4000 / 3600, rel=1e-4),
    )
    assert run(["ledger", "nobody", "--state", str(tmp_path)]) == 64
    store.write(replace(a_ledger("page", runs=2), title="<script>alert(1)</script>"))
    page = tmp_path / "page.html"
    assert run(["ledger", "page", "--state", str(tmp_path), "--html", str(page)]) == 0
    assert (
        "<script" not in page.read_text() and "&lt;script&gt;" in page.read_text() and "rank-hours" in page.read_text()
    )
    assert run(["ledger", "page", "--state", str(tmp_path), "--html", str(page)]) == 69, "nothing is written over"
    os.chown(store.folder, 12345, 12345)
    assert run(["ledger", "--state", str(tmp_path)]) == 69


def test_a_crowd_of_jobs_of_one_user_takes_no_ledger_from_another(store: Store) -> None:
    store.write(a_ledger("ours", "user 2000"))
    for number in range(FILES_EACH + 5):
        store.write(a_ledger(f"crowd {number}"))
    kept = [one.job for one in store.read()]
    assert "ours" in kept and len(kept) == FILES_EACH + 1 < FILES
    assert f"crowd {FILES_EACH + 4}" in kept


def test_a_recurrence_is_found_by_steps_or_by_seconds_and_none_in_chance() -> None:
    noise = np.random.default_rng(1)
    by_steps = [(1000.0 + 1.1 * step, step) for step in range(100, 900, 50)]
    found = find(by_steps, 1.0)
    assert found is not None and (found.steps, found.seconds) == (50, pytest.approx(55.0))
    assert found.next(2000.0) == pytest.approx(2000.0 + 55.0 - (2000.0 - found.last) % 55.0)
    at = np.cumsum(300.0 + noise.uniform(-1.0, 1.0, 10))
    by_clock = find([(float(each), int(each / 1.3) + int(noise.integers(-3, 3))) for each in at], 1.3)
    assert by_clock is not None and by_clock.seconds == pytest.approx(300.0, rel=0.01)
    chance = [find(sorted((float(a), int(a)) for a in noise.uniform(0, 1e5, 12)), 1.0) for _ in range(50)]
    assert sum(one is not None for one in chance) <= 1


def test_a_pause_that_comes_when_expected_is_the_same_though_it_is_shorter() -> None:
    # GIVEN collections on each rank in turn, the first of each process longer, as they are in CPython
    entries = Entries(step_s=0.1)
    for number in range(23):
        seconds = 0.75 if number < 4 else 0.33
        event = Event(Kind.PAUSE, 300.0 * number, seconds, 3000 * number, "", Whose(Scope.SOME, (number % 4,)))
        entries.add(event)
        if number == 3:
            entries.name([SeenPause(3, *GC, 0, "", (event.at,), seconds)])
    assert [(one.kind, one.count) for one in entries] == [(Kind.GC, 23)]
    # THEN one at another time is another, and so is one that lasts much longer
    entries.add(Event(Kind.PAUSE, 300.0 * 22 + 130.0, 0.1, 67_000, "", Whose(Scope.SOME, (1,))))
    entries.add(Event(Kind.PAUSE, 300.0 * 23, 5.0, 69_000, "", Whose(Scope.SOME, (1,))))
    assert sorted(one.count for one in entries) == [1, 1, 23]


def test_the_step_of_a_checkpoint_is_known_when_its_entry_had_to_go() -> None:
    account = Account(a_ledger(), 0.0, 0.0)
    account.entries.add(Event(Kind.CHECKPOINT, 10.0, 0.001, 70, "save (train.py:1)", Whose(Scope.ALL)))
    assert account.snapshot(20.0).saved_steps == 70
    for at in range(2 * MOST):  # a name for each, so that none is alike
        account.entries.add(Event(Kind.PAUSE, 20.0 + at, 1.0 + at, 100, f"pause {at}", Whose(Scope.ALL)))
    assert all(one.kind is not Kind.CHECKPOINT for one in account.entries)
    assert account.snapshot(300.0).saved_steps == 70


def test_pauses_of_one_length_are_told_apart_once_a_window_named_both() -> None:
    entries = Entries(step_s=1.0)
    seen = {GC: SeenPause(3, *GC, 0, "", (), 2.0), LOADER: SeenPause(5, *LOADER, 9, "", (), 2.0)}
    for number in range(12):
        for at, rank, function in ((300.0 * number, 3, GC), (300.0 * number + 130.0, 5, LOADER)):
            entries.add(Event(Kind.PAUSE, at, 2.0, int(at), "", Whose(Scope.SOME, (rank,))))
            if number == 2:
                entries.name([replace(seen[function], at=(at,))])
    found = {one.kind: one.count for one in entries if one.kind in PAUSES}
    assert found[Kind.GC] + found[Kind.LOADER] == 24
    assert abs(found[Kind.LOADER] - 10) <= 1, found


def test_a_run_ends_in_other_ways_and_what_comes_after_is_a_restart_or_another_job(store: Store) -> None:
    def ended(how: int, away_s: float = 10.0, again: str = "train.py") -> Ledger:
        job = Job(Book(store, 0.0), name=f"job {how} {away_s} {again}", now=1.0)
        job.start()
        job.run_until(100.0)
        job.pending = [Death(job.name, one.found.pid, one.found.identity.rank, job.now, how) for one in job.ranks]
        job.ranks, job.first_pid = [], 5000
        job.run_until(100.0 + away_s)
        job.start(5.0)
        for one in job.ranks:
            one.found.identity.title = again
        job.run_until(job.now + 60.0)
        return job.ledger

    assert ended(SIGKILL).runs == 2
    assert "killed by SIGKILL" in next(one.what for one in ended(SIGKILL, 11.0).entries if one.kind is Kind.DOWN)
    assert ended(0).runs == 1, "it was finished: the next one is another job"
    assert ended(SIGKILL, 4000.0).runs == 1, "an hour later it is another one as well"


def test_a_restart_under_another_name_is_one_if_it_is_the_same_run(store: Store) -> None:
    def again(run: str, how: int = SIGKILL) -> list[Ledger]:
        job = Job(Book(store, 0.0), name=f"first <{run}> {how}", run="arguments of one", now=1.0)
        job.start()
        job.run_until(100.0)
        job.pending = [Death(job.name, one.found.pid, one.found.identity.rank, job.now, how) for one in job.ranks]
        job.ranks, job.first_pid = [], 5000
        job.run_until(110.0)
        job.name, job.run = f"second <{run}> {how}", run
        job.start(5.0)
        job.run_until(job.now + 60.0)
        job.book.close(job.now)
        return [one for one in store.read() if one.job.endswith(f"<{run}> {how}")]

    # THEN one ledger, under the name of the later run, in one file
    (ledger,) = again("arguments of one")
    assert (ledger.job, ledger.runs) == (f"second <arguments of one> {SIGKILL}", 2)
    assert [one.what for one in ledger.entries if one.kind is Kind.DOWN] == ["rank 0 killed by SIGKILL"]
    # AND two where it was finished, or where the arguments are others or not known
    assert [
        one.runs
        for run, how in (("arguments of one", 0), ("others", SIGKILL), ("", SIGKILL))
        for one in again(run, how)
    ] == [1] * 6


def test_elastic_ranks_that_come_in_the_second_in_which_others_ended_are_a_restart(store: Store) -> None:
    job = Job(Book(store, 0.0), now=1.0)
    job.start()
    job.run_until(200.0)
    job.book.died([Death(job.name, one.found.pid, one.found.identity.rank, job.now, SIGKILL) for one in job.ranks])
    job.first_pid += 1000
    job.now += 3.0
    job.start(7.0)
    job.run_until(300.0)
    ledger = job.ledger
    assert ledger.runs == 2
    assert total(ledger, Kind.DOWN) == (1, pytest.approx(3.0, abs=1.0))
    assert total(ledger, Kind.STARTUP) == (2, pytest.approx(27.0, abs=1.5))
    # ranks of another user under the same name, and late ones of the same run, change nothing
    other = job._rank(99)
    other.owner = 2000
    job.book.come(job.name, USER, [other], job.now)
    late = job._rank(98)
    job.book.come(job.name, USER, [late], job.now)
    assert job.ledger.runs == 2 and job.ledger.here == job.size + 1


def test_a_slow_stretch_has_its_verdict_also_where_that_comes_late(store: Store) -> None:
    for late in (False, True):
        job = Job(Book(store, 0.0), name=f"job {late}", now=1.0)
        job.start()
        job.run_until(400.0)
        job.plan = [Planned(at, 2, 0.5, ("tokenize", "/job/train.py")) for at in np.arange(400.0, 580.0, 1.0).tolist()]
        alarm: Alarm | None = None
        while job.now < 800.0:
            job.beat()
            if alarm is None and job.watch.detector.shifted is not None:
                alarm = Alarm(AlarmKind.SLOWER, job.name, job.now, "slower")
            if (alarm is not None and not late) or job.now > 760.0:
                function = {"name": "tokenize", "file": "/job/train.py", "line": 14}
                suspect = {"component": "python", "cause": "slow-function", "function": function, "ranks": [2]}
                assert alarm is not None
                job.book.learnt(Seen(alarm, {"status": "fault", "suspects": [suspect]}, "", 0.0))
        (slow,) = entries_of(job.ledger, Kind.SLOW)
        assert slow.what == "python/slow-function tokenize (train.py:14)" and slow.ranks == ((2, 1),)
        assert slow.seconds == pytest.approx(180 * 0.5, rel=0.05)
        spent_s = job.ledger.productive_s + sum(one.seconds for one in job.ledger.entries)
        assert spent_s == pytest.approx(job.ledger.total_s, abs=0.1)


@pytest.mark.parametrize(
    ("status", "kind"),
    [("hang", Kind.HANG), ("unknown", Kind.PAUSE), (None, Kind.HANG)],
    ids=["hang", "none", "not judged"],
)
def test_a_long_silence_is_a_hang_unless_a_window_of_any_host_says_that_it_is_none(
    store: Store, status: str | None, kind: Kind
) -> None:
    job = Job(
        Book(store, 0.0), plan=[Planned(200.0, 4, 60.0, ("search", "/job/train.py"))], allowance=Allowance(0), now=1.0
    )
    job.start()
    job.run_until(262.0)
    if status is not None:
        verdict = {"status": status, "suspects": [], "notes": []}
        job.book.learnt(Seen(Alarm(AlarmKind.SILENT, job.name, 207.0, "another host's"), verdict, "", 0.0))
    job.run_until(264.0)
    assert total(job.ledger, kind) == (1, pytest.approx(60.0, rel=0.05)), "while it is waited for as well"
    # A standstill that began when this one was over says nothing of it.
    job.run_until(330.0)
    later = {"status": "unknown" if kind is Kind.HANG else "hang", "suspects": [], "notes": []}
    job.book.learnt(Seen(Alarm(AlarmKind.SILENT, job.name, 325.0, "a later one"), later, "", 0.0))
    job.run_until(600.0)
    assert total(job.ledger, kind) == (1, pytest.approx(60.0, rel=0.05))
    assert job.ledger.seconds()[kind] + job.ledger.productive_s == pytest.approx(job.ledger.total_s - 20.0, abs=1.5)
