"""A file system in user space with one file, which stops answering when its server is stopped (campaignkit/chaos/programs/fuse.py)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from labkit.machine.shell import REPOSITORY, Impossible, LabError, quietly

_SERVER = REPOSITORY / "scripts/campaignkit/chaos/programs/fuse.py"


@contextmanager
def served(place: Path, source: Path, mode: str) -> Iterator[subprocess.Popen[str]]:
    """The file `source` in the folder `place`; `broken`: whatever is written or made there fails with EIO; `whole`: nothing does."""
    place.mkdir()
    if not Path("/dev/fuse").exists():
        raise Impossible("this host has no FUSE")
    server = subprocess.Popen(
        [sys.executable, str(_SERVER), str(place), str(source), mode], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        if server.stdout.readline().strip() != "ready":
            raise LabError("the file system in user space did not start")
        yield server
    finally:
        server.kill()
        server.wait()
        quietly("umount", "-l", place)
