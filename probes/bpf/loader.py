"""Turn C files into a `Module`: join them into one text, compile it or load it from a cache, create its maps.

The probes of one observer are one translation unit: `text_of` joins their `*.bpf.c` files (each
`#include "….h"` of ours is inserted once), so that they share the maps of common.bpf.h and the
compiler runs once. The text is the same on all hosts, so that it may have been compiled before
these sources were installed (ahead.py), or at an earlier start (cache.py).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rankscope.probes.base.errors import NotPermitted
from rankscope.probes.bpf import cache, syscalls, tables, tracepoints
from rankscope.probes.bpf.cache import CacheRefused
from rankscope.probes.bpf.compiler import ahead
from rankscope.probes.bpf.compiler import compiled as compiled_probes
from rankscope.probes.bpf.compiler.compiled import BpfUnavailable, Compiled, CompileFailed, NotCompiled, NoTracefs
from rankscope.probes.bpf.compiler.variants import HOST, Generated
from rankscope.probes.bpf.module import Module
from rankscope.probes.bpf.tables import Table

_HERE = Path(__file__).resolve().parent  # folder of common.bpf.h
# Extra compiler flags by machine; they select the registers in kernel.bpf.h.
MACHINES: Mapping[str, tuple[str, ...]] = {"x86_64": (), "aarch64": ("-DRS_AARCH64=1",)}
_INCLUDE = re.compile(r'^[ \t]*#include "([\w./-]+)"[^\n]*\n', re.MULTILINE)
_NONE: Mapping[str, int] = {}
_NOTHING = Generated()


def join(sources: Sequence[Path], folders: Sequence[Path]) -> str:
    """Join C files into one text, with our own includes inserted once. Raises OSError, CompileFailed.

    Includes are searched next to the including file, in the folder of this module and in `folders`.
    """
    seen: set[Path] = set()
    return "".join(_text_of(source.resolve(), folders, seen) for source in sources)


def _text_of(path: Path, folders: Sequence[Path], seen: set[Path]) -> str:
    """Return a C file's text with our own includes inserted; '' if it is in `seen`, to which it is added.

    Raises OSError, CompileFailed for an include that is not found.
    """
    if path in seen:
        return ""
    seen.add(path)

    def included(match: re.Match[str]) -> str:
        """Return the text of the included file, '' if it was inserted before. Raises CompileFailed."""
        for folder in (path.parent, _HERE, *folders):
            if (folder / match.group(1)).is_file():
                return _text_of((folder / match.group(1)).resolve(), folders, seen)
        raise CompileFailed(f"{path.name} includes {match.group(1)}, which is not there")

    return _INCLUDE.sub(included, path.read_text(encoding="utf-8")) + "\n"


def text_of(
    sources: Sequence[Path],
    *,
    folders: Sequence[Path] = (),
    prelude: str = "",
    generated: Generated = _NOTHING,
    names: Iterable[str] = (),
) -> str:
    """Build the C text to compile: constants, tracepoint records, `prelude`, `sources`, `generated`.

    `names`: of the constants that the host decides, in the order of their numbers. `folders`: where includes
    are searched too. Raises CompileFailed.
    """
    text = prelude + join(sources, folders) + generated.text
    named = (f"#define {name} RS_NUMBER({HOST + number})\n" for number, name in enumerate(names))
    return "".join((*named, tracepoints.declarations(text), text))


def load(
    sources: Sequence[Path],
    *,
    defines: Mapping[str, int | str] | None = None,
    numbers: Mapping[str, int] = _NONE,
    folders: Sequence[Path] = (),
    prelude: str = "",
    generated: Generated = _NOTHING,
    entries: Mapping[str, int] = _NONE,
    root: Path = Path("/"),
    verbose: bool = False,
) -> Module:
    """Load the programs of `sources` with their maps; compile them only if no cache has them.

    `defines`: -D constants. `numbers`: constants that this host decides, by their names in the C;
    they do not change the compiled text.
    `entries`: capacities of maps (a ring: bytes) where they differ from those in the C; they do not
    change it either. Raises NotPermitted, BpfUnavailable, CompileFailed.
    """
    if os.geteuid() != 0:
        raise NotPermitted("loading kernel probes needs root")
    _need_tracefs(root)
    text = text_of(sources, folders=folders, prelude=prelude, generated=generated, names=numbers)
    remarks: list[str] = []
    compiled = ready(text, flags_of(machine(), defines or {}), root, remarks, verbose)
    stats_fd = -1
    with contextlib.suppress(OSError):
        stats_fd = syscalls.enable_stats()
    variants = {one.name: one for one in generated.variants}
    module = Module(compiled, {}, root, remarks, variants, tuple(numbers.values()), _stats_fd=stats_fd)
    try:
        cpus = tables.possible_cpus(root)
        for shape in compiled.maps:
            sized = replace(shape, max_entries=entries.get(shape.name, shape.max_entries))
            module.maps[shape.name] = Table(sized, cpus)
    except BaseException as error:
        module.close()
        if isinstance(error, OSError) and error.errno == errno.EINVAL and not tables.has_rings():
            raise BpfUnavailable("this kernel has no BPF ring buffer (CONFIG_BPF_SYSCALL, Linux 5.8)") from error
        if isinstance(error, OSError):
            raise BpfUnavailable(f"the kernel does not make a map: {error.strerror}") from error
        raise
    return module


def machine() -> str:
    """Return the machine that programs are loaded on, one of MACHINES. Raises BpfUnavailable."""
    found = platform.machine()
    if found not in MACHINES:
        raise BpfUnavailable(f"the registers of {found} are not known, only those of {' and '.join(MACHINES)}")
    return found


def flags_of(target: str, defines: Mapping[str, int | str] = _NONE) -> list[str]:
    """Return the compiler's flags for a machine, one of MACHINES, with `defines` as -D options."""
    return [*MACHINES[target], *(f"-D{name}={value}" for name, value in defines.items())]


