"""Where jobs live on this host: control groups that hold all their processes, a folder, and a reaper for both.

The reaper is a process of its own that waits for the lab to end, however it ends, and then kills and removes all.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from labkit.machine import cgroups
from labkit.machine.shell import LabError

PREFIX = os.environ.get("RANKSCOPE_JOBS_PREFIX", "rsjobs-")  # another in tests, which must not end a lab that runs
FOLDER = Path(os.environ.get("RANKSCOPE_LAB_DIR", "/var/tmp")) / "rsjobs"
LOCK = Path("/run/rsjobs.lock")
# Temporary files of the jobs; a short name, since sockets lie below it.
SCRATCH = Path("/tmp") / PREFIX.rstrip("-")


def group(name: str) -> Path:
    """A new control group that only holds processes together: nothing is limited in it."""
    places = [place for place in cgroups.hierarchies() if place.controller in {"memory", "cpu"}]
    if not places:
        raise LabError("no control group hierarchy on this host", "The lab of jobs keeps their processes in one.")
    # Memory's where it is apart (version 1): a group of its own there takes part in no sharing of CPU time.
    mount = max(places, key=lambda place: place.controller == "memory").mount
    path = mount / (PREFIX + name)
    path.mkdir(exist_ok=True)
    return path


def processes(path: Path) -> list[int]:
    try:
        return [int(pid) for pid in (path / "cgroup.procs").read_text().split()]
    except OSError:
        return []


def clean_up() -> int:
    """Kill and remove everything of the lab of jobs; how many things there were."""
    groups = {path for place in cgroups.hierarchies() for path in place.mount.glob(f"{PREFIX}*")}
    for path in groups:
        cgroups.remove_group(path)
    shutil.rmtree(SCRATCH, ignore_errors=True)
    if not FOLDER.exists():
        return len(groups)
    shutil.rmtree(FOLDER, ignore_errors=True)
    return len(groups) + 1


@contextlib.contextmanager
def reaper() -> Iterator[None]:
    """While this is open a process waits for the end of ours, and cleans up after us; it ends with the block."""
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r}); from labkit.jobs import machine; "
    code += "sys.stdin.buffer.read(); machine.clean_up()"
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdin is not None
    try:
        yield
    finally:
        process.stdin.close()
        process.wait()
