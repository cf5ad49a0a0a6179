"""Detect hardware that turns bad: links that go down, uncorrected memory errors. Not what was bad at the start.

Counters are read from files every few seconds: a port that had a link and has none, a link that
went and came back meanwhile, uncorrected errors counted by the memory controllers. For GPUs and
NVLink the kernel's log has Xids, which the service follows anyway.

A host is drained for a link that is down for a while, as the sweep drains after two looks; not for
one that an administrator switched off, or that went into a pod and came back switched off, nor for
that of a virtual function, which its card or another host controls.

A drain for a link is over when the port has one again, was switched off, or is elsewhere; for a
card that died it remains.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rankscope.diagnose import budgets
from rankscope.diagnose.service.tell.drain import reason_of
from rankscope.diagnose.severity import CRITICAL, OK, WARNING
from rankscope.diagnose.text import clean
from rankscope.probes.host.edac import read_edac
from rankscope.probes.host.procfs import ROOT
from rankscope.probes.pci.cards import is_well_elsewhere
from rankscope.probes.pci.devices import is_address, is_part
from rankscope.probes.ports.model import Port
from rankscope.probes.ports.reader import MAX_PORTS, PortReader, find_ports

# a switch that restarts takes longer, a port that retrains less; the sweep's two looks are as far
# apart
LASTS_S = 10.0
WAITS_S = 120.0  # for the subnet manager, after a driver was loaded anew


@dataclass(frozen=True, slots=True)
class Sickness:
    """A piece of hardware that turned bad, or well again (`state` ok)."""

    words: str
    state: str
    component: str
    cause: str
    instance: str

    @property
    def drain(self) -> str:
        """Reason to drain the host, '' unless the state is critical."""
        return reason_of(self.component, self.cause, self.instance) if self.state == CRITICAL else ""


@dataclass(slots=True)
class Sick:
    """Detector of bad hardware on this host. Call `turned` every few seconds; it never raises."""

    root: Path = ROOT
    # calls after which ports are searched for again: cards come and go with their drivers
    sought_again: int = 120
    clock: Callable[[], float] = time.monotonic
    _readers: tuple[PortReader, ...] = ()
    _calls: int = 0
    _up: dict[str, bool] = field(default_factory=dict)
    # Ports that had a link; inf: the loss was already reported as lasting, or is no fault.
    _down_since: dict[str, float] = field(default_factory=dict)
    # ports with a reported lasting loss, and when
    _owed: dict[str, tuple[Port, float]] = field(default_factory=dict)
    _downs: dict[str, int] = field(default_factory=dict)
    _errors: dict[str, int] = field(default_factory=dict)

    def turned(self) -> tuple[Sickness, ...]:
        """Return what turned bad or well since the last call."""
        return (*self._links(), *self._memory())

    def close(self) -> None:
        """Close the files of the ports."""
        for reader in self._readers:
            reader.close()
        self._readers = ()

    def _links(self) -> list[Sickness]:
        """Read all ports and report what changed; every `sought_again` calls search for ports anew."""
        told: list[Sickness] = []
        if self._calls % self.sought_again == 0:
            self.close()
            with contextlib.suppress(OSError):
                self._readers = tuple(find_ports(self.root, True, MAX_PORTS))
                told += self._forget({reader.name for reader in self._readers})
        self._calls += 1
        for reader in self._readers:
            with contextlib.suppress(OSError):
                told += self._link(reader.read(reasons=True))
        return told

    def _forget(self, here: set[str]) -> list[Sickness]:
        """Forget ports not in `here`, as one with the same name is another port later.

        Each with a possible drain whose card now works elsewhere (in a pod, say) is reported as no reason any more.
        """
        for known in (self._up, self._down_since, self._downs):
            for name in known.keys() - here:
                del known[name]
        told = []
        for name in sorted(self._owed.keys() - here):
            port, told_s = self._owed[name]
            elsewhere = is_address(port.pci) and is_well_elsewhere(self.root, port.pci, _class_of(port))
            if elsewhere or self.clock() - told_s > budgets.DAY_S:  # a drain remains open for this long
                del self._owed[name]
            if elsewhere:
                told.append(_well(name, "is not here any more"))
        return told

    def _link(self, port: Port) -> list[Sickness]:
        """Report a port's changes: link lost (warning; critical if it lasts), back, lost briefly, or switched off."""
        name = clean(port.name, 60)
        before, was = self._downs.get(port.name), self._up.get(port.name)
        downs = port.errors.link_downed
        if downs is not None:
            self._downs[port.name] = downs
        if port.off:
            self._up.pop(port.name, None)
            self._down_since.pop(port.name, None)
            owed = self._owed.pop(port.name, None)  # a drain for it may still be open
            return [_well(port.name, "was switched off")] if owed else []
        if port.up is not None:
            self._up[port.name] = port.up
        if port.up is False:
            return self._down(port, name, bool(was))
        if port.up and (self._owed.pop(port.name, None) or was is False):
            self._down_since.pop(port.name, None)
            return [_well(port.name, "has its link again")]
        if was and before is not None and downs is not None and downs > before:
            return [
                Sickness(f"{name} lost its link for a moment, {downs - before} times", WARNING, "nic", "errors", name)
            ]
        return []

    def _down(self, port: Port, name: str, had_link: bool) -> list[Sickness]:
        """Report a lost link at once as a warning, and once as critical if it lasts.

        `name`: the port's name, cleaned; `had_link`: at the last call.
        """
        now_s, state = self.clock(), clean(port.state, 40)
        if had_link:
            self._down_since[port.name] = now_s
            return [Sickness(f"{name} has lost its link ({state})", WARNING, "nic", "down", name)]
        since_s = self._down_since.get(port.name)
        if since_s is None or now_s - since_s < (WAITS_S if port.waits else LASTS_S):
            return []
        self._down_since[port.name] = float("inf")
        if is_part(str(self.root / "sys/class" / _class_of(port) / port.device / "device")):
            return []
        self._owed[port.name] = port, now_s
        return [Sickness(f"{name} has no link since {now_s - since_s:.0f} s ({state})", CRITICAL, "nic", "down", name)]

    def _memory(self) -> list[Sickness]:
        """Report as critical each memory controller whose count of uncorrected errors grew since the last call."""
        try:
            found = read_edac(self.root)
        except OSError:
            return []
        now: dict[str, int] = {}
        for one in found or ():
            if one.uncorrected is not None:
                now[one.name] = one.uncorrected
        before = self._errors
        self._errors = {**before, **now}  # an unreadable count is unchanged
        return [
            Sickness(f"memory {clean(name, 60)}: {count - before[name]} errors that could not be corrected",
                     CRITICAL, "memory", "ecc-errors", clean(name, 60))
            for name, count in now.items()
            if count > before.get(name, count)
        ]  # fmt: skip


def _class_of(port: Port) -> str:
    """Return the folder of a port's kind in /sys/class: 'infiniband' or 'net'."""
    return "infiniband" if port.port else "net"


def _well(port: str, words: str) -> Sickness:
    """Report that a port is no longer a reason to drain; `words`: why, to follow its name."""
    name = clean(port, 60)
    return Sickness(f"{name} {words}", OK, "nic", "down", name)
