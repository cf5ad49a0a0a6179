"""Read ports of network cards: state, speed and width against capability, errors.

In: /sys/class/infiniband (Documentation/ABI/stable/sysfs-class-infiniband), /sys/class/net
(physical interfaces only), ethtool. Out: Port. The sweep reads once (`read_ports`), sampler.py has
the readers open over a window.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from rankscope.probes.host.procfs import ROOT, names_in, read_file
from rankscope.probes.network import ethtool
from rankscope.probes.pci.devices import device_address
from rankscope.probes.ports.model import ERROR_NAMES, ETHERNET, INFINIBAND, ROCE, Port, PortCount, PortErrors
from rankscope.probes.ports.switched import switched_off

# followed over a window, read once; virtual functions are ports too
MAX_PORTS, MAX_PORTS_ONCE = 256, 1024
_MAX_COUNTS = 256  # counters per group
_RATE = re.compile(r"([0-9]{1,5}(?:\.[0-9]{1,3})?)\s*Gb/sec(?:\s*\((\d{1,2})X)?")
_WORD_BYTES = 4  # port_xmit_data and port_rcv_data count 4-byte words (IBA, PortCounters)
# Files (or statistics) that count each error: groups of the same meaning; the first group that
# exists is summed. InfiniBand and RoCE under ports/N: mlx5, then bnxt_re, irdma, efa.
# Documentation/ABI/stable/sysfs-class-infiniband.
_IB_ERRORS: dict[str, tuple[tuple[str, ...], ...]] = {
    "symbol_errors": (("counters/symbol_error",),),
    "link_downed": (("counters/link_downed",),),
    "crc_errors": (
        ("counters/port_rcv_errors", "counters/local_link_integrity_errors", "hw_counters/rx_icrc_encapsulated"),
    ),
    "retransmits": (
        (
            "hw_counters/packet_seq_err", "hw_counters/local_ack_timeout_err", "hw_counters/implied_nak_seq_err",
            "hw_counters/roce_adp_retrans",
        ),
        ("hw_counters/to_retransmits", "hw_counters/seq_err_naks_rcvd"),
        ("hw_counters/RetransSegs",),
        ("hw_counters/retrans_pkts",),
    ),
    "out_of_sequence": (("hw_counters/out_of_sequence",), ("hw_counters/oos_drop_count",)),
    "pause": (("hw_counters/rx_pause_ctrl_phy", "hw_counters/tx_pause_ctrl_phy"), ("counters/port_xmit_wait",)),
    "cnp": (
        ("hw_counters/np_cnp_sent", "hw_counters/rp_cnp_handled"),
        ("hw_counters/tx_cnp_pkts", "hw_counters/rx_cnp_pkts"),
        ("hw_counters/cnpSent", "hw_counters/cnpHandled"),
    ),
}  # fmt: skip
_IB_BASIC, _NET_BASIC = ("state", "phys_state", "rate", "link_layer"), ("operstate", "carrier", "speed")
_IB_BYTES: tuple[tuple[str, str, int], ...] = (
    ("counters/port_xmit_data", "counters/port_rcv_data", _WORD_BYTES),
    ("hw_counters/tx_bytes", "hw_counters/rx_bytes", 1),
)
_NET_BYTES: tuple[tuple[str, str, int], ...] = (("statistics/tx_bytes", "statistics/rx_bytes", 1),)
# Under /sys/class/net/NAME; then the drivers' own statistics: mlx5, bnxt, ice.
_NET_ERRORS: dict[str, tuple[tuple[str, ...], ...]] = {
    "link_downed": (("carrier_down_count",),),
    "crc_errors": (("statistics/rx_crc_errors",),),
}
_ETHTOOL_ERRORS: dict[str, tuple[tuple[str, ...], ...]] = {
    "symbol_errors": (("rx_symbol_err_phy",), ("rx_pcs_symbol_err_phy",)),
    "crc_errors": (("rx_crc_errors_phy",), ("rx_fcs_err_frames",), ("rx_crc_errors.nic",)),
    "pause": (
        ("rx_pause_ctrl_phy", "tx_pause_ctrl_phy"),
        ("rx_pause_frames", "tx_pause_frames"),
        ("link_xoff_rx.nic", "link_xoff_tx.nic"),
    ),
}
_ETHTOOL_NAMES = tuple(name for groups in _ETHTOOL_ERRORS.values() for group in groups for name in group)


class PortReader:
    """One port, with its files open: reading again costs one system call per file. Not thread-safe.

    Whatever cannot be read (any more) is None. Opening and reading may hang when the card is
    faulty.
    """

    def __init__(self, folder: str, device: str, port: int, pci: str, interfaces: tuple[str, ...], ours: bool) -> None:
        """Open the files of a port in `folder`; `port` 0 is an Ethernet interface.

        `ours`: the interfaces are in this thread's network namespace, so ioctl reaches them.
        """
        self.name = device if port in (0, 1) else f"{device}/{port}"
        self.device, self.port, self.pci, self.interfaces = device, port, pci, interfaces
        self._folder, self._ours = folder, ours
        self._files: dict[str, int] = {}
        basic: tuple[str, ...]
        if port:
            basic, pairs, errors = _IB_BASIC, _IB_BYTES, _IB_ERRORS
        else:
            basic, pairs, errors = _NET_BASIC, _NET_BYTES, _NET_ERRORS
        self._errors = errors
        for name in (*basic, *(file for pair in pairs for file in pair[:2]), *_names(errors)):
            with contextlib.suppress(OSError):
                self._files[name] = os.open(f"{folder}/{name}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        self._counted = tuple(name for name in _names(errors) if name in self._files)
        self._bytes = next((pair for pair in pairs if pair[0] in self._files), pairs[0])
        self._limit_hz = self._best_speed()

    def read(self, thorough: bool = False, errors: bool = True, reasons: bool = False) -> Port:
        """Read state and counters.

        `thorough`: fill what sysfs does not count from `statistics`; `errors`: read error counters.
        `reasons`: check whether a port without a link was switched off: some files more.
        """
        tx, rx = self.sums()
        names = self._counted if errors else ()
        counts = {name: value for name in names if (value := self._number(name)) is not None}
        found = errors_of(self._errors, counts)
        if thorough:
            more = self.statistics()
            found = {name: found[name] if found[name] is not None else getattr(more, name) for name in ERROR_NAMES}
        up, state = self._state()
        speed, width = self._speed()
        kind, physical = self._kind(), _behind_number(self._text("phys_state"))
        return Port(
            name=self.name,
            device=self.device,
            port=self.port,
            kind=kind,
            pci=self.pci,
            up=up,
            state=state,
            speed_hz=speed,
            speed_limit_hz=self._limit_hz,
            width=width,
            width_limit=None,
            tx_bytes=tx,
            rx_bytes=rx,
            errors=PortErrors(**found),
            interfaces=self.interfaces,
            physical=physical,
            off=reasons and up is False and switched_off(self._folder, self.port, kind, physical),
        )

    def read_all(self) -> Port:
        """Read everything; for an InfiniBand or RoCE port also its board and every counter by its file's name.

        That opens one file per counter.
        """
        port = self.read(thorough=True, reasons=True)
        if not self.port:
            return port
        counts = tuple(
            PortCount(name, int(text))
            for group in ("counters", "hw_counters")
            for name in names_in(f"{self._folder}/{group}")[:_MAX_COUNTS]
            if (text := _read_text(f"{self._folder}/{group}/{name}")).isascii() and text.isdigit() and len(text) < 21
        )
        device = f"{self._folder}/../.."
        board, firmware = (_read_text(f"{device}/{name}") for name in ("board_id", "fw_ver"))
        return dataclasses.replace(port, board=board, firmware=firmware, counts=counts)

    def sums(self) -> tuple[int | None, int | None]:
        """Read (sent, received) bytes since the driver came up; None for what cannot be read."""
        tx, rx, unit = self._bytes
        sent, received = self._number(tx), self._number(rx)
        return (None if sent is None else sent * unit, None if received is None else received * unit)

    def byte_files(self) -> tuple[int, int] | None:
        """Return the open descriptors of the sent and received byte counters; None where either is not open.

        For bursts, which read them and parse later (`parsed`).
        """
        tx, rx, _ = self._bytes
        return (self._files[tx], self._files[rx]) if tx in self._files and rx in self._files else None

    def parsed(self, raw: tuple[bytes, bytes]) -> tuple[int, int]:
        """Convert what was read from the two `byte_files` to (sent, received) bytes. Raises ValueError."""
        return int(raw[0]) * self._bytes[2], int(raw[1]) * self._bytes[2]

    def close(self) -> None:
        files, self._files = self._files, {}
        for descriptor in files.values():
            os.close(descriptor)

    def _kind(self) -> str:
        """Return ETHERNET, ROCE or INFINIBAND; the latter also where the link layer cannot be read."""
        if not self.port:
            return ETHERNET
        return ROCE if self._text("link_layer") == "Ethernet" else INFINIBAND

    def _state(self) -> tuple[bool | None, str]:
        """Read whether the port is up (None: unknown), and the name of its state ('ACTIVE', 'up'; '': unknown)."""
        if self.port:
            state = _behind_number(self._text("state"))
            return (state == "ACTIVE" if state else None), state
        state = self._text("operstate")
        carrier = self._number("carrier")
        return (bool(carrier) if carrier is not None else state == "up" if state else None), state

    def _speed(self) -> tuple[float, int | None]:
        """Read (bytes per second, lanes); 0.0 and None where unknown, lanes always None for Ethernet."""
        if self.port:
            return parse_rate(self._text("rate"))
        return max(0, self._number("speed") or 0) * 1e6 / 8, None

    def _best_speed(self) -> float:
        """Ask the drivers for the fastest supported speed of the port's interfaces, in bytes/s; 0.0 where unknown."""
        best = 0.0
        for interface in self.interfaces if self._ours else ():
            with contextlib.suppress(OSError):
                best = max(best, ethtool.best_speed_hz(interface))
        return best

    def statistics(self) -> PortErrors:
        """Read the driver's error counts through ethtool, summed over the port's interfaces.

        Takes up to some milliseconds. All None where the interfaces are in another network namespace.
        """
        counts: dict[str, int] = {}
        for interface in self.interfaces if self._ours else ():
            with contextlib.suppress(OSError):
                for name, value in ethtool.statistics(interface, _ETHTOOL_NAMES).items():
                    counts[name] = counts.get(name, 0) + value
        return PortErrors(**errors_of(_ETHTOOL_ERRORS, counts))

    def _text(self, name: str) -> str:
        """Read the open file `name` from its beginning, stripped; '' where it is not open or unreadable."""
        descriptor = self._files.get(name)
        if descriptor is None:
            return ""
        try:
            return os.pread(descriptor, 256, 0).decode("ascii", "replace").strip()
        except OSError:
            return ""

    def _number(self, name: str) -> int | None:
        """Read a whole number from the open file `name`; None where it is not open or holds none."""
        descriptor = self._files.get(name)
        if descriptor is None:
            return None
        try:
            return int(os.pread(descriptor, 64, 0))
        except (OSError, ValueError):  # the card has gone; or "N/A (no PMA)"
            return None


