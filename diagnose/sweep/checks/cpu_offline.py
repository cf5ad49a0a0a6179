"""All CPUs that are there are in use.

Reads present, online and smt/control under /sys/devices/system/cpu. CPUs that are off while SMT is off, wholly or in part, are
fine, whenever it was switched off. Else a CPU that an earlier sweep saw online is critical: the kernel or firmware took it away,
mostly after hardware errors.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.diagnose.severity import CRITICAL, WARNING
from rankscope.diagnose.sweep.context import Context, NotApplicable
from rankscope.diagnose.sweep.finding import Finding
from rankscope.probes.host.procfs import parse_cpu_list

ID = "cpu.offline"
SETTINGS: dict[str, float] = {}
_READ = "/sys/devices/system/cpu/online"


def run(context: Context) -> Iterator[Finding]:
    """Yield whether all present CPUs are in use: critical if an earlier sweep saw one online that is off now.

    Any other CPU that is off is a warning, and ok while SMT is off. Raises NotApplicable if CPUs are not listed.
    """
    present = context.text("sys/devices/system/cpu/present")
    online = context.text("sys/devices/system/cpu/online")
    if not present or not online:
        raise NotApplicable("the kernel does not list CPUs")
    off = parse_cpu_list(present) - parse_cpu_list(online)
    before = parse_cpu_list(context.recall("online") or "")
    smt = context.text("sys/devices/system/cpu/smt/control") or ""
    smt_off = smt in ("off", "forceoff") or smt.isdigit()  # a number: threads per core
    # For an offline CPU the kernel does not say whether it is a second thread.
    lost = frozenset() if smt_off else off & before
    context.keep("online", _ranges(before & parse_cpu_list(present) | parse_cpu_list(online)))
    if lost or (off and not smt_off):
        listed = ", ".join(map(str, sorted(lost or off)[:8]))
        yield context.bad(
            CRITICAL if lost else WARNING, _READ, online, expected=present,
            why=f"CPU {listed} {'was online in an earlier sweep' if lost else 'is there, but not in use'}",
            action="Look for hardware errors in the kernel's log; echo 1 > /sys/devices/system/cpu/cpuN/online.",
        )  # fmt: skip
    else:
        yield context.ok(_READ, online, "SMT is off" if off else "")


def _ranges(cpus: frozenset[int]) -> str:
    """Format CPUs as '0-3,8', cut at a comma to 500 characters."""
    spans: list[list[int]] = []
    for cpu in sorted(cpus):
        if spans and cpu == spans[-1][1] + 1:
            spans[-1][1] = cpu
        else:
            spans.append([cpu, cpu])
    text = ",".join(f"{first}-{last}" for first, last in spans)
    return text if len(text) <= 500 else text[:500].rpartition(",")[0]
