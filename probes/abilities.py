"""What hosts differ in, found out by trying and never by a version number: distributions bring features back and leave others out.

`RANKSCOPE_WITHOUT=name,name` does without, as if the kernel had not got them: for tests of what is left then. A name is an ability, one
program (rs_sample) or a source of windows (samples; observer/sources.py). What becomes of a window without each ability: README.md
of probes/bpf.
"""

from __future__ import annotations

import os

RING_BUFFER = "ring-buffer"  # maps that hand events over in order (Linux 5.8)
BTF = "btf"  # the kernel's own type information
TASK_REGISTERS = "task-registers"  # the helper bpf_task_pt_regs (Linux 5.15)
MANY_UPROBES = "many-uprobes"  # one link of a program to many functions (Linux 6.6)
UPROBES = "uprobes"  # probes on functions of programs at all
TRACEPOINTS = "tracepoints"
CLOCK = "clock"  # a software clock of each CPU that runs a program
STATISTICS = "statistics"  # the kernel's account of what programs cost
COMPILED_AHEAD = "compiled-ahead"  # programs that came with these sources
COMPILER = "compiler"  # bcc, in their place
ALL = (
    RING_BUFFER,
    BTF,
    TASK_REGISTERS,
    MANY_UPROBES,
    UPROBES,
    TRACEPOINTS,
    CLOCK,
    STATISTICS,
    COMPILED_AHEAD,
    COMPILER,
)
VARIABLE = "RANKSCOPE_WITHOUT"


def without() -> frozenset[str]:
    """All names that are to be done without."""
    return frozenset(filter(None, os.environ.get(VARIABLE, "").split(",")))


def lacking(ability: str) -> bool:
    """Whether this one is to be done without."""
    return ability in without()


def need(ability: str, otherwise: int) -> None:
    """OSError with the number that a kernel without it answers, where it is to be done without."""
    if lacking(ability):
        raise OSError(otherwise, os.strerror(otherwise))
