"""A program that forks without end keeps nobody waiting: of children that are alike a bounded number is looked at, and that is said."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from rankscope.observer.census.candidates import ALIKE_MOST, scan

MORE = 20
CROWD = """
import os, sys, time
for _ in range(int(sys.argv[1])):
    if not os.fork():
        time.sleep(600)
print("ready", flush=True)
time.sleep(600)
"""


def test_of_a_crowd_of_children_the_first_are_looked_at_and_the_rest_is_told() -> None:
    said = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    parent = subprocess.Popen(
        [sys.executable, "-c", CROWD, str(ALIKE_MOST + MORE)],
        env=os.environ | said,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert parent.stdout is not None and parent.stdout.readline() == b"ready\n"
        found = scan()
        below = [pid for pid, one in found.candidates.items() if one.ppid == parent.pid]
        assert len(below) == ALIKE_MOST
        assert parent.pid in found.candidates
        assert sum(stat.ppid == parent.pid for stat in found.processes.values()) == ALIKE_MOST + MORE
        (note,) = [note for note in found.notes if note.startswith(f"pid {parent.pid} has")]
        assert note.endswith(f"{MORE} of them were not examined")
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()
