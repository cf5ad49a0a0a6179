"""The table of jobs: which script, how it is started, what in it can be made slow."""

from __future__ import annotations

from dataclasses import dataclass, field

PROGRAMS = "programs"  # those that are kept aside lie below, in a folder of their own
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
    per step. ahead: they run in a thread of the rank that reads ahead. victims: ranks that have `function`, where not all do. venv:
    under .jobs/. boxed: own PID, mount and network
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
    ahead: bool = False
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
# The same frameworks, other code: nothing in rankscope was made or fitted for these, and nothing may be.
_ASIDE = (
    _torchrun("zero", "aside/zero_stream.py", 2, "smooth", 48, "receive", 48),
    _torchrun("manual", "aside/manual_reduce.py", 3, "jitter", 48, "fetch", 48),
    _torchrun("gan", "aside/gan.py", 2, "flip", 32, "read_face", 32),
    _torchrun("local-sgd", "aside/local_sgd.py", 3, "perturb", 64, "sample_row", 64),
    _torchrun("ppo", "aside/ppo.py", 2, "advance", 96, "observe", 96),
    Row(
        "fabric", "Fabric", "aside/fabric_loop.py", 2, "python aside/fabric_loop.py --out {out} --devices {ranks}",
        "mask", 16, "load_text", 16,
    ),
    Row(
        "dispatched", "accelerate launch", "aside/dispatched.py", 2,
        ACCELERATE + "--main_process_port {port} aside/dispatched.py --out {out}", "normalize", 3, "unpack", 96,
        loader_victims=(0,),
    ),
    Row(
        "ray-actors", "actors of Ray", "aside/ray_actors.py", 3,
        "python aside/ray_actors.py --out {out} --port {port} --workers {ranks}", "scale", 80, "query", 80,
    ),
    Row(
        "jax-gspmd", "a shell loop", "aside/jax_gspmd.py", 2,
        "for number in $(seq 0 $(({ranks} - 1))); do python aside/jax_gspmd.py --out {out} --coordinator 127.0.0.1:{port} "
        "--processes {ranks} --number $number & done; wait",
        "whiten", 96, "pull", 96,
    ),
    Row(
        "mpi-objects", "mpirun", "aside/mpi_objects.py", 3, OMPI + "python aside/mpi_objects.py --out {out}",
        "rollout", 40, "world_state", 40,
    ),
)  # fmt: skip
# Written when what those showed had been mended.
_ASIDE_2 = (
    _torchrun("contrastive", "aside/contrastive.py", 2, "cut_out", 32, "open_picture", 32, workers=2),
    _torchrun("experts", "aside/experts.py", 3, "embed", 24, "read_document", 24),
    _torchrun("prefetch", "aside/prefetch.py", 2, "bucketize", 48, "read_record", 48, workers=1),
    _torchrun("vector-env", "aside/vector_env.py", 2, "shape_reward", 64, "physics", 64, workers=1),
    _torchrun("hooks", "aside/hooks.py", 4, "encode", 32, "pull", 32),
    _torchrun("careless", "aside/careless.py", 2, "denoise", 192, "fetch_sample", 192),
    Row("mpi-torch", "mpirun", "aside/mpi_torch.py", 3, OMPI + "python aside/mpi_torch.py --out {out}", "spectrum", 40, "listen", 40),
    _torchrun(
        "parameter-server", "aside/parameter_server.py", 3, "hash_row", 40, "scan_row", 40,
        victims=(1, 2), loader_victims=(1, 2),
    ),
)  # fmt: skip
# Written when those had shown what was to be mended, and before anything was looked at that finds steps and ranks.
_MPICH = {"MPI4PY_MPIABI": "mpich", "LD_LIBRARY_PATH": "{jobs}/mpich"}
_ASIDE_3 = (
    _torchrun("classy", "aside3/classy.py", 2, "transpose", 32, "load_song", 32),
    Row(
        "lightning-data", "Trainer, ddp", "aside3/lightning_data.py", 2,
        "python aside3/lightning_data.py --out {out} --devices {ranks}", "fill_gaps", 64, "query_sensor", 64,
    ),
    Row(
        "jax-scan", "multiprocessing", "aside3/jax_scan.py", 2,
        "python aside3/jax_scan.py --out {out} --port {port} --workers {ranks}", "integrate", 96, "draw_state", 96,
    ),
    Row(
        "mpi-overlap", "mpiexec", "aside3/mpi_overlap.py", 3,
        "mpiexec.mpich -n {ranks} python aside3/mpi_overlap.py --out {out}", "flatten_field", 160, "scan_plate", 160, env=_MPICH,
    ),
    Row(
        "critic", "mp.spawn", "aside3/critic.py", 2, "python aside3/critic.py --out {out} --port {port} --workers {ranks}",
        "detrend", 72, "record_signal", 72,
    ),
    Row(
        "ray-data", "Ray Train", "aside3/ray_data.py", 2, "python aside3/ray_data.py --out {out} --workers {ranks}",
        "add_crosses", 1, "decode_block", 1, workers=1,
    ),
    _torchrun("thread-envs", "aside3/thread_envs.py", 2, "step", 96, "observe", 96),
    Row(
        "quick", "os.fork", "aside3/quick.py", 2, "python aside3/quick.py --out {out} --port {port} --processes {ranks}",
        "mirror", 8, "measure", 8,
    ),
    _torchrun("hf-loss", "aside3/hf_loss.py", 2, "split_words", 24, "fetch_ticket", 24),
    Row(
        "accumulating", "accelerate launch", "aside3/accumulating.py", 2,
        ACCELERATE + "--main_process_port {port} aside3/accumulating.py --out {out}", "adjust_contrast", 64, "crop_tile", 64,
    ),
    Row(
        "ds-client", "deepspeed", "aside3/ds_client.py", 2,
        "deepspeed --num_accelerators {ranks} --master_port {port} aside3/ds_client.py --out {out}",
        "rotate", 24, "open_structure", 24, env={"TORCH_EXTENSIONS_DIR": "{jobs}/extensions"},
    ),
    _torchrun("interleaved", "aside3/interleaved.py", 2, "scale", 40, "collect", 1),
    _torchrun("fsdp-ema", "aside3/fsdp_ema.py", 2, "blank_out", 12, "pull_page", 12),
    Row(
        "entry", "torchrun", "aside3/entry.py", 2, TORCHRUN + "aside3/entry.py out={out}",
        "add_peaks", 24, "read_spectrum", 24, workers=1,
    ),
    Row(
        "recsys", "python -m torch.distributed.run -m", "aside3/recsys/train.py", 2,
        "python -m torch.distributed.run --nproc-per-node {ranks} --master-port {port} -m aside3.recsys.train --out {out}",
        "deduplicate", 96, "read_visit", 96,
    ),
)  # fmt: skip
# Written without a look at what finds steps and ranks since those.
_MORE = {"PYTHONPATH": "{programs}:{jobs}/more"}
_ASIDE_4 = (
    Row(
        "ignite", "idist.Parallel", "aside4/ignite_loop.py", 2,
        "python aside4/ignite_loop.py --out {out} --workers {ranks} --port {port}", "crop_leaf", 48, "load_leaf", 48,
        env=_MORE,
    ),
    Row(
        "notebook", "notebook_launcher", "aside4/notebook.py", 2,
        "python aside4/notebook.py --out {out} --workers {ranks} --port {port}", "fill_missing", 48, "read_patient", 48,
        env={**_MORE, "JUPYTER_PATH": "{jobs}/more/share/jupyter", "IPYTHONDIR": "{out}/ipython"},
    ),
    _torchrun("closure", "aside4/closure.py", 2, "remove_drift", 96, "measure", 96),
    _torchrun("event-loop", "aside4/event_loop.py", 2, "to_row", 40, "receive_message", 40),
    _torchrun("stream", "aside4/stream.py", 2, "mask_words", 24, "download_page", 24, workers=2),
    Row("stencil", "mpirun", "aside4/stencil.py", 3, OMPI + "python aside4/stencil.py --out {out}", "limit_slope", 96, "read_forcing", 96),
)  # fmt: skip
# Frameworks that no other row has, and three more programs of PyTorch's; written like those.
_ASIDE_5 = (
    Row(
        "tensorflow", "a shell loop", "aside5/tf_loop.py", 2,
        "for number in $(seq 0 $(({ranks} - 1))); do python aside5/tf_loop.py --out {out} --port {port} --workers {ranks} "
        "--index $number & done; wait",
        "whiten", 40, "sample", 40, venv="tensorflow",
    ),
    Row(
        "paddle", "paddle.distributed.launch", "aside5/paddle_fleet.py", 2,
        "python -m paddle.distributed.launch --nproc_per_node {ranks} --log_dir {out}/logs "
        "--master 127.0.0.1:{port} aside5/paddle_fleet.py --out {out}",
        "stretch", 40, "read_clip", 40, ahead=True, venv="paddle",
    ),
    _torchrun("rollouts", "aside5/rollouts.py", 2, "grade", 16, "draw_prompt", 16),
    _torchrun("tensor-parallel", "aside5/tensor_parallel.py", 4, "quantize", 24, "pull_trace", 24),
    Row(
        "pool", "ProcessPoolExecutor", "aside5/pool.py", 2, "python aside5/pool.py --out {out} --processes {ranks}",
        "spectrogram", 32, "record", 32,
    ),
)  # fmt: skip
# Set-ups that many people use and no other row has. All but zero-3 were tried by hand while they were written.
_LIBRARIES = {"PYTHONPATH": "{programs}:{jobs}/libraries"}
_BY_SHELL = (
    "for number in $(seq 0 $(({ranks} - 1))); do python aside6/SCRIPT --out {out} --port {port} --processes {ranks} "
    "--process-id $number & done; wait"
)
_ASIDE_6 = (
    Row(
        "sft", "accelerate launch", "aside6/sft.py", 2, ACCELERATE + "--main_process_port {port} aside6/sft.py --out {out}",
        "mask_prompt", 16, "pad", 48, env=_LIBRARIES,
    ),
    Row(
        "grpo", "accelerate launch", "aside6/grpo.py", 2, ACCELERATE + "--main_process_port {port} aside6/grpo.py --out {out}",
        "grade", 8, "brevity", 8, env=_LIBRARIES,
    ),
    _torchrun("titan", "aside6/titan.py", 2, "tokenize", 8, "fetch_line", 8),
    _torchrun("shards", "aside6/shards.py", 2, "erase", 24, "decode_picture", 24, workers=2, env=_LIBRARIES),
    Row(
        "submitit", "LocalExecutor", "aside6/submitted.py", 2, "python aside6/submitted.py --out {out} --tasks {ranks}",
        "color_jitter", 24, "open_picture", 24, env=_LIBRARIES,
    ),
    Row(
        "flax", "a shell loop", "aside6/flax_orbax.py", 2, _BY_SHELL.replace("SCRIPT", "flax_orbax.py"),
        "normalize", 64, "sample_row", 64, env=_LIBRARIES,
    ),
    Row(
        "keras-torch", "start_processes", "aside6/keras_torch.py", 2,
        "python aside6/keras_torch.py --out {out} --port {port} --workers {ranks}", "rotate", 32, "read_digit", 32,
        env=_LIBRARIES,
    ),
    Row(
        "keras-fit", "a shell loop", "aside6/keras_fit.py", 2, _BY_SHELL.replace("SCRIPT", "keras_fit.py"),
        "clip", 32, "read_row", 32, env=_LIBRARIES,
    ),
    Row(
        "elastic", "torchrun", "aside6/elastic.py", 2,
        "torchrun --max-restarts 3 --nproc-per-node {ranks} --master-port {port} aside6/elastic.py --out {out}",
        "deseason", 24, "read_meter", 24,
    ),
    Row(
        "detector", "torchrun, started by a script", "aside6/detector.py", 2,
        "python aside6/detector.py --out {out} --devices {ranks} --port {port}", "mosaic", 16, "load_image", 16, workers=1,
    ),
    _torchrun("uneven", "aside6/uneven.py", 2, "window", 24, "read_clip", 24),
    Row(
        "controlled", "actors of Ray", "aside6/controlled.py", 2,
        "python aside6/controlled.py --out {out} --port {port} --workers {ranks}", "pack", 16, "draw_prompt", 16,
    ),
    Row(
        "zero-3", "deepspeed", "aside6/zero3.py", 2,
        "deepspeed --num_accelerators {ranks} --master_port {port} aside6/zero3.py --out {out}", "tilt", 32, "read_note", 32,
        env={"TORCH_EXTENSIONS_DIR": "{jobs}/extensions"},
    ),
)  # fmt: skip
ASIDE = {
    "aside": _ASIDE, "aside-2": _ASIDE_2, "aside-3": _ASIDE_3, "aside-4": _ASIDE_4, "aside-5": _ASIDE_5, "aside-6": _ASIDE_6,
}  # fmt: skip
BY_NAME = {row.name: row for rows in (TABLE, *ASIDE.values()) for row in rows}
