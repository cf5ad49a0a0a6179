"""A port of a network card, InfiniBand, RoCE or Ethernet: the description that sweep and observer share.

reader.py fills it, sampler.py follows it over a window.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from rankscope.probes.base.arrays import Ints

INFINIBAND, ROCE, ETHERNET = "infiniband", "roce", "ethernet"


@dataclass(frozen=True, slots=True)
class PortErrors:
    """Error counts of one port since its driver came up, or their growth; None where not counted.

    symbol_errors: bits wrong on the wire; link_downed: times the link went down; crc_errors:
    packets dropped for a wrong checksum; retransmits: packets or sequences sent again;
    out_of_sequence: packets that arrived so; pause: pause frames received or sent (on InfiniBand,
    which has credits in their place, ticks for which data had to wait); cnp: congestion
    notifications received or sent.
    """

    symbol_errors: int | None = None
    link_downed: int | None = None
    crc_errors: int | None = None
    retransmits: int | None = None
    out_of_sequence: int | None = None
    pause: int | None = None
    cnp: int | None = None


ERROR_NAMES = tuple(field.name for field in fields(PortErrors))


@dataclass(frozen=True, slots=True)
class PortCount:
    """One counter of a port since its driver came up, by the name of its file."""

    name: str
    value: int


@dataclass(frozen=True, slots=True)
class Port:
    """One port. `name`: 'mlx5_3' (its port 1), 'mlx5_3/2', 'eth0'. `pci` is the card's address, ''
    if it has none.

    Speeds in bytes per second, 0.0 unknown; `speed_limit_hz` is the card's maximum (0.0: not
    reported, as for InfiniBand in sysfs; then use the best seen and the peers). `width` in lanes,
    None unknown. `physical`: LinkUp, Polling, Disabled, …; `board` names the model; these and
    `firmware` are '' for Ethernet. `counts` is empty where only the errors were read. `off`: it has
    no link because it was switched off, or its interface moved to another namespace; False where
    that was not checked.
    """

    name: str
    device: str
    port: int
    kind: str
    pci: str
    up: bool | None
    state: str
    speed_hz: float
    speed_limit_hz: float
    width: int | None
    width_limit: int | None
    tx_bytes: int | None
    rx_bytes: int | None
    errors: PortErrors
    interfaces: tuple[str, ...] = ()
    physical: str = ""
    board: str = ""
    firmware: str = ""
    counts: tuple[PortCount, ...] = ()
    off: bool = False

    @property
    def number(self) -> str:
        """Device and port as in /sys/class/infiniband: 'mlx5_3/1'."""
        return f"{self.device}/{self.port}"

    @property
    def waits(self) -> bool:
        """Whether the link waits for a subnet manager to activate it (InfiniBand).

        As for a while after its driver loaded.
        """
        return self.state in ("INIT", "ARMED")

    @property
    def rate_gbps(self) -> float:
        """Speed in 1e9 bits per second."""
        return self.speed_hz * 8 / 1e9

    def count(self, name: str) -> int | None:
        """Return the counter with this file name; None where the port has none, or not all were read."""
        return next((one.value for one in self.counts if one.name == name), None)


@dataclass(frozen=True, slots=True, eq=False)
class PortSamples:
    """Bytes of one port over time. `time_ns` is CLOCK_MONOTONIC; tx and rx are cumulative and never
    fall.
    """

    name: str
    device: str
    port: int
    pci: str
    time_ns: Ints
    tx_bytes: Ints
    rx_bytes: Ints


@dataclass(frozen=True, slots=True)
class PortGrowth:
    """Growth of one port's counters from `first` to `last`.

    `down_readings` of `readings` found it down; `changes`: how often its state changed between
    readings; `speed_hz` and `width`: the least seen while it was up (0.0, None: never).
    """

    name: str
    device: str
    port: int
    pci: str
    seconds: float
    first: Port
    last: Port
    tx_bytes: int | None
    rx_bytes: int | None
    errors: PortErrors
    speed_hz: float
    width: int | None
    readings: int
    down_readings: int
    changes: int


@dataclass(frozen=True, slots=True)
class PortRecording:
    """One port of a window: a slow series over all of it, and short fast ones (`bursts`), in order."""

    growth: PortGrowth
    series: PortSamples
    bursts: tuple[PortSamples, ...] = ()


@dataclass(frozen=True, slots=True)
class NicRecording:
    """All ports of a window. `missing` says what could not be read, and why; `cpu_s` is the CPU
    time of sampling.
    """

    ports: tuple[PortRecording, ...] = ()
    cpu_s: float = 0.0
    missing: tuple[str, ...] = ()
