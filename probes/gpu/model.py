"""Values of one GPU reading from NVIDIA's management library.

Out: Gpu, NvLink, GpuProcess. `nvml_fields.py` fills them, `nvml.py` records them.
"""

from __future__ import annotations

from dataclasses import dataclass

# NVML_FI_DEV_GET_GPU_RECOVERY_ACTION's values.
RECOVERY_ACTIONS = (
    "none", "reset the GPU", "reboot the host", "drain peer-to-peer", "drain and reset", "recover the IMEX domain",
    "reset the bus", "reboot the system",
)  # fmt: skip
# Name here -> bits of the reasons for a lowered clock (nvml.h, nvmlClocksEventReason*). Bit 0 is
# idle.
THROTTLE_BITS = {
    "app_clocks": 0x02, "power_cap": 0x04, "hw_slowdown": 0x08, "sync_boost": 0x10, "sw_thermal": 0x20, "hw_thermal": 0x40,
    "power_brake": 0x80,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class NvLink:
    """State and error counts of one NVLink since the driver was loaded; None where not counted.

    `errors` is the sum of the known kinds.
    """

    link: int
    active: bool
    errors: int | None
    crc: int | None = None
    replay: int | None = None
    recovery: int | None = None


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process with a context on a GPU; `pid` of the host. `sm_percent` is its latest share of SM
    time.
    """

    pid: int
    memory_bytes: int | None
    sm_percent: float | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """Values of one GPU; None: not supported here. Clocks in MHz, ECC counts since the last reset
    (volatile) or ever (aggregate).

    `slowdown_c` is the temperature at which the hardware slows down: the threshold, or on GPUs that
    only report the distance to it, the temperature plus that margin. `power_w` is the driver's
    average (one second on recent GPUs), `power_instant_w` is not. PCIe and NVLink bytes count
    payload since the driver was loaded. `link_speed_mbps`: of one NVLink and direction, 1e6 bytes
    per second.
    """

    index: int
    lost: bool = False
    uuid: str | None = None
    bus: str | None = None
    name: str | None = None
    vbios: str | None = None
    pstate: int | None = None
    temperature_c: int | None = None
    slowdown_c: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None
    utilisation_percent: int | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    sm_clock_app_mhz: int | None = None
    sm_clock_app_default_mhz: int | None = None
    throttle_reasons: int | None = None
    ecc_enabled: bool | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    ecc_uncorrected_ever: int | None = None
    remap_corrected: int | None = None
    remap_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    retired_pending: bool | None = None
    recovery_action: int | None = None
    links: tuple[NvLink, ...] = ()
    processes: tuple[GpuProcess, ...] = ()
    memory_utilisation_percent: int | None = None
    decoder_percent: int | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    memory_clock_mhz: int | None = None
    memory_clock_max_mhz: int | None = None
    memory_temperature_c: int | None = None
    power_instant_w: float | None = None
    ecc_corrected_ever: int | None = None
    retired_pages: int | None = None
    pcie_gen: int | None = None
    pcie_gen_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_replays: int | None = None
    pcie_tx_bytes: int | None = None
    pcie_rx_bytes: int | None = None
    nvlink_tx_bytes: int | None = None
    nvlink_rx_bytes: int | None = None
    link_speed_mbps: int | None = None


def pci_address(bus: str | None) -> str:
    """Convert NVML's '00000000:3B:00.0' to sysfs form '0000:3b:00.0'; '' where there is none."""
    domain, _, rest = (bus or "").strip().lower().partition(":")
    if not rest:
        return ""
    return f"{domain[-4:] if domain.startswith('0000') and len(domain) == 8 else domain}:{rest}"
