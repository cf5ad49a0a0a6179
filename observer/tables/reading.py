"""What the samplers of the hardware saw in one window, and whose it is."""

from __future__ import annotations

from dataclasses import dataclass, field

from rankscope.observer.census.owners import Owners
from rankscope.probes.gpu.series import GpuRecording
from rankscope.probes.gpu.xid import LoggedXid
from rankscope.probes.pci.sampler import PcieRecording
from rankscope.probes.ports.model import NicRecording


@dataclass(frozen=True, slots=True)
class HardwareReading:
    """What was seen of the hardware in a window, and whose it is. `notes`: what was not seen; `earlier_xids`: logged before it."""

    gpus: GpuRecording = field(default_factory=GpuRecording)
    nics: NicRecording = field(default_factory=NicRecording)
    links: PcieRecording = field(default_factory=PcieRecording)
    owners: Owners = field(default_factory=Owners)
    earlier_xids: tuple[LoggedXid, ...] = ()
    notes: tuple[str, ...] = ()
