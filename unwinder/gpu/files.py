"""Names of the GPU kernels that processes launch, from the files that they have mapped.

In: what launches of a process passed, and from where. Out: `Kernel`s. A file is read once, by inode,
when the first of its functions is asked for; what reading costs is shared fairly among users, as
for native names (unwinder/names/native.py).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rankscope.probes.base.text import printable
from rankscope.probes.elf.reader import ElfFile, NotElf
from rankscope.probes.host import procfs
from rankscope.probes.host.fair import Fair, whose
from rankscope.probes.host.maps import Mapping, read_maps
from rankscope.probes.mapped.file import MappedFile, open_mapped
from rankscope.probes.mapped.reader import FileNotRead
from rankscope.unwinder.gpu.short import short
from rankscope.unwinder.gpu.stubs import KernelTable, kernel_table, name_of
from rankscope.unwinder.names.demangle import NAME_CAP

# Bytes to read: for all processes together, and after that for each user. libtorch_cuda takes 32 MB.
_FREELY_BYTES, _EACH_BYTES, _PER_FILE_BYTES = 512 << 20, 128 << 20, 1 << 16
_TABLES_BYTES = 64 << 20  # of all files together; libtorch_cuda takes 2 MB
_FILES = 32
_SYMBOL_CAP = 4096
_KNOWN = 65_536  # launches of one file that are remembered


@dataclass(frozen=True, slots=True, order=True)
class Launched:
    """Addresses in a launching process: the function that it passed, and where the call returns to."""

    function: int
    caller: int = 0


@dataclass(frozen=True, slots=True)
class Kernel:
    """A GPU kernel: `name` for people, `symbol` as it was compiled, `file` that defines it."""

    name: str
    symbol: str
    file: str


@dataclass(slots=True)
class _Content:
    """The content of a file that is closed between windows."""

    file: MappedFile

    @property
    def name(self) -> str:
        """The file's name, without folders."""
        return self.file.name

    @property
    def path(self) -> Path:
        return self.file.path

    @property
    def identity(self) -> tuple[int, ...]:
        """What identifies the file, and changes with its content: see MappedFile."""
        return self.file.identity

    def pread(self, size: int, at: int) -> bytes:
        """Read up to `size` bytes from `at` on, fewer at the end. Raises FileNotRead, also while closed."""
        return self.file.pread(size, at)


@dataclass(slots=True)
class _OpenTable:
    """The kernels of one file, and those already named; the file can be closed and opened again."""

    table: KernelTable
    elf: ElfFile | None = None
    content: _Content | None = None
    known: dict[tuple[int, bool], Kernel | None] = field(default_factory=dict)

    @property
    def released(self) -> bool:
        """Whether the file was opened and is closed now."""
        return self.content is not None and self.content.file.descriptor < 0

    def release(self) -> None:
        """Close the file; what was read from it is kept."""
        if self.content is not None:
            self.content.file.close()

    def is_again(self, file: MappedFile) -> bool:
        """Continue with `file` if it is the same file, opened again; return False where it has changed."""
        if self.content is None or self.content.identity != file.identity:
            return False
        self.content.file = file
        return True


