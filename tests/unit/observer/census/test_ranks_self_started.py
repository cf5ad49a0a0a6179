"""Jobs whose processes number themselves: Lightning, JAX, Ray Train, accelerate's debug_launcher; MPI without a framework."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from rank_trees import PLAIN, Tree, torchrun

from rankscope.diagnose.face.cli.main import run
from rankscope.observer.census import candidates
from rankscope.observer.census.found import RankCensus
from rankscope.observer.census.live_environ import read_live_environ
from rankscope.observer.census.owners import several_devices
from rankscope.observer.census.ranks import find_ranks
from rankscope.observer.census.rules import draft
from rankscope.observer.live.observation import feeds

JAX = ("/venv/lib/python3.11/site-packages/jaxlib/libjax_common.so",)
MPI = ("/usr/lib/x86_64-linux-gnu/libmpi.so.40",)
LIGHT = ["/usr/bin/python3.11", "light.py", "--devices", "3"]


NUMPY = (*PLAIN, "/venv/lib/python3.11/site-packages/numpy/_core/_multiarray_umath.cpython-311-x86_64-linux-gnu.so")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> dict[int, Mapping[str, str]]:
    """What processes of the tree wrote into their own environments, by pid."""
    said: dict[int, Mapping[str, str]] = {}
    for module in (candidates, draft):
        monkeypatch.setattr(module, "read_live_environ", lambda pid, _root: dict(said.get(pid, {})))
    return said


def ranks(census: RankCensus) -> list[tuple[int, int, bool]]:
    return [(rank.identity.rank, rank.pid, rank.guessed) for rank in census.ranks]


def lightning(local: int, world: int, node: int = 0, master: str = "127.0.0.1") -> dict[str, str]:
    """What Lightning's own launcher gives the processes that it starts."""
    return {
        "MASTER_ADDR": master,
        "MASTER_PORT": "36387",
        "NODE_RANK": str(node),
        "LOCAL_RANK": str(local),
        "WORLD_SIZE": str(world),
    }


@pytest.mark.parametrize("devices", [2, 3])
def test_the_script_that_starts_lightnings_other_ranks_is_rank_0(
    tree: Tree, later: dict[int, Mapping[str, str]], devices: int
) -> None:
    tree.process(100, 1, "python", LIGHT)
    later[100] = lightning(0, devices)
    for local in range(1, devices):
        tree.process(100 + local, 100, "python", LIGHT, lightning(local, devices))
    tree.process(200, 100, "pt_data_worker", LIGHT)
    later[200] = lightning(0, devices)

    census = find_ranks(tree.root)

    assert ranks(census) == [(number, 100 + number, False) for number in range(devices)]
    assert {rank.identity.job for rank in census.ranks} == {"torch-node-7:36387"}
    assert all(rank.identity.world_size == rank.identity.local_world_size == devices for rank in census.ranks)
    assert [worker.pid for worker in census.ranks[0].workers] == [200]
    assert not census.notes


def test_a_parent_that_is_connected_with_ranks_is_the_one_they_lack(tree: Tree) -> None:
    # no memory can be read in a recorded tree: the children alone tell
    tree.process(100, 1, "python", LIGHT)
    for local in (1, 2):
        tree.process(100 + local, 100, "python", LIGHT, lightning(local, 3))
        tree.connect(100, 100 + local, 36387 + local)

    assert ranks(find_ranks(tree.root)) == [(0, 100, False), (1, 101, False), (2, 102, False)]


def test_a_parent_whose_children_are_all_ranks_is_a_launcher(tree: Tree) -> None:
    tree.process(100, 1, "python", ["python3.11", "our_launcher.py"])
    for rank in (0, 1):
        tree.process(101 + rank, 100, "python", LIGHT, torchrun(rank, rank, 2))
        tree.connect(100, 101 + rank, 36387 + rank)

    assert ranks(find_ranks(tree.root)) == [(0, 101, False), (1, 102, False)]


