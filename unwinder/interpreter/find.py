"""Find the CPython interpreter of a process: its version, runtime address and memory layout.

Order of the search: a mapped libpython, then the executable itself (static builds), then any other
library that holds the runtime (embedders that renamed it). The address comes from the section
`.PyRuntime` or the symbol `_PyRuntime`; the version from the debug offsets (3.13+), `Py_Version`
(3.11+), the file's name, or the name of the standard library's folder. The result is checked
against the live memory before it is returned.
"""

from __future__ import annotations

import contextlib
import math
import re
import time
from dataclasses import dataclass
from pathlib import Path

from rankscope.probes.elf.reader import NotElf
from rankscope.probes.host import procfs
from rankscope.probes.host.maps import Mapping, read_maps
from rankscope.probes.mapped.file import open_mapped
from rankscope.unwinder.errors import (
    InterpreterNotReady,
    MemoryNotPermitted,
    NotPython,
    TargetGone,
    UnreadableMemory,
    UnsupportedInterpreter,
)
from rankscope.unwinder.interpreter.elf_facts import ElfFacts, load_bias, read_facts
from rankscope.unwinder.interpreter.memory import ADDRESS_END, Memory, ProcessMemory, read_u32, read_u64
from rankscope.unwinder.interpreter.offsets import (
    ABSENT,
    DEBUG_COOKIE,
    DEBUG_OFFSETS_BYTES,
    GIL_BYTES,
    TABLES,
    FrameOffsets,
    parse_debug_offsets,
)

_SYMBOLS = ("_PyRuntime", "Py_Version", "_Py_NoneStruct", "PyCode_Type", "Py_GetVersion")
_LIBPYTHON = re.compile(r"/libpython(\d)\.(\d+)([a-z]*)\.so")
_EXTENSION = re.compile(r"\.cpython-\d+[^/]*\.so$")
_EXECUTABLE = re.compile(r"/python(\d)\.(\d+)([a-z]*)$")
_STDLIB = re.compile(r"/(?:lib|lib64)/python(\d)\.(\d+)([a-z]*)/")
# At most so many files of such a name are opened: a process needs one but may map thousands, and
# opening one takes a millisecond, sometimes seconds.
_ALIKE_MOST = 16
_CHECKS = 5
_CHECK_PAUSE_S = 0.001
_YOUNG_S = 5.0  # seconds; an exec on a busy host is over long before
_PYPY = re.compile(r"/(?:libpypy[\w.-]*|pypy[\d.]*(?:-c)?)(?:\.so[\d.]*)?$")