@dataclass(slots=True)
class KernelNames:
    """Kernels of the files of any number of processes, read when first needed. Release or close it."""

    root: Path = procfs.ROOT
    _tables: OrderedDict[tuple[str, int], _OpenTable] = field(default_factory=OrderedDict)
    _fair: Fair = field(default_factory=lambda: Fair(_FREELY_BYTES, _EACH_BYTES))

    def kernels(self, pid: int, launches: Iterable[Launched]) -> dict[Launched, Kernel]:
        """Map launches of a process to kernels; those of unknown kernels are left out. Never raises OSError."""
        return self.placed(pid, launches)[0]

    def placed(self, pid: int, launches: Iterable[Launched]) -> tuple[dict[Launched, Kernel], dict[Launched, str]]:
        """Map launches of a process to kernels, and to the names of the files whose code launches.

        What is not known is left out of either; both are empty where the process cannot be read.
        """
        try:
            mappings = read_maps(pid, self.root)
        except OSError:
            return {}, {}
        kernels, files = {}, {}
        for launch in sorted(set(launches)):
            kernel = self._kernel(pid, mappings, launch.function, by_caller=False) or self._kernel(
                pid, mappings, launch.caller - 1, by_caller=True
            )
            if kernel is not None:
                kernels[launch] = kernel
            calling = _mapping_at(mappings, launch.caller)
            if calling is not None and calling.path.startswith("/"):
                files[launch] = _file_name(calling)
        return kernels, files

    def _kernel(self, pid: int, mappings: Sequence[Mapping], pointer: int, by_caller: bool) -> Kernel | None:
        """Return the kernel of the host function at `pointer`; None where it is not known. Cached by file.

        `by_caller`: the kernel that the code at `pointer` launches instead.
        """
        mapping = _mapping_at(mappings, pointer)
        if mapping is None or "x" not in mapping.perms:
            return None
        opened = self._table(pid, mapping)
        key = pointer - mapping.start + mapping.offset, by_caller
        if key not in opened.known:
            if len(opened.known) >= _KNOWN:
                opened.known.clear()
            opened.known[key] = _read_kernel(opened, *key, mapping)
        return opened.known[key]

    def _table(self, pid: int, mapping: Mapping) -> _OpenTable:
        """Return the kernels of a mapped file, read if they are not cached.

        An empty table, not cached, where the user's bytes are used up or the file cannot be opened. The least
        recently used files are dropped where there are too many.
        """
        key = (mapping.device, mapping.inode)
        if key in self._tables and not self._tables[key].released:
            self._tables.move_to_end(key)
            return self._tables[key]
        user = partial(whose, pid, self.root)
        if self._fair.left(user) <= 0:
            return _OpenTable(KernelTable())  # not kept: the same file may be another user's too
        try:
            file = open_mapped(pid, mapping, self.root)
        except (FileNotRead, OverflowError):
            self._fair.spend(_PER_FILE_BYTES, user)
            return _OpenTable(KernelTable())  # the process has ended, say: not kept either
        if key in self._tables and self._tables[key].is_again(file):
            self._tables.move_to_end(key)
            return self._tables[key]
        self._tables.pop(key, None)  # of a file that has changed: the new one is the most recently used
        opened = self._tables[key] = _read_table(file)
        self._fair.spend(_PER_FILE_BYTES + file.read_bytes, user)
        while len(self._tables) > _FILES or (len(self._tables) > 1 and self._bytes() > _TABLES_BYTES):
            self._tables.popitem(last=False)[1].release()
        return opened

    def _bytes(self) -> int:
        """Bytes of memory that the tables of all files take."""
        return sum(one.table.nbytes for one in self._tables.values())

    def release(self) -> None:
        """Close the files until they are needed again, and reset the bytes that each user's files may cost.

        Tables already read are kept: reading a library with 20,000 kernels takes up to 2 s.
        """
        for one in self._tables.values():
            one.release()
        self._fair = Fair(_FREELY_BYTES, _EACH_BYTES)

    def close(self) -> None:
        """Close the files, and forget what was read."""
        self.release()
        self._tables.clear()


def _mapping_at(mappings: Sequence[Mapping], address: int) -> Mapping | None:
    """Return the mapping that holds an address, None where none does; `mappings`: ordered by address."""
    at = bisect_right(mappings, address, key=lambda one: one.start) - 1
    return mappings[at] if at >= 0 and address < mappings[at].end else None


def _file_name(mapping: Mapping) -> str:
    """Return the file name of a mapping without folders, made printable, at most NAME_CAP characters."""
    return printable(mapping.path.rpartition("/")[2], NAME_CAP)


def _read_table(file: MappedFile) -> _OpenTable:
    """Read the kernels of an open file; an empty table where it is malformed or unreadable.

    Never raises OSError.
    """
    content = _Content(file)
    try:
        elf = ElfFile(content)
        return _OpenTable(kernel_table(elf), elf, content)
    except (OSError, NotElf, OverflowError):
        return _OpenTable(KernelTable(), content=content)


def _read_kernel(opened: _OpenTable, offset: int, by_caller: bool, mapping: Mapping) -> Kernel | None:
    """Read the kernel of the host function at a file offset; None where it is not known or unreadable.

    `by_caller`: the kernel that the code before that offset launches instead; `mapping`: names the file.
    """
    if opened.elf is None:
        return None
    try:
        address = opened.elf.linked_address(offset)
        function = opened.table.launched_by(address) if by_caller and address is not None else address
        name_at = opened.table.name_at(function) if function is not None else None
        symbol = name_of(opened.elf, name_at) if name_at is not None else ""
    except (OSError, NotElf, OverflowError):
        return None
    return Kernel(short(symbol), printable(symbol, _SYMBOL_CAP), _file_name(mapping)) if symbol else None
