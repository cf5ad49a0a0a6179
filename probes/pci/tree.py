"""The PCI Express tree: the bridges above a GPU, NIC or NVMe disk, and the NIC nearest to a GPU.

In: /sys/bus/pci/devices, /sys/class/infiniband, /sys/class/net. Out: PcieTree. sampler.py watches
the links over a window. NUMA nodes are those of sysfs, −1 unknown.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from rankscope.probes.host.procfs import ROOT, names_in, read_file
from rankscope.probes.pci.devices import PciDevice, device_address, is_address, read_pci

BRIDGE = "bridge"
KINDS = ("gpu", "nic", "nvme", BRIDGE)


@dataclass(frozen=True, slots=True)
class PcieNode:
    """One gpu, nic or nvme, or a bridge above one of them.

    `above`: addresses of the bridges between it and the root complex, root first. `ports`: names of
    its network ports ('mlx5_3', 'mlx5_3/2'; 'eth0' where it is no InfiniBand or RoCE device);
    `rdma`: it is such a device.
    """

    device: PciDevice
    kind: str
    numa_node: int
    root_bus: str
    above: tuple[str, ...]
    ports: tuple[str, ...] = ()
    rdma: bool = False

    @property
    def address(self) -> str:
        """PCI address of the device: '0000:3b:00.0'."""
        return self.device.address


@dataclass(frozen=True, slots=True)
class PcieTree:
    """All nodes of the tree, ordered by address."""

    nodes: tuple[PcieNode, ...]

    def node(self, address: str) -> PcieNode | None:
        """Return the node at an address; None where there is none."""
        return next((node for node in self.nodes if node.address == address), None)

    def below(self, bridge: str) -> tuple[str, ...]:
        """List the addresses of the gpus, nics and nvmes below a bridge."""
        return tuple(node.address for node in self.nodes if node.kind != BRIDGE and bridge in node.above)

    def nearest_nics(self, gpu_bus: str) -> tuple[str, ...]:
        """List the network ports nearest to a GPU, several if they are equally near.

        Nearest is: most bridges in common; then the same root bus; then the same NUMA node; all ports
        where none has any of these. InfiniBand and RoCE devices only, where there are any: traffic between
        GPUs goes through them. Empty without such a GPU or without a NIC.
        """
        gpu = self.node(gpu_bus)
        nics = [node for node in self.nodes if node.ports and node.kind != BRIDGE]
        rdma = [node for node in nics if node.rdma] or nics
        if gpu is None or not rdma:
            return ()
        best = max(nearness(gpu, nic) for nic in rdma)
        return tuple(port for nic in rdma if nearness(gpu, nic) == best for port in nic.ports)


EMPTY = PcieTree(())


def nearness(one: PcieNode, other: PcieNode) -> tuple[int, bool, bool]:
    """Rate the nearness of two nodes: (bridges in common, same root bus, same NUMA node); greater is nearer."""
    common = 0
    for mine, yours in zip(one.above, other.above, strict=False):
        if mine != yours:
            break
        common += 1
    return common, one.root_bus == other.root_bus, one.numa_node == other.numa_node and one.numa_node >= 0


def read_tree(root: Path = ROOT) -> PcieTree:
    """Read the current tree, without error counters. Raises PermissionError. About 0.2 ms per
    device.
    """
    base = str(root).rstrip("/")
    devices = {device.address: device for device in read_pci(root, errors=False)}
    rdma, ports = _ports(base, "infiniband"), _ports(base, "net")
    paths = {address: _path(f"{base}/sys/bus/pci/devices/{address}") for address in devices}
    wanted = {address: device.kind for address, device in devices.items() if device.kind in KINDS}
    for address in tuple(wanted):
        for bridge in paths[address][1]:
            if bridge in devices:
                wanted.setdefault(bridge, BRIDGE)
    return PcieTree(
        tuple(
            PcieNode(
                devices[address], kind, _numa_node(f"{base}/sys/bus/pci/devices/{address}"), *paths[address],
                () if kind == BRIDGE else tuple(rdma.get(address) or ports.get(address) or ()), address in rdma,
            )
            for address, kind in sorted(wanted.items())
        )
    )  # fmt: skip


def nearest_nics(gpu_bus: str, root: Path = ROOT) -> tuple[str, ...]:
    """Read the network ports nearest to the GPU at a PCI address ('0000:3b:00.0'). Raises
    PermissionError.
    """
    return read_tree(root).nearest_nics(gpu_bus)


def _ports(base: str, kind: str) -> dict[str, list[str]]:
    """List port names ('mlx5_3', 'mlx5_3/2', 'eth0') by PCI address, from /sys/class/infiniband or /sys/class/net.

    `base`: root of the tree, without a slash at its end; `kind`: 'infiniband' or 'net'.
    """
    found: dict[str, list[str]] = {}
    for device in names_in(f"{base}/sys/class/{kind}"):
        folder = f"{base}/sys/class/{kind}/{device}"
        address = device_address(f"{folder}/device")
        numbers = names_in(f"{folder}/ports") if kind == "infiniband" else ["1"]
        if address:
            found.setdefault(address, []).extend(device if port == "1" else f"{device}/{port}" for port in numbers)
    return found


def _path(device: str) -> tuple[str, tuple[str, ...]]:
    """Return (root bus, addresses of the bridges above, root first) of a PCI device's link in sysfs.

    Both are in the link's target: …/pci0000:3a/0000:3a:00.0/0000:3b:00.0.
    """
    parts = os.path.realpath(device).split("/")
    bus = next((part for part in parts if part.startswith("pci") and is_address(f"{part[3:]}:00.0")), "")
    return bus, tuple(part for part in parts[:-1] if is_address(part))


def _numa_node(folder: str) -> int:
    """Read the NUMA node of a PCI device's folder; -1 where unknown."""
    try:
        return int(read_file(f"{folder}/numa_node", 64))
    except (OSError, ValueError):
        return -1
