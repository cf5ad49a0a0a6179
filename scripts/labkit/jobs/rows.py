"""The table of jobs: which script, how it is started, what in it can be made slow."""

from __future__ import annotations

from dataclasses import dataclass, field

PROGRAMS = "programs"
MAIN = "main"  # the virtual environment on the distribution's Python, with every framework
OMPI = "mpirun.openmpi -n {ranks} --bind-to none --oversubscribe "
TORCHRUN = "torchrun --nproc-per-node {ranks} --master-port {port} "
ACCELERATE = (
    "accelerate launch --multi_gpu --num_machines 1 --mixed_precision no --dynamo_backend no --num_processes {ranks} "
)


@dataclass(frozen=True, slots=True)
class Row:
    """One job.

    by: how its users start it, in words. command: run by sh in the folder of the programs, with {ranks}, {port} and {out} filled in.
    function, loader: what can be made slow (the loader's function runs in so many `workers` of a rank, 0: in the rank), with calls
    per step. victims: ranks that have `function`, where not all do. venv: under .jobs/. boxed: own PID, mount and network
    namespaces. trains: False where the job is looked at before its first step.
    """

    name: str
    by: str
    script: str
    ranks: int
    command: str
    function: str
    calls: int
    loader: str
    loader_calls: int
    workers: int = 0
    victims: tuple[int, ...] = ()
    loader_victims: tuple[int, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    venv: str = MAIN
    boxed: bool = False
    trains: bool = True


def _torchrun(name: str, script: str, ranks: int, *what: object, **more: object) -> Row:
    return Row(name, "torchrun", script, ranks, TORCHRUN + f"{script} --out {{out}}", *what, **more)  # type: ignore[arg-type]


def _boxed(version: str) -> Row:
    return _torchrun(
        f"boxed-{version}", "ddp.py", 2, "random_crop", 40, "decode", 40, workers=2, venv=version, boxed=True
    )


_SHIFT = ("random_shift", 32, "decode", 32)
_CLEAN = ("clean", 32, "read_review", 32)
_ROWS = ("augment", 64, "read_row", 64)
_MPI = ("standardize", 384, "read_row", 384)
_JAX = "jax_psum.py --out {out} --coordinator 127.0.0.1:{port} --processes {ranks} "
_LIGHTNING = "python lightning_ddp.py --out {out} --devices {ranks} "
_DEEPSPEED = "deepspeed --num_accelerators {ranks} --master_port {port} deepspeed_stage2.py --out {out}"

TABLE = (
    _torchrun("ddp", "ddp.py", 2, "random_crop", 40, "decode", 40, workers=2),
    Row("lightning-2", "Trainer, ddp", "lightning_ddp.py", 2, _LIGHTNING, *_SHIFT, workers=1),
    Row("lightning-3", "Trainer, ddp", "lightning_ddp.py", 3, _LIGHTNING, *_SHIFT, workers=1),
    Row(
        "lightning-spawn", "Trainer, ddp_spawn", "lightning_ddp.py", 2, _LIGHTNING + "--strategy ddp_spawn", *_SHIFT,
        workers=1,
    ),
    Row(
        "accelerate", "accelerate launch", "accelerated.py", 2,
        ACCELERATE + "--main_process_port {port} accelerated.py --out {out}", *_CLEAN,
    ),
    Row(
        "accelerate-debug", "debug_launcher", "accelerated.py", 2,
        "python accelerated.py --out {out} --debug-launcher {ranks}", *_CLEAN,
    ),
    Row(
        "accelerate-mpi", "mpirun", "accelerated.py", 2,
        OMPI + "-x MASTER_ADDR=127.0.0.1 -x MASTER_PORT={port} python accelerated.py --out {out}", *_CLEAN,
    ),
    Row(
        "jax-shell", "a shell loop", "jax_psum.py", 3,
        "for number in $(seq 0 $(({ranks} - 1))); do python " + _JAX + "--process-id $number & done; wait", *_ROWS,
    ),
    Row("jax-spawn", "process 0", "jax_psum.py", 3, "python " + _JAX + "--spawn", *_ROWS),
    Row("mpi-openmpi", "mpirun", "mpi_numpy.py", 3, OMPI + "python mpi_numpy.py --out {out}", *_MPI),
    Row(
        "mpi-mpich", "mpiexec", "mpi_numpy.py", 3, "mpiexec.mpich -n {ranks} python mpi_numpy.py --out {out}", *_MPI,
        env={"MPI4PY_MPIABI": "mpich", "LD_LIBRARY_PATH": "{jobs}/mpich"},
    ),
    Row("ray", "Ray Train", "ray_train.py", 2, "python ray_train.py --out {out} --workers {ranks}", *_ROWS),
    _torchrun("no-sync", "accumulate.py", 2, "tokenize", 32, "read_line", 32),
    _torchrun("fsdp2", "fsdp2.py", 3, "tokenize", 16, "read_record", 16),
    _torchrun("pipelining", "pipeline.py", 3, "regularize", 48, "read_samples", 1),
    _torchrun("mesh", "mesh.py", 4, "normalize", 64, "read_row", 64),
    _torchrun("trainer", "trainer.py", 2, "tokenize", 16, "read_line", 16, workers=1),
    Row("deepspeed", "deepspeed", "deepspeed_stage2.py", 2, _DEEPSPEED, "augment", 64, "read_row", 64,
        env={"TORCH_EXTENSIONS_DIR": "{jobs}/extensions"},
    ),
    Row(
        "deepspeed-builds", "deepspeed", "deepspeed_stage2.py", 2, _DEEPSPEED, "augment", 64, "read_row", 64,
        env={"TORCH_EXTENSIONS_DIR": "{out}/extensions"}, trains=False,
    ),
    _torchrun(
        "learner-actors", "learner_actors.py", 3, "simulate", 128, "read_level", 1,
        victims=(1, 2), loader_victims=(1, 2),
    ),
    _boxed("3.10"),
    _boxed("3.12"),
    _boxed("3.13"),
)  # fmt: skip
BY_NAME = {row.name: row for row in TABLE}
