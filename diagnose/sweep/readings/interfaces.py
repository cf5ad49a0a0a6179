"""Physical network interfaces from /sys/class/net, read once per sweep."""

from __future__ import annotations

import os
from dataclasses import dataclass

from rankscope.diagnose.sweep.context import Context

_COUNTERS = ("rx_packets", "tx_packets", "rx_errors", "tx_errors", "rx_crc_errors", "rx_dropped", "tx_dropped")
_MAX = 1024


@dataclass(frozen=True, slots=True)
class Nic:
    """One interface.

    `speed_mbps`, counters: None if the driver reports none; `model`: vendor:device of its PCI card.
    """

    name: str
    state: str
    flags: int
    up: bool
    speed_mbps: int | None
    duplex: str
    bond: str
    model: str
    driver: str
    carrier_downs: int | None
    counters: tuple[tuple[str, int | None], ...]


def physical(context: Context) -> tuple[Nic, ...]:
    """Network interfaces with a device, read once per sweep. Raises PermissionError."""
    return context.shared.get("nics", lambda: _read(context))


def _read(context: Context) -> tuple[Nic, ...]:
    """Read all network interfaces with a device, by name; () without /sys/class/net."""
    folder = context.path("sys/class/net")
    try:
        names = sorted(os.listdir(folder))[:_MAX]  # noqa: PTH208
    except FileNotFoundError:
        return ()
    return tuple(_nic(context, name) for name in names if (folder / name / "device").exists())


def _nic(context: Context, name: str) -> Nic:
    """Read one interface from its folder in /sys/class/net."""
    base = f"sys/class/net/{name}"
    state = context.text(base, "operstate") or "unknown"
    speed = context.integer(base, "speed")  # unreadable while the interface is down
    master = context.path(base, "master")
    bonded = master.exists() and (master / "bonding").exists()
    device = context.path(base, "device")
    return Nic(
        name=name,
        state=state,
        flags=_flags(context.text(base, "flags")),
        # dormant: it has a carrier, and waits for authentication (802.1X)
        up=state == "up" or (state in ("unknown", "dormant") and context.integer(base, "carrier") == 1),
        speed_mbps=speed if speed is not None and 0 < speed < 10_000_000 else None,
        duplex=context.text(base, "duplex") or "",
        bond=master.resolve().name if bonded else "",
        model=":".join((context.text(base, "device", part) or "").removeprefix("0x") for part in ("vendor", "device")),
        driver=(device / "driver").resolve().name if (device / "driver").exists() else "",
        carrier_downs=context.integer(base, "carrier_down_count"),
        counters=tuple((one, context.integer(base, "statistics", one)) for one in _COUNTERS),
    )


def _flags(text: str | None) -> int:
    """Parse an interface's flags (hexadecimal, IFF_*); 0 if unreadable."""
    try:
        return int(text or "0", 16)
    except ValueError:
        return 0
