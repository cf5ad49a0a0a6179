"""scripts/bench NAME: one bench, one table."""

from __future__ import annotations

import argparse
import os
import sys

from benchkit import counters, fleet, loading, overhead, sweep
from benchkit.gpu import bench as gpu
from benchkit.service import watch, watch_faults, watch_live
from benchkit.timings import bench as timings
from labkit.machine import guard
from labkit.machine.command import Parser, ended

BENCHES = (
    ("overhead", overhead, "what the observer costs the job, the kernel and itself, py-spy beside it"),
    ("loading", loading, "what loading all probes costs: the first time on a host, again, compiled there"),
    ("counters", counters, "what sampling GPUs, NICs and the PCI tree costs (emulated machine)"),
    ("sweep", sweep, "time and CPU of a health sweep of this host"),
    ("fleet", fleet, "objects of up to 125,000 hosts to one verdict"),
    ("timings", timings, "files of timings as others write them: who is named"),
    ("watch", watch, "the change detector: false alarms a week, steps until a shift is told"),
    ("watch-live", watch_live, "what `rankscope watch` costs beside a job"),
    ("watch-faults", watch_faults, "faults one after the other beside `rankscope watch`: named when, over when"),
    ("gpu", gpu, "the probes on a real GPU: what is told, how often it changes, is it right"),
)


def main() -> int:
    parser = Parser(prog="scripts/bench", description="Measure Rankscope on this machine.")
    benches = parser.add_subparsers(dest="bench", required=True)
    for name, bench, words in BENCHES:
        bench.arguments(benches.add_parser(name, help=words))
    options = parser.parse_args()
    if getattr(options, "anywhere", False):  # needs neither root nor the machine for itself
        return ended("bench", lambda: int(options.run(options)), "what it started is ended")
    if os.geteuid() != 0:
        print("bench: needs root", file=sys.stderr)
        return 77
    return ended("bench", lambda: _measured(options), "job, namespaces and control groups are removed")


def _measured(options: argparse.Namespace) -> int:
    with guard.lab_to_oneself():
        return int(options.run(options))


if __name__ == "__main__":
    sys.exit(main())
