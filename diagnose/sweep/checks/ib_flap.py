"""InfiniBand and RoCE ports do not go down and come back.

Reads link_downed under /sys/class/infiniband; judged by growth since the last sweep, and reported for `hours`. Once is a
warning, `critical` times or more critical: every loss stalls all ranks for seconds, and a job may not survive it. Of RoCE only
where the interface is switched on, in the host's own network namespace: a pod that has it may switch it off and on, and it
comes back switched off. Of virtual functions never. A count that could be read earlier and cannot now is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.diagnose.severity import CRITICAL, WARNING
from rankscope.diagnose.sweep.context import Context, NotApplicable
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.readings.missing_ports import function_of
from rankscope.probes.pci.devices import is_part
from rankscope.probes.ports.model import ROCE, Port
from rankscope.probes.ports.reader import read_ports
from rankscope.probes.ports.switched import runs_here

ID = "ib.flap"
SETTINGS = {"critical": 3.0, "hours": 24.0}


def run(context: Context) -> Iterator[Finding]:
    """Yield for each port how often it lost its link since the last sweep: never is ok, often may be critical.

    Raises NotApplicable without InfiniBand or RoCE.
    """
    counted = False
    for port in context.shared.get("ib", lambda: read_ports(context.root, interfaces=False)):
        downs = port.count("link_downed")
        # Keyed by card: a reloaded driver may give its name to another.
        function = function_of(context, "sys/class/infiniband", port.device, "device")
        grown = context.grown(f"{function or port.device}/{port.port}", downs)
        read = f"/sys/class/infiniband/{port.device}/ports/{port.port}/counters/link_downed"
        if downs is None:
            if not grown.first:
                counted = True
                yield context.unknown(read, "its losses cannot be read now", instance=port.number)
            continue
        counted = True
        if grown.amount:
            often = grown.amount >= context.number("critical") and _at_fault(context, port)
            yield context.bad(
                CRITICAL if often else WARNING, read, grown.amount, unit="losses",
                instance=port.number, expected="none since the last sweep", why="the link went away and came back",
                action="Check cable, transceiver and switch port.", lasts=True,
            )  # fmt: skip
        else:
            yield context.ok(read, 0.0, instance=port.number, unit="losses")
    if not counted:
        raise NotApplicable("no InfiniBand or RoCE device")


def _at_fault(context: Context, port: Port) -> bool:
    """Whether frequent losses of a port's link are a fault: nobody but the host's operator can have switched it."""
    device = context.path("sys/class/infiniband", port.device)
    if is_part(str(device / "device")):
        return False
    return port.kind != ROCE or runs_here(str(device / "ports" / f"{port.port}"), port.port)
