"""What started a rank is the job's own; what two jobs were started from is of neither, nor is another user's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from found_rank import RANK

from rankscope.observer.census.found import FoundRank
from rankscope.observer.finish.started_by import started_by

USER = 1000


def put(root: Path, pid: int, parent: int, user: int = USER) -> None:
    place = root / f"proc/{pid}"
    place.mkdir(parents=True)
    place.joinpath("status").write_text(
        f"Name:\tx\nState:\tS (sleeping)\nTgid:\t{pid}\nPid:\t{pid}\nPPid:\t{parent}\n"
        f"Uid:\t{user}\t{user}\t{user}\t{user}\nNSpid:\t{pid}\nThreads:\t1\n"
    )


def rank(pid: int, number: int, job: str = "job") -> FoundRank:
    return replace(RANK, identity=replace(RANK.identity, job=job, rank=number), pid=pid, owner=USER)


def test_a_launcher_is_the_jobs_own_up_to_what_another_user_runs(tmp_path: Path) -> None:
    put(tmp_path, 10, 1, user=0)
    put(tmp_path, 20, 10)
    put(tmp_path, 30, 20)
    put(tmp_path, 41, 30)
    put(tmp_path, 42, 30)
    assert started_by([rank(42, 1), rank(41, 0)], tmp_path) == {30: 41, 20: 41}


def test_what_ranks_of_two_jobs_were_started_from_is_of_neither(tmp_path: Path) -> None:
    put(tmp_path, 20, 1)
    for launcher, pid in ((31, 41), (32, 42)):
        put(tmp_path, launcher, 20)
        put(tmp_path, pid, launcher)
    assert started_by([rank(41, 0), rank(42, 0, "other")], tmp_path) == {31: 41, 32: 42}


def test_a_rank_that_started_another_is_a_rank(tmp_path: Path) -> None:
    put(tmp_path, 41, 1)
    put(tmp_path, 42, 41)
    assert started_by([rank(41, 0), rank(42, 1)], tmp_path) == {}


def test_what_is_gone_and_a_circle_end_the_look(tmp_path: Path) -> None:
    put(tmp_path, 41, 30)
    put(tmp_path, 50, 51)
    put(tmp_path, 51, 50)
    put(tmp_path, 52, 51)
    assert started_by([rank(41, 0)], tmp_path) == {}
    assert set(started_by([rank(52, 0)], tmp_path)) == {50, 51}
