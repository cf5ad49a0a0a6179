"""The hardware's and the kernel's own counters over one window, as rows of the table `counters`.

`begin` reads everything once, `sample` takes the levels that need a mean (four times a second at most), `rows` reads again
and gives growth. Host-wide things are read once per host, an interface once per network namespace, a cgroup once however
many ranks are in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankscope.probes.host import cgroup, cpu_memory, disks, procfs
from rankscope.probes.host.block_devices import disk_words
from rankscope.probes.host.cgroup import CgroupSample
from rankscope.probes.host.cpu_memory import HostDelta, HostSample
from rankscope.probes.host.disks import DiskSample
from rankscope.probes.host.namespaces import namespace_inode
from rankscope.probes.network import interfaces, qdisc
from rankscope.probes.network.interfaces import Interfaces
from rankscope.probes.network.qdisc import Qdiscs

INTERRUPTED_LEAST = 0.02  # of the window: interrupts of a CPU below are what any network and disk cause


@dataclass(frozen=True, slots=True)
class Member:
    """A rank as the counters see it: its process and the network namespace it is in."""

    rank: int
    pid: int
    netns: int


def _row(scope: str, name: str, unit: str, value: float, **more: Any) -> dict[str, Any]:
    return {
        "scope": scope,
        "instance": "",
        "rank": -1,
        "name": name,
        "unit": unit,
        "kind": "delta",
        "value": value,
        **more,
    }


def _interrupted(delta: HostDelta) -> list[dict[str, Any]]:
    """Two rows for each CPU that spent a noticeable part of the window in interrupts: a rank on it computes that much slower."""
    rows = []
    for cpu in delta.cpus:
        if cpu.softirq_s + cpu.irq_s >= INTERRUPTED_LEAST * delta.seconds:
            rows.append(_row("host", "cpu.softirq_s", "s", cpu.softirq_s, instance=f"cpu{cpu.cpu}"))
            rows.append(_row("host", "cpu.irq_s", "s", cpu.irq_s, instance=f"cpu{cpu.cpu}"))
    return rows


@dataclass(slots=True)
class Gauges:
    """Counters between `begin` and `rows`. `notes` says what could not be read."""

    pids: Sequence[int]
    root: Path = Path("/")
    notes: list[str] = field(default_factory=list)
    _host: HostSample | None = None
    _disks: DiskSample | None = None
    _interfaces: dict[int, Interfaces] = field(default_factory=dict)
    _qdiscs: dict[int, Qdiscs] = field(default_factory=dict)
    _cgroups: dict[int, CgroupSample] = field(default_factory=dict)
    _faults: dict[int, int] = field(default_factory=dict)

    def begin(self) -> None:
        """Read everything: the window counts from here."""
        self._host = cpu_memory.sample_host(self.root, clocks=False)
        self._disks = disks.sample_disks(self.root)
        for pid in self.pids:
            self._cgroups[pid] = cgroup.sample_cgroup(pid, self.root)
            faults = self._minor_faults(pid)
            if faults is not None:
                self._faults[pid] = faults
            netns = self._netns(pid)
            if netns not in self._interfaces:
                self._interfaces[netns] = interfaces.read_interfaces(pid, self.root)
                self._qdiscs[netns] = qdisc.read_qdiscs(pid, self.root)

    def _netns(self, pid: int) -> int:
        try:
            return namespace_inode(pid, "net", self.root)
        except (OSError, ValueError):
            return 0

    def _minor_faults(self, pid: int) -> int | None:
        try:
            return procfs.read_stat(pid, self.root).minor_faults
        except (OSError, ValueError):
            return None  # it ended

    def throttled_s(self) -> dict[int, float]:
        """Per pid: how long its CPU quota has held it back since `begin`."""
        found = {}
        for pid, before in self._cgroups.items():
            now = cgroup.sample_cgroup(pid, self.root)
            if now.cpu:
                found[pid] = sum(level.throttled_s for level in cgroup.cgroup_delta(before, now).cpu)
        return found

    def host_rows(self) -> list[dict[str, Any]]:
        """Growth and levels of the whole host since `begin`."""
        return self._host_rows() + self._disk_rows()

    def member_rows(self, members: Sequence[Member]) -> list[dict[str, Any]]:
        """Growth and levels of what these ranks use: interfaces of their network namespaces, control groups, pages."""
        rows = []
        for member in {member.netns: member for member in reversed(members)}.values():
            rows += self._interface_rows(member)
        for member in members:
            rows += self._cgroup_rows(member)
            before, now = self._faults.get(member.pid), self._minor_faults(member.pid)
            if before is not None and now is not None:
                rows.append(_row("rank", "memory.minor_faults", "events", now - before, rank=member.rank))
        return rows

    def _host_rows(self) -> list[dict[str, Any]]:
        if self._host is None:
            return []
        now = cpu_memory.sample_host(self.root, clocks=True)
        # No cpufreq is how virtual machines are; `doctor` is the place for what a host lacks for good.
        self.notes += [missing for missing in now.missing if not missing.startswith("CPU clocks")]
        delta = cpu_memory.host_delta(self._host, now)
        rows = []
        if delta.total is not None:
            cpus = max(len(delta.cpus), 1)
            rows += [
                _row("host", "cpu.steal_s", "s", delta.total.steal_s),
                _row("host", "cpu.softirq_s", "s", delta.total.softirq_s),
                _row("host", "cpu.irq_s", "s", delta.total.irq_s),
                _row("host", "cpu.iowait_s", "s", delta.total.iowait_s),
                _row("host", "cpu.busy_s", "s", delta.total.busy_s, limit=cpus * delta.seconds),
            ]
            rows += _interrupted(delta)
        for pressure in delta.pressures:
            rows.append(_row("host", f"psi.{pressure.resource}.some_s", "s", pressure.some_s))
            rows.append(_row("host", f"psi.{pressure.resource}.full_s", "s", pressure.full_s))
        if delta.vm is not None:
            rows += [
                _row("host", "memory.major_faults", "events", delta.vm.major_faults),
                _row("host", "memory.oom_kills", "events", delta.vm.oom_kills),
                _row("host", "memory.swapped_in_pages", "pages", delta.vm.swapped_in_pages),
                _row("host", "memory.direct_reclaim_pages", "pages", delta.vm.direct_reclaim_pages),
            ]
        for clock in now.clocks:
            rows.append(
                _row(
                    "host",
                    "cpu.clock_hz",
                    "Hz",
                    clock.current_hz,
                    instance=f"cpu{clock.cpu}",
                    kind="gauge",
                    limit=clock.max_hz,
                )
            )
        return rows

    def _disk_rows(self) -> list[dict[str, Any]]:
        if self._disks is None:
            return []
        rows = []
        for delta in disks.disk_deltas(self._disks, disks.sample_disks(self.root)):
            if not (delta.reads or delta.writes):
                continue
            for name, unit, value in (
                ("disk.reads", "events", delta.reads),
                ("disk.read_bytes", "bytes", delta.read_bytes),
                ("disk.read_s", "s", delta.read_s),
                ("disk.writes", "events", delta.writes),
                ("disk.write_bytes", "bytes", delta.write_bytes),
                ("disk.write_s", "s", delta.write_s),
                ("disk.busy_s", "s", delta.busy_s),
            ):
                rows.append(
                    _row("disk", name, unit, value, instance=disk_words(delta.device, delta.major, delta.minor))
                )
        return rows

    def _interface_rows(self, member: Member) -> list[dict[str, Any]]:
        before = self._interfaces.get(member.netns)
        if before is None:
            return []
        now = interfaces.read_interfaces(member.pid, self.root)
        speeds = {interface.name: interface.speed_hz or None for interface in now.interfaces}
        rows = []
        for delta in interfaces.interface_deltas(before, now):
            if not (delta.tx_bytes or delta.rx_bytes):
                continue
            limit = speeds.get(delta.name)
            where = {"instance": delta.name, "rank": member.rank}
            rows += [
                _row("nic", "nic.tx_bytes", "bytes", delta.tx_bytes, limit=limit, **where),
                _row("nic", "nic.rx_bytes", "bytes", delta.rx_bytes, limit=limit, **where),
                _row("nic", "nic.tx_errors", "events", delta.tx_errors, **where),
                _row("nic", "nic.rx_errors", "events", delta.rx_errors, **where),
                _row("nic", "nic.tx_dropped", "events", delta.tx_dropped, **where),
                _row("nic", "nic.rx_dropped", "events", delta.rx_dropped, **where),
            ]
        after = qdisc.read_qdiscs(member.pid, self.root)
        for queue in qdisc.qdisc_deltas(self._qdiscs[member.netns], after):
            where = {"instance": queue.interface, "rank": member.rank}
            if queue.rate_hz:
                rows.append(
                    _row(
                        "nic", "qdisc.rate_limit", "bytes/s", queue.rate_hz, kind="gauge", limit=queue.rate_hz, **where
                    )
                )
            if queue.loss:
                rows.append(_row("nic", "qdisc.loss", "share", queue.loss, kind="gauge", **where))
            if queue.drops or queue.overlimits:
                rows.append(_row("nic", "qdisc.drops", "events", queue.drops, **where))
                rows.append(_row("nic", "qdisc.overlimits", "events", queue.overlimits, **where))
            if queue.backlog_bytes:
                rows.append(_row("nic", "qdisc.backlog_bytes", "bytes", queue.backlog_bytes, kind="gauge", **where))
        return rows

    def _cgroup_rows(self, member: Member) -> list[dict[str, Any]]:
        before = self._cgroups.get(member.pid)
        if before is None:
            return []
        now = cgroup.sample_cgroup(member.pid, self.root)
        delta = cgroup.cgroup_delta(before, now)
        rows = []
        for level in delta.cpu:
            if level.quota_cpus is None and not level.throttled_periods:
                continue
            where = {"instance": level.path, "rank": member.rank}
            rows.append(_row("cgroup", "cpu.throttled_s", "s", level.throttled_s, limit=level.quota_cpus, **where))
            rows.append(_row("cgroup", "cpu.throttled_periods", "events", level.throttled_periods, **where))
        for limit in now.io:
            for direction, rate in (("read", limit.read_bytes_hz), ("write", limit.write_bytes_hz)):
                if rate is not None:
                    where = {"instance": f"{limit.device} {direction}", "rank": member.rank}
                    rows.append(_row("cgroup", "disk.throttled", "bytes/s", rate, kind="gauge", limit=rate, **where))
        for memory in delta.memory:
            for name, events in (("memory.limit_hits", memory.limit_hits), ("memory.oom_kills", memory.oom_kills)):
                if events:
                    where = {"instance": memory.path, "rank": member.rank}
                    rows.append(_row("cgroup", name, "events", events, limit=memory.limit_bytes, **where))
        return rows
