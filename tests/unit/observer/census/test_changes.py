"""What is started while a window runs is in no window, and a note in those that there are says so."""

from __future__ import annotations

from pathlib import Path

import pytest
from rank_trees import PLAIN, TORCH, Tree, torchrun

from rankscope.observer.census.found import RankCensus
from rankscope.observer.census.ranks import find_ranks
from rankscope.observer.finish.changes import changes
from rankscope.observer.recorder import RecordOptions, choose
from rankscope.probes.base.errors import NoRanks

A, B = "torch-10.0.0.1:29500", "torch-10.0.0.2:29500"


def host(root: Path, *ranks: tuple[int, int, str, str], mapped: tuple[str, ...] = TORCH) -> RankCensus:
    """A host with these ranks: (pid, rank, master, script)."""
    root.mkdir()
    tree = Tree(root)
    for pid, rank, master, script in ranks:
        tree.process(pid, 1, "python", ["python3", script], torchrun(rank, rank, 2, master), mapped=mapped)
    return find_ranks(root)


def two(pid: int, master: str = "10.0.0.1", script: str = "train.py") -> tuple[tuple[int, int, str, str], ...]:
    return (pid, 0, master, script), (pid + 1, 1, master, script)


@pytest.mark.parametrize("after, said", [
    (two(100), []),
    ((), []),
    (two(300), ["ranks 0, 1 (pids 300, 301) started again while observed: what the new processes do is not in this window"]),
    ((two(100)[0], two(300)[1]), ["rank 1 (pid 301) started again while observed"]),
    ((*two(100), *two(400, "10.0.0.2", "other.py")), ["another job was started while observed, and is not in this window: other.py"]),
    ((*two(100), *two(400, "10.0.0.2")), [f"another job was started while observed, and is not in this window: train.py [{B}]"]),
    (two(400, "10.0.0.2"), [f"the job was started again under another name while observed, and is not in this window: train.py [{B}]"]),
])  # fmt: skip
def test_what_was_started_while_the_window_ran_is_told(
    tmp_path: Path, after: tuple[tuple[int, int, str, str], ...], said: list[str]
) -> None:
    before = host(tmp_path / "before", *two(100))
    found = changes([A], before, host(tmp_path / "after", *after))
    assert len(found) == len(said)
    assert all(text.startswith(begins) for text, begins in zip(found, said, strict=True)), found


def test_processes_that_have_not_come_to_load_a_training_library_are_told_by_their_environment(tmp_path: Path) -> None:
    before = host(tmp_path / "before", *two(100))
    (told,) = changes([A], before, host(tmp_path / "after", *two(300), mapped=PLAIN))
    assert told.startswith("ranks 0, 1 (pids 300, 301) started again while observed")
    # AND what was about to start all the while is no news
    early = host(tmp_path / "early", *two(400, "10.0.0.2"), mapped=PLAIN)
    assert changes([A], early, host(tmp_path / "late", *two(400, "10.0.0.2"), mapped=PLAIN)) == ()


def test_a_rank_that_joins_late_is_not_one_that_was_started_again(tmp_path: Path) -> None:
    before = host(tmp_path / "before", two(100)[0])
    found = changes([A], before, host(tmp_path / "after", *two(100)))
    assert found == ("rank 1 (pid 101) started while observed: not in this window",)


def test_a_job_that_was_there_all_the_while_is_no_news(tmp_path: Path) -> None:
    both = (*two(100), *two(400, "10.0.0.2"))
    assert changes([A], host(tmp_path / "before", *both), host(tmp_path / "after", *both)) == ()


@pytest.mark.parametrize("wanted, pids", [
    (A, {100, 101}), ("other.py", {400, 401}), ("oth", {400, 401}), ("torch-10.0.0.2", {400, 401}), ("torch-", {100, 101, 400, 401}),
    (None, {100, 101, 400, 401}),
])  # fmt: skip
def test_a_job_is_chosen_by_its_name_its_title_or_how_they_begin(
    tmp_path: Path, wanted: str | None, pids: set[int]
) -> None:
    host(tmp_path / "host", *two(100), *two(400, "10.0.0.2", "other.py"))
    census = find_ranks(tmp_path / "host")
    assert {rank.pid for rank in choose(census, RecordOptions(job=wanted))} == pids


def test_who_asks_for_a_job_that_is_not_here_is_told_the_names_that_work(tmp_path: Path) -> None:
    host(tmp_path / "host", *two(100), *two(400, "10.0.0.2", "other.py"))
    with pytest.raises(NoRanks, match=r"there are: other\.py, train\.py"):
        choose(find_ranks(tmp_path / "host"), RecordOptions(job="nobody"))
