"""What loading all probes costs in CPU time: the first time on a host, again, and where they have to be compiled.

Each load in a process of its own, from when its modules are imported until every program is loaded and attached, the compiler included.
Figures add up what that process and its children used.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from benchkit import recording
from labkit.machine.shell import LabError
from rankscope.observer import programs_ahead
from rankscope.probes.base import abilities

FIRST, AGAIN, COMPILED = "the first time on a host", "again", "the first time, compiled by bcc"
TARGET_S = 0.5  # of the first two
_LOAD = """
import resource
from rankscope.observer.live import kernel_probes
def cpu_s():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)
imported_s = cpu_s()
probes = kernel_probes.load(hz=99)
loaded_s = cpu_s()
assert not probes.notes, probes.notes
probes.close()
print(loaded_s - imported_s, imported_s)
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the table; 0 where the target is met by the median. LabError where programs were not compiled ahead."""
    if programs_ahead.main(()):
        raise LabError("the programs are not compiled ahead of these sources", "Run scripts/setup.")
    loads: dict[str, list[float]] = {FIRST: [], AGAIN: [], COMPILED: []}
    imports: list[float] = []
    for _ in range(max(2, options.rounds)):
        for name, without in (
            (COMPILED, abilities.COMPILED_AHEAD),
            (FIRST, abilities.COMPILER),
            (AGAIN, abilities.COMPILER),
        ):
            if name != AGAIN:
                recording.forget_what_was_compiled()
            load_s, import_s = _load(without)
            loads[name].append(load_s)
            imports.append(import_s)
    medians = {name: statistics.median(found) for name, found in loads.items()}
    print(f"{'loading all probes, s of CPU':36}{'median':>8}{'worst':>8}{'target':>8}")
    for name, found in loads.items():
        target = "" if name == COMPILED else f"{TARGET_S:8.1f}"
        print(f"{name:36}{medians[name]:8.2f}{max(found):8.2f}{target}{_missed(name, medians[name])}")
    print(f"{'Python and its modules, before that':36}{statistics.median(imports):8.2f}{max(imports):8.2f}")
    if options.json:
        options.json.write_text(json.dumps({**loads, "imports": imports}, indent=1))
    return int(any(_missed(name, median) for name, median in medians.items()))


def _missed(name: str, median_s: float) -> str:
    return "  MISSED" if name != COMPILED and median_s > TARGET_S else ""


def _load(without: str) -> tuple[float, float]:
    """Seconds of CPU of one load, and of the imports before it, on a host that has not what is named."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-c", _LOAD],
        env={**environment, abilities.VARIABLE: without},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise LabError(f"the probes do not load: {done.stderr.strip()[-300:]}")
    load_s, import_s = map(float, done.stdout.split())
    return load_s, import_s
