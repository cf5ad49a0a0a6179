"""Readings of the hardware samplers in one window, with the devices' owners."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

import numpy as np

from rankscope.observer.census.owners import Owners
from rankscope.probes.gpu.series import GpuRecording, GpuSamples
from rankscope.probes.gpu.xid import LoggedXid
from rankscope.probes.pci.sampler import PcieRecording
from rankscope.probes.ports.model import NicRecording


@dataclass(frozen=True, slots=True)
class HardwareReading:
    """Hardware data of a window, with owners. `notes`: what was not seen; `earlier_xids`: logged
    before it.
    """

    gpus: GpuRecording = field(default_factory=GpuRecording)
    nics: NicRecording = field(default_factory=NicRecording)
    links: PcieRecording = field(default_factory=PcieRecording)
    owners: Owners = field(default_factory=Owners)
    earlier_xids: tuple[LoggedXid, ...] = ()
    notes: tuple[str, ...] = ()

    def within(self, start_ns: int, end_ns: int) -> HardwareReading:
        """Cut the GPU samples to the window (ns, same clock as the samples), so that sums are no longer than it."""
        return replace(
            self, gpus=replace(self.gpus, samples=tuple(_within(one, start_ns, end_ns) for one in self.gpus.samples))
        )


def _within(samples: GpuSamples, start_ns: int, end_ns: int) -> GpuSamples:
    """Cut the intervals of one GPU's samples to start_ns … end_ns; drop samples that lie outside."""
    begin = np.maximum(samples.time_ns - samples.interval_ns, start_ns)
    end = np.minimum(samples.time_ns, end_ns)
    kept = end > begin
    columns = {one.name: getattr(samples, one.name) for one in fields(samples)}
    columns |= {"time_ns": end, "interval_ns": end - begin}
    return GpuSamples(**{name: one[kept] if isinstance(one, np.ndarray) else one for name, one in columns.items()})
