"""What of a function's running time was in the kernel, and for what, against what the kernel counts for the program itself."""

from __future__ import annotations

import pytest
from test_gil_and_gc import Start, observe, probes, said

from rankscope.observer.live.kernel_probes import KernelProbes

__all__ = ["probes"]
pytestmark = pytest.mark.beside(ranks=False)

# Each read is short of what counts as a file's own (0.1 ms, probes/files), however slow the machine.
PROGRAM = """
    import json, mmap, os, resource, sys, time
    def touch(end):
        while time.perf_counter() < end:
            with mmap.mmap(-1, 1 << 20) as new:
                for page in range(0, 1 << 20, 4096): new[page] = 1
    def look(end, file):
        while time.perf_counter() < end: os.read(file, 1 << 18)
    def compute(end):
        while time.perf_counter() < end: pass
    zeros = os.open("/dev/zero", os.O_RDONLY)
    print("ready", flush=True); sys.stdin.readline()
    spent = {}
    for function, more in ((touch, ()), (look, (zeros,)), (compute, ())):
        before, since = resource.getrusage(resource.RUSAGE_SELF).ru_stime, time.process_time()
        function(time.perf_counter() + 1.5, *more)
        spent[function.__name__] = (resource.getrusage(resource.RUSAGE_SELF).ru_stime - before, time.process_time() - since)
    print(json.dumps(spent), flush=True)
    while True: time.sleep(0.05)
"""


def test_pages_and_system_calls_are_told_from_computing_as_the_kernel_counts_them(
    probes: KernelProbes, program: Start
) -> None:
    process = program(PROGRAM)
    # A function has a row for each of its stacks, largest first; some samples see a stack that is just being changed.
    rows = [p for p in observe(probes, process) if p.function.kind == "python" and not p.function.detail]
    found = {p.function.name: p for p in reversed(rows)}
    truth = said(process)
    for name, wanted in (("touch", "page fault"), ("look", "read"), ("compute", "")):
        in_kernel, ran = truth[name]
        one = found[name]
        print(
            f"{name}: {one.kernel_share} for {one.kernel_for!r}; the kernel counts {in_kernel / ran:.2f} of {ran:.2f} s"
        )
        assert one.kernel_share == pytest.approx(in_kernel / ran, abs=0.2)
        assert one.kernel_for == wanted or (name == "compute" and one.kernel_share < 0.1)
