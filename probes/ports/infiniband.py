"""InfiniBand and RoCE ports: state, rate, counters.

In: /sys/class/infiniband (Documentation/ABI/stable/sysfs-class-infiniband). Out: IbPort.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rankscope.probes.host.procfs import ROOT, names_in, read_file

_RATE = re.compile(r"([0-9.]+)\s*Gb/sec")
MAX_PORTS = 1024


@dataclass(frozen=True, slots=True)
class IbCounter:
    """One counter of a port since the driver came up."""

    name: str
    value: int


@dataclass(frozen=True, slots=True)
class IbPort:
    """One port. `state` ACTIVE, DOWN, …; `physical` LinkUp, Polling, Disabled, …; `rate_gbps` in 1e9 bits per second."""

    device: str
    port: int
    state: str
    physical: str
    rate_gbps: float
    link_layer: str
    firmware: str
    board: str
    counters: tuple[IbCounter, ...]

    @property
    def name(self) -> str:
        return f"{self.device}/{self.port}"

    def counter(self, name: str) -> int | None:
        """A counter by name; None where the port has none."""
        return next((one.value for one in self.counters if one.name == name), None)


def read_ports(root: Path = ROOT) -> tuple[IbPort, ...]:
    """All ports; none where there is no such hardware. Raises PermissionError."""
    folder = f"{str(root).rstrip('/')}/sys/class/infiniband"
    ports: list[IbPort] = []
    for device in names_in(folder):
        for port in names_in(f"{folder}/{device}/ports"):
            if port.isascii() and port.isdigit() and len(ports) < MAX_PORTS:
                ports.append(_port(f"{folder}/{device}", device, int(port)))
    return tuple(ports)


def _port(folder: str, device: str, port: int) -> IbPort:
    path = f"{folder}/ports/{port}"
    rate = _RATE.match(_text(f"{path}/rate"))
    try:
        gbps = float(rate[1]) if rate else 0.0
    except ValueError:
        gbps = 0.0
    return IbPort(
        device=device,
        port=port,
        state=_word(f"{path}/state"),
        physical=_word(f"{path}/phys_state"),
        rate_gbps=gbps,
        link_layer=_text(f"{path}/link_layer"),
        firmware=_text(f"{folder}/fw_ver"),
        board=_text(f"{folder}/board_id"),
        counters=tuple(_counters(path)),
    )


def _counters(path: str) -> Iterator[IbCounter]:
    for group in ("counters", "hw_counters"):
        for name in names_in(f"{path}/{group}")[:256]:
            text = _text(f"{path}/{group}/{name}")
            if text.isascii() and text.isdigit() and len(text) < 21:
                yield IbCounter(name, int(text))


def _word(path: str) -> str:
    """'ACTIVE' of '4: ACTIVE'."""
    text = _text(path)
    return text.partition(":")[2].strip() or text


def _text(path: str) -> str:
    try:
        return read_file(path, 4096).decode("utf-8", "replace").strip()
    except OSError:
        return ""
