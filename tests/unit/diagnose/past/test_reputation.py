"""Components that are always a little slow are named, soon and almost never falsely; whatever they are plugged into."""

from __future__ import annotations

import sqlite3
import stat
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import Job, build, claimed, columns
from hardware_builders import Machine

from rankscope.diagnose import budgets
from rankscope.diagnose.face.cli.stores import reputation as command
from rankscope.diagnose.infer.fleet.gather import gather
from rankscope.diagnose.infer.fleet.roll_call import roll_call
from rankscope.diagnose.infer.past.device_votes import device_votes
from rankscope.diagnose.infer.past.reputation import Reputations, Vote, needed_nats, votes_of
from rankscope.diagnose.infer.solve.votes import votes_on
from rankscope.diagnose.stats import detector
from rankscope.probes.base.arrays import Floats

WEEK_S = 7 * 86400.0


def jobs_of(components: int, size: int, jobs: int, slow: float, lasting: float, seed: int) -> tuple[int | None, Floats]:
    """Components drawn anew for each job; the first is always slower. After how many jobs it is named, and ln M of the others at most."""
    rng = np.random.default_rng(seed)
    state = np.zeros((components, len(detector.SHIFTS)))
    needed, named, most = needed_nats(components, components * 50, [0.0, WEEK_S]), None, np.zeros(components)
    for job in range(jobs):
        order = rng.permutation(components)
        for first in range(0, components, size):
            members = order[first : first + size]
            excess = rng.normal(0, lasting, len(members)) + rng.standard_t(3, len(members)) * lasting / 3
            excess[members == 0] += slow
            new = detector.evidence(detector.normal_scores(excess), len(members))
            state[members] = detector.followed(state[members], new)
        nats = detector.combined(state)
        most = np.maximum(most, nats)
        if named is None and nats[0] >= needed:
            named = job + 1
    return named, most - needed


@pytest.mark.parametrize("size", [64, 1000])
def test_a_component_that_is_two_percent_slow_among_ten_thousand_is_named_within_fifty_jobs(size: int) -> None:
    for seed in range(2):
        named, others = jobs_of(10_000, size, 50, 0.02, 0.01, seed)
        assert named is not None
        assert (others[1:] < 0).all()


def test_nobody_is_named_where_all_are_alike() -> None:
    """A thousand weeks of a fleet, as a hundred fleets of ten weeks, fifty jobs a week."""
    rng = np.random.default_rng(5)
    fleets, components = 100, 64
    state = np.zeros((fleets * components, len(detector.SHIFTS)))
    needed, false = needed_nats(components, 50 * components, [0.0, WEEK_S]), 0
    scores = detector.normal_scores(np.arange(components, dtype=float))
    nats = detector.evidence(scores, components)
    for _ in range(500):
        place = np.argsort(rng.random((fleets, components)), axis=1).reshape(-1)
        state = detector.followed(state, nats[place])
        false += int((detector.combined(state) >= needed).sum())
    assert false <= 1


def test_evidence_has_the_mean_one_whatever_the_values_are_like() -> None:
    for count in (4, 8, 1000):
        scores = detector.normal_scores(np.random.default_rng(1).standard_cauchy(count))
        assert np.exp(detector.evidence(scores, count)).mean(axis=0) == pytest.approx(np.ones(len(detector.SHIFTS)))


def test_equal_values_have_equal_scores() -> None:
    assert detector.normal_scores(np.array([1.0, 1.0, 1.0, 1.0])) == pytest.approx(np.zeros(4))
    assert detector.normal_scores(np.array([3.0, 1.0, 1.0, 2.0])).argmax() == 0


def vote(
    component: str, job: int, score: float, position: str | None = None, peers: int = 64, week: float = 0.0
) -> Vote:
    where = f"train.py/{job}" if position is None else position
    return Vote("gpu", component, f"job-{job}", where, f"node-{job % 7}", week * WEEK_S + job, score, peers, 0.02)


