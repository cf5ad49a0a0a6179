"""What launchers leave in an environment names the same job on every host, and nothing in it can do harm."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.observer.census.containers import find_container
from rankscope.observer.census.identity import parse_arguments, parse_claim
from rankscope.probes.base.command_line import shown
from rankscope.probes.base.text import printable
from rankscope.probes.host.procfs import parse_environ

TORCH = {
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "n0",
    "MASTER_PORT": "29500",
}
SLURM = {"SLURM_JOB_ID": "1234", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_NTASKS": "2"}
OMPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    "OMPI_MCA_ess_base_jobid": "987",
}


WORKER = '{"cluster": {"worker": ["b:2", "c:3"], "chief": ["a:1"]}, "task": {"type": "worker", "index": 1}}'


@pytest.mark.parametrize("environ, job, rank, local, world", [
    (TORCH, "torch-n0:29500", 5, 1, 8),
    (TORCH | {"TORCHELASTIC_RUN_ID": "none"}, "torch-n0:29500", 5, 1, 8),
    (TORCH | {"TORCHELASTIC_RUN_ID": "r7"}, "torch-r7-n0:29500", 5, 1, 8),
    (TORCH | {"MASTER_ADDR": "127.0.0.1"}, "torch-here:29500", 5, 1, 8),
    ({"RANK": "2"}, "torch-here", 2, -1, 0),
    (SLURM, "slurm-1234.0", 1, 0, 2),
    (SLURM | TORCH, "slurm-1234-n0:29500", 5, 1, 8),  # srun torchrun: the inner one counts
    ({"SLURM_JOB_ID": "9", "SLURM_PROCID": "0"}, "slurm-9", 0, -1, 0),
    (OMPI, "mpi-987", 3, 3, 8),
    (OMPI | SLURM, "mpi-987", 3, 3, 8),  # mpirun inside Slurm: SLURM_PROCID is orted's
    ({"PMI_RANK": "4", "PMI_SIZE": "6", "MPI_LOCALRANKID": "0"}, "mpi-here", 4, 0, 6),
    ({"PMI_RANK": "4", "PMI_SIZE": "6", "PBS_JOBID": "77.pbs"}, "pbs-77.pbs", 4, -1, 6),
    (SLURM | {"PMI_RANK": "1", "PMI_SIZE": "2"}, "slurm-1234.0", 1, 0, 2),
    ({"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_RANK": "1", "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1",
      "HOROVOD_GLOO_RENDEZVOUS_PORT": "4444"}, "mpi-horovod-10.0.0.1:4444", 1, 1, 2),
    ({"JAX_PROCESS_ID": "3", "JAX_NUM_PROCESSES": "4", "JAX_COORDINATOR_ADDRESS": "10.0.0.1:1234"}, "jax-10.0.0.1:1234", 3, -1, 4),
    ({"JAX_PROCESS_ID": "0", "JAX_NUM_PROCESSES": "2", "JAX_COORDINATOR_ADDRESS": "head"}, "jax-head", 0, -1, 2),
    ({"JAX_PROCESS_ID": "1"}, "jax-here", 1, -1, 0),
    ({"PADDLE_TRAINER_ID": "1", "PADDLE_TRAINERS_NUM": "2", "PADDLE_MASTER": "[fd00::1]:99"}, "paddle-[fd00::1]:99", 1, -1, 2),
    ({"TF_CONFIG": WORKER}, "tensorflow-a:1", 2, -1, 3),
])  # fmt: skip
def test_every_launcher_is_understood(environ: dict[str, str], job: str, rank: int, local: int, world: int) -> None:
    claim = parse_claim(environ, "here")
    assert claim is not None
    assert (claim.job, claim.rank, claim.local_rank, claim.world_size) == (job, rank, local, world)


@pytest.mark.parametrize("environ", [
    {}, {"RANK": ""}, {"RANK": "x"}, {"RANK": "-1"}, {"RANK": "9" * 40}, {"RANK": "²"}, {"LOCAL_RANK": "0"},
    {"SLURM_PROCID": "1"}, {"OMPI_COMM_WORLD_SIZE": "4"}, {"PAGERANK": "3"},
    {"JAX_PROCESS_ID": "x"}, {"TF_CONFIG": "{"}, {"TF_CONFIG": "[" * 5000}, {"TF_CONFIG": '{"cluster": 1, "task": 2}'},
    {"TF_CONFIG": '{"cluster": {"ps": ["a:1"]}, "task": {"type": "ps", "index": 0}}'},
    {"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}'},
])  # fmt: skip
def test_what_names_no_rank_claims_none(environ: dict[str, str]) -> None:
    assert parse_claim(environ, "here") is None


def test_a_role_is_told_unless_it_is_the_default() -> None:
    told, default = (parse_claim(TORCH | {"ROLE_NAME": role}, "here") for role in ("stage-1", "default"))
    assert told is not None and told.role == "stage-1"
    assert default is not None and default.role == ""


@given(st.binary(max_size=2000))
def test_no_environment_can_make_the_parser_fail(data: bytes) -> None:
    claim = parse_claim(parse_environ(b"RANK=1\0" + data), "here")
    assert claim is not None
    assert claim.job.isprintable()
    assert len(claim.job) <= 200


@given(st.text(max_size=400))
def test_what_is_shown_is_printable_and_short(text: str) -> None:
    assert printable(text, 50).isprintable()
    assert len(printable(text, 50)) <= 50
    assert len(shown((text, text), 200)) <= 200


def test_arguments_tell_rank_and_world() -> None:
    assert parse_arguments(("train.py", "--rank", "3", "--world-size=8", "--local_rank=1")) == (3, 1, 8)
    assert parse_arguments(("train.py", "--rank")) == (None, -1, 0)
    assert parse_arguments(("train.py", "--rank", "-5", "--ranking=2")) == (None, -1, 0)


ID = "f" * 40 + "0123456789abcdef01234567"
POD = "11111111-2222-3333-4444-555555555555"
SLICE = POD.replace("-", "_")


@pytest.mark.parametrize("path, runtime, pod", [
    (f"/docker/{ID}", "docker", ""),
    (f"/system.slice/docker-{ID}.scope", "docker", ""),
    (f"/kubepods/burstable/pod{POD}/{ID}", "kubernetes", POD),
    (f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICE}.slice/cri-containerd-{ID}.scope", "containerd", POD),
    (f"/kubepods.slice/kubepods-pod{SLICE}.slice/crio-{ID}.scope/container", "cri-o", POD),
    (f"/machine.slice/libpod-{ID}.scope/container", "podman", ""),
    (f"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope", "podman", ""),
    (f"/../../kubepods/besteffort/pod{POD}/{ID}", "kubernetes", POD),
])  # fmt: skip
def test_container_ids_are_read_from_cgroup_paths(path: str, runtime: str, pod: str) -> None:
    container = find_container([path])
    assert container is not None
    assert (container.container_id, container.runtime, container.pod) == (ID, runtime, pod)


@pytest.mark.parametrize("path", ["/", "/user.slice/session-1.scope", "/slurm/uid_0/job_1/step_0", "/x/" + "d0" * 16])
def test_other_cgroups_are_no_containers(path: str) -> None:
    assert find_container([path, ""]) is None
