"""scripts/start.py kernelkit.guest STAGE…: the first process of the guest. Prepare it, then run each stage in a process of its own.

Each stage prints its checks; a stage that ends badly or late is itself a check that failed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

from kernelkit.guest.prepare import prepare
from kernelkit.lines import Check, encode
from labkit.machine.shell import module

MOST_S = {"probes": 600.0, "job": 2000.0, "tests": 1200.0}  # a stage alone: a safety, as in cli.py


def main(stages: list[str]) -> None:
    prepare()
    print(encode(Check("boot", True, os.uname().release, _since_boot_s())), flush=True)
    for stage in stages:
        began = time.monotonic()
        try:
            code = subprocess.run(module(f"kernelkit.guest.{stage}"), check=False, timeout=MOST_S[stage]).returncode
            said = f"ended with {code}" if code else ""
        except subprocess.TimeoutExpired:
            said = f"not done after {MOST_S[stage]:.0f} s"
        print(encode(Check(stage, not said, said, round(time.monotonic() - began, 1))), flush=True)


def _since_boot_s() -> float:
    return round(time.clock_gettime(time.CLOCK_BOOTTIME), 1)


main(sys.argv[1:])
