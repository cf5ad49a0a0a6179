"""The faults of the GPU lab. A new one is a class in one of these files and its name in ALL."""

from labkit.faults.base import Fault
from labkit.faults.none import NoFault
from labkit.gpu.faults import devices, idle, links

_KINDS: tuple[type[Fault], ...] = (
    devices.Thermal, devices.PowerCap, devices.PowerBrake, devices.ClockLow, devices.EccStorm, devices.Xid, devices.XidFatal,
    devices.Lost, devices.Shared, devices.SlowKernels,
    links.NvlinkDown, links.NvlinkErrors, links.PcieWidth, links.PcieReplays, links.NicSpeed, links.NicFlap, links.NicErrors,
    links.SlowRail, devices.GpuPythonSlow, idle.LaunchBound, idle.Synchronised, NoFault, devices.Harmless,
)  # fmt: skip
ALL: dict[str, type[Fault]] = {kind.name: kind for kind in _KINDS}

__all__ = ["ALL", "Fault"]
