"""Recorded /sys trees of network cards and PCI devices."""

from __future__ import annotations

from pathlib import Path

IB_COUNTERS = {
    "counters/port_xmit_data": "1009", "counters/port_rcv_data": "2003", "counters/symbol_error": "7",
    "counters/link_downed": "3", "counters/port_rcv_errors": "11", "counters/local_link_integrity_errors": "2",
    "hw_counters/rx_icrc_encapsulated": "5", "hw_counters/packet_seq_err": "13", "hw_counters/local_ack_timeout_err": "17",
    "hw_counters/implied_nak_seq_err": "0", "hw_counters/roce_adp_retrans": "1", "hw_counters/out_of_sequence": "19",
    "hw_counters/np_cnp_sent": "23", "hw_counters/rp_cnp_handled": "29",
}  # fmt: skip


def put(root: Path, files: dict[str, str]) -> Path:
    """Write files below a root; the folders are made."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.rstrip("\n") + "\n")
    return root


def pci(root: Path, path: str, code: str, speed: str = "32.0 GT/s PCIe", width: str = "16", **more: str) -> Path:
    """A PCI device at 'pci0000:3a/0000:3a:00.0/0000:3b:00.0', with its link from the bus. Returns its folder."""
    address = path.rpartition("/")[2]
    base = f"sys/devices/{path}"
    files = {
        "class": code, "vendor": "0x10de", "device": "0x2330", "numa_node": "0", "current_link_speed": speed,
        "current_link_width": width, "max_link_speed": "32.0 GT/s PCIe", "max_link_width": "16",
        "aer_dev_correctable": "RxErr 0\nTOTAL_ERR_COR 0", "aer_dev_nonfatal": "TOTAL_ERR_NONFATAL 0",
        "aer_dev_fatal": "TOTAL_ERR_FATAL 0",
    }  # fmt: skip
    put(root, {f"{base}/{name}": text for name, text in {**files, **more}.items()})
    link = root / "sys/bus/pci/devices" / address
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(root / base)
    return root / base


def ib(root: Path, device: str, pci_folder: Path | None, rate: str = "400 Gb/sec (4X NDR)", **counters: str) -> Path:
    """An InfiniBand device with one port; counters by file name, '/' written '__'. Returns the port's folder."""
    base = f"sys/class/infiniband/{device}"
    more = {name.replace("__", "/"): text for name, text in counters.items()}
    files = {
        "state": "4: ACTIVE",
        "phys_state": "5: LinkUp",
        "rate": rate,
        "link_layer": "InfiniBand",
        **IB_COUNTERS,
        **more,
    }
    put(root, {f"{base}/ports/1/{name}": text for name, text in files.items()})
    link = root / base / "device"
    if pci_folder is not None and not link.is_symlink():
        link.symlink_to(pci_folder)
    return root / base / "ports/1"


def ethernet(root: Path, name: str, pci_folder: Path | None, **more: str) -> Path:
    """An interface; `pci_folder` None: a virtual one. Returns its folder."""
    base = f"sys/class/net/{name}"
    files = {
        "operstate": "up", "carrier": "1", "speed": "100000", "carrier_down_count": "2", "statistics/tx_bytes": "101",
        "statistics/rx_bytes": "103", "statistics/rx_crc_errors": "31", **more,
    }  # fmt: skip
    put(root, {f"{base}/{key}": text for key, text in files.items()})
    link = root / base / "device"
    if pci_folder is not None and not link.is_symlink():
        link.symlink_to(pci_folder)
    return root / base
