"""Driver and firmware versions; NVIDIA's parts match.

Reads the kernel release, /sys/module/nvidia/version, the NVML library's version, firmware of InfiniBand devices, and drivers of
physical interfaces. Each is a finding of its own, so that `rankscope sweep DIR…` can name the host that differs. A
library of another version than the loaded kernel module is critical: no CUDA program can start (updated without a reboot).
"""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.diagnose.sweep.context import Context
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.readings.gpus import reading
from rankscope.diagnose.sweep.readings.interfaces import physical
from rankscope.probes.gpu.nvml import MISMATCH
from rankscope.probes.ports.reader import read_ports

ID = "driver.versions"
SETTINGS: dict[str, float] = {}


def run(context: Context) -> Iterator[Finding]:
    """Yield each version as a finding; critical if NVIDIA's library and kernel module have different ones."""
    release = context.text("proc/sys/kernel/osrelease")
    if release:
        yield context.ok("/proc/sys/kernel/osrelease", release, instance="kernel")
    for nic in physical(context):
        if nic.driver:
            yield context.ok(f"/sys/class/net/{nic.name}/device/driver", nic.driver, instance=f"driver of {nic.name}")
    for port in context.shared.get("ib", lambda: read_ports(context.root, interfaces=False)):
        if port.firmware and port.port == 1:
            yield context.ok(
                f"/sys/class/infiniband/{port.device}/fw_ver", port.firmware, instance=f"firmware of {port.device}"
            )
    module = context.text("sys/module/nvidia/version")
    if module is None:
        return
    yield context.ok("/sys/module/nvidia/version", module, instance="nvidia module")
    nvml = reading(context)
    library = nvml.driver_version
    if nvml.absent == MISMATCH or (library and library != module):
        yield context.critical(
            "NVML", library or nvml.absent, instance="nvidia library", expected=module,
            why="the library and the kernel module are of different versions: CUDA cannot start",
            action="Drain the host and reboot it (or reload the nvidia modules).",
        )  # fmt: skip
    for gpu in nvml.gpus:
        if gpu.vbios:
            yield context.ok("NVML", gpu.vbios, instance=f"VBIOS of gpu{gpu.index}")
