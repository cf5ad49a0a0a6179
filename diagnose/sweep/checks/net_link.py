"""Network interfaces that had a link keep it.

Reads carrier, operstate, flags and carrier_down_count under /sys/class/net for interfaces with a device behind them. A port
without a cable is nobody's fault, so a missing link is critical only where an earlier sweep saw one, and a warning for a
member of a bond; of a virtual function, whose link its card or another host decides, a warning. An interface that had one and is not
there any more is a warning for a day, critical where its card is on the PCI bus and does not answer; virtual functions may come and go.
Losing the link more often than `flaps` times since the last sweep is a warning for `hours`.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.diagnose.severity import CRITICAL, WARNING
from rankscope.diagnose.sweep.context import Context, NotApplicable
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.readings.interfaces import Nic, physical
from rankscope.diagnose.sweep.readings.missing_ports import another_card, function_of, missing, remember
from rankscope.probes.pci.devices import is_part
from rankscope.probes.ports.switched import IFF_UP

ID = "net.link"
SETTINGS = {"flaps": 0.0, "hours": 24.0}


def run(context: Context) -> Iterator[Finding]:
    """Yield one finding per interface with a device: link kept, lost or switched off; and one for each that is gone.

    Raises NotApplicable without physical interfaces.
    """
    nics = physical(context)
    gone = list(missing(context, {nic.name for nic in nics}, {_function(context, nic) for nic in nics}))
    if not nics and not gone:
        raise NotApplicable("no physical network interface")
    for nic in nics:
        yield _judge(context, nic)
    for one in gone:
        if before := context.recall(one.name):
            context.keep(one.name, before)
        yield context.bad(
            CRITICAL if one.dead else WARNING, "/sys/class/net", "absent", instance=one.name, expected="up, as in an earlier sweep",
            why=f"the interface is not there any more: {one.why}",
            action="Look for the card in lspci and the kernel's log. If it was taken out on purpose, add it to `ignore`.",
        )  # fmt: skip


def _judge(context: Context, nic: Nic) -> Finding:
    """Judge the link of one interface against earlier sweeps, and store whether it is up."""
    read = f"/sys/class/net/{nic.name}/operstate"
    function = _function(context, nic)
    was_up = context.recall(nic.name) == "up" and not another_card(context, nic.name, function)
    downs = context.grown(f"{nic.name}.downs", nic.carrier_downs)
    if nic.up:
        context.keep(nic.name, "up")
        remember(context, nic.name, function)
        if downs.amount > context.number("flaps"):
            return context.warning(
                f"/sys/class/net/{nic.name}/carrier_down_count",
                downs.amount,
                unit="losses",
                instance=nic.name,
                expected=f"at most {context.number('flaps'):g} since the last sweep",
                why="the link went away and came back",
                action="Check cable, transceiver and switch port.",
                lasts=True,
            )
        return context.ok(read, "up", instance=nic.name)
    if not nic.flags & IFF_UP:
        return context.ok(read, "switched off", "an administrator switched it off", instance=nic.name)
    context.keep(nic.name, "up" if was_up else "down")
    if was_up:
        remember(context, nic.name, function)
        part = is_part(str(context.path("sys/class/net", nic.name, "device")))
        return context.bad(
            WARNING if part else CRITICAL, read, nic.state, instance=nic.name, expected="up, as in an earlier sweep",
            why=f"the link{' of a virtual function' if part else ''} is lost", action="Check cable, transceiver and switch port.",
        )  # fmt: skip
    if nic.bond:
        return context.warning(
            read, nic.state, instance=nic.name, expected="up: it is a member of a bond",
            why=f"bond {nic.bond} runs without this member", action="Check cable, transceiver and switch port.",
        )  # fmt: skip
    return context.ok(read, nic.state, "no sweep has seen a link here", instance=nic.name)


def _function(context: Context, nic: Nic) -> str:
    """PCI address of an interface's card; '' if it is no physical PCI function."""
    return function_of(context, "sys/class/net", nic.name, "device")
