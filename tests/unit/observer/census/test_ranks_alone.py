"""Ranks of jobs of one rank: found by what they do; what idles or serves is none unless it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from rank_trees import PLAIN, Tree, torchrun

from rankscope.observer.census import kinship
from rankscope.observer.census.found import RankCensus
from rankscope.observer.census.ranks import find_ranks
from rankscope.observer.census.rules import effort

TRAIN = ["python3.11", "train.py"]
NOTEBOOK = ["python3.11", "-m", "ipykernel_launcher", "-f", "kernel.json"]
SERVER = ["/usr/bin/python3.11", "/venv/bin/uvicorn", "app:app"]
CUDA = (*PLAIN, "/venv/torch/lib/libtorch_cpu.so", "/usr/lib/libcuda.so.1")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def found(census: RankCensus) -> list[tuple[int, int, int]]:
    return [(rank.pid, rank.identity.rank, rank.identity.world_size) for rank in census.ranks]


def reason(census: RankCensus, pid: int) -> str:
    return next(one.reason for one in census.rejected if one.pid == pid)


def uses(monkeypatch: pytest.MonkeyPatch, cpus: Mapping[int, float], so_far_s: float = 60.0) -> None:
    """Processes that want so many CPUs at present, and used so many seconds of them."""
    monkeypatch.setattr(effort, "used_so_far", lambda pid, root: (so_far_s, 0.0))
    monkeypatch.setattr(effort, "cpu_shares", lambda pids, root: {pid: cpus.get(pid, 0.0) for pid in pids})


def listen(tree: Tree, pid: int) -> None:
    """Have a process listen on a port."""
    tree.inode += 1
    tree.hold(pid, tree.inode)
    line = f"   0: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0  0 {tree.inode} 1 0 20 4 30 10 -1\n"
    (tree.root / f"proc/{pid}/net/tcp").write_text("  sl  local_address rem_address   st tx_queue …\n" + line)


def open_gpu(tree: Tree, pid: int) -> None:
    (tree.root / f"proc/{pid}/fd/9").symlink_to("/dev/nvidia2")


@pytest.mark.parametrize("command, cpus, is_rank", [
    (TRAIN, 1.0, True),
    (TRAIN, 0.02, False),
    (NOTEBOOK, 0.9, True),
    (NOTEBOOK, 0.02, False),
    (SERVER, 1.0, False),
])  # fmt: skip
def test_a_process_that_works_alone_is_a_rank_while_it_is_busy(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, command: list[str], cpus: float, is_rank: bool
) -> None:
    tree.process(100, 1, "python3.11", command)
    uses(monkeypatch, {100: cpus})
    assert found(find_ranks(tree.root)) == ([(100, 0, 1)] if is_rank else [])
    assert found(find_ranks(tree.root, seeks_alone=False)) == []
    assert found(find_ranks(tree.root, {100})) == [(100, 0, 1)]  # who asks is given it


def test_what_may_still_be_importing_is_no_rank_yet(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.process(100, 1, "python3.11", TRAIN)
    uses(monkeypatch, {100: 1.0}, so_far_s=1.5)
    assert found(find_ranks(tree.root)) == []


def test_a_gpu_and_a_little_work_make_a_rank_too(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    for pid, command in ((100, TRAIN), (101, TRAIN), (102, NOTEBOOK)):
        tree.process(pid, 1, "python3.11", command, mapped=CUDA)
        open_gpu(tree, pid)
    tree.process(103, 1, "python3.11", TRAIN, mapped=CUDA)
    uses(monkeypatch, {100: 0.2, 101: 0.01, 102: 0.2, 103: 0.2})
    assert found(find_ranks(tree.root)) == [(100, 0, 1)]


def test_what_listens_on_a_port_is_a_service(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.process(100, 1, "python3.11", ["python3.11", "api.py"])
    tree.process(101, 1, "python3.11", NOTEBOOK)
    for pid in (100, 101):
        listen(tree, pid)
    uses(monkeypatch, {100: 1.0, 101: 1.0})
    census = find_ranks(tree.root)
    assert found(census) == [(101, 0, 1)]
    assert "listens on a port" in reason(census, 100) and "--pid 100" in reason(census, 100)


def test_whoever_may_listen_one_table_of_a_network_is_read_for_all(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    pids, tables, parse = range(100, 120), list[bytes](), kinship.parse_listening

    def counted(data: bytes) -> dict[int, bytes]:
        tables.append(data)
        return parse(data)

    monkeypatch.setattr(kinship, "parse_listening", counted)
    for pid in pids:
        tree.process(pid, 1, "python3.11", ["python3.11", f"api{pid}.py"], net=5000)
        listen(tree, pid)
    seen = "".join((tree.root / f"proc/{pid}/net/tcp").read_text() for pid in pids)
    for pid in pids:  # all see the same network
        (tree.root / f"proc/{pid}/net/tcp").write_text(seen)
    uses(monkeypatch, dict.fromkeys(pids, 1.0))
    assert found(find_ranks(tree.root)) == []
    assert 1 <= len(tables) <= 2  # tcp, and tcp6 where there is one


def test_the_work_of_its_loader_workers_counts_and_they_are_no_ranks(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.process(100, 1, "python3.11", TRAIN)
    tree.process(201, 100, "pt_data_worker", TRAIN)
    tree.process(202, 100, "python3.11", ["python3.11", "-c", "from multiprocessing.spawn …", "--multiprocessing-fork"])
    tree.process(203, 100, "python3.11", TRAIN)
    uses(monkeypatch, {100: 0.1, 201: 0.2, 202: 0.2, 203: 0.2}, so_far_s=1.0)  # the first waits for the others
    census = find_ranks(tree.root)
    assert found(census) == [(100, 0, 1)]
    assert {worker.pid for worker in census.ranks[0].workers} == {201, 202, 203}


def test_programs_that_an_idle_one_started_train_alone(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a search for hyperparameters, which waits for its trials
    tree.process(100, 1, "python3.11", ["python3.11", "sweep.py"])
    for pid in (101, 102):
        tree.process(pid, 100, "python3.11", [*TRAIN, f"--lr={pid}"])
    uses(monkeypatch, {101: 1.0, 102: 1.0})
    census = find_ranks(tree.root)
    assert sorted(found(census)) == [(101, 0, 1), (102, 0, 1)]
    assert len({rank.identity.job for rank in census.ranks}) == 2


def test_what_belongs_to_a_job_of_several_ranks_is_no_job_of_its_own(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.process(100, 1, "python3.11", ["python3.11", "our_launcher.py"])
    for rank in range(2):
        tree.process(101 + rank, 100, "python3.11", TRAIN, torchrun(rank, rank, 2))
        tree.process(201 + rank, 101 + rank, "python3.11", ["python3.11", "evaluate.py"])
    uses(monkeypatch, dict.fromkeys((100, 101, 102, 201, 202), 1.0))
    for asked in (set[int](), {100}, {201}):
        assert found(find_ranks(tree.root, asked)) == [(101, 0, 2), (102, 1, 2)]


def test_a_python_program_without_a_training_library_is_a_rank_if_it_is_asked_for(tree: Tree) -> None:
    tree.process(100, 1, "python3.11", ["python3.11", "prepare.py"], mapped=PLAIN)
    tree.process(101, 1, "nginx", ["nginx"], mapped=PLAIN, exe="/usr/sbin/nginx")
    census = find_ranks(tree.root, {100, 101})
    assert found(census) == [(100, 0, 1)]
    assert census.ranks[0].libraries.framework == ""


def test_the_work_of_a_process_is_measured_now() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(effort, "LOOK_S", 0.0)
        assert effort.cpu_shares([1, 2**22 + 1], Path("/")).keys() == {1, 2**22 + 1}