def test_a_card_that_is_moved_from_host_to_host_keeps_its_name(tmp_path: Path) -> None:
    book = Reputations(tmp_path / "book")
    book.add([vote("GPU-slow", job, 2.0) for job in range(40)], 0.0)
    book.add([vote(f"GPU-{other}", job, (-1.0) ** (job + other)) for job in range(40) for other in range(6)], 0.0)
    worst, *others = book.all()
    assert (worst.component, worst.jobs, worst.named, worst.host) == ("GPU-slow", 40, True, "node-4")
    assert not any(one.named for one in others)


def test_who_only_ever_stood_in_one_position_is_not_named(tmp_path: Path) -> None:
    """Rank 0 writes the log: its GPU is always the slowest, and is not to blame."""
    book = Reputations(tmp_path / "book")
    book.add([vote("GPU-first", job, 2.4, position="train.py/0") for job in range(500)], 0.0)
    [one] = book.all()
    assert (one.jobs, one.named) == (1, False)


def test_windows_that_are_taken_in_twice_count_once(tmp_path: Path) -> None:
    book = Reputations(tmp_path / "book")
    mine = [vote("GPU-a", job, 2.0) for job in range(10)]
    assert book.add(mine, 0.0) == 10
    before = book.all()
    assert book.add(mine, 0.0) == 0
    assert book.all() == before


def test_what_is_half_a_year_old_is_forgotten(tmp_path: Path) -> None:
    book = Reputations(tmp_path / "book")
    book.add([vote("GPU-a", 1, 2.0), vote("GPU-a", 2, 2.0, week=40)], 41 * WEEK_S)
    assert [one.jobs for one in book.all()] == [1]


def test_a_clock_that_is_years_ahead_forgets_nothing(tmp_path: Path) -> None:
    book = Reputations(tmp_path / "book")
    book.add([vote("GPU-a", 1, 2.0), vote("GPU-a", 2, 2.0, week=40)], 40 * WEEK_S + 1)
    before = book.all()
    book.add([], 1000 * WEEK_S)
    assert book.all() == before != []
    # THEN also where windows of that host come with it
    book.add([vote("GPU-b", 9, 2.0, week=1000)], 1000 * WEEK_S + 20)
    assert [one.jobs for one in book.all() if one.component == "GPU-a"] == [one.jobs for one in before] == [1]


def test_the_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    Reputations(tmp_path / "new" / "book").add([vote("GPU-a", 1, 2.0)], 0.0)
    assert stat.S_IMODE((tmp_path / "new" / "book").stat().st_mode) == 0o600


def test_what_no_vote_is_in_a_damaged_file_hides_no_others(tmp_path: Path) -> None:
    book = Reputations(tmp_path / "reputation.sqlite")
    book.add([Vote("gpu", f"gpu-{at}", "job", "rank 0", "host", 1.0e9, 1.0, 8, 0.01) for at in range(8)], 1.0e9)
    with closing(sqlite3.connect(book.path)) as base, base:
        base.execute("update votes set score = 'much' where component = 'gpu-1'")
        base.execute("update votes set peers = 0 where component = 'gpu-2'")
        for at, column in enumerate(("kind", "component", "position", "host"), start=3):
            base.execute(f"update votes set {column} = cast({column} as blob) where component = 'gpu-{at}'")
    assert {one.component for one in book.all()} == {"gpu-0", "gpu-7"}


def test_few_peers_do_not_vote() -> None:
    assert votes_of("gpu", "j", 0.0, ["a", "b"], ["x", "y"], ["h", "h"], np.array([0.1, 0.2])) == []


