"""Names in folders that several checks list."""

from __future__ import annotations

import os
import re

from rankscope.diagnose.sweep.context import Context

_CPU = re.compile(r"cpu\d{1,5}")
_MAX = 8192


def names(context: Context, *parts: str) -> list[str]:
    """Sorted names in a folder; empty if there is none. Raises PermissionError."""
    try:
        return sorted(os.listdir(context.path(*parts)))[:_MAX]  # noqa: PTH208
    except (FileNotFoundError, NotADirectoryError):
        return []


def cpu_folders(context: Context) -> list[str]:
    """Folder names 'cpu0', 'cpu1', … sorted by number."""
    found = (name for name in names(context, "sys/devices/system/cpu") if _CPU.fullmatch(name))
    return sorted(found, key=lambda name: int(name[3:]))
