"""Memory (DIMMs) has no errors.

Reads ce_count and ue_count per DIMM under /sys/devices/system/edac; judged by growth since the last sweep, and reported for
`hours`. An uncorrected error is critical: data was lost. Corrected ones are normal up to some per hour; more come before an
uncorrected one. A count that could be read earlier and cannot now is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.diagnose.sweep.context import Context, NotApplicable
from rankscope.diagnose.sweep.finding import Finding
from rankscope.probes.host.edac import read_edac

ID = "mem.ecc"
SETTINGS = {"corrected_per_hour": 10.0, "hours": 24.0}


def run(context: Context) -> Iterator[Finding]:
    """Yield one finding per DIMM: new uncorrected errors critical, many corrected ones a warning, else ok.

    Raises NotApplicable without an EDAC driver.
    """
    memory = read_edac(context.root)
    if memory is None:
        raise NotApplicable("no EDAC driver (no ECC memory, or a virtual machine)")
    read = "/sys/devices/system/edac/mc"
    for dimm in memory:
        corrected = context.grown(f"{dimm.name}.ce", dimm.corrected)
        uncorrected = context.grown(f"{dimm.name}.ue", dimm.uncorrected)
        unread = dimm.uncorrected is None and not uncorrected.first
        if dimm.corrected is None and dimm.uncorrected is None and not unread:
            continue
        if uncorrected.amount:
            yield context.critical(
                f"{read}/*ue_count", uncorrected.amount, unit="errors", instance=dimm.name,
                expected="none since the last sweep", why="memory lost data", action="Drain the host and replace the DIMM.",
                lasts=True,
            )  # fmt: skip
        elif unread:
            yield context.unknown(f"{read}/*ue_count", "its uncorrected errors cannot be read now", instance=dimm.name)
        else:
            yield context.judged(
                round(corrected.per_hour, 1), context.number("corrected_per_hour"), float("inf"), f"{read}/*ce_count",
                unit="errors/h", instance=dimm.name, what="corrected errors",
                why="the DIMM corrects many errors; uncorrected ones follow", action="Replace the DIMM at the next chance.",
                lasts=True,
            )  # fmt: skip
