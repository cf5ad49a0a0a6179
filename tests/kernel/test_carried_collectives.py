"""A program whose collectives run on threads of a C++ library, as JAX's do: who waits, and for how long, is found from outside."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rankscope.observer.live import kernel_probes, process_watch
from rankscope.observer.live.process_watch import TRAINING
from rankscope.observer.tables.rank import find_rank
from rankscope.observer.tables.raw import RawProcess
from rankscope.probes.bpf import ring
from rankscope.probes.calls.table import CALL_TABLE

pytestmark = pytest.mark.beside(ranks=False)

Start = Callable[..., "subprocess.Popen[str]"]
HZ = 199
# Local symbols, as in jaxlib. The thread computes 3 ms, waits where it was told to (until all take part, say), is 8 ms inside a
# collective, which throws and catches every third time.
LIBRARY = """
#include <pthread.h>
#include <time.h>
#include <stdexcept>
#include <unistd.h>
namespace xla { namespace cpu { struct GlooCommunicator { virtual ~GlooCommunicator(); int AllReduce(void *p, long count); }; } }
xla::cpu::GlooCommunicator::~GlooCommunicator() {}
static __attribute__((noinline)) void wire(long count) { usleep(8000); if (count % 3 == 0) throw std::runtime_error("peer"); }
__attribute__((noinline)) int xla::cpu::GlooCommunicator::AllReduce(void *p, long count)
{ try { wire(count); } catch (std::exception &e) { return 1; } return 0; }
static xla::cpu::GlooCommunicator *communicator;
static long iteration; static int done;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; static pthread_cond_t change = PTHREAD_COND_INITIALIZER;
static void compute(long ms)
{ struct timespec now, end; clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end); end.tv_nsec += ms * 1000000;
  if (end.tv_nsec >= 1000000000) { end.tv_nsec -= 1000000000; end.tv_sec++; }
  do clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  while (now.tv_sec < end.tv_sec || (now.tv_sec == end.tv_sec && now.tv_nsec < end.tv_nsec)); }
static int asked;
static void *carry(void *p)
{ compute(3); if (asked) usleep(asked); communicator->AllReduce(p, iteration++);
  pthread_mutex_lock(&lock); done = 1; pthread_cond_signal(&change); pthread_mutex_unlock(&lock); return p; }
extern "C" __attribute__((visibility("default"))) void ask_first(int us) { asked = us; }
extern "C" __attribute__((visibility("default"))) void step()
{ if (!communicator) communicator = new xla::cpu::GlooCommunicator; pthread_t t; done = 0; pthread_create(&t, 0, carry, 0);
  pthread_mutex_lock(&lock); while (!done) pthread_cond_wait(&change, &lock); pthread_mutex_unlock(&lock); pthread_join(t, 0); }
namespace xla { namespace ifrt { struct PjRtLoadedExecutable { virtual ~PjRtLoadedExecutable(); int Execute(long count); }; } }
xla::ifrt::PjRtLoadedExecutable::~PjRtLoadedExecutable() {}
static int given;
static void *worker(void *p)
{ for (;;) { pthread_mutex_lock(&lock); while (!given) pthread_cond_wait(&change, &lock); pthread_mutex_unlock(&lock);
  compute(3); communicator->AllReduce(p, iteration++);
  pthread_mutex_lock(&lock); given--; pthread_cond_broadcast(&change); pthread_mutex_unlock(&lock); } }
__attribute__((noinline)) int xla::ifrt::PjRtLoadedExecutable::Execute(long count)
{ pthread_mutex_lock(&lock); given += count; pthread_cond_broadcast(&change); pthread_mutex_unlock(&lock); return 0; }
static xla::ifrt::PjRtLoadedExecutable *executable;
extern "C" __attribute__((visibility("default"))) void hand_over()
{ if (!executable) { pthread_t t; executable = new xla::ifrt::PjRtLoadedExecutable; pthread_create(&t, 0, worker, 0); }
  executable->Execute(1); }
extern "C" __attribute__((visibility("default"))) void read_loss()
{ pthread_mutex_lock(&lock); while (given) pthread_cond_wait(&change, &lock); pthread_mutex_unlock(&lock); }
"""
PROGRAM = """
    import ctypes, json, sys, time
    library = ctypes.CDLL(sys.argv[1])
    library.step()
    print("ready", flush=True); sys.stdin.readline()
    def work():
        end = time.perf_counter() + 0.005
        while time.perf_counter() < end: pass
    waited = 0.0
    for _ in range(61):
        work()
        since = time.perf_counter()
        library.step()
        waited += time.perf_counter() - since
    print(json.dumps(waited), flush=True); sys.stdin.readline()
