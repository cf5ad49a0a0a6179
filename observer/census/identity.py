"""Parse a rank's identity from its environment: job, rank, local rank, world size. Pure.

The job's name must come out the same on every host of the job without communication, and must
differ between jobs:

slurm-1234.0                 started by srun: job and step
slurm-1234-10.0.0.1:29500    torchrun inside Slurm (each node may be a step of its own): job and rendezvous
torch-<run id>-10.0.0.1:29500, torch-10.0.0.1:29500 (run id 'none')
mpi-<namespace>              Open MPI: the job's id in PMIx
jax-10.0.0.1:1234            the coordinator of JAX, the master of Paddle, the first worker of TensorFlow (TF_CONFIG)

A master address such as localhost names no host, so the host's name takes its place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from rankscope.observer.window.jobs import claimed_name
from rankscope.probes.base.text import printable

COMMAND_CAP = 200
NAME_CAP = 200
# Every variable that claims a rank ends in one of these: the cheap test before anything is parsed.
MARKERS = (b"RANK=", b"SLURM_PROCID=", b"JAX_PROCESS_ID=", b"PADDLE_TRAINER_ID=", b"TF_CONFIG=")
# Variables for number, count and rendezvous address, set for scripts without a launcher.
_BY_HAND = (
    ("jax", "JAX_PROCESS_ID", "JAX_NUM_PROCESSES", "JAX_COORDINATOR_ADDRESS"),
    ("paddle", "PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM", "PADDLE_MASTER"),
)
# variables that scripts set themselves
_LATE = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")

RANK_MOST = 10_000_000  # no job has more ranks, whatever an environment says
_LOOPBACK = re.compile(r"^(localhost(\..*)?|127\.\d+\.\d+\.\d+|::1|\[::1\]|0\.0\.0\.0)$", re.IGNORECASE)
_EMPTY_RUN_IDS = ("", "none", "None")
_RANK_ARGUMENT = re.compile(r"^--?(global[_-]rank|rank|process[_-]id|proc[_-]id)(?:=(\d{1,7}))?$")
_LOCAL_ARGUMENT = re.compile(r"^--?local[_-]rank(?:=(\d{1,7}))?$")
_WORLD_ARGUMENT = re.compile(r"^--?(world[_-]size|num[_-]processes)(?:=(\d{1,7}))?$")


@dataclass(frozen=True, slots=True)
class RankIdentity:
    """One rank: the columns job … title, and run, of window/schema.py, RANKS.

    `addresses`, `gpus` and `nics` are filled in later (dataclasses.replace): they need connections
    and devices.
    """

    job: str
    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    role: str
    host: str
    node: str
    container: str
    pid: int
    inner_pid: int
    netns: int
    addresses: tuple[str, ...]
    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    cpus: str
    python: str
    command: str
    title: str
    run: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """The rank that an environment (or a command line) claims: 'I am rank 3 of 8'.

    `local_rank` -1, `world_size` 0, `local_world_size` 0, `role` '': not given. `this_host_only`:
    the job's name comes from nothing that other hosts share.
    """

    launcher: str
    job: str
    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    role: str
    this_host_only: bool = False
    # For launchers that number per node: `rank` is then the number on this host; the census
    # replaces it by the global number.
    node_rank: int = 0

    def by(self, owner: int) -> Claim:
        """Return the claim with the job's name marked as this user's."""
        return replace(self, job=claimed_name(self.job, owner))


def parse_claim(environ: Mapping[str, str], node: str) -> Claim | None:
    """Parse the rank that an environment claims; None where it claims none. Never raises.

    `node`: node name of the process. The innermost launcher counts: torchrun under Slurm or MPI
    leaves SLURM_PROCID and the like of its own process in the environment of its ranks; orted,
    started by srun, leaves those of Slurm.
    """
    return (
        _torch(environ, node)
        or _open_mpi(environ, node)
        or _horovod(environ, node)
        or _pmi(environ, node)
        or _by_node(environ, node)
        or _by_hand(environ, node)
        or _tensorflow(environ, node)
        or _slurm(environ)
    )


def parse_later_claim(environ: Mapping[str, str], node: str) -> Claim | None:
    """Parse the rank from variables that a process set for itself: torch's form alone. Never
    raises.

    MPI libraries set theirs in every process that loads them: those claim no rank.
    """
    return _all_here(_torch(environ, node)) or _by_node(environ, node)


def lacks_master(environ: Mapping[str, str]) -> bool:
    """Tell whether an environment names a rank in torch's form but no master address, so that the job is unknown."""
    return _integer(environ, "RANK") is not None and not environ.get("MASTER_ADDR", "").strip()


