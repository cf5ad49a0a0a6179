"""A window by an observer that lacks something: a process of its own, since all of a process lacks it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rankscope.observer.window.folder import Window, find_windows, read_window
from rankscope.probes.base import abilities

_RECORD = """
import sys
from pathlib import Path
from rankscope.observer.recorder import RecordOptions, record
out, seconds, *pids = sys.argv[1:]
record(RecordOptions(window_s=float(seconds), align_s=0.0, pids=tuple(map(int, pids)), out=Path(out)))
"""


def recorded(pids: tuple[int, ...], window_s: float, folder: Path, name: str) -> Window:
    """A window of these ranks without what has this name; '': without nothing. It is left in a new folder in `folder`."""
    out = tempfile.mkdtemp(dir=folder)
    command = [sys.executable, "-c", _RECORD, out, str(window_s), *map(str, pids)]
    environ = os.environ | {abilities.VARIABLE: name}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    assert done.returncode == 0, done.stderr
    (place,) = find_windows(Path(out))
    return read_window(place)
