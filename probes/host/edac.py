"""Memory errors counted by the memory controllers.

In: /sys/devices/system/edac/mc (Documentation/admin-guide/ras.rst). Out: MemoryErrors per DIMM, or
per controller where the driver knows no DIMMs. Counters start at 0 when the driver is loaded.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from rankscope.probes.host.procfs import ROOT, read_file

MAX_DIMMS = 1024


@dataclass(frozen=True, slots=True)
class MemoryErrors:
    """Error counts of one DIMM, or of a controller without those of its DIMMs; None where
    unreadable.

    `name` is the board's label of the DIMM where that is unique.
    """

    name: str
    corrected: int | None
    uncorrected: int | None


def read_edac(root: Path = ROOT) -> tuple[MemoryErrors, ...] | None:
    """Read the errors of all DIMMs, and per controller those not traced to a DIMM.

    None where no EDAC driver is loaded. Raises PermissionError.
    """
    folder = Path(root) / "sys/devices/system/edac/mc"
    controllers = sorted(folder.glob("mc[0-9]*"))
    if not controllers:
        return None
    found: list[MemoryErrors] = []
    for controller in controllers:
        dimms = [*sorted(controller.glob("dimm[0-9]*")), *sorted(controller.glob("rank[0-9]*"))][:MAX_DIMMS]
        listed = [
            MemoryErrors(f"{controller.name}/{name}", _count(dimm / "dimm_ce_count"), _count(dimm / "dimm_ue_count"))
            for dimm, name in zip(dimms, _names(dimms), strict=True)
        ]
        found += listed
        # Errors that the controller could not trace to a DIMM; listed even when 0, so that the
        # first one is seen to be new.
        corrected = _rest(_count(controller / "ce_count"), [one.corrected for one in listed])
        uncorrected = _rest(_count(controller / "ue_count"), [one.uncorrected for one in listed])
        found.append(MemoryErrors(controller.name, corrected, uncorrected))
    return tuple(found)


def _names(dimms: list[Path]) -> list[str]:
    """Return a unique name per DIMM: its label; with its folder's name where several have the same label."""
    labels = [_text(dimm / "dimm_label") or dimm.name for dimm in dimms]
    often = Counter(labels)
    return [label if often[label] == 1 else f"{label} ({dimm.name})" for dimm, label in zip(dimms, labels, strict=True)]


def _rest(all_of_them: int | None, counted: list[int | None]) -> int | None:
    """Subtract the DIMMs' counts from a controller's (at least 0); None where any of them is unknown."""
    known = [count for count in counted if count is not None]
    return None if all_of_them is None or len(known) < len(counted) else max(0, all_of_them - sum(known))


def _text(path: Path) -> str:
    """Read a file, stripped; '' where it cannot be read. Raises PermissionError."""
    try:
        return read_file(str(path), 256).decode("utf-8", "replace").strip()
    except PermissionError:
        raise
    except OSError:
        return ""


def _count(path: Path) -> int | None:
    """Read a count; None where it cannot be read or is no number. Raises PermissionError."""
    text = _text(path)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None