def completed(environ: Mapping[str, str], now: Mapping[str, str]) -> Mapping[str, str]:
    """Add to the start environment variables of `_LATE` that the process set later; unchanged if
    RANK differs.
    """
    if _integer(environ, "RANK") != _integer(now, "RANK"):
        return environ
    return {**{name: now[name] for name in _LATE if name in now}, **environ}


def same_rank(one: Claim, other: Claim) -> bool:
    """Tell whether two claims name the same rank of a job: one process inherited the other's environment."""
    return (one.job, one.rank, one.local_rank, one.world_size) == (
        other.job, other.rank, other.local_rank, other.world_size
    )  # fmt: skip


def parse_arguments(arguments: tuple[str, ...]) -> tuple[int | None, int, int]:
    """Parse (rank or None, local rank or -1, world size or 0) from arguments such as `--rank 3
    --world-size=8`.
    """
    rank = _argument(arguments, _RANK_ARGUMENT)
    local, world = _argument(arguments, _LOCAL_ARGUMENT), _argument(arguments, _WORLD_ARGUMENT)
    return rank, -1 if local is None else local, world or 0


def _torch(environ: Mapping[str, str], node: str) -> Claim | None:
    """Parse a claim in torch's form (RANK, MASTER_ADDR, …); None without RANK."""
    rank = _integer(environ, "RANK")
    if rank is None:
        return None
    return _torch_claim(environ, node, rank)


def _by_node(environ: Mapping[str, str], node: str) -> Claim | None:
    """Parse the claim of Lightning's own launcher: the number on this host, as `rank`, and the number of the host.

    None where these, the world size or the master address are missing or do not fit.
    """
    local, host, world = (_integer(environ, name) for name in ("LOCAL_RANK", "NODE_RANK", "WORLD_SIZE"))
    if local is None or host is None or not world or "MASTER_ADDR" not in environ or local >= world:
        return None
    return _all_here(replace(_torch_claim(environ, node, local), node_rank=host))


def parse_local_rank(environ: Mapping[str, str]) -> int:
    """Parse the number on this host from an environment with nothing else (Lightning's ddp_spawn);
    -1 if absent.
    """
    return _first(environ, -1, "LOCAL_RANK")


def _all_here(claim: Claim | None) -> Claim | None:
    """Set the local world size to the world size if the claim names a master of this host only.

    A script that starts its ranks itself so has no ranks elsewhere.
    """
    if claim is None or claim.local_world_size or not claim.this_host_only:
        return claim
    return replace(claim, local_world_size=claim.world_size)


def _torch_claim(environ: Mapping[str, str], node: str, rank: int) -> Claim:
    """Build the claim of this `rank` from torch's other variables; `node`: node name of the process.

    The job's name: Slurm's job or torch's run id, and the master; without both, the node.
    """
    master, local_only = _master(environ, node)
    run = environ.get("TORCHELASTIC_RUN_ID", "")
    slurm = environ.get("SLURM_JOB_ID", "")
    parts = ["slurm", slurm, master] if slurm else ["torch", "" if run in _EMPTY_RUN_IDS else run, master]
    named = [part for part in parts if part]
    if len(named) == 1:
        named.append(node)
        local_only = True
    role = environ.get("ROLE_NAME", "")
    return Claim(
        launcher="torchrun" if "TORCHELASTIC_RUN_ID" in environ else "environment",
        job=printable("-".join(named), NAME_CAP),
        rank=rank,
        local_rank=_first(environ, -1, "LOCAL_RANK"),
        world_size=_first(environ, 0, "WORLD_SIZE"),
        local_world_size=_first(environ, 0, "LOCAL_WORLD_SIZE"),
        role="" if role == "default" else printable(role, 64),
        this_host_only=local_only and not slurm,
    )


