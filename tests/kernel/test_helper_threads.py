"""Threads without Python state, live: known by their name and by the native function they run."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from watching import HZ, Watched

from rankscope.observer.thread.helper_threads import helper_threads
from rankscope.probes.bpf import ring
from rankscope.probes.sched import probe as sched
from rankscope.unwinder.names.native import NativeNames

pytestmark = pytest.mark.beside(ranks=False)

LIBRARY = r"""
#define _GNU_SOURCE
#include <pthread.h>
#include <time.h>
#include <stdint.h>
static volatile uint64_t sink;
void spin_in_autograd(double seconds)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    double end = now.tv_sec + now.tv_nsec / 1e9 + seconds;
    do {
        for (int i = 0; i < 500000; i++) sink += i; /* the clock itself is another library's function */
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    } while (now.tv_sec + now.tv_nsec / 1e9 < end);
}
static void *run(void *argument)
{
    char *name = argument;
    pthread_setname_np(pthread_self(), name);
    spin_in_autograd(name[0] == 'p' ? 0.7 : 0);
    for (;;) { struct timespec nap = {0, 100000000}; nanosleep(&nap, 0); }
    return 0;
}
void begin(void)
{
    static char *busy[3] = {"pt_autograd_0", "pt_autograd_1", "pt_autograd_2"};
    pthread_t thread;
    for (int i = 0; i < 3; i++) pthread_create(&thread, 0, run, busy[i]);
    pthread_create(&thread, 0, run, "watchdog");
}
"""


@pytest.fixture
def library(tmp_path: Path) -> Path:
    source, built = tmp_path / "helpers.c", tmp_path / "libhelpers.so"
    source.write_text(LIBRARY)
    subprocess.run(["cc", "-O1", "-fPIC", "-shared", "-pthread", "-o", str(built), str(source)], check=True)
    return built


def test_three_autograd_threads_are_one_row_with_their_function_and_their_cpu_time(
    watched: Callable[..., Watched], library: Path
) -> None:
    one = watched(
        """
        import ctypes, sys, time
        helpers = ctypes.CDLL(sys.argv[1])
        def train():
            end = time.time() + 0.3
            while time.time() < end: pass
        print("ready", flush=True); sys.stdin.readline()
        helpers.begin()
        train()
        sys.stdin.readline()
        """,
        str(library),
    )
    before = {times.tid: times for times in sched.thread_times(one.probes.module)}
    one.go()
    batches = []
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        batches.append(one.observe(0.2))
        if len(batches) > 3 and not any((batch["type"] == ring.NATIVE).any() for batch in batches[-2:]):
            break
    names = {int(task.name): (task / "comm").read_text().strip() for task in one.tasks()}
    events = np.concatenate(batches)
    python = set(one.watch.threads)
    mine = [t for t in sched.thread_times(one.probes.module) if t.tgid == one.process.pid and t.tid not in python]
    natives = NativeNames()
    native = natives.names(one.process.pid, np.unique(events["arg"][events["type"] == ring.NATIVE]).astype(np.uint64))
    natives.close()
    busiest = helper_threads(mine, before, events, native, names.__getitem__)[0]
    assert (busiest.name, busiest.leaf, busiest.threads) == ("pt_autograd_#", "spin_in_autograd", 3)
    assert busiest.run_s == pytest.approx(2.1, rel=0.1)
    helpers = events[(events["type"] == ring.NATIVE) & np.isin(events["tid"], [t.tid for t in mine])]
    assert len(helpers) == pytest.approx(2.1 * HZ, rel=0.25)
    assert not (events[events["type"] == ring.SAMPLE]["stack"] == 0).any()