"""


@pytest.fixture
def library(tmp_path: Path) -> Path:
    (tmp_path / "a.cpp").write_text(LIBRARY)
    path = tmp_path / "libjax_common.so"
    subprocess.run(
        ["g++", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread", "-o", path, tmp_path / "a.cpp"],
        check=True,
    )
    return path


def observed(process: subprocess.Popen[str]) -> tuple[RawProcess, str]:
    """What is seen of the program while it does its work, and what it prints at the end of it."""
    probes = kernel_probes.load(hz=HZ)
    try:
        probes.calls.watch([process.pid])
        assert probes.calls.notes == []
        watch = process_watch.watch(process.pid, process.pid, TRAINING, probes)
        probes.events.drain()
        start_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        printed = process.stdout.readline()
        seconds = (time.clock_gettime_ns(time.CLOCK_MONOTONIC) - start_ns) / 1e9
        events = probes.events.drain()
        events = events[events["tgid"] == process.pid]
        places = (events["stack"][events["type"] == ring.OFFCPU], events["ready_ns"][events["type"] == ring.CALL])
        walked = {one: probes.stack(one) for one in np.unique(np.concatenate(places)).tolist() if one}
        stacks = {one: watch.name_stack(stack) for one, stack in walked.items() if stack is not None}
        tids = frozenset(watch.states.values())
        watch.close()
    finally:
        probes.close()
    return RawProcess(process.pid, start_ns, seconds, events, {}, (), tids, stacks, {}, 0.0, HZ), printed


def test_waiting_for_the_librarys_threads_is_told_from_its_own_computing(program: Start, library: Path) -> None:
    raw, printed = observed(program(PROGRAM, str(library)))
    waited_s = json.loads(printed)
    inside = raw.events[(raw.events["type"] == ring.CALL) & ~np.isin(raw.events["tid"], list(raw.python_tids))]
    assert len(inside) == 61 and {CALL_TABLE[row].family for row in inside["what"].tolist()} == {"xla"}
    found = find_rank(raw, CALL_TABLE)
    by_kind = {one.function.kind: 0.0 for one in found.training}
    for one in found.training:
        by_kind[one.function.kind] += one.beta * raw.window_s
    in_calls_s = float(inside["dur_ns"].sum()) / 1e9
    ready_s = by_kind.get("sched", 0.0)
    assert in_calls_s - ready_s - 0.05 < by_kind["collective"] <= in_calls_s + 1e-6  # sums of rounded parts
    assert by_kind["collective"] + by_kind["sync"] <= waited_s
    assert found.steps.count >= 50


def test_before_the_collective_too_waiting_while_nobody_of_the_process_is_awake_is_waiting_for_others(
    program: Start, library: Path
) -> None:
    script = PROGRAM.replace("library.step()\n    print", "library.ask_first(5000); library.step()\n    print")
    raw, _ = observed(program(script, str(library)))
    of_type = {kind: raw.events[raw.events["type"] == kind] for kind in (ring.IDLE, ring.CALL)}
    calls_s = float(of_type[ring.CALL]["dur_ns"].sum()) / 1e9
    assert 61 * 0.013 - 0.05 < float(of_type[ring.IDLE]["dur_ns"].sum()) / 1e9 < calls_s + 61 * 0.007
    times = find_rank(raw, CALL_TABLE).step_times
    # 5 ms of Python, 3 ms of the library; 13 ms of waiting.
    assert float(np.median(times.wait_s)) > 0.012
    assert float(np.median(times.own_s - times.sched_s)) < 0.010


def test_a_loss_that_is_averaged_in_every_fifth_iteration_lies_inside_steps(program: Start, library: Path) -> None:
    logging = "library.step()\n        if iteration % 5 == 4: library.step()"
    script = PROGRAM.replace("for _ in range(61)", "for iteration in range(61)")
    head, loop = script.split("def work")
    process = program(f"{head}def work{loop.replace('library.step()', logging)}", str(library))
    raw, _ = observed(process)
    found = find_rank(raw, CALL_TABLE)
    assert 55 <= found.steps.count <= 60
    assert float(np.median(found.step_times.seconds)) < 1.5 * raw.window_s / 61


def test_a_job_that_runs_ahead_and_reads_its_loss_in_every_eighth_iteration_makes_a_step_per_iteration(
    program: Start, library: Path
) -> None:
    script = PROGRAM.replace("for _ in range(61)", "for iteration in range(120)").replace("0.005", "0.001")
    head, loop = script.split("def work")
    ahead = "library.hand_over()\n        if iteration % 8 == 7: library.read_loss()"
    raw, _ = observed(program(f"{head}def work{loop.replace('library.step()', ahead)}", str(library)))
    found = find_rank(raw, CALL_TABLE)
    assert 110 <= found.steps.count <= 120
    assert float(np.median(found.step_times.seconds)) < 1.5 * raw.window_s / 120
