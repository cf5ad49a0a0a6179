"""Ranks are found in recorded process tables: every way they are started, and everything that only looks like one."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from rank_trees import PLAIN, Tree, torchrun

from rankscope.observer.census.found import FoundRank, RankCensus
from rankscope.observer.census.ranks import find_ranks

TRAIN = ["/usr/bin/python3.11", "-u", "train.py", "--lr", "3e-4"]
SPAWN = "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=4)"
SPAWNED = ["/usr/bin/python3.11", "-c", SPAWN, "--multiprocessing-fork"]
FORKSERVER = ["/usr/bin/python3.11", "-c", "from multiprocessing.forkserver import main; main(3)"]
TRACKER = ["/usr/bin/python3.11", "-c", "from multiprocessing.resource_tracker import main;main(4)"]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def ranks(census: RankCensus) -> list[tuple[int, int]]:
    return [(rank.identity.rank, rank.pid) for rank in census.ranks]


def reasons(census: RankCensus) -> dict[int, str]:
    return {one.pid: one.reason for one in census.rejected}


def workers(rank: FoundRank) -> dict[int, str]:
    return {worker.pid: worker.kind for worker in rank.workers}


def test_torchrun_workers_are_ranks_and_torchrun_is_a_launcher(tree: Tree) -> None:
    tree.process(
        100, 1, "pt_elastic", ["/usr/bin/python3.11", "/venv/bin/torchrun", "--nproc-per-node", "2", "train.py"]
    )
    tree.process(101, 100, "python3.11", TRAIN, torchrun(0, 0))
    tree.process(102, 100, "python3.11", TRAIN, torchrun(1, 1))

    census = find_ranks(tree.root)

    assert ranks(census) == [(0, 101), (1, 102)]
    assert "launcher (torchrun)" in reasons(census)[100]
    first = census.ranks[0]
    assert first.identity.job == "torch-10.0.0.1:29500"
    assert (first.identity.local_rank, first.identity.world_size, first.identity.role) == (0, 4, "")
    assert (first.identity.host, first.identity.cpus, first.identity.python) == ("node-7", "0-3,8", "3.11")
    assert first.identity.command == "/usr/bin/python3.11 -u train.py --lr …"
    assert first.libraries.nccl.endswith("libnccl.so.2")
    assert first.launcher == "torchrun"
    assert not first.guessed


@pytest.mark.parametrize("launcher", [
    ["/usr/bin/python3.11", "-m", "torch.distributed.run", "train.py"],
    ["/usr/bin/python3.11", "-u", "-m", "torch.distributed.launch", "train.py"],
    ["/usr/bin/python3.11", "/venv/bin/accelerate", "launch", "train.py"],
    ["/usr/bin/python3.11", "-u", "-m", "deepspeed.launcher.launch", "train.py"],
    ["/usr/bin/python3.11", "/venv/lib/python3.11/site-packages/torch/distributed/run.py", "train.py"],
])  # fmt: skip
def test_a_launcher_that_has_a_pods_rank_in_its_environment_is_none(tree: Tree, launcher: list[str]) -> None:
    pod = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}
    tree.process(100, 1, "python3.11", launcher, pod)
    tree.process(101, 100, "python3.11", TRAIN, torchrun(2, 0))
    tree.process(102, 100, "python3.11", TRAIN, torchrun(3, 1))

    census = find_ranks(tree.root)

    assert ranks(census) == [(2, 101), (3, 102)]
    assert "launcher" in reasons(census)[100]


def test_an_unknown_launcher_is_known_by_its_children(tree: Tree) -> None:
    pod = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}
    tree.process(100, 1, "python3.11", ["python3.11", "our_launcher.py"], pod)
    tree.process(101, 100, "python3.11", TRAIN, torchrun(2, 0))
    tree.process(102, 100, "python3.11", TRAIN, torchrun(3, 1))

    census = find_ranks(tree.root)

    assert ranks(census) == [(2, 101), (3, 102)]
    assert "children have ranks of their own" in reasons(census)[100]


def test_workers_belong_to_their_rank(tree: Tree) -> None:
    tree.process(101, 1, "python3.11", TRAIN, torchrun(0, 0))
    tree.process(201, 101, "python3.11", TRAIN, torchrun(0, 0))  # forked loader, before torch 2.6
    tree.process(202, 101, "pt_data_worker", TRAIN, torchrun(0, 0))  # forked loader, since
    tree.process(203, 101, "pt_data_worker", SPAWNED, torchrun(0, 0))
    tree.process(204, 101, "python3.11", TRACKER, torchrun(0, 0), mapped=PLAIN)
    tree.process(205, 101, "python3.11", FORKSERVER, torchrun(0, 0), mapped=PLAIN)
    tree.process(206, 205, "python3.11", FORKSERVER, torchrun(0, 0))
    tree.process(
        207, 101, "python3.11", ["python3.11", "/venv/torch/_inductor/compile_worker/__main__.py"], torchrun(0, 0)
    )
    tree.process(208, 101, "sh", ["sh", "-c", "nvidia-smi"], torchrun(0, 0), mapped=PLAIN, exe="/bin/sh")
    tree.process(209, 208, "nvidia-smi", ["nvidia-smi"], torchrun(0, 0), mapped=PLAIN, exe="/bin/nvidia-smi")
    tree.process(210, 101, "python3.11", TRAIN, torchrun(0, 0), state="Z")

    census = find_ranks(tree.root)

    assert ranks(census) == [(0, 101)]
    assert workers(census.ranks[0]) == {
        201: "loader", 202: "loader", 203: "loader", 204: "tracker", 205: "forkserver", 206: "loader",
        207: "compiler", 208: "helper", 209: "helper",
    }  # fmt: skip
    assert census.rejected == ()


def test_the_shell_around_a_rank_is_rejected_with_a_reason(tree: Tree) -> None:
    tree.process(100, 1, "bash", ["bash", "run.sh"], torchrun(0, 0), mapped=PLAIN, exe="/bin/bash")
    tree.process(101, 100, "python3.11", TRAIN, torchrun(0, 0))

    census = find_ranks(tree.root)

    assert ranks(census) == [(0, 101)]
    assert "wrapper" in reasons(census)[100]


def test_near_misses_say_why(tree: Tree) -> None:
    tree.process(100, 1, "python3.11", TRAIN, torchrun(0, 0), mapped=PLAIN)
    tree.process(101, 1, "python3.11", ["python3.11", "serve.py"])
    tree.process(
        102, 1, "tensorboard", ["/usr/bin/python3.11", "/venv/bin/tensorboard", "--logdir", "x"], torchrun(0, 0)
    )
    tree.process(103, 1, "nginx", ["nginx"], mapped=PLAIN, exe="/usr/sbin/nginx")
    tree.process(104, 1, "python3.11", ["python3.11", "cron.py"], mapped=PLAIN)

    census = find_ranks(tree.root)

    assert census.ranks == ()
    found = reasons(census)
    assert "no training library is loaded: it may be starting" in found[100]
    assert "neither environment nor connections" in found[101]
    assert "tool" in found[102]
    assert 103 not in found
    assert 104 not in found


def test_slurm_tasks_are_ranks(tree: Tree) -> None:
    for task in range(3):
        environ = {"SLURM_JOB_ID": "1234", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "16"}
        environ |= {"SLURM_PROCID": str(task + 8), "SLURM_LOCALID": str(task)}
        tree.process(100 + task, 1, "python3.11", TRAIN, environ)

    census = find_ranks(tree.root)

    assert ranks(census) == [(8, 100), (9, 101), (10, 102)]
    assert {rank.identity.job for rank in census.ranks} == {"slurm-1234.0"}
    assert (census.ranks[1].identity.local_rank, census.ranks[1].identity.world_size) == (1, 16)


def test_open_mpi_processes_are_ranks_and_mpirun_is_none(tree: Tree) -> None:
    tree.process(100, 1, "mpirun", ["mpirun", "-n", "2", "python3.11", "train.py"], mapped=PLAIN, exe="/usr/bin/mpirun")
    for rank in range(2):
        environ = {
            "OMPI_COMM_WORLD_RANK": str(rank),
            "OMPI_COMM_WORLD_SIZE": "2",
            "PMIX_NAMESPACE": "prterun-node-7-55@1",
        }
        tree.process(101 + rank, 100, "python3.11", TRAIN, environ)

    census = find_ranks(tree.root)

    assert ranks(census) == [(0, 101), (1, 102)]
    assert census.ranks[0].identity.job == "mpi-prterun-node-7-55@1"


def test_two_jobs_on_one_host_are_both_reported(tree: Tree) -> None:
    for pid, run in ((101, "blue"), (201, "green")):
        tree.process(pid, 1, "python3.11", TRAIN, torchrun(0, 0, 2, run=run))
        tree.process(pid + 1, 1, "python3.11", TRAIN, torchrun(1, 1, 2, run=run))

    census = find_ranks(tree.root)

    assert [(rank.identity.job, rank.identity.rank) for rank in census.ranks] == [
        ("torch-blue-10.0.0.1:29500", 0), ("torch-blue-10.0.0.1:29500", 1),
        ("torch-green-10.0.0.1:29500", 0), ("torch-green-10.0.0.1:29500", 1),
    ]  # fmt: skip


def test_a_rank_in_a_container_shows_both_sides(tree: Tree) -> None:
    container = "0123456789abcdef" * 4
    tree.process(
        5101, 1, "python3.11", TRAIN, torchrun(0, 0, master="localhost") | {"HOSTNAME": "trainer-0"},
        cgroup=f"/kubepods.slice/kubepods-pod11111111_2222_3333_4444_555555555555.slice/cri-containerd-{container}.scope",
        nspid=[1], net=4026532999, uts=4026532998,
    )  # fmt: skip

    rank = find_ranks(tree.root).ranks[0]

    assert rank.identity.container == container
    assert (rank.identity.pid, rank.identity.inner_pid, rank.identity.netns) == (5101, 1, 4026532999)
    assert (rank.identity.host, rank.identity.node) == ("node-7", "trainer-0")
    assert rank.container is not None
    assert (rank.container.runtime, rank.container.pod) == ("containerd", "11111111-2222-3333-4444-555555555555")
    # localhost says nothing: the node's own name takes its place
    assert rank.identity.job == "torch-trainer-0:29500"


def test_ranks_of_multiprocessing_spawn_are_found_by_their_connections(tree: Tree) -> None:
    tree.process(100, 1, "python3.11", TRAIN)
    for child in (101, 102, 103):
        tree.process(child, 100, "python3.11", SPAWNED)
    tree.process(104, 100, "python3.11", TRACKER, mapped=PLAIN)
    tree.process(105, 102, "python3.11", SPAWNED)  # its loader
    tree.connect(101, 102, 5000)
    tree.connect(101, 103, 5001)

    census = find_ranks(tree.root)

    assert ranks(census) == [(0, 101), (1, 102), (2, 103)]
    assert all(rank.guessed and rank.identity.world_size == 3 for rank in census.ranks)
    assert workers(census.ranks[1]) == {105: "loader"}
    assert census.ranks[1].identity.command == "/usr/bin/python3.11 -u train.py --lr …"
    assert "started ranks by multiprocessing" in reasons(census)[100]
    assert any("guess" in note for note in census.notes)


@pytest.mark.parametrize(("made_by", "server"), [(SPAWNED, False), (FORKSERVER, True)])
def test_spawned_ranks_are_called_by_the_script_that_started_them_even_if_that_loads_no_library(
    tree: Tree, made_by: list[str], server: bool
) -> None:
    tree.process(100, 1, "python3.11", TRAIN, mapped=PLAIN)
    tree.process(101, 100, "python3.11", FORKSERVER if server else TRACKER, mapped=PLAIN)
    for child in (102, 103):
        tree.process(child, 101 if server else 100, "python3.11", made_by)
    tree.connect(102, 103, 5000)

    census = find_ranks(tree.root)

    assert ranks(census) == [(0, 102), (1, 103)]
    assert {rank.identity.title for rank in census.ranks} == {"train.py"}
    assert {rank.identity.command for rank in census.ranks} == {"/usr/bin/python3.11 -u train.py --lr …"}


def test_spawned_ranks_whose_script_has_ended_are_not_called_by_who_adopted_them(tree: Tree) -> None:
    tree.process(100, 1, "systemd", ["/lib/systemd/systemd", "--user"], mapped=PLAIN, exe="/lib/systemd/systemd")
    for child in (101, 102):
        tree.process(child, 100, "python3.11", SPAWNED)
    tree.connect(101, 102, 5000)

    assert {rank.identity.title for rank in find_ranks(tree.root).ranks} == {"python -c"}


def test_spawned_ranks_inside_one_slurm_task_are_not_its_workers(tree: Tree) -> None:
    environ = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}
    tree.process(100, 1, "python3.11", TRAIN, environ)
    tree.process(101, 100, "python3.11", SPAWNED, environ)
    tree.process(102, 100, "python3.11", SPAWNED, environ)
    tree.connect(101, 102, 5000)

    assert ranks(find_ranks(tree.root)) == [(0, 101), (1, 102)]


def test_forked_loaders_that_inherit_the_ranks_connections_stay_loaders(tree: Tree) -> None:
    for pid, rank in ((101, 0), (102, 1)):
        tree.process(pid, 1, "python3.11", TRAIN, torchrun(rank, rank, 2))
    tree.connect(101, 102, 5000)
    for pid in (201, 202):
        tree.process(pid, 101, "python3.11", TRAIN, torchrun(0, 0, 2))
        tree.hold(pid, 70001)

    census = find_ranks(tree.root)

    assert ranks(census) == [(0, 101), (1, 102)]
    assert workers(census.ranks[0]) == {201: "loader", 202: "loader"}


def test_processes_that_name_their_rank_on_the_command_line_are_ranks(tree: Tree) -> None:
    for rank in (1, 0):
        tree.process(100 + rank, 1, "python3.11", [*TRAIN, "--rank", str(rank), "--world-size=2"])
    tree.connect(100, 101, 5000)

    census = find_ranks(tree.root)

    assert ranks(census) == [(0, 100), (1, 101)]
    assert census.ranks[0].launcher == "command line"


def test_one_of_two_that_claim_the_same_rank_counts(tree: Tree) -> None:
    # a helper that the rank left behind, older than the rank that was started again
    tree.process(90, 1, "python3.11", TRAIN, torchrun(0, 0, 2))
    tree.process(101, 1, "python3.11", TRAIN, torchrun(0, 0, 2))
    tree.process(102, 1, "python3.11", TRAIN, torchrun(1, 1, 2))
    tree.connect(101, 102, 5000)

    census = find_ranks(tree.root)

    assert ranks(census) == [(0, 101), (1, 102)]
    assert "which is pid 101" in reasons(census)[90]


def test_a_loader_whose_rank_died_is_no_rank(tree: Tree) -> None:
    tree.process(201, 1, "pt_data_worker", TRAIN, torchrun(0, 0))

    census = find_ranks(tree.root)

    assert census.ranks == ()
    assert "whose rank is gone" in reasons(census)[201]


def test_loaders_of_ranks_that_were_killed_are_none_though_they_hold_their_connections(tree: Tree) -> None:
    # GIVEN a job that was killed and is started again: its loaders notice after some seconds, and one new rank has not loaded PyTorch
    for rank in (0, 1):
        tree.process(201 + rank, 1, "pt_data_worker", TRAIN, torchrun(rank, rank, 2))
    tree.connect(201, 202, 5000)
    tree.process(300, 1, "torchrun", ["torchrun", "train.py"])
    tree.process(301, 300, "python3.11", TRAIN, torchrun(0, 0, 2))
    tree.process(302, 300, "python3.11", TRAIN, torchrun(1, 1, 2), mapped=())

    census = find_ranks(tree.root)

    assert ranks(census) == [(0, 301)]
    assert "whose rank is gone" in reasons(census)[202]


@pytest.mark.parametrize("library, framework", [
    ("/venv/jaxlib/libjax_common.so", "jax"),
    ("/venv/tensorflow/libtensorflow_framework.so.2", "tensorflow"),
    ("/venv/mxnet/libmxnet.so", "mxnet"),
])  # fmt: skip
def test_other_frameworks_are_ranks_too(tree: Tree, library: str, framework: str) -> None:
    tree.process(100, 1, "python3.11", TRAIN, torchrun(0, 0), mapped=(library,))

    assert find_ranks(tree.root).ranks[0].libraries.framework == framework


def test_a_hostile_process_table_harms_nothing(tree: Tree) -> None:
    tree.process(100, 1, "python3.11", TRAIN, b"RANK=0\0" + b"A" * (8 << 20))
    garbage = b"\xff\xfeRANK=\xff\0RANK=1\0=\0\0LOCAL_RANK=99999999999999999999\0"
    tree.process(101, 1, "evil) R 1 (x", ["\x1b[31mpython\n", "train.py" * 9999], garbage)
    tree.process(102, 1, "python3.11", TRAIN, torchrun(2, 0))
    for name in ("maps", "cgroup", "status"):
        (tree.root / "proc/102" / name).unlink()  # ends while it is looked at
    tree.process(103, 1, "python3.11", TRAIN, torchrun(3, 0))
    (tree.root / "proc/103/stat").write_bytes(b"\0garbage")
    tree.process(104, 1, "python3.11", TRAIN, torchrun(4, 0))
    (tree.root / "proc/104/status").write_bytes(b"\0")
    (tree.root / "proc/104/cgroup").unlink()
    tree.process(105, 105, "python3.11", TRAIN, torchrun(5, 0))  # its own parent
    (tree.root / "proc/99999").mkdir()

    census = find_ranks(tree.root)

    assert {rank.pid for rank in census.ranks} == {100, 101, 104, 105}
    assert all("\x1b" not in rank.identity.command and "\n" not in rank.identity.command for rank in census.ranks)
    assert any("pid 104" in note for note in census.notes)
    assert all(one.comm.isprintable() for one in census.rejected)


def test_no_proc_at_all_is_a_note(tmp_path: Path) -> None:
    census = find_ranks(tmp_path)
    assert census.ranks == ()
    assert census.notes


def test_a_host_with_many_processes_is_searched_quickly(tree: Tree) -> None:
    for pid in range(1000, 2200):
        tree.process(pid, 1, "nginx", ["nginx"], {"PATH": "/usr/bin"}, mapped=PLAIN, exe="/usr/sbin/nginx")
    tree.process(101, 1, "python3.11", TRAIN, torchrun(0, 0))
    begin = time.process_time()

    assert ranks(find_ranks(tree.root)) == [(0, 101)]

    assert time.process_time() - begin < 0.6


def test_a_host_of_64_ranks_is_told_whole_and_quickly(tree: Tree) -> None:
    tree.process(100, 1, "pt_elastic", ["/usr/bin/python3.11", "/venv/bin/torchrun", "train.py"])
    for rank in range(64):
        here = torchrun(rank, rank, 64) | {"LOCAL_WORLD_SIZE": "64"}
        tree.process(1000 + rank, 100, "python3.11", TRAIN, here)
        for worker in range(3):
            tree.process(2000 + 3 * rank + worker, 1000 + rank, "pt_data_worker", TRAIN, here)
    begin = time.process_time()

    census = find_ranks(tree.root)

    assert ranks(census) == [(rank, 1000 + rank) for rank in range(64)]
    assert [list(workers(rank).values()) for rank in census.ranks] == [["loader"] * 3] * 64
    assert census.notes == ()
    assert time.process_time() - begin < 1.0  # 0.2 s


def test_the_own_host_can_be_searched() -> None:
    assert isinstance(find_ranks(), RankCensus)
