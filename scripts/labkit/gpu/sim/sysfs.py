"""The part of /sys that an eight-GPU machine has and this one has not: PCI devices and InfiniBand ports.

Each GPU shares a PCIe switch with a NIC: root port → upstream port → two downstream ports → GPU, NIC. Files that change (link speed
and width, AER, port state and counters) are kept up to date by gpusimd.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

# The same addresses as in nvml.c.
GPU_BUSES = (0x18, 0x2A, 0x3A, 0x5B, 0x9A, 0xAB, 0xBA, 0xDB, 0x1C, 0x2E, 0x3E, 0x5F, 0x9E, 0xAF, 0xBE, 0xDF)
_NVME_BUSES = (0x06, 0x71)
_NODES = Path("/sys/devices/system/node")
_GEN5 = "32.0 GT/s PCIe"
_GEN4 = "16.0 GT/s PCIe"
_COUNTERS = (
    "symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors", "port_xmit_discards", "port_xmit_constraint_errors", "port_rcv_constraint_errors",
    "local_link_integrity_errors", "excessive_buffer_overrun_errors", "VL15_dropped", "port_xmit_wait", "port_xmit_data",
    "port_rcv_data", "port_xmit_packets", "port_rcv_packets", "unicast_xmit_packets", "unicast_rcv_packets",
    "multicast_xmit_packets", "multicast_rcv_packets",
)  # fmt: skip
_HW_COUNTERS = (
    "out_of_buffer", "out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err", "duplicate_request",
    "implied_nak_seq_err", "rx_icrc_encapsulated", "np_cnp_sent", "np_ecn_marked_roce_packets", "rp_cnp_handled",
    "rp_cnp_ignored", "roce_adp_retrans", "roce_adp_retrans_to", "roce_slow_restart", "req_cqe_error", "resp_cqe_error",
    "rx_write_requests", "rx_read_requests",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a PCI device is: IDs as sysfs writes them, its class, its driver, its fastest link."""

    vendor: str
    device: str
    class_code: str
    driver: str
    speed: str = _GEN5
    width: int = 16


_ROOT_PORT = _Kind("0x8086", "0x352a", "0x060400", "pcieport")
_SWITCH_PORT = _Kind("0x1000", "0xc030", "0x060400", "pcieport")
_GPU = _Kind("0x10de", "0x2330", "0x030200", "nvidia")
_NIC = _Kind("0x15b3", "0x1021", "0x020700", "mlx5_core")
_NVME_PORT = _Kind("0x8086", "0x352a", "0x060400", "pcieport", _GEN4, 4)
_NVME = _Kind("0x144d", "0xa80a", "0x010802", "nvme", _GEN4, 4)


def gpu_address(index: int) -> str:
    return f"0000:{GPU_BUSES[index]:02x}:00.0"


def nic_address(index: int) -> str:
    return f"0000:{GPU_BUSES[index] + 1:02x}:00.0"


def build(folder: Path, gpus: int, per_host: int) -> None:
    """Make the tree in `folder`, which is /sys to those who shall see it."""
    (folder / "bus/pci/devices").mkdir(parents=True)
    (folder / "class/infiniband").mkdir(parents=True)
    nodes = len(list(_NODES.glob("node[0-9]*"))) or 1
    for index in range(gpus):
        node = index // per_host % nodes
        bus = GPU_BUSES[index]
        root = folder / f"devices/pci0000:{bus - 3:02x}"
        port = _device(folder, root, f"0000:{bus - 3:02x}:01.0", _ROOT_PORT, node)
        upstream = _device(folder, port, f"0000:{bus - 2:02x}:00.0", _SWITCH_PORT, node)
        to_gpu = _device(folder, upstream, f"0000:{bus - 1:02x}:00.0", _SWITCH_PORT, node)
        to_nic = _device(folder, upstream, f"0000:{bus - 1:02x}:01.0", _SWITCH_PORT, node)
        _device(folder, to_gpu, gpu_address(index), _GPU, node)
        _infiniband(folder, _device(folder, to_nic, nic_address(index), _NIC, node), index)
    for index, bus in enumerate(_NVME_BUSES):
        port = _device(
            folder, folder / f"devices/pci0000:{bus - 1:02x}", f"0000:{bus - 1:02x}:01.0", _NVME_PORT, index % nodes
        )
        _device(folder, port, f"0000:{bus:02x}:00.0", _NVME, index % nodes)


def _device(folder: Path, above: Path, address: str, kind: _Kind, node: int) -> Path:
    place = above / address
    place.mkdir(parents=True)
    _write(place, "vendor", kind.vendor)
    _write(place, "device", kind.device)
    _write(place, "class", kind.class_code)
    _write(place, "current_link_speed", kind.speed)
    _write(place, "max_link_speed", kind.speed)
    _write(place, "current_link_width", str(kind.width))
    _write(place, "max_link_width", str(kind.width))
    _write(place, "numa_node", str(node))
    _write(place, "local_cpulist", _cpus(node))
    _write(place, "enable", "1")
    _write(
        place, "aer_dev_correctable", _aer("COR", ("RxErr", "BadTLP", "BadDLLP", "Rollover", "Timeout", "NonFatalErr"))
    )
    for name, total in (("nonfatal", "NONFATAL"), ("fatal", "FATAL")):
        _write(
            place,
            f"aer_dev_{name}",
            _aer(total, ("Undefined", "DLP", "SDES", "TLP", "FCP", "CmpltTO", "ECRC", "UnsupReq")),
        )
    _link(place / "driver", folder / "bus/pci/drivers" / kind.driver)
    _link(place / "subsystem", folder / "bus/pci")
    _link(folder / "bus/pci/devices" / address, place)
    return place


def _infiniband(folder: Path, nic: Path, index: int) -> None:
    place = nic / f"infiniband/mlx5_{index}"
    port = place / "ports/1"
    for below in ("counters", "hw_counters"):
        (port / below).mkdir(parents=True)
    _write(place, "node_type", "1: CA")
    _write(place, "fw_ver", "28.39.1002")
    _write(place, "board_id", "MT_0000000838")
    _write(place, "hca_type", "MT4129")
    _write(place, "node_guid", f"a088:c203:00e1:{index:04x}")
    _link(place / "device", nic)
    for name, text in (
        ("state", "4: ACTIVE"),
        ("phys_state", "5: LinkUp"),
        ("rate", "400 Gb/sec (4X NDR)"),
        ("link_layer", "InfiniBand"),
        ("lid", hex(index + 1)),
    ):
        _write(port, name, text)
    for name in _COUNTERS:
        _write(port / "counters", name, "0")
    for name in _HW_COUNTERS:
        _write(port / "hw_counters", name, "0")
    _link(folder / "class/infiniband" / f"mlx5_{index}", place)


def _cpus(node: int) -> str:
    try:
        return (_NODES / f"node{node}/cpulist").read_text().strip()
    except OSError:
        return f"0-{(os.cpu_count() or 1) - 1}"


def _aer(total: str, names: Iterable[str]) -> str:
    return "".join(f"{name} 0\n" for name in names) + f"TOTAL_ERR_{total} 0"


def _write(place: Path, name: str, text: str) -> None:
    (place / name).write_text(f"{text}\n")


def _link(place: Path, target: Path) -> None:
    """A relative link, as sysfs has them: it must hold wherever the tree is mounted."""
    place.symlink_to(os.path.relpath(target, place.parent))
