"""BPF maps as Python objects: `table[key]`, with keys and leaves as ctypes values.

Made from a `MapShape`, whose descriptions of C types are those of bcc: a name, or [name, members,
"struct" | "union" | "struct_packed"] where a member is [name, type], [name, type, [length]] or
[name, type, bits]. Source: include/uapi/linux/bpf.h (BPF_MAP_CREATE, _LOOKUP_ELEM, _UPDATE_ELEM,
_DELETE_ELEM, _LOOKUP_BATCH, Linux 5.6).
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import resource
import struct
from functools import lru_cache
from pathlib import Path
from typing import Any

from rankscope.probes.base import abilities
from rankscope.probes.bpf import syscalls
from rankscope.probes.bpf.compiler.compiled import MapShape, NotCompiled
from rankscope.probes.host.procfs import parse_cpu_list

_CREATE, _LOOKUP, _UPDATE, _DELETE, _LOOKUP_BATCH = 0, 1, 2, 3, 24
_RING = 27  # BPF_MAP_TYPE_RINGBUF
_PER_CPU = (5, 6, 10)  # BPF_MAP_TYPE_PERCPU_HASH, PERCPU_ARRAY, LRU_PERCPU_HASH
_BATCH = 1024  # entries per call; more where one bucket of the hash has more
_NAME_BYTES = 15
# Cached ctypes classes; all programs together have some sixty. A class is a reference cycle: made
# anew for each window they would remain, for an hour of windows, until Python collects old objects,
# and would fragment memory.
_TYPES = 512
_SCALARS: dict[str, Any] = {
    "_Bool": ctypes.c_bool,
    "char": ctypes.c_char,
    "unsigned char": ctypes.c_ubyte,
    "short": ctypes.c_short,
    "unsigned short": ctypes.c_ushort,
    "int": ctypes.c_int,
    "unsigned int": ctypes.c_uint,
    "long": ctypes.c_long,
    "unsigned long": ctypes.c_ulong,
    "long long": ctypes.c_longlong,
    "unsigned long long": ctypes.c_ulonglong,
}


def c_type(described: Any) -> Any:
    """Return the ctypes class of a bcc type description, the same object each time. Raises
    NotCompiled.
    """
    try:
        return _SCALARS[described] if isinstance(described, str) else _made(json.dumps(described))
    except (KeyError, TypeError, ValueError) as error:
        raise NotCompiled(f"a map of an unknown type: {str(described)[:80]}") from error


@lru_cache(maxsize=_TYPES)
def _made(described: str) -> Any:
    """Build the ctypes structure or union of a bcc type description in JSON; cached: one class for equal texts."""
    name, members, *kind = json.loads(described)
    base = ctypes.Union if kind == ["union"] else ctypes.Structure
    # Without `_layout_` CPython 3.14 warns, and 3.19 refuses; to earlier ones it means nothing.
    body: dict[str, Any] = {"_pack_": 1, "_layout_": "ms"} if kind == ["struct_packed"] else {}
    return type(str(name), (base,), {**body, "_fields_": [_member(*member) for member in members]})


def _member(name: str, described: Any, extent: Any = None) -> tuple[Any, ...]:
    """Return a member's entry for `_fields_`: (name, class), or (name, class, bits) for a bit field.

    `extent`: None; [length] of an array; number of bits; or 'struct', 'union' or 'struct_packed', where
    `described` lists the members of a structure defined inline.
    """
    if isinstance(extent, str):  # a structure defined inline
        return name, c_type([name, described, extent])
    if isinstance(extent, list):
        return name, c_type(described) * extent[0]
    return (name, c_type(described)) if extent is None else (name, c_type(described), extent)


def _sized(name: str, described: Any, size_bytes: int) -> Any:
    """Return the ctypes class of a map's key or leaf; None for a ring, which has neither (size 0).

    Raises NotCompiled where the class has another size than `size_bytes`. `name`: of the map, for the message.
    """
    made = c_type(described) if size_bytes else None
    if made is not None and ctypes.sizeof(made) != size_bytes:
        raise NotCompiled(f"{name} has {size_bytes} bytes where {ctypes.sizeof(made)} are described")
    return made


class Table:
    """One map. Values read from it are copies."""

    def __init__(self, shape: MapShape, cpus: int, map_fd: int | None = None) -> None:
        """Create the map, or use an existing one by its descriptor `map_fd`; the caller closes `map_fd`.

        `cpus`: number of values that each entry of a per-CPU map has. Raises OSError, NotCompiled.
        """
        self.shape = shape
        self.Key = _sized(shape.name, shape.key, shape.key_bytes)
        self.Leaf = _sized(shape.name, shape.leaf, shape.leaf_bytes)
        if shape.kind in _PER_CPU and shape.leaf_bytes % 8:
            raise NotCompiled(f"{shape.name}: the kernel pads what each CPU has to 8 bytes")
        self._value = self.Leaf * cpus if shape.kind in _PER_CPU else self.Leaf
        self.map_fd = _create(shape) if map_fd is None else map_fd

    def _on(self, command: int, key: Any, value: Any = None) -> None:
        """Call bpf(2) `command` on this map with `key` and `value`, which a look-up fills. Raises OSError."""
        at = ctypes.addressof(value) if value is not None else 0
        syscalls.call(
            command,
            ctypes.create_string_buffer(struct.pack("<IIQQQ", self.map_fd, 0, ctypes.addressof(key), at, 0), 32),
        )

    def __getitem__(self, key: Any) -> Any:
        """Read a copy of the key's leaf; of a per-CPU map, an array with one leaf per CPU. Raises KeyError, OSError."""
        value = self._value()
        try:
            self._on(_LOOKUP, key, value)
        except FileNotFoundError:
            raise KeyError(key) from None
        return value

    def __setitem__(self, key: Any, leaf: Any) -> None:
        """Add an entry or replace its leaf. Raises OSError."""
        self._on(_UPDATE, key, leaf)

    def __delitem__(self, key: Any) -> None:
        """Remove an entry. Raises KeyError, OSError."""
        try:
            self._on(_DELETE, key)
        except FileNotFoundError:
            raise KeyError(key) from None

    def items(self) -> list[tuple[Any, Any]]:
        """Read all entries of a hash; one added or removed meanwhile may be included or not."""
        found: list[tuple[Any, Any]] = []
        room, begun = _BATCH, False
        position = ctypes.create_string_buffer(8)  # the kernel's cursor
        while True:
            keys, values = (self.Key * room)(), (self._value * room)()
            request = ctypes.create_string_buffer(
                struct.pack(
                    "<QQQQIIQQ", ctypes.addressof(position) if begun else 0, ctypes.addressof(position),
                    ctypes.addressof(keys), ctypes.addressof(values), room, self.map_fd, 0, 0,
                ),
                56,
            )  # fmt: skip
            begun, last = True, False
            try:
                syscalls.call(_LOOKUP_BATCH, request)
            except OSError as error:
                if error.errno == errno.ENOSPC:
                    room, begun = 2 * room, False
                    found.clear()
                    continue
                if error.errno != errno.ENOENT:
                    raise
                last = True
            count = int.from_bytes(request.raw[32:36], "little")
            steps = [(n * ctypes.sizeof(self.Key), n * ctypes.sizeof(self._value)) for n in range(count)]
            found += [(self.Key.from_buffer_copy(keys, k), self._value.from_buffer_copy(values, v)) for k, v in steps]
            if last:
                return found

    def keys(self) -> list[Any]:
        """List the keys of a hash; one added or removed meanwhile may be included or not. Raises OSError."""
        return [key for key, _ in self.items()]


