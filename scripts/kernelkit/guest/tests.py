"""Tests of the kernel that do not rest on how fast the machine is, as they are: how many passed, and which did not."""

from __future__ import annotations

import re
import subprocess
import sys
import time

from kernelkit.lines import Check, encode
from labkit.machine.shell import REPOSITORY

# Files that pass in emulation on a kernel where everything works.
FILES = ("test_call_sites.py", "test_cgroup_limits.py", "test_ended_in_calls.py", "test_network.py", "test_probes.py")
# Sleeps of a microsecond, which are over before a thread of a slow machine is switched out.
_NOT_HERE = ("test_probes.py::test_a_full_ring_is_counted_not_hidden",)
_MOST_S = 1000.0
_NAME = "kernel tests"


def main() -> None:
    began = time.monotonic()
    files = [str(REPOSITORY / "tests/kernel" / name) for name in FILES]
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--max-suite-reruns",
        "10",
        "--tb=no",
        *(f"--deselect=tests/kernel/{name}" for name in _NOT_HERE),
        *files,
    ]
    try:
        done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=_MOST_S)
    except subprocess.TimeoutExpired:
        print(encode(Check(_NAME, False, f"not done after {_MOST_S:.0f} s")), flush=True)
        return
    good, words_said = summary(done.stdout)
    print(encode(Check(_NAME, good, words_said or done.stderr[-300:], round(time.monotonic() - began, 1))), flush=True)


def summary(said: str) -> tuple[bool, str]:
    """Read pytest's last line and the names of what failed: whether all passed, and a line of words."""
    counts = dict.fromkeys(("passed", "failed", "error"), 0)
    for number, word in re.findall(r"(\d+) (passed|failed|error)s?\b", said.strip().rpartition("\n")[2]):
        counts[word] = int(number)
    failed = re.findall(r"^(?:FAILED|ERROR) \S*?::(\w+)", said, re.MULTILINE)
    passed, every = counts["passed"], sum(counts.values())
    return 0 < passed == every, "; ".join((f"{passed} of {every}", *dict.fromkeys(failed)))


if __name__ == "__main__":
    main()
