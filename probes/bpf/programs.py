"""Load compiled programs into the kernel. Source: include/uapi/linux/bpf.h (BPF_PROG_LOAD)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rankscope.probes.base import abilities
from rankscope.probes.bpf import syscalls

# enum bpf_prog_type; a probe on a function of a program is a KPROBE too
KPROBE, TRACEPOINT, PERF_EVENT = 2, 5, 7
_PROG_LOAD = 5
INSTRUCTION = np.dtype([("operation", "u1"), ("registers", "u1"), ("offset", "<i2"), ("value", "<i4")])
_LOAD_64, _SOURCE_IS_MAP = 0x18, 1
_LOG_BYTES = 1 << 20
_NAME_BYTES = 15
_LOADS = 5  # as often as libbpf tries
_ALL_SIGNALS = signal.valid_signals()
_CURRENT_TASK_BTF, _TASK_PT_REGS = 158, 175  # enum bpf_func_id
_SET_ZERO, _EXIT = struct.pack("<BBhi", 0xB7, 0, 0, 0), struct.pack("<BBhi", 0x95, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Program:
    """A program that the kernel has accepted."""

    name: str
    fd: int


def with_maps(code: bytes, descriptors: Sequence[int]) -> bytes:
    """Replace map numbers in a program's instructions by `descriptors`, indexed by them; return the code.

    The second half of a wide instruction has operation 0 and never matches.
    """
    instructions = np.frombuffer(code, INSTRUCTION).copy()
    refers = (instructions["operation"] == _LOAD_64) & (instructions["registers"] >> 4 == _SOURCE_IS_MAP)
    instructions["value"][refers] = np.asarray(descriptors, np.int32)[instructions["value"][refers]]
    return bytes(instructions.tobytes())


def load(name: str, code: bytes, kind: int, licence: str, attach_type: int = -1) -> Program:
    """Load a program into the kernel. Raises OSError with the last line of the verifier's log.

    `kind`: enum bpf_prog_type. `attach_type`: enum bpf_attach_type, -1 for none.
    """
    try:
        return Program(name, _load(name, code, kind, licence, attach_type, None))
    except OSError as refusal:
        log = ctypes.create_string_buffer(_LOG_BYTES)
        try:
            return Program(name, _load(name, code, kind, licence, attach_type, log))
        except OSError:
            said = log.value.decode("utf-8", "replace").strip().splitlines()
            words = [line for line in said if not line.startswith("processed ")][-1:]
            raise OSError(refusal.errno, "; ".join([refusal.strerror or "", *words])) from refusal


def has_task_registers() -> bool:
    """Tell whether programs may read the current thread's registers:
    bpf_task_pt_regs(bpf_get_current_task_btf()).

    Raises OSError where no program can be loaded at all.
    """
    if abilities.lacking(abilities.TASK_REGISTERS):
        return False
    calls = [_call(_CURRENT_TASK_BTF), _move(1, 0), _call(_TASK_PT_REGS)]
    # the second distinguishes a refused helper from refused programs
    for body, answer in ((calls, True), ([], False)):
        code = b"".join((*body, _SET_ZERO, _EXIT))
        try:
            os.close(_load("rs_trial", code, KPROBE, "GPL", -1, None))
        except OSError:
            if not body:
                raise
        else:
            return answer
    raise AssertionError("the last round returns or raises")


def _call(helper: int) -> bytes:
    """Encode the instruction that calls a BPF helper, by its number in enum bpf_func_id."""
    return struct.pack("<BBhi", 0x85, 0, 0, helper)  # BPF_JMP | BPF_CALL


def _move(target: int, source: int) -> bytes:
    """Encode the instruction that copies one register to another, both by number."""
    return struct.pack("<BBhi", 0xBF, source << 4 | target, 0, 0)  # BPF_ALU64 | BPF_MOV | BPF_X


def _load(
    name: str, code: bytes, kind: int, licence: str, attach_type: int, log: ctypes.Array[ctypes.c_char] | None
) -> int:
    """Load a program with bpf(2), retrying on EAGAIN; return its descriptor. Raises OSError.

    `log`: buffer for the verifier's log, None for no log.
    """
    instructions = ctypes.create_string_buffer(code, len(code))
    words = ctypes.create_string_buffer(licence.encode())
    request = struct.pack(
        "<IIQQIIQII16sII", kind, len(code) // INSTRUCTION.itemsize, ctypes.addressof(instructions), ctypes.addressof(words),
        int(log is not None), len(log) if log is not None else 0, ctypes.addressof(log) if log is not None else 0,
        0, 0, name.encode()[:_NAME_BYTES], 0, max(attach_type, 0),
    )  # fmt: skip
    with _signals_wait():
        for left in reversed(range(_LOADS)):
            try:
                return syscalls.call(_PROG_LOAD, ctypes.create_string_buffer(request, len(request)))
            except BlockingIOError:
                if not left:
                    raise
    raise AssertionError("the last round returns or raises")


@contextlib.contextmanager
def _signals_wait() -> Iterator[None]:
    """Block signals to this thread: with one pending (a resized terminal) the verifier gives up with EAGAIN."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ALL_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
