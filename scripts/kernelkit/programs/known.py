"""Compute in one function for so many seconds, then call a C function that takes so long: known.py LIBRARY SECONDS MICROSECONDS….

Prints "ready", waits for a line, and prints for each call how long it took by this process's own clock, in ns.
"""

import ctypes
import sys
import time


def crunch(until: float) -> None:
    while time.perf_counter() < until:
        sum(range(1000))


def main() -> None:
    call = ctypes.CDLL(sys.argv[1])._ZN4gloo9allreduceERNS_16AllreduceOptionsE
    print("ready", flush=True)
    sys.stdin.readline()
    crunch(time.perf_counter() + float(sys.argv[2]))
    for microseconds in map(int, sys.argv[3:]):
        began = time.monotonic_ns()
        call(microseconds)
        print(time.monotonic_ns() - began, flush=True)
    print("done", flush=True)
    sys.stdin.readline()


main()
