"""Sample the PCI Express links of this host over a window: speed, width, errors.

In: the tree of tree.py, and the current_link_* and aer_dev_* files of its nodes, held open. Out:
PcieRecording. An idle link may run slower than it can (power saving), so the highest speed and
width of the window count; a degraded link never reaches its limit.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from rankscope.probes.host.procfs import ROOT, reason
from rankscope.probes.pci.devices import parse_aer, parse_speed, parse_width
from rankscope.probes.pci.tree import BRIDGE, EMPTY, PcieNode, PcieTree, read_tree
from rankscope.probes.sampling.growth import total_growth
from rankscope.probes.sampling.thread import Sampler, within

_AER = ("aer_dev_correctable", "aer_dev_nonfatal", "aer_dev_fatal")
_LINK = ("current_link_speed", "current_link_width")
_TREE_S = 5.0
# Errors are rare and their files long: read them once per so many readings of the links, and at
# begin and end.
_AER_EVERY = 3


@dataclass(frozen=True, slots=True)
class PcieGrowth:
    """One device of a window: link speed and width against its limit, and error growth.

    Speeds in GT/s per lane, widths in lanes: the highest seen, and the limit of it and the port
    above it; None where not reported. `width_least` is the lowest seen: lanes lost during the
    window. Errors are growth, None where not counted. `ports`: its network ports; `below`:
    addresses of the gpus, nics and nvmes below a bridge.
    """

    address: str
    kind: str
    numa_node: int
    seconds: float
    speed_gts: float | None
    speed_limit_gts: float | None
    width: int | None
    width_limit: int | None
    width_least: int | None
    correctable: int | None
    nonfatal: int | None
    fatal: int | None
    ports: tuple[str, ...] = ()
    below: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PcieRecording:
    """All devices of a window, and the tree. `missing` says what could not be read; `cpu_s` is the
    CPU time of sampling.
    """

    devices: tuple[PcieGrowth, ...] = ()
    tree: PcieTree = EMPTY
    cpu_s: float = 0.0
    missing: tuple[str, ...] = ()


class _LinkTrack:
    """The open files of one node, and the values read from them."""

    def __init__(self, folder: str, node: PcieNode) -> None:
        self.node = node
        self.speeds: list[float] = []
        self.widths: list[int] = []
        self.errors: dict[str, list[int]] = {name: [] for name in _AER}
        self._texts: dict[str, str] = {}
        self._files: dict[str, int] = {}
        for name in (*_LINK, *_AER):
            with contextlib.suppress(OSError):
                self._files[name] = os.open(f"{folder}/{name}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)

    def read(self, errors: bool) -> None:
        """Read link speed and width, and with `errors` the error counts; append what is readable to the lists.

        Error counts are appended only where their file has changed. Never raises.
        """
        speed, width = parse_speed(self._text(_LINK[0], 64)), parse_width(self._text(_LINK[1], 64))
        if speed is not None:
            self.speeds.append(speed)
        if width is not None:
            self.widths.append(width)
        for name in _AER if errors else ():
            text = self._text(name, 8192)
            if text and text != self._texts.get(name):
                self._texts[name] = text
                self.errors[name].append(parse_aer(text))

    def close(self) -> None:
        files, self._files = self._files, {}
        for descriptor in files.values():
            os.close(descriptor)

    def _text(self, name: str, cap: int) -> str:
        """Read the open file `name` from its beginning, `cap` bytes at most; '' where it cannot be read."""
        descriptor = self._files.get(name)
        if descriptor is None:
            return ""
        try:
            return os.pread(descriptor, cap, 0).decode("ascii", "replace")
        except OSError:
            return ""


class PcieSampler(Sampler):
    """Samples the links from `start` to `stop`, at `hz`."""

    def __init__(self, hz: float = 0.5, root: Path = ROOT) -> None:
        super().__init__("PCI sampling")
        self._period_ns = int(1e9 / hz)
        self._root = root
        self._tree = EMPTY
        self._tracks: list[_LinkTrack] = []
        self._ticks = 0
        self._began_ns = self._latest_ns = 0

    def stop(self, timeout_s: float = 2.0) -> PcieRecording:
        """Stop and return what was recorded. Never raises.

        A read that hangs longer than `timeout_s` is abandoned, with a note.
        """
        self._finish(timeout_s)
        seconds = (self._latest_ns - self._began_ns) / 1e9
        devices = tuple(_growth(track, self._tree, seconds) for track in list(self._tracks))
        return PcieRecording(devices, self._tree, self._cpu_s, tuple(self._missing))

    def _begin(self) -> None:
        """Read the PCI tree, in at most 5 s, and open the link and error files of its nodes.

        Where the tree cannot be read, sampling ends with a note.
        """
        self._doing = "/sys/bus/pci/devices"
        try:
            self._tree = within(_TREE_S, lambda: read_tree(self._root), "pci-tree")
        except (OSError, TimeoutError) as error:
            self._missing.append(f"PCI tree: {reason(error)}")
            self._stopping.set()
            return
        folder = f"{str(self._root).rstrip('/')}/sys/bus/pci/devices"
        self._tracks = [_LinkTrack(f"{folder}/{node.address}", node) for node in self._tree.nodes]
        self._began_ns = time.monotonic_ns()

    def _tick(self, due_ns: int) -> int:
        """Read all links, and every third time their errors.

        Times in ns of CLOCK_MONOTONIC: `due_ns` of this call; returns that of the next.
        """
        self._read(self._ticks % _AER_EVERY == 0)
        self._ticks += 1
        return due_ns + self._period_ns

    def _end(self) -> None:
        """Read all links and errors once more, and close the files."""
        self._read(errors=True)
        for track in self._tracks:
            track.close()

    def _read(self, errors: bool) -> None:
        """Read the links of all nodes, with `errors` their error counts too, and record the time."""
        for track in self._tracks:
            self._doing = track.node.address
            track.read(errors)
        self._latest_ns = time.monotonic_ns()


def _errors(values: list[int]) -> int | None:
    """Return the growth over a counter's recorded values, 0 for one value, None for none.

    Only changes were recorded.
    """
    return total_growth([values[0], *values]) if values else None


def _growth(track: _LinkTrack, tree: PcieTree, seconds: float) -> PcieGrowth:
    """Summarise the readings of one node over a window of `seconds`."""
    node = track.node
    correctable, nonfatal, fatal = (_errors(track.errors[name]) for name in _AER)
    return PcieGrowth(
        address=node.address,
        kind=node.kind,
        numa_node=node.numa_node,
        seconds=seconds,
        speed_gts=max(track.speeds, default=None),
        speed_limit_gts=node.device.able.speed_gts,
        width=max(track.widths, default=None),
        width_limit=node.device.able.width,
        width_least=min(track.widths, default=None),
        correctable=correctable,
        nonfatal=nonfatal,
        fatal=fatal,
        ports=node.ports,
        below=tree.below(node.address) if node.kind == BRIDGE else (),
    )
