"""The faults of the lab, one file each. A new one is a new file and its name in ALL."""

from labkit.faults.base import Fault, Truth
from labkit.faults.cpu_hog import CpuHog
from labkit.faults.cpu_quota import CpuQuota
from labkit.faults.none import NoFault
from labkit.faults.python_slow import PythonSlow
from labkit.faults.slow_link import SlowLink
from labkit.faults.slow_read import SlowRead
from labkit.faults.stopped import Stopped

ALL: dict[str, type[Fault]] = {
    fault.name: fault for fault in (PythonSlow, CpuHog, CpuQuota, SlowLink, SlowRead, Stopped, NoFault)
}

__all__ = ["ALL", "Fault", "Truth"]
