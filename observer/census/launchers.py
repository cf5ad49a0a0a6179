"""Recognise command lines of launchers, and of programs that use a training library without training. Pure."""

from __future__ import annotations

_LAUNCHER_PROGRAMS = (
    "torchrun",
    "accelerate",
    "deepspeed",
    "horovodrun",
    "composer",
    "mpirun",
    "mpiexec",
    "srun",
    "colossalai",
)
_LAUNCHER_MODULES = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "torch.distributed.launcher",
    "accelerate.commands.launch",
    "accelerate.commands.accelerate_cli",
    "deepspeed.launcher.launch",
    "deepspeed.launcher.runner",
    "horovod.runner",
    "composer.cli.launcher",
    "torch_xla.distributed.xla_spawn",
    "paddle.distributed.launch",
)
_TOOLS = ("tensorboard", "jupyter-lab", "jupyter-notebook", "jupyter", "mlflow", "visdom", "nvitop", "gpustat")
_TOOL_MODULES = ("tensorboard.main", "tensorboard", "wandb", "jupyter", "jupyterlab", "mlflow", "visdom.server")
_SERVERS = (
    "uvicorn", "gunicorn", "hypercorn", "waitress", "flask", "fastapi", "streamlit", "gradio", "bentoml", "tritonserver",
    "torchserve", "vllm", "http", "sglang", "lmdeploy", "text_generation_server", "text_generation_launcher",
)  # fmt: skip
SERVER, NOTEBOOK = "a server", "a notebook"
_NOTEBOOKS = (
    "notebook",
    "ipykernel",
    "ipykernel_launcher",
    "ipython",
    "jupyter",
    "jupyter-lab",
    "jupyter-notebook",
    "colab_kernel_launcher",
)


def launcher_name(cmdline: tuple[str, ...]) -> str:
    """Return the launcher that a command line runs (python -m torch.distributed.run, torchrun, …);
    '' if none.
    """
    head = cmdline[:8]
    for position, argument in enumerate(head):
        if argument == "-m" and position + 1 < len(head):
            module = head[position + 1]
            return next((name for name in _LAUNCHER_MODULES if module == name or module.startswith(name + ".")), "")
        if position and argument == "-c":
            return ""
        if position and argument.startswith("-"):
            continue
        name = argument.rpartition("/")[2]
        if name in _LAUNCHER_PROGRAMS:
            return name
        if position and not name.startswith("python"):
            # The script. deepspeed and torch run theirs by path too:
            # …/site-packages/torch/distributed/run.py
            path = argument.removesuffix(".py").replace("/", ".")
            return next((module for module in _LAUNCHER_MODULES if path.endswith("." + module)), "")
    return ""


def is_tool(cmdline: tuple[str, ...]) -> bool:
    """Tell whether a command line runs TensorBoard, Jupyter or the like."""
    head = cmdline[:6]
    for position, argument in enumerate(head):
        if argument == "-m" and position + 1 < len(head):
            module = head[position + 1]
            return any(module == name or module.startswith(name + ".") for name in _TOOL_MODULES)
        if position == 0 and not argument.rpartition("/")[2].startswith("python"):
            return argument.rpartition("/")[2] in _TOOLS
        if position and not argument.startswith("-"):
            return argument.rpartition("/")[2] in _TOOLS
    return False


def ray_actor(cmdline: tuple[str, ...]) -> str:
    """Return the class of the Ray actor in a process (`ray::RayTrainWorker`, without the method);
    '' outside Ray.
    """
    name = cmdline[0].strip() if cmdline else ""
    return name.partition(".")[0] if name.startswith("ray::") else ""


def is_ray_controller(cmdline: tuple[str, ...]) -> bool:
    """Tell whether a process is Ray Train's controller, which starts the workers and waits for
    them.
    """
    return ray_actor(cmdline).startswith("ray::TrainController")


def purpose(cmdline: tuple[str, ...]) -> str:
    """Return what a program is if not training: a notebook, a server; '' where its command line
    does not say.
    """
    head = cmdline[:6]
    for position, argument in enumerate(head):
        module = argument == "-m" and position + 1 < len(head)
        name = head[position + 1].partition(".")[0] if module else argument.rpartition("/")[2].removesuffix(".py")
        if argument.startswith("-") and not module:
            continue
        if name in _NOTEBOOKS:
            return NOTEBOOK
        if name in _SERVERS:
            return SERVER
        if module or (position and not name.startswith("python")):
            break
    return ""
