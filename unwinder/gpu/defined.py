"""Find the names of all kernels that the fat binaries of a file define.

In: an ELF file. Out: `Defined`. Only names are read: of each container one image, of the newest
architecture, and of it the first bytes. What could not be read is counted by reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from rankscope.probes.elf.reader import ElfFile
from rankscope.unwinder.gpu.fatbin import CUBIN, PTX, Image, containers
from rankscope.unwinder.gpu.images import kernels_of_cubin, kernels_of_ptx
from rankscope.unwinder.gpu.unpack import NotUnpacked, unpack

SECTIONS = (".nv_fatbin", "__nv_relfatbin")
MAX_KERNELS = 500_000
_FIRST_BYTES, _MOST_BYTES = 1 << 14, 1 << 24  # of one image, packed; of its names, unpacked
_UNPACKED_TIMES = 8  # names are repeated for several sections, and so pack well
_READ_BYTES, _UNPACKED_BYTES = 128 << 20, 512 << 20  # of one file


@dataclass(frozen=True, slots=True)
class Defined:
    """Mangled names of the kernels that a file defines.

    `unread`: number of containers of which no kernel is known, by reason.
    """

    kernels: frozenset[str]
    containers: int
    unread: Mapping[str, int]


def defined_kernels(elf: ElfFile) -> Defined:
    """Read the mangled names of all kernels in a file's fat binaries. Raises NotElf, OSError."""
    reader = _Reader(elf)
    for name in SECTIONS:
        section = elf.section(name)
        if section is not None:
            for images in containers(elf.part, section.offset, section.offset + section.size):
                reader.add(images)
    return Defined(frozenset(reader.kernels), reader.containers, dict(reader.unread))


def has_fat_binary(elf: ElfFile) -> bool:
    """Tell whether a file has a section of fat binaries. Raises NotElf, OSError."""
    return any(elf.section(name) is not None for name in SECTIONS)


class _Reader:
    """Kernels found so far, within the bounds of one file."""

    def __init__(self, elf: ElfFile) -> None:
        self._elf, self._left_bytes, self._left_unpacked_bytes = elf, _READ_BYTES, _UNPACKED_BYTES
        self.kernels: set[str] = set()
        self.containers = 0
        self.unread: Counter[str] = Counter()

    def add(self, images: tuple[Image, ...]) -> None:
        """Add the kernels of one container, by one of its images, or count why they are not known.

        A cubin is chosen before PTX, then the newest architecture; no other image is tried. Raises NotElf, OSError.
        """
        self.containers += 1
        programs = [one for one in images if one.kind in (PTX, CUBIN)]
        if not programs:
            self.unread["a container without a program"] += 1
        elif len(self.kernels) >= MAX_KERNELS or min(self._left_bytes, self._left_unpacked_bytes) <= 0:
            self.unread["too many kernels in one file"] += 1
        else:
            try:
                found = self._kernels(max(programs, key=lambda one: (one.kind, one.arch)))
            except NotUnpacked as error:
                self.unread[str(error)] += 1
            else:
                self.kernels.update(found)

    def _kernels(self, image: Image) -> tuple[str, ...]:
        """Read the kernels' mangled names from an image's first bytes; of a cubin, from more until all are there.

        PTX is read once, up to 16 MB: kernels after that are missing. Raises NotUnpacked, also where a cubin's
        names do not end within 16 MB; NotElf, OSError.
        """
        size = _FIRST_BYTES if image.kind == CUBIN else _MOST_BYTES
        while True:
            stored = self._elf.part(image.offset, min(size, image.stored_bytes))
            self._left_bytes -= len(stored)
            data = unpack(stored, image.packing, min(_UNPACKED_TIMES * size, _MOST_BYTES))
            self._left_unpacked_bytes -= len(data)
            found = kernels_of_cubin(data) if image.kind == CUBIN else kernels_of_ptx(data)
            if found is not None:
                return found
            if _UNPACKED_TIMES * size >= _MOST_BYTES:
                raise NotUnpacked("an image that ends within its names")
            size *= 4
