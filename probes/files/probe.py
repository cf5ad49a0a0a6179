"""Time in read, write and sync system calls of watched processes, with bytes and device.

In: a loaded module. Out: FILE events in the ring (calls of 0.1 ms and more), sums of all calls per
process and operation.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rankscope.probes.bpf import btf
from rankscope.probes.bpf.compiler.variants import Generated, Variant
from rankscope.probes.bpf.module import Module, Tracepoint

SOURCE = Path(__file__).parent / "files.bpf.c"

# Index = operation number in the events. The second word is the kind of operation.
OPERATIONS: tuple[tuple[str, str], ...] = (
    ("read", "read"),
    ("pread64", "read"),
    ("readv", "read"),
    ("preadv", "read"),
    ("write", "write"),
    ("pwrite64", "write"),
    ("writev", "write"),
    ("pwritev", "write"),
    ("fsync", "sync"),
    ("fdatasync", "sync"),
)

# File types: the top four bits of st_mode.
FIFO, CHARACTER, DIRECTORY, BLOCK, REGULAR, SOCKET = 1, 2, 4, 6, 8, 12

_OFFSETS = {
    "RS_TASK_FILES": ("task_struct", "files"),
    "RS_FILES_FDT": ("files_struct", "fdt"),
    "RS_FDTABLE_FD": ("fdtable", "fd"),
    "RS_FILE_INODE": ("file", "f_inode"),
    "RS_INODE_MODE": ("inode", "i_mode"),
    "RS_INODE_SB": ("inode", "i_sb"),
    "RS_SB_DEV": ("super_block", "s_dev"),
}
NUMBERS = tuple(_OFFSETS)  # constants that the host decides


@dataclass(frozen=True, slots=True)
class FileSum:
    """All calls of one operation by one process since the probe was attached."""

    tgid: int
    operation: str
    count: int
    seconds: float
    bytes: int


def numbers(root: Path = Path("/")) -> dict[str, int]:
    """Return the constants of files.bpf.c for this kernel, by name: member offsets in bytes.

    Raises NoBtf without type information.
    """
    offsets = btf.offsets(_OFFSETS, root)
    btf.forget()
    return offsets


def programs() -> Generated:
    """Generate the programs of all operations, to be compiled behind files.bpf.c.

    One text serves all: records of system calls are the number and then the arguments, a word each
    (struct syscall_trace_enter), and the descriptor is the first argument of each.
    """
    text = (
        "int rs_file_in(struct rs_at__syscalls__sys_enter_read *args)"
        " { return rs_file_enter(RS_NUMBER(0), (u32)args->fd); }\n"
        "int rs_file_out(struct rs_at__syscalls__sys_exit_read *args) { return rs_file_exit(args->ret); }\n"
    )
    every = range(len(OPERATIONS))
    return Generated(
        text,
        (
            *(Variant(f"rs_file_in_{index}", "rs_file_in", (index,)) for index in every),
            *(Variant(f"rs_file_out_{index}", "rs_file_out", ()) for index in every),
        ),
    )


def tracepoints() -> tuple[Tracepoint, ...]:
    """List the entry and exit program of each operation, with the tracepoint of its system call."""
    return tuple(
        Tracepoint(f"rs_file_{way}_{index}", f"syscalls:sys_{side}_{call}")
        for index, (call, _) in enumerate(OPERATIONS)
        for way, side in (("in", "enter"), ("out", "exit"))
    )


def sums(module: Module) -> tuple[FileSum, ...]:
    """Read calls, seconds and bytes per process and system call; `operation` names the call ('pread64', 'fsync')."""
    return tuple(
        FileSum(int(key.tgid), OPERATIONS[int(key.op)][0], int(row.count), int(row.ns) / 1e9, int(row.bytes))
        for key, row in module.maps["rs_file_sums"].items()
    )


def device_numbers(kernel_dev: int) -> tuple[int, int]:
    """Split the kernel's internal dev_t into (major, minor): 12 and 20 bits
    (include/linux/kdev_t.h).
    """
    return kernel_dev >> 20, kernel_dev & 0xFFFFF
