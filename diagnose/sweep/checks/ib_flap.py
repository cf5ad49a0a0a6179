"""InfiniBand and RoCE ports do not go down and come back.

Reads link_downed under /sys/class/infiniband; judged by growth since the last sweep. Once is a warning, `critical` times or
more critical: every loss stalls all ranks for seconds, and a job may not survive it.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.diagnose.severity import CRITICAL, WARNING
from rankscope.diagnose.sweep.context import Context, NotApplicable
from rankscope.diagnose.sweep.finding import Finding
from rankscope.probes.ports.reader import read_ports

ID = "ib.flap"
SETTINGS = {"critical": 3.0}


def run(context: Context) -> Iterator[Finding]:
    counted = False
    for port in context.shared.get("ib", lambda: read_ports(context.root, interfaces=False)):
        downs = port.count("link_downed")
        if downs is None:
            continue
        counted = True
        read = f"/sys/class/infiniband/{port.device}/ports/{port.port}/counters/link_downed"
        grown = context.grown(port.number, downs)
        if grown.amount:
            yield context.bad(
                CRITICAL if grown.amount >= context.number("critical") else WARNING, read, grown.amount, unit="losses",
                instance=port.number, expected="none since the last sweep", why="the link went away and came back",
                action="Check cable, transceiver and switch port.",
            )  # fmt: skip
        else:
            yield context.ok(read, 0.0, instance=port.number, unit="losses")
    if not counted:
        raise NotApplicable("no InfiniBand or RoCE device")