@dataclass(frozen=True, slots=True)
class Interpreter:
    """One live CPython. Addresses are those of the target process; 0 where not known."""

    pid: int
    start_ticks: int  # with the pid, identifies this process for ever (procfs.start_ticks)
    version: tuple[int, int]
    version_hex: int  # PY_VERSION_HEX; 0 where only the minor version is known (3.8-3.10)
    runtime_address: int
    offsets: FrameOffsets
    build: str  # "shared": in a libpython, "static": in the executable, "embedded": in another library
    free_threaded: bool
    path: str  # as the target sees it
    how: str  # how runtime and version were found
    none_address: int
    code_type_address: int
    gil_address: int  # of the main interpreter's GIL; a futex inside it is a wait for the GIL
    gil_bytes: int

    def kernel_record(self) -> bytes:
        """Encode this interpreter's layout as `struct rs_offsets` (walk.bpf.h), for the kernel's stack walk."""
        return self.offsets.pack(self.none_address)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A mapped file that may hold an interpreter; `build`: 'shared', 'static' or 'embedded', as in Interpreter."""

    path: str
    build: str
    mappings: tuple[Mapping, ...]


@dataclass(frozen=True, slots=True)
class _RuntimePlace:
    """A file that holds a runtime, with the addresses of its symbols in the process; 0 where unknown."""

    candidate: _Candidate
    runtime: int
    how: str
    version: int
    none: int
    code_type: int


def find_interpreter(pid: int, root: Path = procfs.ROOT, memory: Memory | None = None) -> Interpreter:
    """Find the interpreter of process `pid`.

    `memory`: the target's memory where the caller has it open already. Raises NotPython,
    UnsupportedInterpreter (with the reason), InterpreterNotReady (retry later), TargetGone,
    MemoryNotPermitted.
    """
    try:
        start_ticks = procfs.start_ticks(pid, root)
        mappings = read_maps(pid, root)
        executable = procfs.read_link(procfs.proc_path(root, pid, "exe")).removesuffix(" (deleted)")
    except PermissionError as error:
        raise MemoryNotPermitted(f"process {pid}: {procfs.reason(error)}") from error
    except (OSError, ValueError) as error:
        raise TargetGone(f"process {pid}: {procfs.reason(error)}") from error
    candidates = _candidates(mappings, executable)
    try:
        place = _find_place(pid, candidates, root)
        if memory is not None:
            return _describe(pid, start_ticks, place, mappings, memory)
        with ProcessMemory(pid, root, start_ticks) as opened:
            return _describe(pid, start_ticks, place, mappings, opened)
    except UnsupportedInterpreter as error:
        # In the middle of an exec some of the new program is mapped and some is not yet.
        if isinstance(error.__cause__, (UnreadableMemory, OSError)) and _age_s(start_ticks, root) < _YOUNG_S:
            raise InterpreterNotReady(f"process {pid} is still starting: {error}"[:400]) from error
        raise


def _age_s(start_ticks: int, root: Path) -> float:
    """Return the age of a process in seconds; infinite where /proc/uptime cannot be read."""
    try:
        uptime_s = float(procfs.read_file(procfs.proc_path(root, "uptime"), 64).split()[0])
    except (OSError, ValueError, IndexError):
        return math.inf
    return uptime_s - start_ticks / procfs.TICKS_PER_S


def _candidates(mappings: tuple[Mapping, ...], executable: str) -> list[_Candidate]:
    """List the mapped files that may hold an interpreter, best first.

    `executable`: path of the process's program. Raises UnsupportedInterpreter (PyPy),
    InterpreterNotReady where there is none yet.
    """
    by_path: dict[str, list[Mapping]] = {}
    for mapping in mappings:
        by_path.setdefault(mapping.path, []).append(mapping)
    for path in by_path:
        if _PYPY.search(path):
            raise UnsupportedInterpreter(f"PyPy ({path}), not CPython")
    libraries = [path for path in by_path if _LIBPYTHON.search(path)]
    found = [_Candidate(path, "shared", tuple(by_path[path])) for path in libraries[:_ALIKE_MOST]]
    if executable in by_path and executable not in libraries:
        found.append(_Candidate(executable, "static", tuple(by_path[executable])))
    if not libraries and "python" not in executable:
        # An embedder: the runtime may be in a library of any name that contains "python"; extension
        # modules match too and come last.
        alike = [
            path
            for path in by_path
            if path != executable and "python" in path.rpartition("/")[2] and ".so" in path and "_python" not in path
        ]
        alike.sort(key=lambda path: _EXTENSION.search(path) is not None)
        found += [_Candidate(path, "embedded", tuple(by_path[path])) for path in alike[:_ALIKE_MOST]]
    if not found:
        raise InterpreterNotReady("the executable is not mapped yet")
    return found


def _find_place(pid: int, candidates: list[_Candidate], root: Path) -> _RuntimePlace:
    """Return the runtime in the first candidate that has one.

    Raises UnsupportedInterpreter for one that is too old. Where none has one: NotPython if no file is
    named like Python's, else UnsupportedInterpreter if some could not be read, else InterpreterNotReady.
    """
    problems: list[str] = []
    last: Exception | None = None
    for candidate in candidates:
        try:
            facts = _facts(pid, candidate, root)
        except (OSError, NotElf) as error:
            last = error
            problems.append(f"{candidate.path}: {procfs.reason(error)}")
            continue
        place = _place(candidate, facts)
        if place is not None:
            return place
        _refuse_old(candidate, facts)
    alike = sum(candidate.build != "static" for candidate in candidates)
    told = f" (only the first {_ALIKE_MOST} files with such names were examined)" if alike == _ALIKE_MOST else ""
    if any(named(candidate.path) for candidate in candidates):
        if problems:
            raise UnsupportedInterpreter("; ".join(problems)[:400] + told) from last
        raise InterpreterNotReady(f"{candidates[0].path}: its libpython is not mapped yet")
    raise NotPython("no Python runtime in " + ", ".join(candidate.path for candidate in candidates)[:300] + told)


def named(path: str) -> tuple[int, int, str] | None:
    """Parse (major, minor, ABI letters) from the path of a libpython, an executable or a standard library folder.

    None for other paths.
    """
    for pattern in (_LIBPYTHON, _EXECUTABLE, _STDLIB):
        match = pattern.search(path)
        if match:
            return int(match[1]), int(match[2]), match[3]
    return None


def _facts(pid: int, candidate: _Candidate, root: Path) -> ElfFacts:
    """Read the symbols and sections of a candidate's file. Raises NotElf, OSError."""
    with open_mapped(pid, candidate.mappings[0], root) as file:
        return read_facts(file, _SYMBOLS)


