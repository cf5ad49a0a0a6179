"""Programs that differ in nothing but numbers: one text is compiled for all of them, and each is made of it when it is loaded.

In the C, `RS_NUMBER(n)` (common.bpf.h) is the n-th of a program's numbers: an instruction that loads a number of its own, which
is told apart from all others by its upper half. Half of the compiler's time was programs that are told apart by the number of a row.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from rankscope.probes.bpf.compiler.compiled import NotCompiled
from rankscope.probes.bpf.programs import INSTRUCTION

NUMBERS = 0x5253 << 16  # RS_NUMBERS in common.bpf.h
_PLACE = 0xFFFF  # RS_PLACE there
_MOVE_64 = 0xB7  # BPF_ALU64 | BPF_MOV | BPF_K


@dataclass(frozen=True, slots=True)
class Variant:
    """The program `name` is the compiled program `of` with these numbers, each 0 to 2^31 - 1. `place`: RS_PLACE, where nobody says another
    as it is attached; −1 of one that has none."""

    name: str
    of: str
    numbers: tuple[int, ...]
    place: int = -1


@dataclass(frozen=True, slots=True)
class Generated:
    """C to be compiled behind the sources, and the programs that are made of what it compiles to."""

    text: str = ""
    variants: tuple[Variant, ...] = ()


def together(parts: Iterable[Generated]) -> Generated:
    """All of them as one."""
    every = tuple(parts)
    return Generated("".join(part.text for part in every), tuple(one for part in every for one in part.variants))


def with_numbers(code: bytes, numbers: tuple[int, ...], place: int = -1) -> bytes:
    """The instructions with `numbers` where the C says RS_NUMBER, and `place` where RS_PLACE. NotCompiled where it asks for one that is not
    given."""
    instructions = np.frombuffer(code, INSTRUCTION).copy()
    asked = (instructions["operation"] == _MOVE_64) & (instructions["value"] >> 16 == NUMBERS >> 16)
    which = instructions["value"][asked] & 0xFFFF
    given = (*numbers, place) if place >= 0 else numbers
    if place >= 0:
        which = np.where(which == _PLACE, len(numbers), which)
    if (which >= len(given)).any():
        raise NotCompiled(f"the program asks for its number {int(which.max())}, and has {len(given)}")
    if any(not 0 <= number < 1 << 31 for number in given):
        raise NotCompiled(f"numbers of programs are positive and have 31 bits: {given}")
    instructions["value"][asked] = np.asarray(given or (0,), np.int32)[which]
    return bytes(instructions.tobytes())
