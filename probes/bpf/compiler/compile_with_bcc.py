"""The compiler, run as a separate program: C on standard input, the result on standard output, both
as JSON.

bcc maps 250 MB of libraries and never frees what it allocates, so it lives only as long as it
compiles. It imports nothing of ours: compiled.py starts it by its path, and documents the two JSON
objects.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import signal
import struct
import sys
from collections.abc import Iterator
from typing import Any

_PR_SET_PDEATHSIG = 1
_NO_BCC = 3  # exit code, as compiled.py knows it
_LOAD_64, _CALL = 0x18, 0x85  # opcodes (include/uapi/linux/bpf.h): BPF_LD | BPF_IMM | BPF_DW and BPF_JMP | BPF_CALL
_MAP_BY_DESCRIPTOR = 1  # source register of the former, BPF_PSEUDO_MAP_FD
_COMPILER = ("libbcc", "libclang", "libLLVM")
_NO_HEADERS = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH120, PTH100 - has include/linux/kconfig.h
# Include guards of bcc's own helpers.h and bpf.h, so that they and what they include are skipped
# (kernel.bpf.h has what is needed of them). No debug information, which nobody reads.
_INSTEAD_OF_HEADERS = ("-D__BPF_HELPERS_H", "-D_UAPI__LINUX_BPF_H__", "-g0", "-Wno-everything")


class NotPortable(Exception):
    """The compiled program can only be loaded by the process that compiled it."""


def main() -> int:
    # nobody would read the answer of an orphan
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    asked = json.load(sys.stdin)
    sys.path.append(asked["bcc"])
    try:
        from bcc.libbcc import lib
    except ImportError as error:
        sys.stderr.write(f"error: {error}\n")
        return _NO_BCC
    flags = [*_INSTEAD_OF_HEADERS, *asked["flags"]]
    words = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
    os.environ["BCC_KERNEL_SOURCE"] = str(_NO_HEADERS)
    module = lib.bpf_module_create_c_from_string(asked["text"].encode(), 0, words, len(flags), True, None)
    if not module:
        return 1
    tables = list(_tables(lib, module))
    numbers = {descriptor: number for number, (descriptor, _) in enumerate(tables)}
    answer = {
        "maps": [table for _, table in tables],
        "programs": [
            {"name": name, "code": base64.b64encode(_with_numbers(name, code, numbers)).decode()}
            for name, code in _functions(lib, module)
        ],
        "license": lib.bpf_module_license(module).decode(),
        "compiler": [[path, *_stamp(path)] for path in sorted(_mapped_compiler())],
    }
    json.dump(answer, sys.stdout)
    return 0


def _tables(lib: Any, module: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield descriptor and description of each map.

    bcc's binding does not declare the types of these functions, so they are declared here.
    """
    lib.bpf_num_tables.restype = ctypes.c_size_t
    lib.bpf_num_tables.argtypes = [ctypes.c_void_p]
    by_number: tuple[tuple[str, Any], ...] = (
        ("name", ctypes.c_char_p), ("fd_id", ctypes.c_int), ("type_id", ctypes.c_int), ("max_entries_id", ctypes.c_size_t),
        ("flags_id", ctypes.c_int), ("key_size_id", ctypes.c_size_t), ("leaf_size_id", ctypes.c_size_t),
        ("key_desc_id", ctypes.c_char_p), ("leaf_desc_id", ctypes.c_char_p),
    )  # fmt: skip
    for number in range(lib.bpf_num_tables(module)):
        said = {}
        for name, result in by_number:
            function = getattr(lib, f"bpf_table_{name}")
            function.restype, function.argtypes = result, [ctypes.c_void_p, ctypes.c_size_t]
            said[name] = function(module, number)
        yield (
            said["fd_id"],
            {
                "name": said["name"].decode(),
                "kind": said["type_id"],
                "key_bytes": said["key_size_id"],
                "leaf_bytes": said["leaf_size_id"],
                "max_entries": said["max_entries_id"],
                "flags": said["flags_id"],
                "key": json.loads(said["key_desc_id"] or "null"),
                "leaf": json.loads(said["leaf_desc_id"] or "null"),
            },
        )


def _functions(lib: Any, module: int) -> Iterator[tuple[str, bytes]]:
    for number in range(lib.bpf_num_functions(module)):
        name = lib.bpf_function_name(module, number)
        yield name.decode(), ctypes.string_at(lib.bpf_function_start(module, name), lib.bpf_function_size(module, name))


def _with_numbers(name: str, code: bytes, numbers: dict[int, int]) -> bytes:
    """Replace map descriptors in the instructions by map numbers, valid in any process.

    Raises NotPortable where the program refers to anything else of this process.
    """
    changed, at = bytearray(code), 0
    while at < len(code):
        operation, registers, value = struct.unpack_from("<BBxxi", code, at)
        source = registers >> 4
        if operation == _LOAD_64 and source == _MAP_BY_DESCRIPTOR:
            struct.pack_into("<i", changed, at + 4, numbers[value])
        elif operation in (_LOAD_64, _CALL) and source:
            raise NotPortable(f"{name} refers to something other than a map")
        at += 16 if operation == _LOAD_64 else 8
    return bytes(changed)


def _mapped_compiler() -> set[str]:
    """List the compiler's library files that this process has mapped."""
    found = set()
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as lines:  # noqa: PTH123 - no more than it must import
        for line in lines:
            path = line.rstrip("\n").partition("/")
            if path[1] and path[2].rpartition("/")[2].startswith(_COMPILER):
                found.add("/" + path[2])
    return found


def _stamp(path: str) -> tuple[int, int]:
    status = os.stat(path)  # noqa: PTH116
    return status.st_size, status.st_mtime_ns


if __name__ == "__main__":
    sys.exit(main())
