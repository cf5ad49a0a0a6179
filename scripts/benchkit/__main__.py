"""scripts/bench NAME: one bench, one table."""

from __future__ import annotations

import argparse
import os
import sys

from benchkit import counters, diagnose_fleets, fleet, loading, overhead, reputation, slowdown, sweep
from benchkit.gpu import bench as gpu
from benchkit.service import watch, watch_faults, watch_live
from benchkit.timings import bench as timings
from benchkit.unwinder import bench as unwinder
from labkit.machine import guard
from labkit.machine.command import Parser, ended


def main() -> int:
    parser = Parser(prog="scripts/bench", description="Measure Rankscope on this machine.")
    benches = parser.add_subparsers(dest="bench", required=True)
    overhead.arguments(benches.add_parser("overhead", help="what the observer costs the job, the kernel and itself"))
    loading.arguments(
        benches.add_parser(
            "loading", help="what loading all probes costs: the first time on a host, again, compiled there"
        )
    )
    slowdown.arguments(
        benches.add_parser(
            "slowdown", help="by how much observing slows a job down, with its interval, in short stretches"
        )
    )
    unwinder.arguments(benches.add_parser("unwinder", help="what Python stacks cost and whether they are right"))
    diagnose_fleets.arguments(
        benches.add_parser("diagnose", help="culprits found in synthetic fleets of up to 100,000 ranks")
    )
    fleet.arguments(benches.add_parser("fleet", help="objects of up to 125,000 hosts to one verdict"))
    timings.arguments(benches.add_parser("timings", help="files of timings as others write them: who is named"))
    reputation.arguments(
        benches.add_parser(
            "reputation", help="when a component that is always a little slow is named, and how often falsely"
        )
    )
    sweep.arguments(benches.add_parser("sweep", help="time and CPU of a health sweep of this host"))
    watch.arguments(
        benches.add_parser("watch", help="the change detector: false alarms a week, steps until a shift is told")
    )
    watch_live.arguments(benches.add_parser("watch-live", help="what `rankscope watch` costs beside a job"))
    watch_faults.arguments(
        benches.add_parser(
            "watch-faults", help="faults one after the other beside `rankscope watch`: named when, over when"
        )
    )
    counters.arguments(
        benches.add_parser("counters", help="what sampling GPUs, NICs and the PCI tree costs (emulated machine)")
    )
    gpu.arguments(
        benches.add_parser("gpu", help="the probes on a real GPU: what is told, how often it changes, is it right")
    )
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
