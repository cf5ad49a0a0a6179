"""A rank is gone where its siblings' launcher started it here and no process can be it; who is not sure of that says nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from builders import Job, build
from rank_trees import PLAIN, Tree, torchrun

from rankscope.observer.census.found import Gone, RankCensus
from rankscope.observer.census.ranks import find_ranks
from rankscope.observer.finish.gone import with_gone

TRAIN = ["/usr/bin/python3.11", "-u", "train.py"]
JOB = "torch-10.0.0.1:29500"


def of_four(rank: int) -> dict[str, str]:
    return {**torchrun(rank, rank), "LOCAL_WORLD_SIZE": "4"}


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """Four ranks of one launcher, of which the last is not there."""
    tree = Tree(tmp_path)
    tree.process(100, 1, "pt_elastic", ["/usr/bin/python3.11", "/venv/bin/torchrun", "train.py"], mapped=PLAIN)
    for rank in range(3):
        tree.process(101 + rank, 100, "python3.11", TRAIN, of_four(rank), uid=1000)
    return tree


def test_a_rank_that_no_process_is_is_gone(tree: Tree) -> None:
    # GIVEN what is left of it, and a worker of another one
    tree.process(104, 100, "python3.11", TRAIN, of_four(3), state="Z", uid=1000)
    tree.process(110, 101, "pt_data_worker", TRAIN, of_four(0), uid=1000)
    assert find_ranks(tree.root).gone == (Gone(JOB, 3),)


def test_what_a_rank_that_is_there_has_left_behind_excuses_nobody(tree: Tree) -> None:
    tree.process(111, 1, "python3.11", ["python3.11", "upload.py"], of_four(1), mapped=PLAIN, uid=1000)
    assert find_ranks(tree.root).gone == (Gone(JOB, 3),)


def test_where_all_are_there_nobody_is_gone(tree: Tree) -> None:
    tree.process(104, 100, "python3.11", TRAIN, of_four(3), uid=1000)
    assert find_ranks(tree.root).gone == ()


def _starting(tree: Tree) -> None:
    tree.process(104, 100, "python3.11", TRAIN, of_four(3), mapped=PLAIN, uid=1000)


def _a_shell_before_it(tree: Tree) -> None:
    tree.process(104, 100, "bash", ["bash", "run.sh"], of_four(3), mapped=PLAIN, exe="/bin/bash", uid=1000)


def _too_many_children(tree: Tree) -> None:
    for pid in range(1000, 1140):
        tree.process(pid, 100, "python3.11", ["python3.11", "other.py"], mapped=PLAIN, uid=1000)


def _nobody_knows_whose(tree: Tree) -> None:
    tree.process(104, 100, "python3.11", TRAIN, of_four(3))
    (tree.root / "proc/104/status").unlink()


@pytest.mark.parametrize("more", [_starting, _a_shell_before_it, _too_many_children, _nobody_knows_whose])
def test_where_a_process_may_be_it_nobody_is_gone(tree: Tree, more: Callable[[Tree], None]) -> None:
    more(tree)
    census = find_ranks(tree.root)
    assert len(census.ranks) == 3 and census.gone == ()


def test_where_no_more_are_there_than_lack_nobody_is_gone(tmp_path: Path) -> None:
    # GIVEN ranks each in a container of its own that say that they are four
    tree = Tree(tmp_path)
    for rank in range(2):
        tree.process(101 + rank, 1, "python3.11", TRAIN, of_four(rank), cgroup=f"/docker-{rank:064x}.scope", uid=1000)
    assert find_ranks(tree.root).gone == ()


def test_what_another_user_starts_excuses_nobody(tree: Tree) -> None:
    tree.process(104, 1, "python3.11", TRAIN, of_four(3), mapped=PLAIN, uid=2000)
    assert find_ranks(tree.root).gone == (Gone(JOB, 3),)


def test_a_window_tells_who_was_gone_all_the_while() -> None:
    # GIVEN ranks of the window's job and of another one; one came while it ran
    window = build(Job(ranks=4))[0]
    job = window.manifest.jobs[0]
    before = RankCensus((), (), (), gone=(Gone(job, 5), Gone(job, 4), Gone(job, 6), Gone("another", 7)))
    after = replace(before, gone=(Gone(job, 4), Gone(job, 5), Gone("another", 7)))
    (told,) = with_gone([window], before, after)
    rows = told.counters.to_pylist()[window.counters.num_rows :]
    assert [(row["rank"], row["name"], row["value"]) for row in rows] == [
        (4, "census.gone", 1.0),
        (5, "census.gone", 1.0),
    ]
    assert told.counters.schema == window.counters.schema
    assert with_gone([window], before, RankCensus((), (), ()))[0] is window
