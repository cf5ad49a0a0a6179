"""Can this host be observed? Kernel, BPF, headers, rights, libraries: what is missing, and how to get it."""

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

from rankscope.probes.bpf import btf, headers
from rankscope.probes.errors import RankscopeError

_MIN_KERNEL = (5, 8)
_TRACEPOINTS = ("sched/sched_switch", "sched/sched_wakeup", "sched/sched_process_exit", "syscalls/sys_enter_read")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. `ok` None: could not be found out. `required`: without it nothing can be observed."""

    name: str
    ok: bool | None
    detail: str
    remedy: str
    required: bool


def examine(root: Path = Path("/")) -> tuple[Finding, ...]:
    """Every check, in the order an operator would fix them. Never raises."""
    checks: tuple[Callable[[Path], Finding], ...] = (
        _machine, _kernel, _root_rights, _pid_namespace, _bcc, _headers, _tracefs, _btf, _lockdown, _load, _numpy, _pyspy, _nvml, _psi,
    )  # fmt: skip
    findings = []
    for check in checks:
        try:
            findings.append(check(root))
        except Exception as error:
            findings.append(Finding(check.__name__.strip("_"), None, f"could not be examined: {error}", "", False))
    return tuple(findings)


def _machine(_: Path) -> Finding:
    machine = platform.machine()
    return Finding("machine", machine == "x86_64", machine, "Only x86-64 is supported so far.", True)


def _kernel(_: Path) -> Finding:
    release = os.uname().release
    numbers = tuple(int("".join(filter(str.isdigit, part)) or 0) for part in release.split(".")[:2])
    return Finding("kernel", numbers >= _MIN_KERNEL, release, "Linux 5.8 or newer is needed (BPF ring buffer).", True)


def _root_rights(_: Path) -> Finding:
    uid = os.geteuid()
    return Finding("rights", uid == 0, "root" if uid == 0 else f"user {uid}", "Run as root (sudo).", True)


def _pid_namespace(root: Path) -> Finding:
    from rankscope.observer.live.kernel_probes import in_initial_pid_namespace

    inside = in_initial_pid_namespace(root)
    return Finding(
        "pid namespace", inside, "the host's" if inside else "one of its own: threads have other numbers than in the kernel",
        "Run on the host, or in a container that shares the host's pid namespace (hostPID).", True,
    )  # fmt: skip


def _bcc(_: Path) -> Finding:
    if importlib.util.find_spec("bcc") is None:
        return Finding(
            "bcc", False, f"not importable by {sys.executable}",
            "apt-get install python3-bpfcc (dnf install python3-bcc), and a virtual environment with system site packages.", True,
        )  # fmt: skip
    import bcc

    return Finding("bcc", True, str(getattr(bcc, "__version__", "present")), "", True)


def _headers(root: Path) -> Finding:
    try:
        found = headers.find(root)
    except RankscopeError as error:
        return Finding("kernel headers", False, str(error), error.help, True)
    return Finding("kernel headers", True, found.how, "", True)


def _tracefs(root: Path) -> Finding:
    for place in ("sys/kernel/tracing/events", "sys/kernel/debug/tracing/events"):
        if (root / place).is_dir():
            missing = [point for point in _TRACEPOINTS if not (root / place / point).is_dir()]
            detail = f"missing: {', '.join(missing)}" if missing else "tracefs is mounted"
            return Finding(
                "tracepoints",
                not missing,
                detail,
                "The kernel needs CONFIG_FTRACE_SYSCALLS and CONFIG_SCHED_TRACER.",
                True,
            )
    return Finding(
        "tracepoints", True, "tracefs is not mounted; it is mounted for the observer alone when needed", "", True
    )


def _btf(root: Path) -> Finding:
    try:
        offset = btf.kernel(root).offset("task_struct", "files")
        btf.kernel.cache_clear()
    except RankscopeError as error:
        return Finding("kernel types (BTF)", False, str(error), error.help, False)
    return Finding("kernel types (BTF)", True, f"task_struct.files at {offset}", "", False)


def _lockdown(root: Path) -> Finding:
    path = root / "sys/kernel/security/lockdown"
    try:
        mode = path.read_text(encoding="ascii").partition("[")[2].partition("]")[0]
    except OSError:
        return Finding("kernel lockdown", True, "none", "", True)
    return Finding(
        "kernel lockdown", mode != "confidentiality", mode,
        "Lockdown 'confidentiality' forbids reading memory from BPF: boot with lockdown=integrity.", True,
    )  # fmt: skip


def _load(root: Path) -> Finding:
    """The real thing: compile all probes, attach them, and let go of them again."""
    name = "probes load"
    if os.geteuid() != 0 or root != Path("/"):
        return Finding(name, None, "needs root on the live host", "Run as root (sudo).", True)
    from rankscope.observer.live import kernel_probes

    try:
        probes = kernel_probes.load(hz=99)
    except RankscopeError as error:
        return Finding(name, False, str(error), error.help, True)
    notes, programs = probes.notes, len(probes.module.costs())
    probes.close()
    if notes:
        return Finding(name, False, "; ".join(notes), "What is left still works.", False)
    return Finding(
        name, True, f"{programs} programs loaded and attached" if programs else "all loaded and attached", "", True
    )


def _numpy(_: Path) -> Finding:
    names = ("numpy", "pyarrow", "psutil", "typer")
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names if name not in missing)
    return Finding("libraries", not missing, versions or "none", f"pip install {' '.join(missing)}", True)


def _pyspy(_: Path) -> Finding:
    beside = Path(sys.executable).with_name("py-spy")
    found = str(beside) if beside.exists() else shutil.which("py-spy")
    return Finding(
        "py-spy (fallback)", found is not None, "present" if found else "absent", "pip install py-spy", False
    )


def _nvml(_: Path) -> Finding:
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:
        return Finding(
            "NVML",
            None,
            f"no NVIDIA driver here ({type(error).__name__})",
            "Only needed on hosts with NVIDIA GPUs.",
            False,
        )
    count = pynvml.nvmlDeviceGetCount()
    pynvml.nvmlShutdown()
    return Finding("NVML", True, f"{count} GPUs", "", False)


def _psi(root: Path) -> Finding:
    there = (root / "proc/pressure/cpu").exists()
    return Finding(
        "pressure stall information",
        there,
        "present" if there else "absent",
        "Boot with psi=1 for more evidence.",
        False,
    )
