"""InfiniBand and RoCE ports are active at their full rate.

Reads state, phys_state and rate under /sys/class/infiniband. A port that an earlier sweep saw active, or whose equals (same board) on this
host are active, must be active; and no slower than they are, or than it was. One that was switched off, or whose interface (RoCE) is
switched off or in another network namespace, is not lost; nor is a virtual function, whose link others decide: a warning. So is one that
waits for the subnet manager, until an earlier sweep saw it do so at least `critical_s` ago. One that is not there any more is a warning for
a day, critical where its card is on the PCI bus and does not answer; virtual functions may come and go. Unused ports are left alone; the
settings `ports` and `rate_gbps` say what is expected instead.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.diagnose.severity import CRITICAL, WARNING
from rankscope.diagnose.sweep.context import Context, NotApplicable
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.readings.hanging import hangs_for_s
from rankscope.diagnose.sweep.readings.missing_ports import another_card, function_of, missing, remember
from rankscope.probes.pci.devices import is_part
from rankscope.probes.ports.model import INFINIBAND, Port
from rankscope.probes.ports.reader import read_ports

ID = "ib.port"
SETTINGS = {"ports": 0.0, "rate_gbps": 0.0, "critical_s": 120.0}
_OFF = " off"  # suffix of the stored rate of a port that was switched off since
_ACTION = "Check cable, transceiver and switch port (ibdiagnet, mlxlink)."


def run(context: Context) -> Iterator[Finding]:
    """Yield one finding per port: active at full rate, lost, slow or gone; and one if fewer are active than set.

    Raises NotApplicable without InfiniBand or RoCE.
    """
    ports = context.shared.get("ib", lambda: read_ports(context.root, interfaces=False))
    gone = list(missing(context, {port.number for port in ports}, {_function(context, port) for port in ports}))
    if not ports and not gone and not context.number("ports"):
        raise NotApplicable("no InfiniBand or RoCE device")
    for port in ports:
        yield _judge(context, port, ports)
    for one in gone:
        if before := context.recall(one.name):
            context.keep(one.name, before)
        yield context.bad(
            CRITICAL if one.dead else WARNING, "/sys/class/infiniband", "absent", instance=one.name,
            expected="ACTIVE, as in an earlier sweep", why=f"the port is not there any more: {one.why}",
            action="Look for the card in lspci and the kernel's log. If it was taken out on purpose, add it to `ignore`.",
        )  # fmt: skip
    active = sum(port.state == "ACTIVE" for port in ports)
    off = _expected_but_off(context, ports)
    if active < context.number("ports"):
        yield context.bad(
            CRITICAL if active + off < context.number("ports") else WARNING, "/sys/class/infiniband", float(active), unit="active ports",
            expected=f"{context.number('ports'):g} (setting)",
            why=f"fewer ports than this host should have{f'; {off} are switched off' if off else ''}", action=_ACTION,
        )  # fmt: skip


def _judge(context: Context, port: Port, ports: tuple[Port, ...]) -> Finding:
    """Judge one port by its state and rate, against earlier sweeps and equal ports of this host; store what it is now."""
    read = f"/sys/class/infiniband/{port.device}/ports/{port.port}/state"
    function, before = _function(context, port), _before(context, port)
    was_active = before != "" and not before.endswith(_OFF)
    best = float(before.removesuffix(_OFF) or 0)
    equals = [one for one in ports if one is not port and one.board == port.board and one.state == "ACTIVE"]
    if port.state == "ACTIVE":
        context.keep(port.number, f"{max(best, port.rate_gbps):g}")
        remember(context, port.number, function)
        expected = context.number("rate_gbps") or max([best, *(one.rate_gbps for one in equals)])
        if port.rate_gbps < expected:
            return context.warning(
                read.replace("/state", "/rate"), port.rate_gbps, unit="Gbit/s", instance=port.number,
                expected=f"{expected:g} Gbit/s", why="slower than before, than its equals, or than the setting", action=_ACTION,
            )  # fmt: skip
        return context.ok(read, port.rate_gbps, instance=port.number, unit="Gbit/s")
    if before:
        # It may be switched on again without a cable: mark it as off.
        context.keep(port.number, f"{best:g}{_OFF}" if port.off else before)
        remember(context, port.number, function)
    value = f"{port.state} ({port.physical})"
    if port.off:
        away = "" if port.kind == INFINIBAND else ", or its interface is in another namespace or switched off"
        return context.ok(read, value, f"somebody switched it off{away}", instance=port.number)
    if was_active:
        why, state = "the port is lost", CRITICAL
        if port.waits:
            why = "it waits for the subnet manager"
            waits_s = hangs_for_s(context, f"waits {port.number}") or 0.0
            state = CRITICAL if waits_s >= context.number("critical_s") else WARNING
        if is_part(str(context.path("sys/class/infiniband", port.device, "device"))):
            why, state = "the link of a virtual function is lost", WARNING
        return context.bad(
            state, read, value, instance=port.number, expected="ACTIVE, as in an earlier sweep", why=why, action=_ACTION
        )
    if equals:
        return context.warning(
            read, value, instance=port.number, expected=f"ACTIVE, as {equals[0].number} is", why="its equals are active",
            action=f"{_ACTION} If it is unused on purpose, add it to `ignore`.",
        )  # fmt: skip
    return context.ok(read, value, "not in use", instance=port.number)


def _expected_but_off(context: Context, ports: tuple[Port, ...]) -> int:
    """Number of expected ports that are switched off: those seen active, and others needed to reach the setting."""
    off = [_before(context, port) != "" for port in ports if port.off]
    unused = len(ports) - int(min(context.number("ports"), len(ports)))
    return sum(off) + max(0, off.count(False) - unused)


def _before(context: Context, port: Port) -> str:
    """Rate that an earlier sweep stored of this port, as text, with ' off' if it was switched off since.

    '' if none saw it active, or another card has its name.
    """
    return "" if another_card(context, port.number, _function(context, port)) else context.recall(port.number) or ""


def _function(context: Context, port: Port) -> str:
    """PCI address of a port's card; '' if it is no physical PCI function."""
    return function_of(context, "sys/class/infiniband", port.device, "device")
