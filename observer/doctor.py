"""Check whether this host can be observed: kernel, BPF, rights, libraries; what is missing, and how to get it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rankscope.observer.sources import ESSENTIAL, Seen, States
from rankscope.probes.base import abilities
from rankscope.probes.base.errors import RankscopeError
from rankscope.probes.bpf import btf, loader, tables

_TRACEPOINTS = ("sched/sched_switch", "sched/sched_waking", "sched/sched_process_exit", "syscalls/sys_enter_read")


@dataclass(frozen=True, slots=True)
class Requirement:
    """The result of one check.

    `ok` None: could not be determined. `required`: without it nothing can be observed. `sources`:
    what each source of a window can give here, where that was tried.
    """

    name: str
    ok: bool | None
    detail: str
    remedy: str
    required: bool
    sources: States = ()


def examine(root: Path = Path("/")) -> tuple[Requirement, ...]:
    """Run every check, in the order an operator would fix them. Never raises."""
    checks: tuple[Callable[[Path], Requirement], ...] = (
        _machine, _kernel, _root_rights, _pid_namespace, _programs, _tracefs, _btf, _lockdown, _load, _numpy, _pyspy, _nvml, _psi,
        _collectives,
    )  # fmt: skip
    findings = []
    for check in checks:
        try:
            findings.append(check(root))
        except Exception as error:
            findings.append(Requirement(check.__name__.strip("_"), None, f"could not be examined: {error}", "", False))
    return tuple(findings)


def _machine(_: Path) -> Requirement:
    """Check that the programs can be compiled for this machine's architecture."""
    machine = platform.machine()
    return Requirement(
        "machine",
        machine in loader.MACHINES,
        machine,
        f"Only {' and '.join(loader.MACHINES)} are supported so far.",
        True,
    )


def _kernel(_: Path) -> Requirement:
    """Check by use that the kernel has BPF ring buffers: distributions backport features, and leave some out."""
    release, remedy = os.uname().release, "A kernel with BPF ring buffers is needed (CONFIG_BPF_SYSCALL, Linux 5.8)."
    try:
        rings: bool | None = tables.has_rings()
    except (OSError, ValueError):  # the caller lacks the right, also that to raise its limit of locked memory
        rings = None
    return Requirement("kernel", rings, release, remedy if rings is False else "Ask as root.", True)


def _root_rights(_: Path) -> Requirement:
    """Check that the effective user is root."""
    uid = os.geteuid()
    return Requirement("rights", uid == 0, "root" if uid == 0 else f"user {uid}", "Run as root (sudo).", True)


def _pid_namespace(root: Path) -> Requirement:
    """Check that this process is in the host's initial pid namespace, whose pids the kernel's probes report."""
    from rankscope.observer.live.kernel_probes import in_initial_pid_namespace

    inside = in_initial_pid_namespace(root)
    return Requirement(
        "pid namespace", inside, "the host's" if inside else "one of its own: threads have other numbers than in the kernel",
        "Run on the host, or in a container that shares the host's pid namespace (hostPID).", True,
    )  # fmt: skip


def _programs(_: Path) -> Requirement:
    """Check that the BPF programs are compiled ahead for these sources, or that bcc is there to compile them."""
    from rankscope.observer import programs_ahead

    name = "programs"
    if programs_ahead.are_there(loader.machine()):
        return Requirement(name, True, "compiled ahead", "", True)
    if abilities.lacking(abilities.COMPILER) or importlib.util.find_spec("bcc") is None:
        return Requirement(
            name, False, f"not compiled ahead for these sources, and {sys.executable} cannot import bcc",
            "Install a package of scripts/package, which contains them; or apt-get install python3-bpfcc (dnf install "
            "python3-bcc), and use a virtual environment with system site packages.", True,
        )  # fmt: skip
    import bcc  # pyright: ignore[reportMissingImports]

    return Requirement(name, True, f"compiled here, by bcc {getattr(bcc, '__version__', '')}".strip(), "", True)


def _tracefs(root: Path) -> Requirement:
    """Check that the needed tracepoints exist.

    Passes where tracefs is not mounted: the observer mounts it when needed.
    """
    for place in ("sys/kernel/tracing/events", "sys/kernel/debug/tracing/events"):
        if (root / place).is_dir():
            missing = [point for point in _TRACEPOINTS if not (root / place / point).is_dir()]
            detail = f"missing: {', '.join(missing)}" if missing else "tracefs is mounted"
            return Requirement(
                "tracepoints",
                not missing,
                detail,
                "The kernel needs CONFIG_FTRACE_SYSCALLS and CONFIG_SCHED_TRACER.",
                True,
            )
    return Requirement(
        "tracepoints", True, "tracefs is not mounted; it is mounted for the observer alone when needed", "", True
    )


