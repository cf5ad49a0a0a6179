"""Run a program that downloads or unpacks, with a limit, and say in one line why it failed."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from labkit.machine.shell import LabError


def run(words: Sequence[str], folder: Path | None = None, *, patience_s: float, again: str, install: str) -> str:
    """Return what a program prints. LabError, with `install` where it is missing ({name}: its name), else with `again`."""
    name = Path(words[0]).name
    try:
        done = subprocess.run(
            words, cwd=folder, capture_output=True, text=True, check=False, timeout=patience_s, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError:
        raise LabError(f"{name} is not installed", install.format(name=name)) from None
    except subprocess.TimeoutExpired:
        raise LabError(f"{name} did not end in {patience_s:.0f} s", again) from None
    if done.returncode:
        complaint = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise LabError(f"{name} failed: {complaint[:300]}", again)
    return done.stdout