def _open_mpi(environ: Mapping[str, str], node: str) -> Claim | None:
    """Parse a claim set by Open MPI's mpirun; None without one, or where a process loaded MPI without mpirun."""
    rank = _integer(environ, "OMPI_COMM_WORLD_RANK")
    # A process that loads MPI without mpirun becomes a job of one, and its children's environments
    # claim the same.
    if rank is None or environ.get("OMPI_MCA_ess") == "singleton":
        return None
    # Open MPI 5 (PRRTE) has the namespace only, 4 has both; not Slurm's step: orted is a step of
    # its own.
    space = environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid") or ""
    job, local_only = _mpi_job(environ, node, space)
    return Claim(
        "mpirun (Open MPI)",
        job,
        rank,
        _first(environ, -1, "OMPI_COMM_WORLD_LOCAL_RANK"),
        _first(environ, 0, "OMPI_COMM_WORLD_SIZE"),
        _first(environ, 0, "OMPI_COMM_WORLD_LOCAL_SIZE"),
        "",
        local_only,
    )


def _horovod(environ: Mapping[str, str], node: str) -> Claim | None:
    """Parse a claim set by horovodrun; None without HOROVOD_RANK."""
    rank = _integer(environ, "HOROVOD_RANK")
    if rank is None:
        return None
    address, port = environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR", ""), environ.get("HOROVOD_GLOO_RENDEZVOUS_PORT", "")
    job, local_only = _mpi_job(environ, node, f"horovod-{address}:{port}" if address else "")
    return Claim(
        "horovodrun",
        job,
        rank,
        _first(environ, -1, "HOROVOD_LOCAL_RANK"),
        _first(environ, 0, "HOROVOD_SIZE"),
        _first(environ, 0, "HOROVOD_LOCAL_SIZE"),
        "",
        local_only,
    )


def _pmi(environ: Mapping[str, str], node: str) -> Claim | None:
    """Parse a claim set by mpiexec of MPICH or Intel MPI, or by srun where it speaks PMI; None without PMI_RANK."""
    rank = _integer(environ, "PMI_RANK")
    if rank is None:
        return None
    if "SLURM_STEP_ID" in environ and _integer(environ, "SLURM_PROCID") == rank:
        return _slurm(environ)  # srun --mpi=pmi2: Slurm itself speaks PMI
    job, local_only = _mpi_job(environ, node, "")
    return Claim(
        "mpiexec (MPICH, Intel MPI)",
        job,
        rank,
        _first(environ, -1, "MPI_LOCALRANKID"),
        _first(environ, 0, "PMI_SIZE"),
        _first(environ, 0, "MPI_LOCALNRANKS"),
        "",
        local_only,
    )


def _slurm(environ: Mapping[str, str]) -> Claim | None:
    """Parse a claim set by srun or sbatch; None without SLURM_PROCID or a job id."""
    rank = _integer(environ, "SLURM_PROCID")
    job = environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID") or ""
    if rank is None or not job:
        return None
    step = environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID") or ""
    tasks = _first(environ, 0, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")
    return Claim(
        "srun" if step else "sbatch",
        printable(f"slurm-{job}.{step}" if step else f"slurm-{job}", NAME_CAP),
        rank,
        _first(environ, -1, "SLURM_LOCALID"),
        tasks,
        tasks if _integer(environ, "SLURM_STEP_NUM_NODES") == 1 else 0,
        "",
    )


def _by_hand(environ: Mapping[str, str], node: str) -> Claim | None:
    """Parse a claim from JAX's or Paddle's own variables, set for scripts without a launcher; None without them."""
    for family, number, world, meeting in _BY_HAND:
        rank = _integer(environ, number)
        if rank is not None:
            return _at(family, rank, _first(environ, 0, world), environ.get(meeting, ""), node)
    return None


def _tensorflow(environ: Mapping[str, str], node: str) -> Claim | None:
    """Parse TF_CONFIG of MultiWorkerMirroredStrategy: the chief is rank 0, then the workers.

    Parameter servers and evaluators are no ranks.
    """
    try:
        told = json.loads(environ.get("TF_CONFIG", ""))
        cluster, task = told["cluster"], told["task"]
        ranks = [(kind, place) for kind in ("chief", "master", "worker") for place in range(len(cluster.get(kind, ())))]
        rank = ranks.index((task["type"], int(task["index"])))
        kind, place = ranks[0]
        meeting = str(cluster[kind][place])
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError, OverflowError):
        return None
    return _at("tensorflow", rank, len(ranks), meeting, node)


