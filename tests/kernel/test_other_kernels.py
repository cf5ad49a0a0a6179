"""Kernels that fleets run, in emulation: all programs load, a sampled stack and a timed call are right (scripts/kernels)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from kernelkit.kernels import IN_EVERY_RUN

pytestmark = pytest.mark.beside(ranks=False)

REPOSITORY = Path(__file__).resolve().parents[2]
CHECKS = ("boot", "programs", "sampled stack", "timed call", "probes")
MISSING = 69


@pytest.mark.parametrize("kernel", IN_EVERY_RUN)
def test_programs_samples_and_calls_are_right_on_an_older_kernel(kernel: str) -> None:
    # The emulator uses both CPUs: it goes behind the tests of the kernel, which measure time, and before what only computes.
    words = ["nice", "-n", "10", str(REPOSITORY / "scripts/kernels"), "--quick", "--only", kernel]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=1200)
    if done.returncode == MISSING and not os.environ.get("CI"):
        pytest.skip(done.stderr.strip().splitlines()[0])
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split(maxsplit=1) for line in done.stdout.splitlines() if line.startswith("  ")]
    found = [(state, next((name for name in CHECKS if rest.startswith(name)), rest)) for state, rest in lines]
    assert found == [("ok", name) for name in CHECKS]
