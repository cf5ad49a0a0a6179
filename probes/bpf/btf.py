"""Member offsets of kernel structures, from the running kernel's own type information (BTF).

Headers that bcc compiles with may be those of another kernel, so an offset taken from them is
silently wrong (measured: task_struct.thread.fsbase 5416 in Debian 6.1 headers, 3128 in the running
6.18). Format: Linux Documentation/bpf/btf.rst. Only members that a probe needs are looked up, and
their offsets are cached on disk (cache.py): searching 140,000 types takes 50 ms.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import struct
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from rankscope.probes.base import abilities
from rankscope.probes.base.errors import MissingFeature
from rankscope.probes.bpf import cache
from rankscope.probes.bpf.cache import CacheRefused

_MAGIC = 0xEB9F
_INT, _ARRAY, _STRUCT, _UNION, _ENUM = 1, 3, 4, 5, 6
_FUNC_PROTO, _VAR, _DATASEC, _DECL_TAG, _ENUM64 = 13, 14, 15, 17, 19
_TYPEDEF, _VOLATILE, _CONST, _RESTRICT, _TYPE_TAG = 8, 9, 10, 11, 18
_MODIFIERS = (_TYPEDEF, _VOLATILE, _CONST, _RESTRICT, _TYPE_TAG)


class NoBtf(MissingFeature):
    """The kernel publishes no type information, or not of the wanted structure."""

    help = "The kernel needs CONFIG_DEBUG_INFO_BTF=y for this probe; the other probes work without."


class Btf:
    """Types of one BTF blob. `offset("task_struct", "files")` gives bytes; nested members with a
    dotted path.
    """

    def __init__(self, blob: bytes) -> None:
        """Parse the header and index all types. Raises NoBtf where it is no BTF, or cut short."""
        if len(blob) < 24 or struct.unpack_from("<H", blob)[0] != _MAGIC:
            raise NoBtf("not a BTF blob")
        header_bytes, type_at, type_bytes, text_at, text_bytes = struct.unpack_from("<4xIIIII", blob)
        self._text = blob[header_bytes + text_at : header_bytes + text_at + text_bytes]
        self._blob = blob[header_bytes + type_at : header_bytes + type_at + type_bytes]
        self._at: list[int] = [0]
        self._structs: dict[int, int] = {}
        try:
            self._index()
        except (struct.error, IndexError) as error:
            raise NoBtf("BTF blob is cut short") from error

    def _index(self) -> None:
        """Store the offset of each type by its id, and the id of each named struct by the offset of its name."""
        blob, at, end = self._blob, 0, len(self._blob)
        unpack = struct.Struct("<III").unpack_from
        extra = {_INT: 4, _ARRAY: 12, _VAR: 4, _DECL_TAG: 4}
        per_member = {_STRUCT: 12, _UNION: 12, _ENUM: 8, _FUNC_PROTO: 8, _DATASEC: 12, _ENUM64: 12}
        while at < end:
            name, info, _ = unpack(blob, at)
            kind, members = info >> 24 & 0x1F, info & 0xFFFF
            if kind == _STRUCT and name:
                self._structs.setdefault(name, len(self._at))
            self._at.append(at)
            at += 12 + extra.get(kind, 0) + members * per_member.get(kind, 0)

    def _name(self, at: int) -> str:
        """Return the name at an offset of the string section."""
        return self._text[at : self._text.index(b"\0", at)].decode("ascii", "replace")

    def offset(self, structure: str, path: str) -> int:
        """Return the byte offset of the member at `path` in `structure` ('thread.fsbase').

        With an empty path, return the structure's size. Raises NoBtf.
        """
        try:
            return self._offset(structure, path)
        except (struct.error, IndexError, ValueError, RecursionError) as error:
            raise NoBtf("the kernel's type information is broken") from error

    def _offset(self, structure: str, path: str) -> int:
        """Return a member's byte offset by its dotted path; the structure's size for an empty path.

        Raises NoBtf for an unknown structure or member and for a bit field; struct.error, IndexError,
        ValueError or RecursionError where the type information is broken.
        """
        needle = b"\0" + structure.encode() + b"\0"
        name_at = self._text.find(needle) + 1
        type_id = self._structs.get(name_at) if name_at else None
        if type_id is None:
            type_id = next((i for at, i in self._structs.items() if self._name(at) == structure), None)
        if type_id is None:
            raise NoBtf(f"kernel type information has no struct {structure}")
        if not path:
            return int(struct.unpack_from("<I", self._blob, self._at[type_id] + 8)[0])
        total_bits = 0
        for member in path.split("."):
            found = self._member(type_id, member)
            if found is None:
                raise NoBtf(f"struct {structure} has no member {path} in this kernel")
            bits, type_id = found
            total_bits += bits
        if total_bits % 8:
            raise NoBtf(f"{structure}.{path} is a bit field")
        return total_bits // 8

    def _member(self, type_id: int, wanted: str) -> tuple[int, int] | None:
        """Find a member of a struct or union by name: (offset in bits, type id); None where it has none.

        Members of anonymous inner structs and unions count as its own.
        """
        type_id = self._strip(type_id)
        _, info, _ = struct.unpack_from("<III", self._blob, self._at[type_id])
        kind, count, bitfields = info >> 24 & 0x1F, info & 0xFFFF, info >> 31
        if kind not in (_STRUCT, _UNION):
            return None
        for index in range(count):
            name, member_type, offset = struct.unpack_from("<III", self._blob, self._at[type_id] + 12 + 12 * index)
            bits = offset & 0xFFFFFF if bitfields else offset
            if not name:  # an anonymous struct or union: its members count as the outer one's
                inner = self._member(member_type, wanted)
                if inner is not None:
                    return bits + inner[0], inner[1]
            elif self._name(name) == wanted:
                return bits, member_type
        return None

    def _strip(self, type_id: int) -> int:
        """Return the id of the type below typedefs and qualifiers (const, volatile), of which 16 at most are followed."""
        for _ in range(16):
            _, info, target = struct.unpack_from("<III", self._blob, self._at[type_id])
            if info >> 24 & 0x1F not in _MODIFIERS:
                break
            type_id = target
        return type_id


def offsets(wanted: Mapping[str, tuple[str, str]], root: Path = Path("/")) -> dict[str, int]:
    """Return member offsets of the running kernel for `{name: (structure, path)}`, cached on disk.

    Raises NoBtf.
    """
    _need()
    words = (
        "offsets",
        *cache.kernel_identity(root),
        *(word for name, where in wanted.items() for word in (name, *where)),
    )
    key = hashlib.sha256("\0".join(words).encode()).hexdigest()
    with contextlib.suppress(CacheRefused, ValueError):
        kept = json.loads(cache.read(key, root) or b"null")
        if isinstance(kept, dict) and kept.keys() == wanted.keys() and all(type(one) is int for one in kept.values()):
            return kept
    found = {name: _kernel(root).offset(structure, member) for name, (structure, member) in wanted.items()}
    with contextlib.suppress(CacheRefused):
        cache.write(key, json.dumps(found).encode(), root)
    return found


def _need() -> None:
    """Raise NoBtf if type information is disabled by RANKSCOPE_WITHOUT."""
    if abilities.lacking(abilities.BTF):
        raise NoBtf("the kernel publishes no type information")


def kernel(root: Path = Path("/")) -> Btf:
    """Return the running kernel's BTF. Raises NoBtf where it publishes none."""
    _need()
    return _kernel(root)


def forget() -> None:
    """Free the cached BTF: 20 MB."""
    _kernel.cache_clear()


@lru_cache(maxsize=1)
def _kernel(root: Path) -> Btf:
    """Read and index the kernel's BTF below `root`, cached until `forget`. Raises NoBtf."""
    path = root / "sys/kernel/btf/vmlinux"
    try:
        return Btf(path.read_bytes())
    except OSError as error:
        raise NoBtf(f"{path}: {error.strerror}") from error