def _at(family: str, rank: int, world: int, meeting: str, node: str) -> Claim:
    """Build the claim of `rank` of `world` ranks; `meeting`: rendezvous 'address:port', '' unknown.

    `family`: framework, with which the job's name begins. `node` replaces an address that is unknown or
    a loopback.
    """
    address, _, port = meeting.strip().rpartition(":")
    where, loopback = _endpoint(address or port, port if address else "", node)
    job = printable(f"{family}-{where or node}", NAME_CAP)
    return Claim("environment", job, rank, -1, world, 0, "", this_host_only=loopback or not where)


def _master(environ: Mapping[str, str], node: str) -> tuple[str, bool]:
    """Return ('address:port', whether the address is valid on this host only); '' where unknown."""
    return _endpoint(environ.get("MASTER_ADDR", "").strip(), environ.get("MASTER_PORT", "").strip(), node)


def _endpoint(address: str, port: str, node: str) -> tuple[str, bool]:
    """Return ('address:port', whether the address is a loopback); `node` replaces a loopback address.

    ('', False) without an address.
    """
    if not address:
        return "", False
    loopback = bool(_LOOPBACK.match(address))
    where = node if loopback else address
    return (f"{where}:{port}" if port else where), loopback


def _mpi_job(environ: Mapping[str, str], node: str, space: str) -> tuple[str, bool]:
    """Return the name of an MPI job, and whether it is valid on this host only.

    From `space` (an id that all its hosts share, '' unknown), else the batch job, MASTER_ADDR, or
    `node`.
    """
    if space:
        return printable(f"mpi-{space}", NAME_CAP), False
    for name, prefix in (("SLURM_JOB_ID", "slurm"), ("PBS_JOBID", "pbs"), ("LSB_JOBID", "lsf"), ("JOB_ID", "sge")):
        if environ.get(name):
            return printable(f"{prefix}-{environ[name]}", NAME_CAP), False
    master, loopback = _master(environ, node)
    return (printable(f"mpi-{master}", NAME_CAP), loopback) if master else (printable(f"mpi-{node}", NAME_CAP), True)


def _argument(arguments: tuple[str, ...], pattern: re.Pattern[str]) -> int | None:
    """Return the number in the first argument that matches `pattern`, or in the one after it; None if none."""
    for position, argument in enumerate(arguments[:1024]):
        match = pattern.match(argument[:64])
        if match is None:
            continue
        value = match.groups()[-1] or (arguments[position + 1] if position + 1 < len(arguments) else "")
        return int(value) if value.isascii() and value.isdigit() and len(value) < 8 else None
    return None


def _integer(environ: Mapping[str, str], name: str) -> int | None:
    """Return a variable as a number from 0 to RANK_MOST; None where it is absent or anything else."""
    text = environ.get(name, "").strip()
    if not (text.isascii() and text.isdigit() and len(text) < 9):
        return None
    value = int(text)
    return value if value <= RANK_MOST else None


def _first(environ: Mapping[str, str], default: int, *names: str) -> int:
    """Return the first of these variables that is a number (see `_integer`); `default` where none is."""
    for name in names:
        value = _integer(environ, name)
        if value is not None:
            return value
    return default
