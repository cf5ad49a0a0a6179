"""The hypervisor does not take the CPUs away.

Reads the steal column of /proc/stat as a share of the time since the last sweep, over all CPUs. Stolen time slows
Python and the network stack at random, and so the slowest rank, which all wait for. Physical hosts have none. Never critical: in a
virtual machine with a CPU quota any user's busy loops make it.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.diagnose.sweep.context import Context, Unreadable
from rankscope.diagnose.sweep.finding import Finding
from rankscope.probes.host.cpu_memory import sample_host

ID = "cpu.steal"
SETTINGS = {"warning_percent": 10.0}


def run(context: Context) -> Iterator[Finding]:
    """Yield the share of CPU time that the hypervisor took since the last sweep: a warning above the limit, else ok.

    Raises Unreadable.
    """
    host = context.shared.get("host", lambda: sample_host(context.root, clocks=False))
    if host.total is None:
        raise Unreadable("/proc/stat cannot be read")
    total = host.total.busy_s + host.total.idle_s + host.total.iowait_s + host.total.steal_s
    steal, passed = context.grown("steal_s", host.total.steal_s), context.grown("total_s", total)
    percent = round(100 * steal.amount / passed.amount, 2) if passed.amount > 0 else 0.0
    yield context.judged(
        percent, context.number("warning_percent"), float("inf"), "/proc/stat", unit="%",
        what="stolen time since the last sweep", why="other virtual machines get the CPU instead of this one, or its quota is used up",
        action="See who computes here (top); move the machine, or book dedicated CPUs.",
    )  # fmt: skip
