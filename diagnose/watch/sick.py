"""Sick hardware as tier 0 sees it: links that go down, memory errors that could not be corrected. What was so at the start is nothing new.

Counters are read every few seconds, from files: a port that had a link and has none, a link that went and came back meanwhile, uncorrected
errors that the memory controllers count. Of GPUs and NVLink the kernel's log tells (Xid), which the service follows anyway.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path

from rankscope.diagnose.severity import CRITICAL, OK, WARNING
from rankscope.diagnose.text import clean
from rankscope.diagnose.watch.tell.drain import reason_of
from rankscope.probes.host.edac import read_edac
from rankscope.probes.host.procfs import ROOT
from rankscope.probes.ports.model import Port
from rankscope.probes.ports.reader import MAX_PORTS, PortReader, find_ports


@dataclass(frozen=True, slots=True)
class Sickness:
    """Something turned bad, or well again (`state` ok). `drain`: why the host should be drained, '' where it should not."""

    words: str
    state: str
    component: str
    cause: str
    instance: str

    @property
    def drain(self) -> str:
        return reason_of(self.component, self.cause, self.instance) if self.state == CRITICAL else ""


@dataclass(slots=True)
class Sick:
    """This host's. `turned` is called every few seconds; it never raises."""

    root: Path = ROOT
    sought_again: int = 120  # calls after which ports are: cards come and go with their drivers
    _readers: tuple[PortReader, ...] = ()
    _calls: int = 0
    _up: dict[str, bool] = field(default_factory=dict)
    _downs: dict[str, int] = field(default_factory=dict)
    _errors: dict[str, int] | None = None

    def turned(self) -> tuple[Sickness, ...]:
        """What changed since the last call."""
        return (*self._links(), *self._memory())

    def close(self) -> None:
        """Let go of the files."""
        for reader in self._readers:
            reader.close()
        self._readers = ()

    def _links(self) -> list[Sickness]:
        if self._calls % self.sought_again == 0:
            self.close()
            with contextlib.suppress(OSError):
                self._readers = tuple(find_ports(self.root, True, MAX_PORTS))
        self._calls += 1
        told: list[Sickness] = []
        for reader in self._readers:
            with contextlib.suppress(OSError):
                told += self._link(reader.read())
        return told

    def _link(self, port: Port) -> list[Sickness]:
        name = clean(port.name, 60)
        before, was = self._downs.get(port.name), self._up.get(port.name)
        downs = port.errors.link_downed
        if port.up is not None:
            self._up[port.name] = port.up
        if downs is not None:
            self._downs[port.name] = downs
        if was and port.up is False:
            return [Sickness(f"{name} has lost its link ({clean(port.state, 40)})", CRITICAL, "nic", "down", name)]
        if was is False and port.up:
            return [Sickness(f"{name} has its link again", OK, "nic", "down", name)]
        if was and before is not None and downs is not None and downs > before:
            return [
                Sickness(f"{name} lost its link for a moment, {downs - before} times", WARNING, "nic", "errors", name)
            ]
        return []

    def _memory(self) -> list[Sickness]:
        try:
            found = read_edac(self.root)
        except OSError:
            return []
        now: dict[str, int] = {}
        for one in found or ():
            if one.uncorrected is not None:
                now[one.name] = one.uncorrected
        before, self._errors = self._errors, now
        if before is None:
            return []
        return [
            Sickness(f"memory {clean(name, 60)}: {count - before.get(name, 0)} errors that could not be corrected",
                     CRITICAL, "memory", "ecc-errors", clean(name, 60))
            for name, count in now.items()
            if count > before.get(name, 0)
        ]  # fmt: skip
