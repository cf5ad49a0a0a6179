"""Network interfaces run at their usual speed.

Reads speed and duplex under /sys/class/net. Expected is the highest speed any sweep saw on the interface, or that an
interface with the same card has on this host; the setting `mbps` overrides both. A 100 Gbit/s port that trained down to 25
slows every collective of the job. Half duplex is a warning. Virtual interfaces that report no speed are left out.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.diagnose.sweep.context import Context, NotApplicable
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.readings.interfaces import physical

ID = "net.speed"
SETTINGS = {"mbps": 0.0}


def run(context: Context) -> Iterator[Finding]:
    """Yield one finding per interface that reports a speed: a warning if lower than expected or half duplex, else ok.

    Raises NotApplicable without such interfaces.
    """
    nics = [nic for nic in physical(context) if nic.up and nic.speed_mbps]
    if not nics:
        raise NotApplicable("no physical interface reports a speed (usual in a virtual machine)")
    for nic in nics:
        speed = float(nic.speed_mbps or 0)
        read, before = f"/sys/class/net/{nic.name}/speed", _number(context.recall(nic.name))
        equals = max(
            (float(other.speed_mbps or 0) for other in nics if other.model == nic.model and nic.model != ":"),
            default=0.0,
        )
        context.keep(nic.name, f"{max(before, speed):g}")
        expected = context.number("mbps") or max(before, equals)
        if speed < expected:
            source = (
                "its setting" if context.number("mbps") else "an earlier sweep" if before >= equals else "an equal card"
            )
            yield context.warning(
                read, speed, unit="Mbit/s", instance=nic.name, expected=f"{expected:g} Mbit/s ({source})",
                why="the link trained down, or the switch port changed", action="Check cable, transceiver and switch port.",
            )  # fmt: skip
        elif nic.duplex == "half":
            yield context.warning(
                f"/sys/class/net/{nic.name}/duplex", "half", instance=nic.name, expected="full",
                why="negotiation with the switch failed", action="Check the switch port's settings.",
            )  # fmt: skip
        else:
            yield context.ok(read, speed, instance=nic.name, unit="Mbit/s")


def _number(text: str | None) -> float:
    """Parse a stored number; 0 for none or anything else."""
    try:
        return float(text or 0)
    except ValueError:
        return 0.0