def test_ranks_vote_for_their_gpus_and_hosts_for_themselves() -> None:
    fleet = gather(build(Job(ranks=16, hosts=8)))
    ids = tuple(f"GPU-{number}" for number in range(16))
    ranks = replace(fleet.ranks, gpus=(("gpu0",),) * 16, gpu_ids=ids, machine=tuple(f"m{at // 2}" for at in range(16)))
    excess = np.linspace(0.0, 0.15, 16)
    found = votes_on(replace(fleet, ranks=ranks), excess, np.zeros(16, dtype=np.int64))
    gpus = [one for one in found if one.kind == "gpu"]
    hosts = [one for one in found if one.kind == "host"]
    assert [one.component for one in sorted(gpus, key=lambda one: one.score)] == list(ids)
    assert [one.component for one in sorted(hosts, key=lambda one: one.score)] == [f"m{at}" for at in range(8)]


def test_ports_and_pcie_devices_vote_by_their_rates() -> None:
    ranks = range(16)
    rates = {(rank, "nic.burst_hz"): 4e10 * (1 - 0.01 * rank) for rank in ranks}
    fleet = gather(Machine(ranks=16, counters=rates).windows())
    named = replace(fleet.ranks, machine=tuple(f"m{at // 8}" for at in ranks))
    found = list(device_votes(replace(fleet, ranks=named)))
    ports = sorted((one for one in found if one.kind == "port"), key=lambda one: one.score)
    assert [one.position.rpartition("/")[2] for one in ports] == [str(rank) for rank in ranks]
    assert ports[-1].component.startswith("m1/")
    assert {one.peers for one in found if one.kind == "pcie"} == {16}


def test_the_command_takes_windows_in_and_says_who_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from rankscope.observer.window.folder import write_window

    for window in build(Job(ranks=8, hosts=8, start=time.time() - 3600)):
        write_window(window, tmp_path / "windows")
    code = command.run((str(tmp_path / "windows"),), keep=tmp_path / "book", as_json=True, verbose=False)
    assert code == 0
    assert '"new_votes": 8' in capsys.readouterr().out
    assert command.run((), keep=tmp_path / "book", as_json=False, verbose=True) == 0
    assert "healthy: 0 of 8 components" in capsys.readouterr().out


def test_of_a_window_full_of_jobs_the_largest_vote(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    window = build(Job(ranks=4))[0]
    rows = window.ranks.to_pylist()
    many = [row | {"job": f"j{number}"} for number in range(200) for row in rows[: 4 if number == 150 else 2]]
    crowded = columns(window, "ranks", many)
    asked: list[str | None] = []
    monkeypatch.setattr(command, "gather", lambda _, job: asked.append(job))
    monkeypatch.setattr(command, "votes", lambda _: [])
    assert list(command._votes([crowded, window])) == []
    # Each window has its own: a job that is alone in one is asked of it.
    assert len(asked) == command.JOBS_MOST + 1 and asked[0] == "j150" and "job-a" in asked
    assert "136 jobs are left out" in capsys.readouterr().err


def test_one_users_many_jobs_take_no_vote_of_anothers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "JOBS_MOST", 3)
    window = build(Job(ranks=4))[0]
    rows = window.ranks.to_pylist()
    theirs = [row | {"job": f"many-{number}", "owner": 1666} for number in range(9) for row in rows]
    ours = [row | {"job": job, "owner": 1000} for job, ranks in (("b", 2), ("a", 3)) for row in rows[:ranks]]
    asked = command._windows_of(roll_call([columns(window, "ranks", [*theirs, *ours])]))
    assert set(asked) == {"many-0", "a", "many-1"}


def test_a_job_of_which_nothing_can_be_made_keeps_no_other_from_voting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(budgets, "CELLS_MOST", 10_000)
    [window] = build(Job(name="claim"))
    honest = build(Job(ranks=8, hosts=8))
    voted = list(command._votes([window, claimed(window, 400), *honest]))
    assert {vote.job for vote in voted} == {"job-a"} and voted
    assert "a moment of claim is left out: 400 ranks are claimed" in capsys.readouterr().err
