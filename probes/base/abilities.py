"""Kernel abilities that differ between hosts, detected by trying, never by version numbers.

Distributions backport features and leave others out. `RANKSCOPE_WITHOUT=name,name` disables some,
as if the kernel had not got them: for tests of what is left then. A name is an ability, one program
(rs_sample) or a source of windows (samples; observer/sources.py). The effect of each missing
ability on a window: README.md of probes/bpf.
"""

from __future__ import annotations

import os

RING_BUFFER = "ring-buffer"  # maps that deliver events in order (Linux 5.8)
BTF = "btf"  # the kernel's own type information
TASK_REGISTERS = "task-registers"  # the helper bpf_task_pt_regs (Linux 5.15)
MANY_UPROBES = "many-uprobes"  # one link that attaches a program to many functions (Linux 6.6)
UPROBES = "uprobes"  # probes on functions of user programs
TRACEPOINTS = "tracepoints"
CLOCK = "clock"  # a software clock on each CPU that runs a program
STATISTICS = "statistics"  # the kernel's run-time statistics of programs
COMPILED_AHEAD = "compiled-ahead"  # programs compiled before installation
COMPILER = "compiler"  # bcc, where nothing was compiled ahead
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
    """Return all names disabled by RANKSCOPE_WITHOUT."""
    return frozenset(filter(None, os.environ.get(VARIABLE, "").split(",")))


def lacking(ability: str) -> bool:
    """Tell whether `ability` is disabled by RANKSCOPE_WITHOUT."""
    return ability in without()


def need(ability: str, otherwise: int) -> None:
    """Raise OSError with number `otherwise`, as a kernel without it would, if `ability` is
    disabled.
    """
    if lacking(ability):
        raise OSError(otherwise, os.strerror(otherwise))
