"""Find the kernels that one image of a fat binary defines: a cubin (ELF), or PTX (text). Pure.

A kernel NAME of a cubin has the sections `.text.NAME` and `.nv.constant0.NAME` (its parameters);
functions that kernels call have only the first. The compiler writes the names of sections first,
then those of symbols: so they are the strings that begin with a dot, with gaps, in the first bytes
of a cubin; its table of sections comes last.
"""

from __future__ import annotations

import re

_ELF = b"\x7fELF\x02\x01"
_NAMES_AT = 64  # after the file header
_FIRST_NAMES = b"\0.shstrtab\0"
_CODE, _PARAMETERS = b".text.", b".nv.constant0."
_ENTRY = re.compile(rb"\.entry\s+([\w$.]{1,65536})")
MAX_NAMES = 100_000  # kernels read from one image; the rest is left out


def kernels_of_cubin(image: bytes) -> tuple[str, ...] | None:
    """List the mangled names of a cubin's kernels from its first bytes; None where more may be needed.

    Empty for what is not a cubin. At most MAX_NAMES.
    """
    if len(image) < _NAMES_AT + len(_FIRST_NAMES):
        return None
    if not image.startswith(_ELF) or not image.startswith(_FIRST_NAMES, _NAMES_AT):
        return ()
    names = image[_NAMES_AT:].split(b"\0", 8 * MAX_NAMES)
    end = next((at for at, name in enumerate(names[:-1]) if name and not name.startswith(b".")), None)
    if end is None:
        return None
    names = names[:end]
    code = {name.removeprefix(_CODE) for name in names if name.startswith(_CODE)}
    entered = (name.removeprefix(_PARAMETERS) for name in names if name.startswith(_PARAMETERS))
    return tuple(name.decode("ascii", "replace") for name in entered if name in code)[:MAX_NAMES]


def kernels_of_ptx(text: bytes) -> tuple[str, ...]:
    """List the mangled names of a PTX program's kernels, each once, at most MAX_NAMES."""
    found = dict.fromkeys(match[1] for match in _ENTRY.finditer(text))
    return tuple(name.decode("ascii", "replace") for name in found)[:MAX_NAMES]