def _place(candidate: _Candidate, facts: ElfFacts) -> _RuntimePlace | None:
    """Compute where the runtime and its symbols are in the process; None where the file holds no runtime.

    None also where its mappings fit none of its segments.
    """
    linked, how = facts.runtime_section, "section .PyRuntime"
    if not linked:
        linked, how = facts.symbol("_PyRuntime"), "symbol _PyRuntime"
    bias = load_bias(facts, candidate.mappings)
    if not linked or bias is None:
        return None

    def live(name: str) -> int:
        address = facts.symbol(name)
        there = address + bias if address else 0
        return there if 0 < there < ADDRESS_END else 0  # a symbol may have any value

    return _RuntimePlace(candidate, linked + bias, how, live("Py_Version"), live("_Py_NoneStruct"), live("PyCode_Type"))


def _refuse_old(candidate: _Candidate, facts: ElfFacts) -> None:
    """Raise UnsupportedInterpreter if the file is CPython without _PyRuntime (3.6, 2.7); else do nothing."""
    if facts.symbol("Py_GetVersion") and facts.symbol("PyCode_Type"):
        version = named(candidate.path)
        text = f"{version[0]}.{version[1]}" if version else "before 3.7"
        raise UnsupportedInterpreter(f"CPython {text} in {candidate.path}: 3.8-3.15 are known")


def _describe(
    pid: int, start_ticks: int, place: _RuntimePlace, mappings: tuple[Mapping, ...], memory: Memory
) -> Interpreter:
    """Read and check version, layout, main interpreter and GIL of the runtime at `place`.

    Raises UnsupportedInterpreter (also for unreadable memory), InterpreterNotReady, TargetGone.
    """
    path = place.candidate.path
    try:
        version, version_hex, how = _version(place, mappings, memory)
        if version[0] != 3:
            raise UnsupportedInterpreter(f"Python {version[0]}.{version[1]} in {path}: 3.8-3.15 are known")
        offsets = _offsets(place, version, memory)
        abi = (named(path) or (0, 0, ""))[2]
        if "d" in abi or "t" in abi:
            kind = "debug" if "d" in abi else "free-threaded"
            raise UnsupportedInterpreter(f"{kind} build of CPython {version[0]}.{version[1]} ({path})")
        interpreter = _check(place, offsets, memory)
        gil, gil_bytes = _gil(place, offsets, interpreter, memory)
    except UnreadableMemory as error:
        raise UnsupportedInterpreter(f"{path}: memory is not laid out as expected ({error})") from error
    return Interpreter(
        pid=pid,
        start_ticks=start_ticks,
        version=version,
        version_hex=version_hex,
        runtime_address=place.runtime,
        offsets=offsets,
        build=place.candidate.build,
        free_threaded=False,
        path=path,
        how=f"{place.how}, version from {how}",
        none_address=place.none,
        code_type_address=place.code_type,
        gil_address=gil,
        gil_bytes=gil_bytes,
    )


