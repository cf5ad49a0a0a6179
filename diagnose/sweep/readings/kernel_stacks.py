"""Find what of the host a task hangs in: a driver, a file server, a disk, or none of these.

State D alone proves nothing: any user can hold a process in it for ever (vfork(2) and a sleeping
child, an own FUSE file system, a page withheld by userfaultfd(2)). What counts is where the kernel
waits, in the innermost layers only: a file lock, say, may belong to a task that hangs for other
reasons. If a page of a process is waited for, only the wait for that page counts: a driver that
copies from a process depends on the page's provider, which may be a FUSE server. In:
/proc/PID/task/TID/stack (CAP_SYS_ADMIN); else wchan, which names one function and no module.
/sys/block: whether loop devices are in use, whose files may be a user's.
"""

from __future__ import annotations

import itertools
import os
import re
from dataclasses import dataclass
from pathlib import Path

from rankscope.probes.host.procfs import ROOT, proc_path, read_file

NVIDIA, DISK = "the NVIDIA driver", "a disk"
_FRAME = re.compile(r"^\[<[0-9a-f]+>\] ([\w.]+)\+0x[0-9a-f]+/0x[0-9a-f]+(?: \[(\w+)\])?$")
_STACK_CAP = 16 << 10
# What a task waits for, by module, or by function prefix if built in.
_MODULES = {
    **dict.fromkeys(("nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm", "nvidia_peermem"), NVIDIA),
    "amdgpu": "the AMD GPU driver",
    "sunrpc": "a request to an NFS server",
    **dict.fromkeys(("ptlrpc", "lnet", "ko2iblnd", "ksocklnd"), "a request to a Lustre server"),
    "libceph": "a request to a Ceph server",
    "cifs": "a request to an SMB server",
    **dict.fromkeys(("mlx5_core", "mlx5_ib", "ib_core", "rdma_cm"), "an RDMA driver"),
    **dict.fromkeys(("nvme", "nvme_core", "nvme_rdma", "nvme_tcp", "scsi_mod", "sd_mod", "md_mod"), DISK),
}
_FUNCTIONS = {
    "rpc_": "sunrpc", "xprt_": "sunrpc", "nvidia_": "nvidia", "uvm_": "nvidia_uvm", "ptlrpc_": "ptlrpc", "mlx5_": "mlx5_core",
    "nvme_": "nvme_core", "scsi_": "scsi_mod",
}  # fmt: skip
# Waits for some block device, maybe a loop device that a user attached.
_ANY_BLOCK_DEVICE = ("blk_mq_get_tag", "blk_execute_rq", "submit_bio_wait")
# Frames whose duration an unprivileged user decides.
_OF_USERS = re.compile(
    r"^(?:fuse_|handle_userfault|__do_sys_vfork|ptrace_|__refrigerator|.*(?:flock|setlk|posix_lock))"
)
# Frames inside these wait for a page of the process's memory or for the lock of its address space;
# outer frames only need it. Faults: x86-64 (`page_fault`, `__do_page_fault` before 5.8), arm64
# (`do_mem_abort` in `el1_abort`, earlier `el1_da`), and common ones; some compilers leave only the
# outermost. Then pages pinned without a fault, and driver functions that take the lock themselves,
# in a kernel function that names no driver.
_OF_MEMORY = re.compile(
    r"^(?:(?:asm_exc_|exc_|async_|do_async_|do_|__do_|___do_|trace_do_|handle_)?page_fault|do_user_addr_fault|do_mem_abort"
    r"|el1_(?:abort|da)|lock_mm_and_find_vma|handle_mm_fault|fixup_user_fault|faultin_page|hmm_range_fault|populate_vma_page_range"
    r"|\w*(?:get|pin)_user_pages?\w*|_*gup_\w+|os_lock_user_pages|amdgpu_hmm_range_get_pages)(?:\.\w+)*$"
)


@dataclass(frozen=True, slots=True)
class Held:
    """What of the host a task waits for, as words in `by`; '' if nothing of it.

    `seen` False: neither stack nor wchan is readable.
    """

    by: str
    seen: bool


def held(pid: int, tid: int | None = None, root: Path = ROOT) -> Held:
    """Find what of the host a task hangs in, from its kernel stack. Raises OSError if it has ended.

    `tid`: a thread of the process; None: the process itself.
    """
    base = (pid, "task", tid) if tid is not None else (pid,)
    try:
        text = read_file(proc_path(root, *base, "stack"), _STACK_CAP).decode("ascii", "replace")
        frames = [(found[1], found[2] or "") for line in text.splitlines() if (found := _FRAME.match(line))]
    except PermissionError:
        frames = []
    if not frames:
        try:
            name = read_file(proc_path(root, *base, "wchan"), 256).decode("ascii", "replace").strip()
        except PermissionError:
            name = ""
        frames = [(name, "")] if name not in ("", "0") else []
    by = waits_for(frames)
    if not by and (of_disks := waits_for(frames, True)) and not _loop_devices(root):
        by = of_disks
    return Held(by, bool(frames))


def _loop_devices(root: Path) -> bool:
    """Whether a loop device is in use.

    Unreadable counts as yes, so that no disk is reported wrongly.
    """
    try:
        with os.scandir(Path(root) / "sys/block") as blocks:
            return any(
                os.path.exists(f"{block.path}/loop/backing_file")  # noqa: PTH110
                for block in blocks
                if block.name.startswith("loop")
            )
    except FileNotFoundError:
        return False
    except OSError:
        return True


def waits_for(frames: list[tuple[str, str]], block_layer: bool = False) -> str:
    """Return what of the host a kernel stack waits for, in words; '' if nothing. Never raises.

    `frames`: (function, module), innermost first; `block_layer`: functions of the block layer count as a disk.
    """
    if any(_OF_USERS.match(function) for function, _ in frames):
        return ""
    inside = itertools.takewhile(lambda frame: not _OF_MEMORY.match(frame[0]), frames)
    for function, module in inside:
        built_in = next((name for start, name in _FUNCTIONS.items() if function.startswith(start)), "")
        if block_layer and function.startswith(_ANY_BLOCK_DEVICE):
            return DISK
        if found := _MODULES.get(module or built_in):
            return found
    return ""
