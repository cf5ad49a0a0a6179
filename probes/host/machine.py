"""A stable id of a host, whatever its name.

Hashed firmware UUID, else hashed machine-id (machine-id(5)).
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from rankscope.probes.host.procfs import ROOT, read_file

# The firmware's first: machines made from one image often share the other. Only root may read it.
_NAMES = ("sys/class/dmi/id/product_uuid", "etc/machine-id")
_NONE = frozenset(
    ("", "0" * 32, "f" * 32, "03000200040005000006000700080009")
)  # boards without an id share the last one


def machine_id(root: Path = ROOT) -> str:
    """Return 16 hex digits that identify the host; '' where there is no id."""
    for name in _NAMES:
        try:
            said = read_file(str(root / name), 128).decode("ascii", "replace").strip().lower().replace("-", "")
        except OSError:
            continue
        if said not in _NONE:
            return hashlib.sha256(f"rankscope {said}".encode()).hexdigest()[:16]
    return ""
