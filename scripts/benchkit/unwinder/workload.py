"""A process that knows what it does: seven functions on the training thread, one on a loader thread, the rest idle.

Run as a program by every CPython from 3.8 on (`workload.py LEDGER THREADS BUSY SEED CYCLE`), imported by the bench for
FUNCTIONS. It measures the CPU time of each function with time.thread_time_ns and keeps the sums, in nanoseconds and in the
order of FUNCTIONS, in the file LEDGER, which it maps. The order and size of the work are shuffled, so that no sampler can
fall into step with it. It ends with its standard input.
"""

from __future__ import annotations

import mmap
import random
import sys
import threading
import time
import zlib

# Share of the training thread's CPU time; rows is a generator, augment recurses DEPTH deep, decode is C under Python.
FUNCTIONS = ("forward", "backward", "step", "augment", "decode", "rows", "log_metrics", "poll_loader")
SHARES = (0.33, 0.25, 0.16, 0.11, 0.06, 0.05, 0.04)
DEPTH = 23
CYCLE_CPU_S = 0.2  # of the training thread, before it sleeps
_POLL_SHARE, _POLL_EVERY = 0.1, 5.0  # the loader's work and its pauses, in cycles
_BLOCK = bytes(range(256)) * 256


def forward(n):
    total = 0
    for i in range(n):
        total += i * i
    return total


def backward(n):
    while n:
        n -= 1


class Optimizer:
    value = 0

    def step(self, n):
        for i in range(n):
            self.value = i ^ self.value


def augment(n, deeper=DEPTH - 1):
    if deeper:
        return augment(n, deeper - 1)
    low = 0
    for i in range(n):
        low = i & 7
    return low


def decode(n):
    for _ in range(n):
        zlib.crc32(_BLOCK)


def rows(n):
    for i in range(n):
        if not i & 8191:
            yield i


def collate(n):
    for _ in rows(n):
        pass


def log_metrics(n):
    text = ""
    for i in range(n):
        text = "%d %f" % (i, i)  # noqa: UP031 - 3.8 to 3.14 spend their time alike in it
    return text


def poll_loader(n):
    for i in range(n):
        n = n | i


def cost_s(work):
    """CPU seconds of one unit of work, from enough of it to be measured."""
    n = 64
    while True:
        began = time.thread_time_ns()
        work(n)
        spent = time.thread_time_ns() - began
        if spent > 1_000_000:
            return spent / 1e9 / n
        n *= 2


def keep_doing(work, slot, ledger, n):
    began = time.thread_time_ns()
    work(n)
    ledger[slot] += time.thread_time_ns() - began


def train(ledger, busy, cycle_s, chance, works, sizes):
    order = list(range(len(works)))
    while True:
        began = time.monotonic()
        chance.shuffle(order)
        for slot in order:
            keep_doing(works[slot], slot, ledger, max(int(sizes[slot] * chance.uniform(0.8, 1.2)), 1))
        period_s = cycle_s / busy * chance.uniform(0.5, 1.5)
        time.sleep(max(began + period_s - time.monotonic(), 0.001))


def load(ledger, cycle_s, chance, n):
    while True:
        time.sleep(_POLL_EVERY * cycle_s * chance.uniform(0.5, 1.5))
        keep_doing(poll_loader, len(SHARES), ledger, n)


def doze():
    while True:
        time.sleep(1.0)


def main():
    path, threads, busy = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    chance, cycle_s = random.Random(int(sys.argv[4])), float(sys.argv[5])
    with open(path, "r+b") as file:  # noqa: PTH123
        ledger = memoryview(mmap.mmap(file.fileno(), 8 * len(FUNCTIONS))).cast("Q")
    works = (forward, backward, Optimizer().step, augment, decode, collate, log_metrics)
    sizes = [share * cycle_s / cost_s(work) for share, work in zip(SHARES, works)]  # noqa: B905 - 3.8 has no strict
    never = threading.Event()
    polls = max(int(_POLL_SHARE * cycle_s / cost_s(poll_loader)), 1)
    targets = [
        (train, (ledger, busy, cycle_s, chance, works, sizes)),
        (load, (ledger, cycle_s, random.Random(2), polls)),
    ]
    targets += [(doze, ()) if number % 2 else (never.wait, ()) for number in range(threads - 3)]
    for target, arguments in targets:
        threading.Thread(target=target, args=arguments, daemon=True).start()
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
