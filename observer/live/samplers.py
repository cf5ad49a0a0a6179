"""Sample the hardware under the ranks during one window: GPUs, network ports and PCI links, on their own threads.

In: this host, through NVML and sysfs. Out: HardwareReading. Nothing here waits for a device: one
that does not answer is abandoned with a note (probes/sampling/thread.py). GPUs and PCI links are
read only where a rank uses an accelerator.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rankscope.observer.census import owners as device_owners
from rankscope.observer.census.found import FoundRank
from rankscope.observer.census.owners import Hint, uses_accelerator
from rankscope.observer.tables.reading import HardwareReading
from rankscope.probes.gpu.sampler import GpuSampler
from rankscope.probes.gpu.xid import LoggedXid, logged_xids
from rankscope.probes.host.kmsg import read_kmsg
from rankscope.probes.host.procfs import ROOT
from rankscope.probes.pci.sampler import PcieSampler
from rankscope.probes.ports.model import NicRecording
from rankscope.probes.ports.sampler import PortSampler

# seconds before the window in which an Xid of the kernel's log still explains a dead rank
EARLIER_S = 600.0
_STOP_S = 2.0
# No bursts without collectives on GPUs.
_NEVER = 0.0


@dataclass(slots=True)
class Hardware:
    """Samplers of one window: `listen` as early as possible, `start` when it begins, `stop` when it
    ends.

    A rank whose GPU fails while the probes load is gone when the window begins: what it used and
    what its GPU reported must be recorded before. `library` replaces pynvml.
    """

    ranks: Sequence[FoundRank]
    root: Path = ROOT
    library: Any = None
    _gpus: GpuSampler | None = None
    _nics: PortSampler | None = None
    _links: PcieSampler | None = None
    _hints: dict[int, Hint] = field(default_factory=dict)
    _reading: HardwareReading | None = None
    _started_s: float = 0.0

    def listen(self) -> None:
        """Receive GPU errors from now on, and read which GPUs the ranks use. Returns at once."""
        if any(uses_accelerator(rank) for rank in self.ranks):
            self._gpus = GpuSampler(library=self.library)
            self._gpus.listen()
            self._hints = device_owners.read_hints(self.ranks, self.root)

    def start(self) -> None:
        """Start sampling. Returns at once."""
        if self._gpus is None:
            self.listen()
        self._started_s = time.monotonic()
        on_gpus = self._gpus is not None
        self._nics = PortSampler(root=self.root) if on_gpus else PortSampler(root=self.root, burst_every_s=_NEVER)
        self._nics.start()
        if self._gpus is not None:
            self._links = PcieSampler(root=self.root)
            self._gpus.start()
            self._links.start()

    def stop(self) -> HardwareReading:
        """Stop, once, and return what was recorded. Never raises.

        Takes at most `_STOP_S` seconds however many devices hang.
        """
        if self._reading is not None:
            return self._reading
        until = time.monotonic() + _STOP_S

        def rest() -> float:
            """Return the seconds that are left for stopping, at least 0.1."""
            return max(until - time.monotonic(), 0.1)

        nics = self._nics.stop(rest()) if self._nics is not None else NicRecording()
        if self._gpus is None or self._links is None:
            if self._gpus is not None:  # it listened, but no window began
                self._gpus.stop(rest())
            # Missing cards (as in a virtual machine) are not worth a note where no rank needs one.
            self._reading = HardwareReading(nics=nics, notes=nics.missing if nics.ports else ())
            return self._reading
        gpus, links = self._gpus.stop(rest()), self._links.stop(rest())
        owners = device_owners.find_owners(self.ranks, gpus, links.tree, self._hints, self.root)
        # CUDA builds of frameworks load the runtime on any host, but the driver's library only
        # where there is a driver.
        driver = bool(gpus.growth) or any(rank.libraries.cuda for rank in self.ranks)
        notes = (*gpus.missing, *nics.missing, *links.missing) if driver else ()
        earlier = _earlier_xids(self._started_s, self.root) if gpus.growth else ()
        self._reading = HardwareReading(gpus, nics, links, owners, earlier, notes)
        return self._reading

    def close(self) -> None:
        """Stop the samplers if they still run."""
        self.stop()


def _earlier_xids(until_s: float, root: Path) -> tuple[LoggedXid, ...]:
    """Read the Xids of the last ten minutes before `until_s`; none where the kernel's log is
    unreadable.
    """
    try:
        messages = read_kmsg(root)
    except OSError:
        return ()
    return tuple(xid for xid in logged_xids(messages) if until_s - EARLIER_S <= xid.time_s < until_s)


def of_job(reading: HardwareReading, ranks: Sequence[FoundRank]) -> HardwareReading:
    """Restrict the owners and notes of a reading to these ranks; its recordings still cover all devices."""
    owners = reading.owners.of({rank.pid for rank in ranks})
    concerned = reading.notes if any(uses_accelerator(rank) for rank in ranks) else ()
    return replace(reading, owners=owners, notes=(*concerned, *owners.notes.values()))
