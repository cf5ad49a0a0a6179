"""Anybody can write RANK=0 into an environment: nobody thereby puts another's ranks out of sight, or among his own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from rank_trees import Tree, torchrun

from rankscope.observer.census import candidates
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


def others_name(environ: dict[str, str], uid: int) -> dict[str, str]:
    """With a name of the job that reads as another user's."""
    return environ | {"MASTER_PORT": f"{environ['MASTER_PORT']} of user {uid}"}


@pytest.mark.parametrize("first", [50, 150])
def test_who_spells_the_name_that_another_users_job_is_told_by_gets_one_of_his_own(tree: Tree, first: int) -> None:
    """He makes it doubtful whose the job is, and is older, of the same size, and connected as well."""
    fakes = [tree.process(first + rank, 1, "python3.11", TRAIN, torchrun(rank, rank, 3), uid=1666) for rank in range(2)]
    tree.serve(fakes[0], 29511, fakes[1:])
    liars = [
        tree.process(first + 10 + rank, 1, "python3.11", TRAIN, others_name(torchrun(rank, rank, 3), 1000), uid=1666)
        for rank in range(3)
    ]
    tree.serve(liars[0], 29522, liars[1:])
    pids = real(tree, 100)
    census = find_ranks(tree.root)
    assert of_job(census, f"{JOB} of user 1000") == list(enumerate(pids))
    assert of_job(census, f"{JOB} of user 1666") == list(enumerate(fakes))
    assert of_job(census, f"{JOB} of user 1000 of user 1666") == list(enumerate(liars))
    assert len(census.ranks) == 8


def test_a_name_that_reads_as_ones_own_is_the_plain_one(tree: Tree) -> None:
    environ = others_name(others_name(torchrun(0, 0, 3), 1000), 1000)
    tree.process(50, 1, "python3.11", TRAIN, environ, uid=1000)
    assert of_job(find_ranks(tree.root)) == [(0, 50)]
    # and where it is doubtful whose it is, nobody else's
    pids = real(tree, 100, uid=1666)
    census = find_ranks(tree.root)
    assert (of_job(census), of_job(census, f"{JOB} of user 1000")) == (list(enumerate(pids)), [(0, 50)])


@pytest.mark.parametrize("nobodys", [50, 101])
def test_a_process_of_which_nobody_knows_whose_it_is_is_no_rank(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, nobodys: int
) -> None:
    """It ends while it is looked at, or keeps who asks waiting: it may be anybody's, and the job is one user's."""
    pids = real(tree, 100)
    tree.process(50, 1, "python3.11", TRAIN, torchrun(7, 1, 8), uid=1666)
    known = candidates.owner_uid
    monkeypatch.setattr(candidates, "owner_uid", lambda pid, root: -1 if pid == nobodys else known(pid, root))
    census = find_ranks(tree.root)
    assert of_job(census) == [(rank, pid) for rank, pid in enumerate(pids) if pid != nobodys]
    assert {one.pid: one.reason for one in census.rejected}[nobodys] == candidates.NOBODYS
    assert all(rank.owner >= 0 for rank in census.ranks)


@pytest.mark.parametrize("claimed", [(7, 8), (9_999_999, 10_000_000)])
def test_another_users_number_on_the_host_does_not_number_a_jobs_ranks(tree: Tree, claimed: tuple[int, int]) -> None:
    def by_node(local: int, world: int) -> dict[str, str]:
        numbers = {"LOCAL_RANK": str(local), "NODE_RANK": "1", "WORLD_SIZE": str(world)}
        return {**numbers, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}

    tree.process(50, 1, "python3.11", TRAIN, by_node(*claimed), uid=1666)
    pids = [tree.process(100 + local, 1, "python3.11", TRAIN, by_node(local, 4), uid=1000) for local in range(2)]
    tree.connect(pids[0], pids[1], 31000)
    census = find_ranks(tree.root)
    assert of_job(census) == [(2, pids[0]), (3, pids[1])]
    assert not any(rank.guessed for rank in census.ranks if rank.pid in pids)


@pytest.mark.parametrize("stranger", [50, 150])
def test_another_users_process_that_connects_to_a_job_without_a_name_is_none_of_its_ranks(
    tree: Tree, stranger: int
) -> None:
    if stranger < 100:
        tree.process(stranger, 1, "python3.11", TRAIN, {}, uid=1666)
    pids = [tree.process(100 + rank, 1, "python3.11", TRAIN, {}, uid=1000) for rank in range(2)]
    tree.serve(pids[0], 29500, pids)
    if stranger > 100:
        tree.process(stranger, 1, "python3.11", TRAIN, {}, uid=1666)
    tree.serve(pids[0], 29500, [stranger])
    census = find_ranks(tree.root)
    assert [(rank.identity.rank, rank.pid, rank.owner) for rank in census.ranks] == [(0, 100, 1000), (1, 101, 1000)]
    assert {rank.identity.world_size for rank in census.ranks} <= {0, 2}


@pytest.mark.parametrize("times", [1, 2])
def test_launchers_side_by_side_are_told_apart_by_names_that_nobody_else_can_take(tree: Tree, times: int) -> None:
    """Of another user who says the name that such a job gets, too."""
    launchers = [tree.process(90 + number, 1, "mpiexec", ["mpiexec"], mapped=(), uid=1000) for number in range(times)]
    for number, launcher in enumerate(launchers):
        for rank in range(2):
            tree.process(100 + 10 * number + rank, launcher, "python3.11", TRAIN, torchrun(rank, rank, 2), uid=1000)
    for rank in range(2):
        environ = torchrun(rank, rank, 2)
        tree.process(50 + rank, 1, "python3.11", TRAIN, environ | {"MASTER_PORT": "29500-90"}, uid=1666)
    jobs: dict[str, set[int]] = {}
    for rank in find_ranks(tree.root).ranks:
        jobs.setdefault(rank.identity.job, set()).add(rank.owner)
    assert len(jobs) == times + 1 and all(len(owners) == 1 for owners in jobs.values())


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
    assert any("its number of ranks is unknown" in note for note in census.notes)
