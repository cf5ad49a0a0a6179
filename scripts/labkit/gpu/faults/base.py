"""What every fault of the GPU lab is: a fault of the lab, on one GPU or NIC of the emulated machine."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import ClassVar

from labkit.faults.base import Fault, Truth
from labkit.gpu.launch import GpuJob
from labkit.gpu.sim import sysfs
from labkit.gpu.sim.sim import Part
from labkit.run import SETTLE_S
from labkit.step_times import Pace

# Seconds from the order to an event that must fall into the window: the observer needs some to start.
INTO_WINDOW_S = (SETTLE_S + 6.5, SETTLE_S + 9.0)
# Bits of nvmlDeviceGetCurrentClocksEventReasons.
HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, POWER_BRAKE = 0x8, 0x20, 0x40, 0x80
MAX_CLOCK_HZ = 1980e6


class Altered:
    """A GPU or a NIC whose settings are put back as they were."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._before: dict[str, float] = {}

    def set(self, **settings: float) -> None:
        for name, value in settings.items():
            if name not in self._before:
                self._before[name] = self._part.get(name)
            self._part.set(**{name: value})

    def report_xid(self, number: int) -> None:
        self._part.set(xid=number)

    def put_back(self) -> None:
        self._part.set(**self._before)


class GpuFault(Fault):
    """`victim` is the rank, its GPU (NVML index) and its NIC: on this machine all three have one number."""

    group = "gpu"
    # Only some faults have a weak dose.
    one_dose = True
    # By dose: the share of its speed that is left to the part that suffers.
    shares: ClassVar[dict[str, tuple[float, float]]] = {"strong": (0.45, 0.7), "weak": (0.85, 0.92)}

    def __init__(self, job: GpuJob, rng: random.Random, dose: str, healthy: Pace) -> None:
        super().__init__(job, rng, dose, healthy)
        self.gpu_job = job
        self.share = rng.uniform(*self.shares[dose])
        self._altered: list[Altered] = []
        self.gpu = self.altered_gpu(self.victim)
        self.nic = self._alter(job.machine.nic(self.victim))
        self._timers: list[threading.Timer] = []

    def altered_gpu(self, index: int) -> Altered:
        """A GPU for a fault that concerns more than the victim's."""
        return self._alter(self.gpu_job.machine.gpu(index))

    def _alter(self, part: Part) -> Altered:
        self._altered.append(Altered(part))
        return self._altered[-1]

    @property
    def gpu_name(self) -> str:
        return f"gpu{self.victim}"

    @property
    def nic_name(self) -> str:
        return f"mlx5_{self.victim}"

    @property
    def pci_names(self) -> tuple[str, str]:
        """The GPU's PCI address, and that of the port above it: the two ends of its link."""
        address = sysfs.gpu_address(self.victim)
        domain, bus, rest = address.split(":")
        return address, f"{domain}:{int(bus, 16) - 1:02x}:{rest}"

    def later(self, seconds: float, action: Callable[[], object]) -> None:
        """Do something while the window is observed; not at all once the fault is reverted."""
        timer = threading.Timer(seconds, action)
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    def truth(
        self, causes: dict[str, set[str]], *instances: str, status: str = "fault", culprit: str | None = None
    ) -> Truth:
        """The right answer: this rank, one of these causes, one of these parts of the machine."""
        return Truth(
            status=status,
            causes={component: frozenset(right) for component, right in causes.items()},
            ranks=(self.victim,),
            instances=frozenset(instances),
            exact=True,
            culprit=culprit,
        )

    def revert(self) -> None:
        super().revert()
        for timer in self._timers:
            timer.cancel()
        for part in self._altered:
            part.put_back()
        self.gpu_job.machine.clear_log()
