"""Classify the processes below a rank by their purpose. Pure."""

from __future__ import annotations

import re

LOADER, TRACKER, FORKSERVER, COMPILER, HELPER = "loader", "tracker", "forkserver", "compiler", "helper"
FEEDING = frozenset({LOADER, HELPER})  # kinds that prepare the rank's data, or may do so

_COMPILERS = re.compile(
    r"^(?:[a-z0-9_]+-(?:linux|unknown)-[a-z0-9-]+?-)?"
    r"(?:gcc|g\+\+|cc|c\+\+|cc1|cc1plus|as|ld|ld\.[a-z]+|collect2|clang|clang\+\+|lld|nvcc|cicc|cudafe\+\+|ptxas|fatbinary|nvlink|"
    r"hipcc|icpx|ninja|make|cmake|rustc|cargo)(?:-\d+(?:\.\d+)*)?$"
)


def worker_kind(
    comm: str, cmdline: tuple[str, ...], rank_cmdline: tuple[str, ...], framework: bool, far: bool, compiles: bool
) -> str:
    """Return the kind of a process below a rank (found.Worker).

    `framework`: a training library is mapped into it. `far`: another process lies between it and
    the rank.
    `compiles`: one of those is a compiler.
    """
    if compiles or is_compiler(comm, cmdline):
        return COMPILER
    if framework and comm == "pt_data_worker":
        return LOADER
    text = " ".join(cmdline)[:4096]
    if "resource_tracker" in text:
        return TRACKER
    if "multiprocessing.forkserver" in text or "multiprocessing.fork" in text:
        return LOADER if framework and far else FORKSERVER
    if framework and ("--multiprocessing-fork" in cmdline or cmdline == rank_cmdline):
        return LOADER
    return HELPER


def is_compiler(comm: str, cmdline: tuple[str, ...]) -> bool:
    """Tell whether a process compiles: torch.compile's workers, and compilers of extensions and
    kernels.
    """
    if "compile_worker" in " ".join(cmdline)[:4096]:
        return True
    program = cmdline[0].rpartition("/")[2] if cmdline else comm
    return bool(_COMPILERS.match(program) or _COMPILERS.match(comm))