def parse_rate(text: str) -> tuple[float, int | None]:
    """Parse '100 Gb/sec (4X EDR)' to (bytes per second, lanes or None); (0.0, None) for anything else.

    Never raises.
    """
    match = _RATE.match(text.strip())
    if match is None:
        return 0.0, None
    lanes = int(match[2]) if match[2] else None
    return float(match[1]) * 1e9 / 8, lanes or None


def errors_of(table: Mapping[str, tuple[tuple[str, ...], ...]], counts: Mapping[str, int]) -> dict[str, int | None]:
    """Return each error's count from `counts` by counter name; None where no counter counts it.

    `table`: per error, groups of counters of the same meaning; the first group with any is summed.
    """
    found: dict[str, int | None] = dict.fromkeys(ERROR_NAMES)
    for error, groups in table.items():
        known = next((group for group in groups if any(name in counts for name in group)), ())
        if known:
            found[error] = sum(counts.get(name, 0) for name in known)
    return found


def find_ports(root: Path = ROOT, interfaces: bool = True, most: int = MAX_PORTS) -> tuple[PortReader, ...]:
    """Find all ports of physical cards, InfiniBand devices first, `most` at most. Raises PermissionError.

    An interface of an InfiniBand or RoCE device belongs to that device's port. Without `interfaces`
    only devices are listed, and no driver is called. The caller closes the readers.
    """
    base = str(root).rstrip("/")
    ours = root == ROOT
    addresses = {
        name: device_address(f"{base}/sys/class/net/{name}/device")
        for name in (_list(f"{base}/sys/class/net") if interfaces else ())
        if os.path.lexists(f"{base}/sys/class/net/{name}/device")
    }
    cards: dict[str, list[str]] = {}
    for name, address in addresses.items():
        cards.setdefault(address, []).append(name)
    readers: list[PortReader] = []
    taken: set[str] = set()
    for device in _list(f"{base}/sys/class/infiniband"):
        folder = f"{base}/sys/class/infiniband/{device}"
        pci = device_address(f"{folder}/device")
        own = tuple(cards.get(pci, ())) if pci else ()
        for port in _list(f"{folder}/ports"):
            if port.isascii() and port.isdigit() and 0 < int(port[:4]) < 1000 and len(readers) < most:
                readers.append(PortReader(f"{folder}/ports/{port}", device, int(port), pci, own, ours))
                taken.update(own)
    for name, address in addresses.items():
        if name not in taken and len(readers) < most:
            readers.append(PortReader(f"{base}/sys/class/net/{name}", name, 0, address, (name,), ours))
    return tuple(readers)


