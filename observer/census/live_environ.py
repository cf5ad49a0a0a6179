"""Read the current environment of a process from its memory.

/proc/PID/environ shows the block that a process was started with. What it sets later
(`os.environ[…] = …` in Python calls setenv) is seen in the array that the C library's variable
`environ` points to: the frameworks that number their own processes (Lightning, Ray Train,
accelerate) write RANK and the like there. The process is not stopped, and nothing of it is trusted:
every length is capped, and what cannot be read is left out.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path

from rankscope.probes.base.errors import RankscopeError
from rankscope.probes.host.maps import Mapping, read_maps
from rankscope.probes.host.procfs import ROOT, parse_environ, proc_path, read_link
from rankscope.probes.mapped.file import open_mapped
from rankscope.unwinder.interpreter.elf_facts import load_bias, read_facts
from rankscope.unwinder.interpreter.memory import Memory, ProcessMemory, read_u64

_NAMES = ("environ", "__environ")
_LIBC = re.compile(r"/(libc\.so\.6|libc-2\.\d+\.so|(ld|libc)[-.]musl[^/]*)$")
_ALIKE_MOST = 16  # opened files with the name of a C library: a process has one, and may map thousands
_PAGE_BYTES = 4096  # the smallest page size: a read within such a page crosses no page of any machine
_VARIABLES_CAP = 4096
_TEXT_CAP_BYTES = 512  # per variable: names and numbers of ranks are short


def read_live_environ(pid: int, root: Path = ROOT) -> dict[str, str]:
    """Read the variables of a process; {} where unreadable. Never raises."""
    try:
        place = _variable(pid, root)
        if place is None:
            return {}
        with ProcessMemory(pid, root) as memory:
            return parse_environ(b"\0".join(_texts(memory, read_u64(memory, place))))
    except (OSError, RankscopeError):
        return {}


def _variable(pid: int, root: Path) -> int | None:
    """Return the address of the variable `environ`; None where it is found in no file.

    In the program, if it has a copy (the linker's rule), else in the C library.
    """
    program = read_link(proc_path(root, pid, "exe"))
    mappings = read_maps(pid, root, lambda path: path == program or bool(_LIBC.search(path)))
    by_path: dict[str, list[Mapping]] = {}
    for mapping in mappings:
        by_path.setdefault(mapping.path, []).append(mapping)
    for path in sorted(by_path, key=lambda path: path != program)[:_ALIKE_MOST]:
        parts = by_path[path]
        with open_mapped(pid, parts[0], root) as file:
            facts = read_facts(file, _NAMES)
        linked, bias = facts.symbol(_NAMES[0]) or facts.symbol(_NAMES[1]), load_bias(facts, parts)
        if linked and bias is not None:
            return linked + bias
    return None


def _texts(memory: Memory, array: int) -> list[bytes]:
    """Read the strings of a null-terminated array of pointers."""
    found: list[bytes] = []
    while len(found) < _VARIABLES_CAP:
        block = memory.read(array, _PAGE_BYTES - array % _PAGE_BYTES)
        for (pointer,) in struct.iter_unpack("<Q", block[: len(block) // 8 * 8]):
            if not pointer:
                return found
            found.append(_text(memory, pointer))
        array += len(block)
    return found


def _text(memory: Memory, address: int) -> bytes:
    """Read the string at an address up to its null byte, at most 512 bytes.

    One page at a time: the next page may not be mapped.
    """
    text = b""
    while len(text) < _TEXT_CAP_BYTES:
        at = address + len(text)
        try:
            part = memory.read(at, min(_TEXT_CAP_BYTES, _PAGE_BYTES - at % _PAGE_BYTES))
        except RankscopeError:
            break
        whole, end, _ = part.partition(b"\0")
        text += whole
        if end:
            break
    return text[:_TEXT_CAP_BYTES]