def test_lightning_under_sbatch_is_one_job(tree: Tree, later: dict[int, Mapping[str, str]]) -> None:
    slurm = {"SLURM_JOB_ID": "9", "SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_JOB_NAME": "night"}
    tree.process(100, 1, "python", LIGHT, slurm)
    later[100] = slurm | lightning(0, 2)
    tree.process(101, 100, "python", LIGHT, slurm | lightning(1, 2))

    census = find_ranks(tree.root)

    assert ranks(census) == [(0, 100, False), (1, 101, False)]
    assert {rank.identity.title for rank in census.ranks} == {"light.py (slurm 9 night)"}


def test_lightning_on_the_second_of_two_hosts_counts_on(tree: Tree) -> None:
    tree.process(100, 1, "python", LIGHT, lightning(0, 4, node=1, master="10.0.0.1"))
    tree.process(101, 100, "python", LIGHT, lightning(1, 4, node=1, master="10.0.0.1"))

    assert ranks(find_ranks(tree.root)) == [(2, 100, False), (3, 101, False)]


@pytest.mark.parametrize("seen, world", [((0, 2), 6), ((0,), 4), ((0, 1, 2), 8)])
def test_numbers_by_host_are_guesses_where_some_of_the_host_are_missing(
    tree: Tree, seen: tuple[int, ...], world: int
) -> None:
    for local in seen:
        tree.process(100 + local, 1, "python", LIGHT, lightning(local, world, node=1, master="10.0.0.1"))

    assert all(guessed for _, _, guessed in ranks(find_ranks(tree.root)))


def jax_processes(tree: Tree, commands: list[list[str]], parents: list[int], whole: bool = True) -> None:
    """Processes of JAX: all connected with the coordinator in the first, which is connected with itself."""
    for place, (command, parent) in enumerate(zip(commands, parents, strict=True)):
        tree.process(100 + place, parent, "python", command, mapped=JAX)
    tree.serve(100, 12355, [100 + place for place in range(len(commands))])
    if not whole:
        tree.process(900, 1, "other", ["other"], mapped=PLAIN, exe="/bin/other")
        tree.serve(100, 12355, [900])


SCRIPT = ["/usr/bin/python3.11", "jx.py"]


def test_jax_started_by_its_own_process_0(tree: Tree) -> None:
    others = [[*SCRIPT, "--process-id", str(number)] for number in (1, 2)]
    jax_processes(tree, [SCRIPT, *others], [1, 100, 100])

    census = find_ranks(tree.root)

    assert ranks(census) == [(0, 100, False), (1, 101, False), (2, 102, False)]
    assert all(rank.identity.world_size == 3 for rank in census.ranks)


def test_jax_processes_that_are_counted_by_an_argument(tree: Tree) -> None:
    jax_processes(tree, [[*SCRIPT, str(number), "3"] for number in range(3)], [1, 1, 1])

    assert ranks(find_ranks(tree.root)) == [(0, 100, False), (1, 101, False), (2, 102, False)]


def test_numbers_that_contradict_the_coordinator_are_guesses(tree: Tree) -> None:
    jax_processes(tree, [[*SCRIPT, str(number), "3"] for number in (1, 0, 2)], [1, 1, 1])

    assert all(guessed for _, _, guessed in ranks(find_ranks(tree.root)))


def test_without_any_number_the_coordinator_is_0_and_the_rest_a_guess(tree: Tree) -> None:
    jax_processes(tree, [SCRIPT] * 3, [1, 1, 1])

    census = find_ranks(tree.root)

    assert ranks(census) == [(0, 100, False), (1, 101, True), (2, 102, True)]
    assert any("101, 102; their numbers are a guess" in note for note in census.notes)


def test_of_two_the_other_is_1_unless_somebody_else_is_connected(tree: Tree) -> None:
    jax_processes(tree, [SCRIPT] * 2, [1, 1])
    assert ranks(find_ranks(tree.root)) == [(0, 100, False), (1, 101, False)]


