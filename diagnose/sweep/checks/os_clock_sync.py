"""The clock is kept in time.

Asks the kernel (adjtimex) whether it is synchronised, and how far off. Windows of different hosts are laid over each other by
wall time, and so are everybody's logs. A virtual machine without a time service is not judged: its hypervisor keeps
the clock, and nobody can see from inside how well.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.diagnose.sweep.context import Context, NotApplicable
from rankscope.diagnose.sweep.finding import Finding
from rankscope.probes.base.patience import patiently
from rankscope.probes.host.clock_sync import read_clock
from rankscope.probes.host.procfs import pids, read_comm

ID = "os.clock-sync"
SETTINGS = {"warning_s": 0.1, "critical_s": 1.0}
_SERVICES = ("chronyd", "ntpd", "systemd-timesyn", "openntpd", "ptp4l", "phc2sys", "ntpd-rs")
_ACTION = "systemctl status chronyd (or ntpd, systemd-timesyncd); can it reach its servers?"


def run(context: Context) -> Iterator[Finding]:
    """Yield the clock's offset, warning or critical above the limits, or a warning if it is not synchronised.

    Raises NotApplicable in a virtual machine without a time service.
    """
    clock = read_clock(context.root)
    if not clock.synchronised:
        service = patiently(lambda: _service(context))
        if not service and "hypervisor" in (context.text("proc/cpuinfo") or ""):
            raise NotApplicable("a virtual machine without a time service: its hypervisor keeps the clock")
        yield context.warning(
            "adjtimex", "not synchronised", expected="synchronised", action=_ACTION,
            why=f"{service} runs, but has not set the clock" if service else "no time service runs",
        )  # fmt: skip
        return
    yield context.judged(
        round(abs(clock.offset_s), 6), context.number("warning_s"), context.number("critical_s"), "adjtimex", unit="s",
        what="offset", why="hosts' windows and logs do not match in time", action=_ACTION,
    )  # fmt: skip


def _service(context: Context) -> str:
    """Name of the time service that runs; '' if there is none."""
    for pid in pids(context.root):
        try:
            comm = read_comm(pid, context.root)
        except OSError:
            continue
        if comm in _SERVICES:
            return comm
    return ""
