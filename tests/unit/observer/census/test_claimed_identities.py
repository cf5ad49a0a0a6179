"""Anybody can write RANK=0 into an environment: nobody thereby puts another's ranks out of sight, or among his own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from rank_trees import Tree, torchrun

from rankscope.observer.census.found import RankCensus
from rankscope.observer.census.ranks import find_ranks
from rankscope.probes.host.namespaces import owner_uid

TRAIN = ["/usr/bin/python3.11", "-u", "train.py"]
JOB = "torch-10.0.0.1:29500"


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def of_job(census: RankCensus, job: str = JOB) -> list[tuple[int, int]]:
    return [(rank.identity.rank, rank.pid) for rank in census.ranks if rank.identity.job == job]


def real(tree: Tree, first: int, uid: int = 1000, cgroup: str = "/slurm/job_7") -> list[int]:
    pids = [
        tree.process(first + rank, 1, "python3.11", TRAIN, torchrun(rank, rank, 3), uid=uid, cgroup=cgroup)
        for rank in range(3)
    ]
    tree.serve(pids[0], 29500, pids[1:])
    return pids


@pytest.mark.parametrize("earlier", [True, False])
def test_another_users_process_with_a_ranks_name_is_a_job_of_its_own(tree: Tree, earlier: bool) -> None:
    if earlier:
        tree.process(50, 1, "python3.11", TRAIN, torchrun(1, 1, 3), uid=1666)
    pids = real(tree, 100)
    if not earlier:
        tree.process(50, 1, "python3.11", TRAIN, torchrun(1, 1, 3), uid=1666)
    tree.connect(50, 1, 40000)  # to whatever

    census = find_ranks(tree.root)

    assert of_job(census) == list(enumerate(pids))
    assert of_job(census, f"{JOB} of user 1666") == [(1, 50)]
    assert {rank.owner for rank in census.ranks if rank.identity.job == JOB} == {1000}
    assert any("of user 1000" in note and "1666" in note for note in census.notes)


def test_a_rank_that_nobody_has_is_not_added_to_anothers_job(tree: Tree) -> None:
    pids = real(tree, 100)
    tree.process(50, 1, "python3.11", TRAIN, torchrun(3, 3, 4), uid=1666)
    assert of_job(find_ranks(tree.root)) == list(enumerate(pids))


def test_users_whose_processes_are_more_do_not_take_a_job_whose_ranks_work_together(tree: Tree) -> None:
    for rank in range(6):
        tree.process(50 + rank, 1, "python3.11", TRAIN, torchrun(rank, rank, 6), uid=1666)
    pids = real(tree, 100)
    assert of_job(find_ranks(tree.root)) == list(enumerate(pids))


@pytest.mark.parametrize("first", [50, 150])
def test_users_with_more_processes_that_work_together_do_not_take_a_jobs_name(tree: Tree, first: int) -> None:
    """Whose it is cannot be told by numbers, of which anybody can have more: each has a job of his own, and both are shown."""
    fakes = [tree.process(first + rank, 1, "python3.11", TRAIN, torchrun(rank, rank, 6), uid=1666) for rank in range(6)]
    tree.serve(fakes[0], 29501, fakes[1:])
    pids = real(tree, 100)
    census = find_ranks(tree.root)
    assert of_job(census, f"{JOB} of user 1000") == list(enumerate(pids))
    assert of_job(census, f"{JOB} of user 1666") == list(enumerate(fakes))
    assert not of_job(census)
    assert any("1000, 1666" in note for note in census.notes)


@pytest.mark.parametrize("port", [0, 29400])
def test_another_container_of_the_same_user_does_not_evict_a_rank(tree: Tree, port: int) -> None:
    """All containers may run as root. The older one is not the real one where another is connected with the other ranks."""
    tree.process(50, 1, "python3.11", TRAIN, torchrun(1, 1, 3), cgroup="/kubepods/other")
    pids = real(tree, 100, uid=0, cgroup="/kubepods/job")
    if port:
        tree.connect(50, 1, port)
    census = find_ranks(tree.root)
    assert of_job(census) == list(enumerate(pids))
    assert {one.pid: one.reason for one in census.rejected}[50] == f"claims rank 1 of {JOB}, which is pid {pids[1]}"


def test_another_container_that_connects_to_the_rank_whose_name_it_has_does_not_become_a_rank(tree: Tree) -> None:
    pids = real(tree, 100, uid=0, cgroup="/kubepods/job")
    tree.process(250, 1, "python3.11", TRAIN, torchrun(1, 1, 3), cgroup="/kubepods/other")
    tree.connect(250, pids[1], 41000)
    assert of_job(find_ranks(tree.root)) == list(enumerate(pids))


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_who_makes_a_user_namespace_does_not_hide_in_it() -> None:
    text = (
        "import ctypes, os, time; os.setresuid(1234, 1234, 1234); libc = ctypes.CDLL(None); "
        "print(libc.unshare(0x10000000), flush=True); time.sleep(30)"
    )
    process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        if process.stdout.readline().strip() != "0":
            pytest.skip("user namespaces are switched off")
        assert owner_uid(process.pid) == 1234
        assert owner_uid(os.getpid()) == 0
    finally:
        process.kill()
        process.wait()
    assert owner_uid(process.pid) == -1


def test_numbers_whose_products_no_job_has_are_no_ranks_and_others_stay(tree: Tree) -> None:
    pids = real(tree, 100)
    by_node = {"MASTER_ADDR": "10.0.0.9", "NODE_RANK": "10000000", "LOCAL_RANK": "9999", "WORLD_SIZE": "10000000"}
    tree.process(50, 1, "python3.11", TRAIN, by_node, uid=1666)
    task = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1", "SLURM_PROCID": "9999999", "SLURM_NTASKS": "10000000"}
    tree.process(60, 1, "python3.11", TRAIN, task, uid=1666)
    for pid in (61, 62):
        tree.process(pid, 60, "python3.11", [*TRAIN, "--multiprocessing-fork"], task, uid=1666)
    tree.connect(61, 62, 5000)

    census = find_ranks(tree.root)

    assert of_job(census) == list(enumerate(pids)) and len(census.ranks) == 3
    reasons = {one.pid: one.reason for one in census.rejected}
    assert "it is rank 100000009999: no job has so many" in reasons[50]
    assert "no job has so many" in reasons[61] and "no job has so many" in reasons[62]


def test_a_size_that_no_job_has_is_none(tree: Tree) -> None:
    task = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1", "SLURM_PROCID": "3", "SLURM_NTASKS": "10000000"}
    tree.process(60, 1, "python3.11", TRAIN, task)
    for pid in (61, 62):
        tree.process(pid, 60, "python3.11", [*TRAIN, "--multiprocessing-fork"], task)
    tree.connect(61, 62, 5000)

    census = find_ranks(tree.root)

    assert [(one.identity.rank, one.identity.world_size) for one in census.ranks] == [(6, 0), (7, 0)]
    assert any("how many ranks it has is not known" in note for note in census.notes)
