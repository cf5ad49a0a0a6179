"""The faults of the GPU lab, one file each. A new one is a new file and its name in ALL."""

from labkit.faults.base import Fault
from labkit.faults.none import NoFault
from labkit.gpu.faults.clock import ClockLow
from labkit.gpu.faults.ecc import EccStorm
from labkit.gpu.faults.harmless import Harmless
from labkit.gpu.faults.link import SlowRail
from labkit.gpu.faults.lost import Lost
from labkit.gpu.faults.nic_errors import NicErrors
from labkit.gpu.faults.nic_flap import NicFlap
from labkit.gpu.faults.nic_speed import NicSpeed
from labkit.gpu.faults.nvlink import NvlinkDown, NvlinkErrors
from labkit.gpu.faults.pcie import PcieReplays, PcieWidth
from labkit.gpu.faults.power import PowerBrake, PowerCap
from labkit.gpu.faults.python_slow import GpuPythonSlow
from labkit.gpu.faults.shared import Shared
from labkit.gpu.faults.slow import SlowKernels
from labkit.gpu.faults.thermal import Thermal
from labkit.gpu.faults.xid import Xid, XidFatal

ALL: dict[str, type[Fault]] = {
    fault.name: fault
    for fault in (
        Thermal, PowerCap, PowerBrake, ClockLow, EccStorm, Xid, XidFatal, Lost, Shared, SlowKernels,
        NvlinkDown, NvlinkErrors, PcieWidth, PcieReplays, NicSpeed, NicFlap, NicErrors, SlowRail,
        GpuPythonSlow, NoFault, Harmless,
    )
}  # fmt: skip

__all__ = ["ALL", "Fault"]