def read_ports(root: Path = ROOT, interfaces: bool = True) -> tuple[Port, ...]:
    """Read all ports of `find_ports` once, with all their counters. Raises PermissionError."""
    readers = find_ports(root, interfaces, MAX_PORTS_ONCE)
    try:
        return tuple(reader.read_all() for reader in readers)
    finally:
        for reader in readers:
            reader.close()


def _behind_number(text: str) -> str:
    """Return what follows the colon, 'ACTIVE' of '4: ACTIVE'; the text itself where there is none."""
    return text.partition(":")[2].strip() or text


def _read_text(path: str) -> str:
    """Read a file, stripped; '' where it cannot be read."""
    try:
        return read_file(path, 4096).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def _names(table: Mapping[str, tuple[tuple[str, ...], ...]]) -> Iterable[str]:
    """Yield the names of all counters in a table of errors."""
    return (name for groups in table.values() for group in groups for name in group)


def _list(folder: str) -> list[str]:
    """List a folder, mlx5_9 before mlx5_10; empty where there is no such folder. Raises PermissionError."""
    try:
        return sorted(os.listdir(folder), key=_natural)  # noqa: PTH208
    except PermissionError:
        raise
    except OSError:
        return []


def _natural(name: str) -> tuple[str, int, str]:
    """Sort key that puts mlx5_10 after mlx5_9."""
    stem = name.rstrip("0123456789")
    digits = name[len(stem) :]
    return stem, int(digits[:9] or 0), name
