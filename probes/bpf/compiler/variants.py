"""Programs that differ only in constants: compile one text, patch the constants at load time.

In the C, `RS_NUMBER(n)` (common.bpf.h) is the n-th constant of a program: an instruction that loads
a magic number, recognised by its upper half. Half of the compiler's time went into programs that
differ by the number of a row only. Constants from HOST on are the same in all programs but differ
between hosts, so that compiled code serves all hosts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from rankscope.probes.bpf.compiler.compiled import NotCompiled
from rankscope.probes.bpf.programs import INSTRUCTION

NUMBERS = 0x5253 << 16  # RS_NUMBERS in common.bpf.h
HOST = 0x8000  # index of the first constant that the host decides
_PLACE = 0xFFFF  # RS_PLACE there
_MOVE_64 = 0xB7  # BPF_ALU64 | BPF_MOV | BPF_K


@dataclass(frozen=True, slots=True)
class Variant:
    """A program `name`: the compiled program `of` with these constants, each 0 to 2^31 - 1.

    `place`: default of RS_PLACE, used unless another is given on attaching; -1 if the program has
    none.
    """

    name: str
    of: str
    numbers: tuple[int, ...]
    place: int = -1


@dataclass(frozen=True, slots=True)
class Generated:
    """C text to compile behind the sources, and the program variants made from it."""

    text: str = ""
    variants: tuple[Variant, ...] = ()


def together(parts: Iterable[Generated]) -> Generated:
    """Concatenate several generated parts."""
    every = tuple(parts)
    return Generated("".join(part.text for part in every), tuple(one for part in every for one in part.variants))


def with_numbers(code: bytes, numbers: Sequence[int], place: int = -1, host: Sequence[int] = ()) -> bytes:
    """Patch constants into compiled code: `numbers` for RS_NUMBER, `place` for RS_PLACE, `host`
    from RS_NUMBER(HOST) on.

    Raises NotCompiled where the program needs a constant that is not given, or one is out of range.
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
