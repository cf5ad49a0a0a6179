"""/proc/PID: what a process is, what it says of itself, what it has mapped and mounted."""

from __future__ import annotations

from pathlib import Path

from campaignkit.fuzz.target import Target, chosen_by_first_byte
from rankscope.observer.census import identity, kinship, launchers, titles
from rankscope.probes.base.command_line import shown as shown_command
from rankscope.probes.host import maps, mounts, procfs


def _environ(data: bytes) -> None:
    found = procfs.parse_environ(data)
    for claim in (identity.parse_claim(found, "node0"), identity.parse_later_claim(found, "node0")):
        if claim is not None and not claim.job.isprintable():
            raise AssertionError(f"a job called {claim.job!r}")
    identity.parse_local_rank(found)
    titles.scheduler_job(found)


def _cmdline(data: bytes) -> None:
    words = procfs.parse_cmdline(data)
    identity.parse_arguments(words)
    shown = (
        shown_command(words, identity.COMMAND_CAP),
        titles.title(words, ""),
        launchers.launcher_name(words),
        launchers.purpose(words),
    )
    if not all(text.isprintable() for text in shown):
        raise AssertionError(f"not printable: {shown!r}")
    launchers.is_tool(words)
    launchers.is_ray_controller(words)


_PROC = (
    procfs.parse_stat, procfs.parse_status, _environ, _cmdline, kinship.parse_net_tcp,
    lambda data: procfs.parse_cpu_list(data.decode("ascii", "replace")), kinship.parse_listening,
)  # fmt: skip
_ENVIRON = (
    b"RANK=3\0LOCAL_RANK=3\0WORLD_SIZE=8\0MASTER_ADDR=10.0.0.1\0MASTER_PORT=29500\0TORCHELASTIC_RUN_ID=none\0GROUP_RANK=0\0",
    b"OMPI_COMM_WORLD_RANK=1\0OMPI_COMM_WORLD_SIZE=4\0OMPI_COMM_WORLD_LOCAL_RANK=1\0PMIX_NAMESPACE=prte-a-1@1\0",
    b"SLURM_PROCID=2\0SLURM_NTASKS=4\0SLURM_JOB_ID=77\0SLURM_STEP_ID=0\0SLURM_LOCALID=0\0SLURM_JOB_NAME=a b\0",
    b"PMI_RANK=1\0PMI_SIZE=2\0HOROVOD_RANK=1\0HOROVOD_SIZE=2\0NODE_RANK=1\0",
)
_COMMANDS = (
    b"python\0-m\0torch.distributed.run\0--nproc-per-node\0008\0train.py\0--rank=3\0",
    b"ray::RayTrainWorker.run\0",
)


def _seeds() -> list[bytes]:
    own = [Path(f"/proc/self/{name}").read_bytes()[:1000] for name in ("stat", "status", "net/tcp")]
    return [b"\0" + own[0], b"\1" + own[1], b"\4" + own[2], b"\5" + b"0-3,8,64-127",
            *(b"\2" + one for one in _ENVIRON), *(b"\3" + one for one in _COMMANDS)]  # fmt: skip


def _maps(data: bytes) -> None:
    maps.parse_maps(data)
    maps.parse_maps(data, lambda path: "python" in path)
    maps.parse_mapped_files(data)


def _mountinfo(data: bytes) -> None:
    found = mounts.Mounts(mounts.parse_mountinfo(data))
    found.by_path("/data/checkpoints/step-7")
    found.by_device(254, 1)


TARGETS = (
    Target(
        "proc",
        "stat, status, environ and command line of processes, and what they claim to be",
        chosen_by_first_byte(*_PROC),
        _seeds,
        raises=(ValueError,),
        words=(
            b"\0",
            b" ",
            b"\n",
            b"Tgid:\t",
            b"NSpid:\t",
            b"9" * 20,
            b"RANK=",
            b"=",
            b"--rank",
            b"WORLD_SIZE=",
            b"(",
            b")",
            b",",
            b"-",
        ),
    ),
    Target(
        "maps",
        "mapped files of a process",
        _maps,
        lambda: [Path("/proc/self/maps").read_bytes()[:1000]],
        words=(b" /", b"-", b" (deleted)", b"\n", b"7f00-7f01 r-xp 0 fd:00 7 /x\n", b"00000000-"),
    ),
    Target(
        "mountinfo",
        "mounts of a process",
        _mountinfo,
        lambda: [Path("/proc/self/mountinfo").read_bytes()[:1000]],
        words=(b" - ", b"\\040", b" ", b"\n", b"\\777", b"1 2 3:4 / /x rw - a b c\n"),
    ),
)
