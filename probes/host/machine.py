"""What names a host whatever it is called: its firmware's UUID, else its machine-id; hashed, as machine-id(5) asks for."""

from __future__ import annotations

import hashlib
from pathlib import Path

from rankscope.probes.host.procfs import ROOT, read_file

# The firmware's first: machines made from one image often share the other. Only root may read it.
_NAMES = ("sys/class/dmi/id/product_uuid", "etc/machine-id")
_NONE = frozenset(
    ("", "0" * 32, "f" * 32, "03000200040005000006000700080009")
)  # boards that were given none share the last


def machine_id(root: Path = ROOT) -> str:
    """16 hex digits; '' where nothing names it."""
    for name in _NAMES:
        try:
            said = read_file(str(root / name), 128).decode("ascii", "replace").strip().lower().replace("-", "")
        except OSError:
            continue
        if said not in _NONE:
            return hashlib.sha256(f"rankscope {said}".encode()).hexdigest()[:16]
    return ""