def ready(text: str, flags: Sequence[str], root: Path, remarks: list[str], verbose: bool) -> Compiled:
    """Find `text` compiled ahead or in the cache, else compile and cache it.

    `remarks`: list that gets a line for each of the two that could not be used, and if the result cannot be
    cached. `root`: of the file tree with the cache. `verbose`: show the compiler's output. Raises
    BpfUnavailable, CompileFailed.
    """
    key = key_of(text, flags)
    try:
        if (shipped := ahead.read(key)) is not None:
            return compiled_probes.from_bytes(shipped)
    except NotCompiled as error:
        remarks.append(f"the probes that were compiled ahead are not used: {error}")
    try:
        kept = cache.read(key, root)
        if kept is not None:
            earlier = compiled_probes.from_bytes(kept)
            if compiled_probes.is_of_this_compiler(earlier):
                return earlier
    except (CacheRefused, NotCompiled) as error:
        remarks.append(f"the cached probes are not used: {error}")
    made = compiled_probes.compile_text(text, flags, verbose=verbose)
    try:
        cache.write(key, compiled_probes.to_bytes(made), root)
    except CacheRefused as error:
        remarks.append(f"the next start compiles again, as the probes cannot be cached: {error}")
    return made


def key_of(text: str, flags: Sequence[str]) -> str:
    """Return the SHA-256 digest, in hex, of the text, its flags and our compiling program: the cache key.

    The compiler's version is not part of it.
    """
    return hashlib.sha256("\0".join((compiled_probes.maker(), text, *flags)).encode()).hexdigest()


def _need_tracefs(root: Path) -> None:
    """Mount tracefs in a private mount namespace where it is mounted nowhere. Raises NoTracefs.

    It describes the tracepoints and their records.
    """
    if any((root / place / "events").is_dir() for place in tracepoints.TRACEFS):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    clone_newns, ms_private_rec = 0x00020000, (1 << 18) | (1 << 14)
    if (
        libc.unshare(clone_newns) != 0
        or libc.mount(b"none", b"/", None, ms_private_rec, None) != 0
        or libc.mount(b"none", b"/sys/kernel/tracing", b"tracefs", 0, None) != 0
    ):
        reason = os.strerror(ctypes.get_errno())
        raise NoTracefs(f"tracefs is not mounted, and cannot be mounted from here: {reason}")