def _create(shape: MapShape) -> int:
    """Create a map of this shape; return its descriptor. Raises OSError."""
    if shape.kind == _RING:
        abilities.need(abilities.RING_BUFFER, errno.EINVAL)
    name = shape.name.encode()[:_NAME_BYTES]
    request = struct.pack(
        "<IIIIIII16s", shape.kind, shape.key_bytes, shape.leaf_bytes, shape.max_entries, shape.flags, 0, 0, name
    )
    try:
        return syscalls.call(_CREATE, ctypes.create_string_buffer(request, len(request)))
    except PermissionError:  # before Linux 5.11 maps count as locked memory
        most = resource.RLIM_INFINITY
        if resource.getrlimit(resource.RLIMIT_MEMLOCK) == (most, most):
            raise
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (most, most))
        return syscalls.call(_CREATE, ctypes.create_string_buffer(request, len(request)))


def has_rings() -> bool:
    """Tell whether this kernel has ring buffers. OSError where the caller can create no map at all."""
    try:
        os.close(_create(MapShape("rs_trial", _RING, 0, 0, mmap.PAGESIZE, 0, None, None)))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return True


def possible_cpus(root: Path = Path("/")) -> int:
    """Return the number of CPUs that a per-CPU map has slots for."""
    return max(parse_cpu_list((root / "sys/devices/system/cpu/possible").read_text(encoding="ascii"))) + 1