def _btf(root: Path) -> Requirement:
    """Check that the kernel's types (BTF) can be read, by looking up one field; not required."""
    try:
        offset = btf.kernel(root).offset("task_struct", "files")
        btf.forget()
    except RankscopeError as error:
        return Requirement("kernel types (BTF)", False, str(error), error.help, False)
    return Requirement("kernel types (BTF)", True, f"task_struct.files at {offset}", "", False)


def _lockdown(root: Path) -> Requirement:
    """Check that the kernel's lockdown mode is not 'confidentiality', which forbids BPF to read memory."""
    path = root / "sys/kernel/security/lockdown"
    try:
        mode = path.read_text(encoding="ascii").partition("[")[2].partition("]")[0]
    except OSError:
        return Requirement("kernel lockdown", True, "none", "", True)
    return Requirement(
        "kernel lockdown", mode != "confidentiality", mode,
        "Lockdown 'confidentiality' forbids reading memory from BPF: boot with lockdown=integrity.", True,
    )  # fmt: skip


def _load(root: Path) -> Requirement:
    """Load and attach all probes, detach them again, and report what each source of a window can give.

    `ok` None without root, or where `root` is a recorded tree.
    """
    name = "probes load"
    if os.geteuid() != 0 or root != Path("/"):
        return Requirement(name, None, "needs root on the live host", "Run as root (sudo).", True)
    from rankscope.observer.live import kernel_probes, tried

    try:
        probes = kernel_probes.load(hz=99)
    except RankscopeError as error:
        return Requirement(name, False, str(error), error.help, True)
    try:
        found = tried.of_host(probes)
    finally:
        probes.close()
    missing = [one for one in found if one.seen is not Seen.WHOLE]
    of_programs = ("is not attached", "not sampled", "not timed")
    others = (note for note in probes.notes if not any(words in note for words in of_programs))
    said = [*(one.why for one in missing), *others]
    if any(one.source in ESSENTIAL and one.seen is Seen.NOT for one in missing):
        remedy = (
            "No verdict is possible without it. A program that the verifier refuses loads on another kernel (Linux 6.12 accepts "
            "all); missing rights and lockdown are reported above."
        )
        return Requirement(name, False, "; ".join(said), remedy, True, found)
    if said:
        return Requirement(name, False, "; ".join(said), "All else still works.", False, found)
    return Requirement(name, True, "; ".join(["all programs loaded and attached", *probes.remarks]), "", True, found)


def _numpy(_: Path) -> Requirement:
    """Check that the Python libraries which every run needs are installed: numpy, pyarrow, psutil, typer."""
    names = ("numpy", "pyarrow", "psutil", "typer")
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names if name not in missing)
    return Requirement("libraries", not missing, versions or "none", f"pip install {' '.join(missing)}", True)


def _pyspy(_: Path) -> Requirement:
    """Check that py-spy, the fallback for Python stacks, is next to this Python or on PATH; not required."""
    beside = Path(sys.executable).with_name("py-spy")
    found = str(beside) if beside.exists() else shutil.which("py-spy")
    return Requirement(
        "py-spy (fallback)", found is not None, "present" if found else "absent", "pip install py-spy", False
    )


def _nvml(_: Path) -> Requirement:
    """Check that NVIDIA's library NVML answers, and count its GPUs; `ok` None without a driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except ImportError:
        return Requirement(
            "NVML", None, "nvidia-ml-py is not installed", "pip install nvidia-ml-py, on hosts with NVIDIA GPUs.", False
        )
    except Exception as error:
        return Requirement(
            "NVML",
            None,
            f"no NVIDIA driver here ({type(error).__name__})",
            "Only needed on hosts with NVIDIA GPUs.",
            False,
        )
    count = pynvml.nvmlDeviceGetCount()
    pynvml.nvmlShutdown()
    return Requirement("NVML", True, f"{count} GPUs", "", False)


def _psi(root: Path) -> Requirement:
    """Check that the kernel reports pressure stall information (/proc/pressure); not required."""
    there = (root / "proc/pressure/cpu").exists()
    return Requirement(
        "pressure stall information",
        there,
        "present" if there else "absent",
        "Boot with psi=1 for more evidence.",
        False,
    )


def _collectives(root: Path) -> Requirement:
    """Check whether waiting for other ranks can be separated from own time, for each running job."""
    from rankscope.observer.sight import see

    try:
        sight = see(root)
    except RankscopeError as error:
        return Requirement("collectives", None, str(error), error.help, False)
    titles = {found.identity.job: found.identity.title or found.identity.job for found in sight.census.ranks}
    jobs = sight.collectives
    if not jobs:
        return Requirement("collectives", None, "no training process runs now", "Run again while a job runs.", False)
    return Requirement(
        "collectives",
        all(one.seen for one in jobs),
        ", ".join(f"{titles[one.job]}: {one.text}" for one in jobs),
        "Own time and waiting of this job cannot be separated: use a library that exports its functions.",
        False,
    )
