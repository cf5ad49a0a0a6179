"""Calls into small libraries with the names and symbols of CUDA and NCCL: counts, bytes, nesting, rates, and who pays."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from programs import left_after, loaded, programs_of

from rankscope.probes.bpf import loader, ring
from rankscope.probes.bpf.module import Module
from rankscope.probes.calls import collectives
from rankscope.probes.calls import copies as cuda
from rankscope.probes.calls import probe as calls
from rankscope.probes.calls.launches import LaunchMeter
from rankscope.probes.calls.probe import CallProbe, CallSum, functions_of
from rankscope.probes.calls.programs import programs
from rankscope.probes.calls.row import COLLECTIVE, ENQUEUE, GPU_WAIT, LAUNCH, MEMORY
from rankscope.probes.calls.rows_cuda import runtime_launch_rows
from rankscope.probes.calls.table import CALL_TABLE
from rankscope.probes.elf.local import LocalFile

pytestmark = pytest.mark.beside(ranks=False)

Start = Callable[..., "subprocess.Popen[str]"]
RING_PAGES = 64
ROW = {row.symbol: index for index, row in enumerate(CALL_TABLE)}

# 2000 µs for a copy of a MiB or more, 3000 µs for a synchronisation, nothing for the rest. The runtime calls the driver.
DRIVER = """
#include <unistd.h>
#include <stddef.h>
int cuStreamSynchronize(void *stream) { usleep(3000); return 0; }
int cuMemcpyHtoDAsync_v2(void *to, const void *from, size_t n, void *stream) { if (n >= 1 << 20) usleep(2000); return 0; }
int cuLaunchKernel(void *f) { return 0; }
"""
RUNTIME = """
#include <unistd.h>
#include <stddef.h>
int cuStreamSynchronize(void *); int cuMemcpyHtoDAsync_v2(void *, const void *, size_t, void *); int cuLaunchKernel(void *);
int cudaStreamSynchronize(void *stream) { return cuStreamSynchronize(stream); }
int cudaDeviceSynchronize(void) { usleep(3000); return 0; }
int cudaEventQuery(void *event) { return 600; }
int cudaMemcpyAsync(void *to, const void *from, size_t n, int kind, void *stream)
{
    if (kind == 1) return cuMemcpyHtoDAsync_v2(to, from, n, stream);
    if (n >= 1 << 20) { usleep(2000); cudaStreamSynchronize(stream); }
    return 0;
}
int cudaMemcpyAsync_ptsz(void *to, const void *from, size_t n, int kind, void *stream) { return 0; }
int cudaMemcpy2DAsync(void *to, size_t a, const void *from, size_t b, size_t width, size_t height, int kind, void *stream)
{ usleep(1000); return 0; }
int cudaLaunchKernel(void *f) { return cuLaunchKernel(f); }
"""
NCCL = """
#include <stddef.h>
int cudaLaunchKernel(void *);
int pncclAllReduce(const void *s, void *r, size_t n, int type, int op, void *comm, void *stream) { return cudaLaunchKernel(0); }
int ncclAllReduce(const void *, void *, size_t, int, int, void *, void *) __attribute__((alias("pncclAllReduce")));
int ncclReduce(const void *s, void *r, size_t n, int type, int op, int root, void *comm, void *stream) { return 0; }
int ncclSend(const void *s, size_t n, int type, int peer, void *comm, void *stream) { return 0; }
int ncclGroupEnd(void) { return cudaLaunchKernel(0); }
"""
# The blocking way: the operation runs in the call. Counts are C ints.
MPI = """
#include <unistd.h>
int MPI_Allreduce(const void *s, void *r, int n, int type, int op, int comm) { usleep(1000); return 0; }
int MPI_Allgather(const void *s, int n, int type, void *r, int m, int type2, int comm) { usleep(1000); return 0; }
"""
# What real processes do with them: load libnccl, which brings the others, and call with 64-bit arguments.
PROLOGUE = """
    import ctypes, sys, time
    nccl = ctypes.CDLL(sys.argv[1] + "/libnccl.so.2")
    cuda = ctypes.CDLL(sys.argv[1] + "/libcudart-58a1.so.12")
    driver = ctypes.CDLL(sys.argv[1] + "/libcuda.so.1")
    p = ctypes.c_void_p; n = ctypes.c_size_t
    print("ready", flush=True); sys.stdin.readline()
