"""Compile the BPF programs of all observers ahead, for all machines, so that installing needs no compiler.

`python -m rankscope.observer.programs_ahead [FOLDER]` compiles them with bcc, as root (bcc makes
their maps on the way). scripts/package does so for a wheel and a .deb, scripts/setup for its clone.
The same sources and the same bcc make the same bytes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rankscope.observer.live import kernel_probes
from rankscope.observer.watch import pulse
from rankscope.probes.base.errors import NotPermitted, RankscopeError
from rankscope.probes.bpf import loader
from rankscope.probes.bpf.compiler import ahead, compiled


def keys(machine: str) -> tuple[str, ...]:
    """Return the keys that a machine's compiled programs are stored under: digests of C text and compiler flags."""
    return tuple(loader.key_of(text, loader.flags_of(machine)) for text in _texts())


def are_there(machine: str) -> bool:
    """Tell whether all programs for this machine were compiled ahead from these sources."""
    return all(ahead.read(key) is not None for key in keys(machine))


def compile_all() -> dict[str, bytes]:
    """Compile the programs for all machines; return them by key.

    Raises NotPermitted, BpfUnavailable, CompileFailed.
    """
    if os.geteuid() != 0:
        raise NotPermitted("compiling kernel probes needs root")
    made: dict[str, bytes] = {}
    for machine in loader.MACHINES:
        for text in _texts():
            flags = loader.flags_of(machine)
            # Without the compiler's stamp: the compiler need not exist where they are loaded.
            one = replace(compiled.compile_text(text, flags), compiler=())
            made[loader.key_of(text, flags)] = compiled.to_bytes(one)
    return made


def _texts() -> tuple[str, ...]:
    """Return the C texts of all programs: those of windows (kernel_probes) and those of tier 0 (pulse)."""
    return kernel_probes.text(), pulse.text()


def main(arguments: Sequence[str]) -> int:
    """Compile all programs into the folder `arguments[0]`; return the exit code.

    Without an argument: into the default folder, unless all are there already.
    """
    if not arguments and all(map(are_there, loader.MACHINES)):
        return 0
    try:
        ahead.write(compile_all(), Path(arguments[0]) if arguments else ahead.FOLDER)
    except RankscopeError as error:
        sys.stderr.write(f"rankscope: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
