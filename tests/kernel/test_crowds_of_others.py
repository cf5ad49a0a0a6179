"""Processes of another user, however many and however alike, hide no rank."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from rankscope.observer.census.candidates import ALIKE_MOST, scan

NOBODY = 65534
CROWD = f"""
import os, time
heard, tell = os.pipe()
for _ in range({ALIKE_MOST + 20}):
    if not os.fork():
        os.setuid({NOBODY})
        os.write(tell, b"x")
        time.sleep(600)
    os.read(heard, 1)
for _ in range(2):
    if not os.fork():
        time.sleep(600)
print("ready", flush=True)
time.sleep(600)
"""


def test_a_crowd_of_another_user_hides_no_process_of_the_same_parent_and_name() -> None:
    said = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    parent = subprocess.Popen(
        [sys.executable, "-c", CROWD], env=os.environ | said, stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert parent.stdout is not None and parent.stdout.readline() == b"ready\n"
        found = scan()
        below = [pid for pid, one in found.candidates.items() if one.ppid == parent.pid]
        owners = [Path(f"/proc/{pid}").stat().st_uid for pid in below]
        assert (owners.count(NOBODY), owners.count(0)) == (ALIKE_MOST, 2)
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()