def test_of_two_the_other_is_a_guess_where_somebody_else_is_connected(tree: Tree) -> None:
    jax_processes(tree, [SCRIPT] * 2, [1, 1], whole=False)

    census = find_ranks(tree.root)

    assert ranks(census) == [(0, 100, True), (1, 101, True)]
    assert {rank.identity.world_size for rank in census.ranks} == {0}  # nobody says how many there are elsewhere


def test_the_controller_of_ray_is_no_rank(tree: Tree, later: dict[int, Mapping[str, str]]) -> None:
    tree.process(100, 1, "python", ["python3.11", "tune.py"])
    tree.process(110, 100, "raylet", ["raylet"], mapped=PLAIN, exe="/ray/raylet")
    tree.process(111, 110, "ray::TrainContr", ["ray::TrainController.run", "", ""])
    # the second worker was started first: the order of pids says nothing
    for pid, rank in ((112, 1), (113, 0)):
        tree.process(pid, 110, "ray::RayTrainWo", ["ray::RayTrainWorker", "", ""])
        later[pid] = torchrun(rank, rank, 2, master="127.0.0.1") | {"TORCHELASTIC_RUN_ID": ""}
    tree.connect(111, 112, 5000)
    tree.connect(111, 113, 5001)
    tree.connect(112, 113, 5002)

    census = find_ranks(tree.root)

    assert ranks(census) == [(0, 113, False), (1, 112, False)]
    assert {rank.identity.title for rank in census.ranks} == {"tune.py"}
    assert census.ranks[0].identity.command == "ray::RayTrainWorker"
    why = {one.pid: one.reason for one in census.rejected}
    assert "controller" in why[111]
    assert "Ray" in why[100]


def test_workers_of_ray_that_say_nothing_are_guessed_without_the_controller(tree: Tree) -> None:
    tree.process(100, 1, "python", ["python3.11", "tune.py"])
    tree.process(111, 100, "ray::TrainContr", ["ray::TrainController.run"])
    for pid in (112, 113, 114):
        tree.process(pid, 100, "ray::RayTrainWo", ["ray::RayTrainWorker.execute"])
        tree.connect(111, pid, 5000 + pid)
    tree.serve(113, 6000, [112, 113, 114])

    census = find_ranks(tree.root)

    assert ranks(census) == [(0, 113, False), (1, 112, True), (2, 114, True)]
    assert "driver of a Ray job" in {one.pid: one.reason for one in census.rejected}[100]


def test_lightnings_spawned_processes_say_their_number_on_the_host(
    tree: Tree, later: dict[int, Mapping[str, str]]
) -> None:
    tree.process(100, 1, "python", LIGHT)
    for pid, local in ((101, 2), (102, 0), (103, 1)):
        tree.process(pid, 100, "python", LIGHT)
        later[pid] = {"LOCAL_RANK": str(local), "MASTER_PORT": "41234"}
    tree.serve(102, 41234, [101, 102, 103])

    assert ranks(find_ranks(tree.root)) == [(0, 102, False), (1, 103, False), (2, 101, False)]


def test_spawned_processes_that_write_their_numbers_are_certain(
    tree: Tree, later: dict[int, Mapping[str, str]]
) -> None:
    tree.process(100, 1, "python", LIGHT)
    for pid, rank in ((101, 1), (102, 0)):
        tree.process(pid, 100, "python", LIGHT)
        later[pid] = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}

    assert ranks(find_ranks(tree.root)) == [(0, 102, False), (1, 101, False)]


def open_mpi(rank: int, size: int = 3) -> dict[str, str]:
    return {
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": str(size),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(size),
        "PMIX_NAMESPACE": "545914881",
    }