"""


def build(folder: Path, *options: str) -> Path:
    for name, text, needs in (
        ("libcuda.so.1", DRIVER, ()),
        ("libcudart-58a1.so.12", RUNTIME, ("libcuda.so.1",)),
        ("libnccl.so.2", NCCL, ("libcudart-58a1.so.12",)),
        ("libmpi.so.40", MPI, ()),
    ):
        source = folder / f"{name}.c"
        source.write_text(text)
        links = [f"-l:{need}" for need in needs]
        command = ["cc", "-shared", "-fPIC", *options, f"-L{folder}", "-Wl,-rpath,$ORIGIN", f"-Wl,-soname,{name}"]
        subprocess.run([*command, "-o", folder / name, source, *links], check=True)
    return folder


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("cuda"), "-O0")


def load() -> Module:
    return loader.load([calls.SOURCE], defines={"RS_RING_PAGES": RING_PAGES}, generated=programs(), verbose=True)


class Watching:
    """A module with its ring and the attached rows; `run` observes one program from its ready line to its end."""

    def __init__(self, **options: float) -> None:
        self.module = load()
        self.ring = ring.Ring(self.module.maps["rs_events"].map_fd, RING_PAGES * 4096)
        self.probe = CallProbe(self.module, **options)  # type: ignore[arg-type]

    def target(self, pid: int) -> None:
        self.module.maps["rs_targets"][ctypes.c_uint32(pid)] = ctypes.c_uint32(1)

    def run(self, process: subprocess.Popen[str]) -> ring.Events:
        self.target(process.pid)
        self.probe.watch([process.pid])
        process.communicate("go\n", timeout=60)
        assert process.returncode == 0
        return self.ring.drain()

    def sums(self, process: subprocess.Popen[str]) -> list[CallSum]:
        return [found for found in self.probe.sums() if found.tgid == process.pid]

    def close(self) -> None:
        self.ring.close()
        self.module.close()


@pytest.fixture(scope="module")
def watching() -> Iterator[Watching]:
    opened = Watching()
    yield opened
    opened.close()


def of_role(events: ring.Events, role: str) -> ring.Events:
    chosen: ring.Events = events[[CALL_TABLE[int(what)].role == role for what in events["what"]]]
    return chosen


def test_a_wait_for_the_gpu_counts_once_though_the_runtime_calls_the_driver(
    watching: Watching, program: Start, libraries: Path
) -> None:
    text = """
    for i in range(23): cuda.cudaStreamSynchronize(p(0x5000 + i % 2))
    for i in range(7): cuda.cudaDeviceSynchronize()
    for i in range(5): driver.cuStreamSynchronize(p(0x6000))
    """
    waits = of_role(watching.run(program(PROLOGUE + text, str(libraries))), GPU_WAIT)
    assert watching.probe.notes == []
    count = {symbol: int((waits["what"] == ROW[symbol]).sum()) for symbol in ROW}
    assert (count["cudaStreamSynchronize"], count["cudaDeviceSynchronize"], count["cuStreamSynchronize"]) == (23, 7, 5)
    assert (waits["dur_ns"] >= 3_000_000).all()
    assert {int(stream) for stream in waits["stack"][waits["what"] == ROW["cudaStreamSynchronize"]]} == {0x5000, 0x5001}


def test_collectives_carry_bytes_operation_peer_and_communicator(
    watching: Watching, program: Start, libraries: Path
) -> None:
    text = """
    for i in range(29): nccl.ncclAllReduce(p(0), p(0), n(1009 + 2**33), 9, 4, p(0xc0ffee00), p(7))
    for i in range(3): nccl.ncclReduce(p(0), p(0), n(31), 7, 2, 5, p(0xdead0000), p(7))
    for i in range(11): nccl.ncclSend(p(0), n(17), 1, 13, p(0xc0ffee00), p(7))
    for i in range(2): nccl.ncclGroupEnd()
    """
    events = watching.run(program(PROLOGUE + text, str(libraries)))
    found = [
        collectives.collective_call(CALL_TABLE[int(e["what"])], int(e["arg"]), int(e["aux"]), int(e["stack"]))
        for e in of_role(events, ENQUEUE)
    ]
    assert [call.name for call in found] == ["allreduce"] * 29 + ["reduce"] * 3 + ["send"] * 11
    first, reduce, send = found[0], found[29], found[-1]
    assert (first.bytes, first.datatype, first.operation) == (2 * (1009 + 2**33), "bfloat16", "avg")
    assert (reduce.bytes, reduce.operation, reduce.peer) == (124, "max", 5)
    assert (send.bytes, send.peer) == (17, 13)
    assert [first.communicator, reduce.communicator, send.communicator] == [0xC0FFEE00, 0xDEAD0000, 0xC0FFEE00]
    assert int((events["what"] == ROW["ncclGroupEnd"]).sum()) == 2


def test_mpi_runs_in_its_calls(watching: Watching, program: Start, libraries: Path) -> None:
    text = """
    mpi = ctypes.CDLL(sys.argv[1] + "/libmpi.so.40")
    print("mapped", flush=True); sys.stdin.readline()
    upper = n(7 << 32 | 1009)  # only the lower half of the register is the count
    for i in range(5): mpi.MPI_Allreduce(p(0), p(0), upper, 0x4c00080b, 0, 0x44000000)
    for i in range(3): mpi.MPI_Allgather(p(0), upper, 0x4c00040a, p(0), 1, 0x4c00040a, 0x44000001)
    """
    process = program(PROLOGUE + text, str(libraries))
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    assert process.stdout.readline() == "mapped\n"
    events = of_role(watching.run(process), COLLECTIVE)
    found = [
        collectives.collective_call(
            CALL_TABLE[int(e["what"])], int(e["arg"]), int(e["aux"]), int(e["stack"]) & 0xFFFFFFFF
        )
        for e in events
    ]
    assert [(call.name, call.bytes) for call in found] == [("allreduce", 8072)] * 5 + [("allgather", 4036)] * 3
    assert {call.communicator for call in found} == {0x44000000, 0x44000001}
    assert (events["dur_ns"] >= 1_000_000).all()


def test_brief_copies_are_sums_and_only_long_ones_events(watching: Watching, program: Start, libraries: Path) -> None:
    text = """
    for i in range(101): cuda.cudaMemcpyAsync(p(0), p(0), n(4099), 1, p(7))
    for i in range(13): cuda.cudaMemcpyAsync(p(0), p(0), n(1 << 21), 1, p(7))
    for i in range(5): cuda.cudaMemcpyAsync(p(0), p(0), n(1 << 20), 2, p(7))
    for i in range(3): cuda.cudaMemcpyAsync_ptsz(p(0), p(0), n(7), 3, p(7))
    for i in range(2): cuda.cudaMemcpy2DAsync(p(0), n(1), p(0), n(1), n(1021), n(211), 2, p(0x77))
    for i in range(997): cuda.cudaEventQuery(p(9))
    """
    process = program(PROLOGUE + text, str(libraries))
    events = watching.run(process)
    copies = of_role(events, MEMORY)
    long = copies[copies["what"] == ROW["cudaMemcpyAsync"]]
    assert int((long["aux"] == cuda.HOST_TO_DEVICE).sum()) >= 13  # a brief copy may be preempted, and is an event then
    assert int((long["aux"] == cuda.DEVICE_TO_HOST).sum()) == 5
    assert int(((long["arg"] == 1 << 21) & (long["dur_ns"] >= 2_000_000)).sum()) == 13
    flat = copies[copies["what"] == ROW["cudaMemcpy2DAsync"]]
    assert [(int(e["arg"]), int(e["aux"]), int(e["stack"])) for e in flat] == [(1021 * 211, 2, 0x77)] * 2
    assert not len(copies[copies["what"] == ROW["cuMemcpyHtoDAsync"]])  # hidden in the runtime's
    sums = {(found.row, found.aux): found for found in watching.sums(process)}
    up = sums[ROW["cudaMemcpyAsync"], cuda.HOST_TO_DEVICE]
    assert (up.count, up.bytes) == (101 + 13, 101 * 4099 + 13 * (1 << 21))
    assert up.seconds >= 13 * 0.002
    assert sums[ROW["cudaMemcpyAsync"], cuda.DEVICE_TO_DEVICE].count == 3  # the per-thread-stream flavour
    assert sums[ROW["cudaEventQuery"], 0].count == 997
    # The copy to the host synchronises inside: a copy and a wait, and whoever adds up takes the outer one.
    assert int((of_role(events, GPU_WAIT)["what"] == ROW["cudaStreamSynchronize"]).sum()) == 5


def test_calls_that_jump_into_the_next_one_count_once(watching: Watching, program: Start, tmp_path: Path) -> None:
    folder = build(tmp_path, "-O2")  # cudaStreamSynchronize ends in a jump: both return at the same depth of the stack
    text = "\n    for i in range(19): cuda.cudaStreamSynchronize(p(0x5000))\n"
    waits = of_role(watching.run(program(PROLOGUE + text, str(folder))), GPU_WAIT)
    assert len(waits) == 19
    assert (waits["dur_ns"] >= 3_000_000).all()


def test_launches_within_the_budget_are_all_counted(watching: Watching, program: Start, libraries: Path) -> None:
    process = program(
        PROLOGUE + "\n    for i in range(211): cuda.cudaLaunchKernel(p(0)); time.sleep(0.004)\n", str(libraries)
    )
    events = watching.run(process)
    meter = watching.probe.launches
    assert meter is not None and meter.over_budget_hz is None
    launches = {row: count for (tgid, row), count in meter.counted().launches.items() if tgid == process.pid}
    assert launches == {ROW["cudaLaunchKernel"]: 211, ROW["cuLaunchKernel"]: 211}
    assert not len(of_role(events, LAUNCH))


def test_some_launches_are_located_at_random_with_what_they_launch(program: Start, libraries: Path) -> None:
    watching = Watching(budget_hz=1e9)
    text = """
    for i in range(3000): cuda.cudaLaunchKernel(p(0x4567))
    """
    events = watching.run(program(PROLOGUE + text, str(libraries)))
    located = events[events["type"] == ring.LAUNCH]
    watching.close()
    assert 2 * 3000 / 16 * 0.7 < len(located) < 2 * 3000 / 16 * 1.3  # calls of the driver too; 5 standard deviations
    assert set(located["stack"].tolist()) == {0x4567}
    assert set(located["what"].tolist()) == {1}
    assert (
        len(np.unique(located["arg"])) == 2
    )  # the code of ctypes calls the runtime, and this one place of it the driver
    gaps = np.diff(located["ts_ns"].astype(np.int64))
    assert gaps.std() > 0.3 * gaps.mean()  # not by turns


def test_launches_are_counted_where_the_kernel_cannot_attach_many_at_once(program: Start, libraries: Path) -> None:
    module = load()
    module.at_once = False
    meter = LaunchMeter(module, [], budget_hz=1000)
    (driver,) = functions_of(LocalFile(libraries / "libcuda.so.1"), [CALL_TABLE[ROW["cuLaunchKernel"]]]).values()
    meter.add(
        ROW["cuLaunchKernel"],
        "rs_launch_site_1",
        LocalFile(libraries / "libcuda.so.1"),
        [symbol.offset for symbol in driver],
    )
    process = program(
        PROLOGUE + "\n    for i in range(13): cuda.cudaLaunchKernel(p(0)); time.sleep(0.01)\n", str(libraries)
    )
    module.maps["rs_targets"][ctypes.c_uint32(process.pid)] = ctypes.c_uint32(1)
    meter.begin(1)
    process.communicate("go\n", timeout=60)
    assert meter.counted().launches == {(process.pid, ROW["cuLaunchKernel"]): 13}
    assert meter.notes == []
    module.close()


def test_launches_over_the_budget_are_sampled_and_let_go(program: Start, libraries: Path) -> None:
    watching = Watching(budget_hz=500)
    paced = """
    start = time.monotonic(); done = 0
    while (now := time.monotonic() - start) < 3.0:
        while done < now * 4000: cuda.cudaLaunchKernel(p(0)); done += 1
        time.sleep(0.001)
    """
    process = program(PROLOGUE + paced, str(libraries))
    watching.target(process.pid)
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    time.sleep(0.3)
    watching.probe.watch([process.pid])
    meter = watching.probe.launches
    assert meter is not None
    before = meter.counted()
    time.sleep(1.5)
    after = meter.counted()
    assert meter.over_budget_hz is not None and meter.over_budget_hz > 500
    assert 0.05 < after.seconds < 1.0  # one sample, then nothing but the wait for the next
    rate = after.rate_hz(before, process.pid, runtime_launch_rows(CALL_TABLE))
    assert rate is not None and 2000 < rate < 7000  # 4000 in the long run: the machine may be busy
    assert [
        note for note in watching.probe.notes if "kernel launches are counted in samples" in note
    ] == watching.probe.notes
    assert meter.counted().launches == after.launches  # let go: nothing is counted any more
    process.kill()
    watching.close()


def test_processes_that_nobody_watches_have_a_budget_too(program: Start, libraries: Path) -> None:
    watching = Watching(budget_hz=50)
    text = """
    for i in range(2003): cuda.cudaEventQuery(p(9))
    time.sleep(0.3)
    for i in range(3): cuda.cudaDeviceSynchronize()
    """
    watched, other = (program(PROLOGUE + text, str(libraries)) for _ in range(2))
    watching.target(watched.pid)
    watching.probe.watch([watched.pid])
    watching.probe.enforce_budget(1)
    other.communicate("go\n", timeout=60)
    watching.probe.enforce_budget(1)
    assert ROW["cudaEventQuery"] not in watching.probe.rows_attached()
    assert ROW["cudaDeviceSynchronize"] in watching.probe.rows_attached()
    assert len(watching.probe.notes) == 1
    assert "cudaEventQuery is called" in watching.probe.notes[0] and "not watched" in watching.probe.notes[0]
    assert not len(watching.ring.drain())
    watching.close()


def test_a_row_over_budget_is_let_go_and_hides_nothing(program: Start, libraries: Path) -> None:
    watching = Watching(budget_hz=50)
    process = program(
        PROLOGUE + "\n    for i in range(503): nccl.ncclSend(p(0), n(1), 1, 3, p(1), p(7))\n"
        "    print('half', flush=True); sys.stdin.readline()\n"
        "    for i in range(17): nccl.ncclAllReduce(p(0), p(0), n(7), 7, 0, p(1), p(7))\n",
        str(libraries),
    )
    watching.target(process.pid)
    watching.probe.watch([process.pid])
    watching.probe.enforce_budget(1)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    assert process.stdout.readline() == "half\n"
    watching.probe.enforce_budget(1)
    assert ROW["ncclSend"] not in watching.probe.rows_attached()
    assert len(watching.probe.notes) == 1 and "send is called more than 50 times a second" in watching.probe.notes[0]
    process.communicate("go on\n", timeout=60)
    events = watching.ring.drain()
    assert int((events["what"] == ROW["ncclSend"]).sum()) == 503
    assert int((events["what"] == ROW["ncclAllReduce"]).sum()) == 17
    watching.close()


FOR_EVER = """
    import threading
    def wait():
        while True: cuda.cudaStreamSynchronize(p(3))
    waiting = threading.Thread(target=wait)
    waiting.start(); waiting.join()
