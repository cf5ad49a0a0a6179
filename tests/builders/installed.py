"""Programs that stand beside the interpreter of the tests (scripts/setup), and what is found in PATH where they do not."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

_FOLDER = Path(sys.executable).parent

RANKSCOPE = _FOLDER / "rankscope"


def found(name: str) -> str | None:
    """Path of a program that only tests run; None where it is not installed."""
    return shutil.which(name, path=f"{_FOLDER}:{os.environ.get('PATH', '')}")


PROMTOOL = found("promtool")