def test_python_with_mpi_and_its_environment_is_a_rank(tree: Tree) -> None:
    for rank in range(3):
        tree.process(100 + rank, 1, "python", ["python3.11", "mpi.py"], open_mpi(rank), mapped=MPI)
    tree.process(200, 1, "solver", ["./solver"], open_mpi(3, 4), mapped=MPI, exe="/opt/solver")
    tree.process(201, 1, "python", ["python3.11", "plot.py"], mapped=MPI)

    census = find_ranks(tree.root)

    assert ranks(census) == [(0, 100, False), (1, 101, False), (2, 102, False)]
    assert {rank.libraries.framework for rank in census.ranks} == {"mpi"}
    assert {one.pid for one in census.rejected} == {200, 201}
    assert "no launcher of MPI started it" in census.rejected[1].reason


def test_what_a_wrapper_with_mpi_starts_is_the_rank(tree: Tree) -> None:
    for rank in range(2):
        tree.process(100 + rank, 1, "python", ["python3.11", "wrap.py"], open_mpi(rank, 2), mapped=MPI)
        tree.process(200 + rank, 100 + rank, "python", LIGHT, open_mpi(rank, 2))
        tree.process(300 + rank, 200 + rank, "pt_data_worker", LIGHT, open_mpi(rank, 2))

    census = find_ranks(tree.root)

    assert ranks(census) == [(0, 200, False), (1, 201, False)]
    assert [[worker.pid for worker in rank.workers] for rank in census.ranks] == [[300], [301]]
    assert "wrapper" in {one.pid: one.reason for one in census.rejected}[100]


def test_who_loads_mpi_alone_is_no_rank_of_it(tree: Tree) -> None:
    alone = open_mpi(0, 1) | {"OMPI_MCA_ess": "singleton"}
    tree.process(100, 1, "python", LIGHT, alone)

    assert find_ranks(tree.root).ranks == ()


@pytest.mark.parametrize("command, what", [
    (["python3.11", "-m", "ipykernel_launcher", "-f", "kernel.json"], "a notebook"),
    (["/usr/bin/python3.11", "/venv/bin/uvicorn", "app:app"], "a server"),
    (["python3.11", "-m", "vllm.entrypoints.openai.api_server"], "a server"),
    (["python3.11", "train.py", "uvicorn"], "works alone"),
])  # fmt: skip
def test_what_does_not_train_is_told_as_what_it_is(tree: Tree, command: list[str], what: str) -> None:
    tree.process(100, 1, "python3.11", command)

    census = find_ranks(tree.root)

    assert census.ranks == ()
    assert what in census.rejected[0].reason


def test_ranks_that_should_run_here_are_missed(tree: Tree) -> None:
    for rank in (6, 7):
        mine = torchrun(rank, rank - 6, 9) | {"LOCAL_WORLD_SIZE": "3"}
        tree.process(100 + rank, 1, "python", LIGHT, mine)
    tree.process(204, 1, "python", LIGHT, torchrun(0, 0, 2, master="10.0.0.2"))
    tree.process(205, 1, "python", LIGHT, torchrun(1, 1, 2, master="10.0.0.2"))

    notes = find_ranks(tree.root).notes

    assert notes == ("torch-10.0.0.1:29500: 1 of its ranks that should run on this host were not found: 8",)


def test_compilers_are_no_loaders(tree: Tree) -> None:
    mine = torchrun(0, 0, 2)
    tree.process(101, 1, "python", LIGHT, mine)
    tree.process(201, 101, "ninja", ["ninja", "-v"], mine, mapped=PLAIN, exe="/usr/bin/ninja")
    tree.process(202, 201, "sh", ["/bin/sh", "-c", "nvcc a.cu"], mine, mapped=PLAIN, exe="/bin/sh")
    tree.process(
        203, 202, "cc1plus", ["/usr/lib/gcc/x86_64-linux-gnu/12/cc1plus"], mine, mapped=PLAIN, exe="/x/cc1plus"
    )
    tree.process(204, 101, "python", ["python", "/venv/torch/_inductor/compile_worker/__main__.py"], mine)
    tree.process(205, 204, "python", LIGHT, mine)
    tree.process(206, 101, "x86_64-linux-gn", ["/usr/bin/x86_64-linux-gnu-g++-12"], mine, mapped=PLAIN, exe="/x/g++")
    tree.process(207, 101, "python", LIGHT, mine)

    rank = find_ranks(tree.root).ranks[0]

    kinds = {worker.pid: worker.kind for worker in rank.workers}
    assert kinds == {**dict.fromkeys((201, 202, 203, 204, 205, 206), "compiler"), 207: "loader"}


