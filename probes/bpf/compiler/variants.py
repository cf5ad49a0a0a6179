"""Programs that differ in nothing but numbers: one text is compiled for all of them, and each is made of it when it is loaded.

In the C, `RS_NUMBER(n)` (common.bpf.h) is the n-th of a program's numbers: an instruction that loads a number of its own, which
is told apart from all others by its upper half. Half of the compiler's time was programs that are told apart by the number of a row.
Numbers from HOST on are the same in all programs and others on another host, so that what is compiled serves all hosts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from rankscope.probes.bpf.compiler.compiled import NotCompiled
from rankscope.probes.bpf.programs import INSTRUCTION

NUMBERS = 0x5253 << 16  # RS_NUMBERS in common.bpf.h
HOST = 0x8000  # the first number that the host decides
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


def with_numbers(code: bytes, numbers: Sequence[int], place: int = -1, host: Sequence[int] = ()) -> bytes:
    """Put `numbers` where the C says RS_NUMBER, `place` where it says RS_PLACE, and those of the `host` from RS_NUMBER(HOST) on.

    NotCompiled where the program asks for one that is not given, or one does not fit.
    """
    instructions = np.frombuffer(code, INSTRUCTION).copy()
    asked = (instructions["operation"] == _MOVE_64) & (instructions["value"] >> 16 == NUMBERS >> 16)
    given = {**dict(enumerate(numbers)), **dict(enumerate(host, HOST))}
    if place >= 0:
        given[_PLACE] = place
    wanted = (instructions["value"][asked] & 0xFFFF).tolist()
    if missing := set(wanted) - given.keys():
        raise NotCompiled(f"the program asks for its number {max(missing)}, and has {len(given)}")
    if any(not 0 <= number < 1 << 31 for number in given.values()):
        raise NotCompiled(f"numbers of programs are positive and have 31 bits: {sorted(given.values())}")
    instructions["value"][asked] = [given[which] for which in wanted]
    return bytes(instructions.tobytes())