"""


def test_a_call_that_has_not_ended_is_open(watching: Watching, program: Start, libraries: Path) -> None:
    process = program(PROLOGUE + FOR_EVER, str(libraries))
    watching.target(process.pid)
    watching.probe.watch([process.pid])
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    time.sleep(0.5)
    seen = [call for _ in range(20) for call in watching.probe.open_calls() if not time.sleep(0.001)]
    assert {call.row for call in seen} == {ROW["cudaStreamSynchronize"]}
    process.kill()
    watching.ring.drain()


OBSERVE = """
import sys, time
from rankscope.observer.live import kernel_probes
pid = int(sys.argv[1])
probes = kernel_probes.load(hz=99)
probes.watch_process(pid, 1)
probes.calls.watch([pid])
assert probes.calls.notes == [] and len(probes.calls.rows_attached()) > 10
print("observing", flush=True)
time.sleep(float(sys.argv[2]))
began = time.monotonic()
probes.close()
print(time.monotonic() - began)
"""


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_nothing_stays_attached_to_the_libraries(program: Start, libraries: Path, how: str) -> None:
    target = program(PROLOGUE + "\n    while True: cuda.cudaLaunchKernel(p(0)); time.sleep(0.0001)\n", str(libraries))
    assert target.stdin is not None
    target.stdin.write("go\n")
    target.stdin.flush()
    seconds = "1.0" if how == "closed" else "60"
    observer = subprocess.Popen(
        [sys.executable, "-c", OBSERVE, str(target.pid), seconds], stdout=subprocess.PIPE, text=True
    )
    assert observer.stdout is not None and observer.stdout.readline() == "observing\n"
    programs = programs_of(observer.pid)
    assert len(loaded(programs)) > 30
    if how == "killed":
        observer.kill()
    else:
        assert float(observer.stdout.readline()) < 1.0
    observer.wait(timeout=30)
    assert left_after(programs) == set()
    assert target.poll() is None
