"""Jobs that no launcher names in full: scripts that complete their environment, hosts that are numbered, engines beside training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from rank_trees import PLAIN, Tree, torchrun

from rankscope.observer.census import candidates
from rankscope.observer.census.found import RankCensus
from rankscope.observer.census.ranks import find_ranks
from rankscope.probes.base.command_line import shown

JAX = ("/venv/lib/python3.11/site-packages/jaxlib/libjax_common.so",)
TRAIN = ["/usr/bin/python3.11", "train.py"]
SPAWNED = ["/usr/bin/python3.11", "-c", "from multiprocessing.spawn import spawn_main", "--multiprocessing-fork"]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def identities(census: RankCensus) -> list[tuple[str, int, int, int]]:
    return [(one.identity.job, one.identity.rank, one.identity.world_size, one.pid) for one in census.ranks]


def reasons(census: RankCensus) -> dict[int, str]:
    return {one.pid: one.reason for one in census.rejected}


def test_a_master_that_the_script_writes_itself_names_the_job(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a worker of Ray's, rank 0 alone has to write it; of a shell loop all do."""
    known = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4000"}
    now: dict[int, Mapping[str, str]] = {
        100: known | {"RANK": "0", "LOCAL_RANK": "0"},
        102: {"RANK": "7", "MASTER_ADDR": "10.9.9.9"},
    }
    monkeypatch.setattr(candidates, "read_live_environ", lambda pid, _root: dict(now.get(pid, {})))
    tree.process(100, 1, "python3.11", TRAIN, {"RANK": "0", "WORLD_SIZE": "2"})
    tree.process(101, 1, "python3.11", TRAIN, known)
    tree.process(102, 1, "python3.11", TRAIN, {"RANK": "2"})  # what it wrote is of another rank

    census = find_ranks(tree.root)

    assert identities(census) == [
        ("torch-10.0.0.1:4000", 0, 2, 100),
        ("torch-10.0.0.1:4000", 1, 2, 101),
        ("torch-node-7", 2, 0, 102),
    ]
    assert census.ranks[0].identity.local_rank == 0


def test_one_process_of_jax_for_each_host_is_a_rank_by_its_environment(tree: Tree) -> None:
    said = {"JAX_PROCESS_ID": "2", "JAX_NUM_PROCESSES": "4", "JAX_COORDINATOR_ADDRESS": "10.0.0.1:1234"}
    tree.process(100, 1, "python3.11", TRAIN, said, mapped=JAX)
    tree.process(101, 100, "bash", ["/bin/bash"], said, mapped=PLAIN, exe="/bin/bash")

    assert identities(find_ranks(tree.root)) == [("jax-10.0.0.1:1234", 2, 4, 100)]


def test_hosts_that_a_launcher_numbers_count_on_in_what_they_spawn(tree: Tree) -> None:
    """The second of two hosts; the first is where the store is."""
    node = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "23456"}
    tree.process(100, 1, "python3.11", TRAIN, node)
    for child in (101, 102, 103):
        tree.process(child, 100, "python3.11", SPAWNED, node)
    tree.connect(101, 102, 5000)
    tree.connect(101, 103, 5001)

    census = find_ranks(tree.root)

    job = "torch-10.0.0.1:23456-spawn"
    assert identities(census) == [(job, 3, 6, 101), (job, 4, 6, 102), (job, 5, 6, 103)]
    assert all(one.guessed and one.identity.local_world_size == 3 for one in census.ranks)


def test_a_rank_stays_one_when_what_it_started_talks_among_itself(tree: Tree) -> None:
    """An engine that generates samples on two devices."""
    for pid, rank in ((100, 0), (200, 1)):
        tree.process(pid, 1, "python3.11", TRAIN, torchrun(rank, rank, 2))
    tree.connect(100, 200, 5000)
    for child in (101, 102):
        tree.process(child, 100, "python3.11", SPAWNED, torchrun(0, 0, 2))
    tree.connect(101, 102, 6000)

    census = find_ranks(tree.root)

    assert [(rank, pid) for _, rank, _, pid in identities(census)] == [(0, 100), (1, 200)]
    assert {worker.pid for worker in census.ranks[0].workers} == {101, 102}


def test_the_workers_of_a_server_are_no_training_job(tree: Tree) -> None:
    tree.process(100, 1, "python3.11", ["/usr/bin/python3.11", "/venv/bin/vllm", "serve", "model"])
    tree.process(101, 100, "python3.11", SPAWNED)
    for child in (102, 103):
        tree.process(child, 101, "python3.11", SPAWNED)
    tree.connect(102, 103, 6000)

    census = find_ranks(tree.root)

    assert census.ranks == ()
    assert "a server" in reasons(census)[100]
    assert {102, 103} <= reasons(census).keys()


def test_jobs_that_two_launchers_start_under_one_name_are_two(tree: Tree) -> None:
    """MPICH gives its job no name, and neither does a batch script with two of them."""
    for launcher in (50, 60):
        tree.process(launcher, 1, "mpiexec", ["mpiexec", "-n", "2"], mapped=PLAIN, exe="/usr/bin/mpiexec")
        tree.process(launcher + 1, launcher, "hydra_pmi_proxy", ["hydra_pmi_proxy"], mapped=PLAIN, exe="/usr/bin/hydra")
        for rank in (0, 1):
            said = {"PMI_RANK": str(rank), "PMI_SIZE": "2", "PBS_JOBID": "77"}
            tree.process(launcher + 2 + rank, launcher + 1, "python3.11", TRAIN, said)

    census = find_ranks(tree.root)

    assert identities(census) == [
        ("pbs-77-51", 0, 2, 52),
        ("pbs-77-51", 1, 2, 53),
        ("pbs-77-61", 0, 2, 62),
        ("pbs-77-61", 1, 2, 63),
    ]
    assert any("started 2 times side by side" in note for note in census.notes)


def test_tasks_that_run_what_was_pickled_for_them_are_called_by_the_script_that_did(tree: Tree) -> None:
    python = "/usr/bin/python3.11"
    tree.process(100, 1, "python3.11", TRAIN, mapped=PLAIN)
    tree.process(101, 100, "python3.11", [python, "-m", "submitit.local._local", "/jobs"], mapped=PLAIN)
    for rank in (0, 1):
        known = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4000"}
        tree.process(102 + rank, 101, "python3.11", [python, "-u", "-m", "submitit.core._submit", "/jobs"], known)

    census = find_ranks(tree.root)

    assert [(one.identity.rank, one.pid) for one in census.ranks] == [(0, 102), (1, 103)]
    assert {(one.identity.title, one.identity.command) for one in census.ranks} == {
        ("train.py", shown(tuple(TRAIN), 200))
    }


def test_on_another_host_than_the_script_such_tasks_are_called_by_what_they_run(tree: Tree) -> None:
    known = {
        "SLURM_JOB_ID": "9",
        "SLURM_JOB_NAME": "night",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": "1",
        "SLURM_NTASKS": "2",
    }
    tree.process(100, 1, "slurmstepd", ["slurmstepd: [9.0]"], mapped=PLAIN, exe="/usr/sbin/slurmstepd")
    tree.process(101, 100, "python3.11", ["/usr/bin/python3.11", "-m", "submitit.core._submit", "/jobs"], known)

    (rank,) = find_ranks(tree.root).ranks

    assert rank.identity.title == "-m submitit.core._submit (slurm 9 night)"