@pytest.fixture
def writer() -> Iterator[subprocess.Popen[str]]:
    """A process that writes into its own environment after its start."""
    script = "import os; os.environ['RANK'] = '7'\nfor n in range(99): os.environ[f'X{n}'] = n * 'y'\nprint(); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def test_what_a_process_writes_into_its_environment_is_seen_from_outside(writer: subprocess.Popen[str]) -> None:
    assert writer.stdout is not None
    writer.stdout.readline()
    assert "RANK=7" not in Path(f"/proc/{writer.pid}/environ").read_text()

    said = read_live_environ(writer.pid)

    assert (said["RANK"], said["X98"]) == ("7", 98 * "y")


def test_the_environment_of_nobody_is_empty() -> None:
    assert read_live_environ(2**22 + 1) == {}


def test_a_compiler_that_a_rank_starts_in_the_window_is_not_watched(tree: Tree) -> None:
    tree.process(201, 1, "python", LIGHT)
    tree.process(202, 1, "cc1plus", ["/usr/lib/gcc/cc1plus", "a.cu"], mapped=PLAIN, exe="/usr/lib/gcc/cc1plus")

    assert feeds(201, tree.root)
    assert not feeds(202, tree.root)
    assert not feeds(203, tree.root)  # it has ended


@pytest.mark.parametrize("command, mapped, what", [
    (["python3", "-m", "http.server", "8000"], PLAIN, "no training library is loaded: it is a server"),
    (["python3", "-m", "ipykernel_launcher", "-f", "kernel.json"], NUMPY, "no training library is loaded: it is a notebook"),
    (["python3", "count.py"], NUMPY, "no training library is loaded: numpy alone"),
    (["python3", "/venv/bin/torchrun", "train.py"], PLAIN, "launcher (torchrun): it starts ranks, it is none"),
])  # fmt: skip
def test_a_python_program_without_a_training_library_is_told_as_what_it_is(
    tree: Tree, command: list[str], mapped: tuple[str, ...], what: str
) -> None:
    # GIVEN such a program, an observer, and one with a higher number that is nearer to a rank
    tree.process(90, 1, "rankscope", ["python3", "/venv/bin/rankscope", "record"], mapped=NUMPY)
    tree.process(100, 1, "python3", command, mapped=mapped)
    tree.process(200, 1, "python3", ["python3", "alone.py"])

    census = find_ranks(tree.root)

    assert census.ranks == ()
    assert [(one.pid, one.reason) for one in census.rejected[1:]] == [(100, what)]
    assert census.rejected[0].pid == 200  # what is nearest to a rank comes first


def test_a_process_that_trains_alone_on_several_devices_is_told_so(
    tree: Tree, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN one process of JAX with eight devices, and one with one
    jax = (*PLAIN, "/venv/lib/python3.11/site-packages/jaxlib/libjax_common.so")
    eight = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    tree.process(100, 1, "python3", ["python3", "train.py"], eight, mapped=jax)
    tree.process(101, 1, "python3", ["python3", "train.py"], mapped=jax)
    census = find_ranks(tree.root)
    monkeypatch.setattr("rankscope.observer.sight.find_ranks", lambda _: census)
    monkeypatch.setattr("rankscope.observer.sight.several_devices", lambda found, _: several_devices(found, tree.root))

    assert run(["ranks"]) == 3

    said = {line.split()[1]: line for line in capsys.readouterr().out.splitlines() if line.startswith("python3")}
    assert said["100"].endswith("it works alone, one process that drives 8 devices of XLA")
    assert said["101"].endswith("it works alone")
