"""The symbols and section of an ELF file that finding an interpreter needs, and their load bias.

Cached per file: all ranks of a host run the same interpreter.
"""

from __future__ import annotations

import mmap
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from rankscope.probes.elf.exports import find_addresses
from rankscope.probes.elf.reader import ElfFile, FileBytes, Segment
from rankscope.probes.host.maps import Mapping

_PAGE_BYTES = mmap.PAGESIZE
_CACHE_FILES = 256


@dataclass(frozen=True, slots=True)
class ElfFacts:
    """Addresses found in one ELF file, as linked (add the load bias); 0 where absent."""

    position_independent: bool
    segments: tuple[Segment, ...]  # the loaded ones
    runtime_section: int
    symbols: tuple[tuple[str, int], ...]

    def symbol(self, name: str) -> int:
        """Return the address of a symbol that was looked up, 0 where the file does not define it."""
        return next((address for symbol, address in self.symbols if symbol == name), 0)


_cache: OrderedDict[tuple[tuple[int, ...], tuple[str, ...]], ElfFacts] = OrderedDict()


def read_facts(file: FileBytes, names: Iterable[str]) -> ElfFacts:
    """Look up the symbols `names` in an ELF file; cached until the file changes.

    Raises NotElf, OSError.
    """
    wanted = tuple(names)
    key = (file.identity, wanted)
    known = _cache.get(key)
    if known is None:
        known = _look_up(ElfFile(file), wanted)
        _cache[key] = known
        if len(_cache) > _CACHE_FILES:
            _cache.popitem(last=False)
    return known


def _look_up(elf: ElfFile, names: tuple[str, ...]) -> ElfFacts:
    """Look up the section .PyRuntime and the symbols `names` in an ELF file. Raises NotElf, OSError."""
    runtime = elf.section(".PyRuntime")
    return ElfFacts(
        position_independent=elf.position_independent,
        segments=elf.loads,
        runtime_section=runtime.address if runtime is not None else 0,
        symbols=tuple(find_addresses(elf, names).items()),
    )


def load_bias(facts: ElfFacts, mappings: Iterable[Mapping]) -> int | None:
    """Return what to add to an address in the file to get that in the process.

    `mappings` are those of the file. None where no mapping fits a segment; 0 for an executable
    linked at a fixed address.
    """
    if not facts.position_independent:
        return 0
    linked: dict[int, int] = {}  # page in the file -> linked address
    for segment in facts.segments:
        if segment.size:
            linked.setdefault(segment.offset & -_PAGE_BYTES, segment.address & -_PAGE_BYTES)
    return next((one.start - linked[one.offset] for one in mappings if one.offset in linked), None)