def _version(place: _RuntimePlace, mappings: tuple[Mapping, ...], memory: Memory) -> tuple[tuple[int, int], int, str]:
    """Find (version, PY_VERSION_HEX or 0, where it was found): in memory, else in names of mapped files.

    Raises UnsupportedInterpreter where it is in neither; UnreadableMemory.
    """
    head = memory.read(place.runtime, 24)
    if head[:8] == DEBUG_COOKIE:
        version_hex = int.from_bytes(head[8:12], "little")
        return (version_hex >> 24, version_hex >> 16 & 0xFF), version_hex, "debug offsets"
    if place.version:
        version_hex = read_u32(memory, place.version)
        if version_hex >> 24 == 3:
            return (3, version_hex >> 16 & 0xFF), version_hex, "Py_Version"
    by_name = named(place.candidate.path)
    if by_name:
        return by_name[:2], 0, "file name"
    for mapping in mappings:
        by_name = named(mapping.path)
        if by_name:
            return by_name[:2], 0, "folder of the standard library"
    raise UnsupportedInterpreter(f"{place.candidate.path}: its version could not be found")


def _offsets(place: _RuntimePlace, version: tuple[int, int], memory: Memory) -> FrameOffsets:
    """Return the memory layout for a version: from our tables, else as the interpreter publishes it (3.13+).

    Raises UnsupportedInterpreter, UnreadableMemory.
    """
    table = TABLES.get(version[1])
    if table is not None:
        return table
    text = f"{version[0]}.{version[1]}"
    if version[1] < min(TABLES):
        raise UnsupportedInterpreter(f"CPython {text} in {place.candidate.path}: 3.8-3.15 are known")
    try:
        found = parse_debug_offsets(memory.read(place.runtime, DEBUG_OFFSETS_BYTES))
    except ValueError as error:
        raise UnsupportedInterpreter(f"CPython {text} in {place.candidate.path}: {error}") from error
    if found is None:
        raise UnsupportedInterpreter(f"CPython {text} in {place.candidate.path}: no debug offsets")
    if found.offsets is None:
        raise UnsupportedInterpreter(f"free-threaded build of CPython {text} ({place.candidate.path})")
    return found.offsets


def _check(place: _RuntimePlace, offsets: FrameOffsets, memory: Memory) -> int:
    """Return the main interpreter's address; check that its newest thread state points back to it.

    Checks up to 5 times, 1 ms apart. Raises InterpreterNotReady where there is no interpreter or thread
    yet, UnsupportedInterpreter where the check fails, UnreadableMemory.
    """
    for _ in range(_CHECKS):
        interpreter = _main_interpreter(place, offsets, memory)
        tstate = read_u64(memory, interpreter + offsets.interpreter_threads_head)
        if not tstate:
            raise InterpreterNotReady(f"{place.candidate.path}: no thread states")
        with contextlib.suppress(UnreadableMemory):
            if read_u64(memory, tstate + offsets.tstate_interp) == interpreter:
                return interpreter
        time.sleep(_CHECK_PAUSE_S)  # a thread may begin or end right now
    raise UnsupportedInterpreter(
        f"{place.candidate.path}: not laid out as CPython 3.{offsets.minor} (a debug or modified build?)"
    )


def _main_interpreter(place: _RuntimePlace, offsets: FrameOffsets, memory: Memory) -> int:
    """Return the address of the main interpreter: the last in the list, whose newest comes first.

    Raises InterpreterNotReady where there is none yet, UnreadableMemory.
    """
    interpreter = read_u64(memory, place.runtime + offsets.runtime_interpreters_head)
    if not interpreter:
        raise InterpreterNotReady(f"{place.candidate.path}: no interpreter yet")
    # The list is newest first; the main interpreter is the last.
    for _ in range(64):
        following = read_u64(memory, interpreter + offsets.interpreter_next)
        if not following:
            break
        interpreter = following
    return interpreter


def _gil(place: _RuntimePlace, offsets: FrameOffsets, interpreter: int, memory: Memory) -> tuple[int, int]:
    """Return (address, size in bytes) of the GIL of the interpreter at address `interpreter`; (0, 0) if unknown.

    Raises UnreadableMemory.
    """
    if offsets.runtime_gil != ABSENT:
        return place.runtime + offsets.runtime_gil, GIL_BYTES
    if offsets.interpreter_gil == ABSENT:
        return 0, 0
    gil = read_u64(memory, interpreter + offsets.interpreter_gil)
    return (gil, GIL_BYTES) if gil else (0, 0)
