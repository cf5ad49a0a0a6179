"""Memory errors that the memory controllers counted.

In: /sys/devices/system/edac/mc (Documentation/admin-guide/ras.rst). Out: MemoryErrors per DIMM, or per controller where
the driver knows no DIMMs. Counters start at 0 when the driver is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rankscope.probes.host.procfs import ROOT, read_file

MAX_DIMMS = 1024


@dataclass(frozen=True, slots=True)
class MemoryErrors:
    """Errors of one DIMM or controller; `name` is the board's label where it has one."""

    name: str
    corrected: int
    uncorrected: int


def read_edac(root: Path = ROOT) -> tuple[MemoryErrors, ...] | None:
    """Errors of all memory; None where no EDAC driver is loaded. Raises PermissionError."""
    folder = Path(root) / "sys/devices/system/edac/mc"
    controllers = sorted(folder.glob("mc[0-9]*"))
    if not controllers:
        return None
    found: list[MemoryErrors] = []
    for controller in controllers:
        dimms = [*sorted(controller.glob("dimm[0-9]*")), *sorted(controller.glob("rank[0-9]*"))][:MAX_DIMMS]
        listed = [
            MemoryErrors(
                f"{controller.name}/{_text(dimm / 'dimm_label') or dimm.name}",
                _count(dimm / "dimm_ce_count"),
                _count(dimm / "dimm_ue_count"),
            )
            for dimm in dimms
        ]
        corrected, uncorrected = _count(controller / "ce_count"), _count(controller / "ue_count")
        found += listed
        # What the controller could not trace to a DIMM.
        corrected -= sum(one.corrected for one in listed)
        uncorrected -= sum(one.uncorrected for one in listed)
        if not listed or corrected > 0 or uncorrected > 0:
            found.append(MemoryErrors(controller.name, max(0, corrected), max(0, uncorrected)))
    return tuple(found)


def _text(path: Path) -> str:
    try:
        return read_file(str(path), 256).decode("utf-8", "replace").strip()
    except PermissionError:
        raise
    except OSError:
        return ""


def _count(path: Path) -> int:
    text = _text(path)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0
