"""The programs of the probes without an unwinder, and what they tell of one program."""

from __future__ import annotations

import contextlib
import ctypes
import subprocess
from collections.abc import Iterator, Mapping

from rankscope.probes.bpf import loader, ring
from rankscope.probes.bpf.compiler.variants import together
from rankscope.probes.bpf.module import Module, Tracepoint
from rankscope.probes.calls import probe as calls
from rankscope.probes.calls.programs import programs
from rankscope.probes.calls.table import CallRow
from rankscope.probes.files import probe as files
from rankscope.probes.sched import probe as sched

# Stands in for the unwinder: every thread is reported, none has a stack.
NO_UNWINDER = """
#define RS_HAVE_UNWINDER
static inline __attribute__((always_inline)) int rs_is_python(unsigned int tid) { return 1; }
static inline __attribute__((always_inline)) unsigned long long rs_python_stack(unsigned int tid, unsigned int tgid) { return 0; }
static inline __attribute__((always_inline)) unsigned long long rs_python_stack_preemptible(unsigned int tid, unsigned int tgid)
{ return 0; }
"""
CLOCK_NANOSLEEP, FUTEX = 230, 202
RING_PAGES = 64


class Observed:
    """A module, its ring, and the programs it watches."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.descriptors: dict[Tracepoint, tuple[int, ...]] = {}
        self.ring = ring.Ring(module.maps["rs_events"].map_fd, RING_PAGES * 4096)

    def run(self, process: subprocess.Popen[str]) -> ring.Events:
        """Watch the program, let it go on, return its events when it has ended."""
        self.watch(process.pid)
        process.communicate("go\n", timeout=60)
        return self.ring.drain()

    def watch(self, pid: int) -> None:
        """From now on."""
        self.module.maps["rs_targets"][ctypes.c_uint32(pid)] = ctypes.c_uint32(1)
        sched.look_again(self.module)

    def attach(self, *points: Tracepoint) -> None:
        for point in points:
            before = set(self.module.held)
            self.module.attach((point,))
            self.descriptors[point] = tuple(self.module.held - before)

    @contextlib.contextmanager
    def without(self, *points: Tracepoint) -> Iterator[None]:
        """These programs see nothing meanwhile."""
        for point in points:
            self.module.release(self.descriptors[point])
        yield
        self.attach(*points)

    def close(self) -> None:
        if self in LOADED:
            LOADED.remove(self)
            self.ring.close()
            self.module.close()


LOADED: list[Observed] = []


def load(
    table: tuple[CallRow, ...] = (),
    entries: Mapping[str, int] | None = None,
    numbers: Mapping[str, int] | None = None,
    **defines: int,
) -> Observed:
    """The probes, attached; `defines` and `numbers` in place of what the C and the host say, `entries` of what maps hold."""
    module = loader.load(
        [sched.SOURCE, calls.SOURCE, files.SOURCE],
        defines={"RS_RING_PAGES": RING_PAGES, **defines},
        numbers={**sched.numbers(), **files.numbers(), **(numbers or {})},
        prelude=NO_UNWINDER,
        generated=together((files.programs(), programs(table))),
        entries=entries or {},
        verbose=True,
    )
    LOADED.append(Observed(module))
    LOADED[-1].attach(*sched.TRACEPOINTS, *files.tracepoints())
    assert module.refused == []
    return LOADED[-1]
