"""Hardware and kernel counters over one window, as rows of the table `counters`.

`begin` reads everything once; `host_rows` and `member_rows` read again and give growth. Host-wide
counters are read once per host, an interface once per network namespace, a cgroup once however many
ranks are in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rankscope.observer.window.rows import CounterRow
from rankscope.probes.host import cgroup, cpu_memory, disks, procfs
from rankscope.probes.host.block_devices import disk_words
from rankscope.probes.host.cgroup import CgroupSample
from rankscope.probes.host.cpu_memory import HostDelta, HostSample
from rankscope.probes.host.disks import DiskSample
from rankscope.probes.host.namespaces import namespace_inode
from rankscope.probes.network import interfaces, qdisc
from rankscope.probes.network.interfaces import Interfaces
from rankscope.probes.network.qdisc import Qdiscs
from rankscope.probes.servers.sample import ServersSample, grown_servers, sample_servers

# share of the window that a CPU spends in interrupts; less is normal for any network and disk
INTERRUPTED_LEAST = 0.02


@dataclass(frozen=True, slots=True)
class Member:
    """A rank's process and network namespace."""

    rank: int
    pid: int
    netns: int


def _cpu_rows(delta: HostDelta) -> Iterator[CounterRow]:
    """Build rows of CPU time by kind for all CPUs together, and of CPUs with much interrupt time."""
    if delta.total is None:
        return
    cpus = max(len(delta.cpus), 1)
    yield CounterRow("host", name="cpu.steal_s", value=delta.total.steal_s)
    yield CounterRow("host", name="cpu.softirq_s", value=delta.total.softirq_s)
    yield CounterRow("host", name="cpu.irq_s", value=delta.total.irq_s)
    yield CounterRow("host", name="cpu.iowait_s", value=delta.total.iowait_s)
    yield CounterRow("host", name="cpu.busy_s", value=delta.total.busy_s, limit=cpus * delta.seconds)
    for cpu in delta.cpus:  # a rank on such a CPU computes that much slower
        if cpu.softirq_s + cpu.irq_s >= INTERRUPTED_LEAST * delta.seconds:
            yield CounterRow("host", f"cpu{cpu.cpu}", name="cpu.softirq_s", value=cpu.softirq_s)
            yield CounterRow("host", f"cpu{cpu.cpu}", name="cpu.irq_s", value=cpu.irq_s)


def _memory_rows(delta: HostDelta) -> Iterator[CounterRow]:
    """Build rows of pressure and of reclaim, swap and OOM events."""
    for pressure in delta.pressures:
        yield CounterRow("host", name=f"psi.{pressure.resource}.some_s", value=pressure.some_s)
        yield CounterRow("host", name=f"psi.{pressure.resource}.full_s", value=pressure.full_s)
    if delta.vm is not None:
        of_host = partial(CounterRow, "host")
        yield of_host(name="memory.major_faults", unit="events", value=delta.vm.major_faults)
        yield of_host(name="memory.oom_kills", unit="events", value=delta.vm.oom_kills)
        yield of_host(name="memory.swapped_in_pages", unit="pages", value=delta.vm.swapped_in_pages)
        yield of_host(name="memory.direct_reclaim_pages", unit="pages", value=delta.vm.direct_reclaim_pages)


@dataclass(slots=True)
class Gauges:
    """Counters of the host and of ranks, read at `begin` and when rows are made. `notes`: what could not be read."""

    pids: Sequence[int]
    root: Path = Path("/")
    notes: list[str] = field(default_factory=list)
    _host: HostSample | None = None
    _disks: DiskSample | None = None
    _servers: ServersSample | None = None
    _interfaces: dict[int, Interfaces] = field(default_factory=dict)
    _qdiscs: dict[int, Qdiscs] = field(default_factory=dict)
    _cgroups: dict[int, CgroupSample] = field(default_factory=dict)
    _faults: dict[int, int] = field(default_factory=dict)

    def begin(self) -> None:
        """Read everything: the window counts from here."""
        self._host = cpu_memory.sample_host(self.root, clocks=False)
        self._disks = disks.sample_disks(self.root)
        self._servers = sample_servers(self.pids, self.root)
        self._cgroups = cgroup.sample_cgroups(self.pids, self.root)
        for pid in self.pids:
            faults = self._minor_faults(pid)
            if faults is not None:
                self._faults[pid] = faults
            netns = self._netns(pid)
            if netns not in self._interfaces:
                self._interfaces[netns] = interfaces.read_interfaces(pid, self.root, speeds=False)
                self._qdiscs[netns] = qdisc.read_qdiscs(pid, self.root)
                self.notes += self._qdiscs[netns].missing

    @property
    def interfaces(self) -> Mapping[int, Interfaces]:
        """Interfaces at `begin`, by the inode of their network namespace; without speeds."""
        return self._interfaces

    def _netns(self, pid: int) -> int:
        """Return the inode of a process's network namespace; 0 where unreadable."""
        try:
            return namespace_inode(pid, "net", self.root)
        except (OSError, ValueError):
            return 0

    def _minor_faults(self, pid: int) -> int | None:
        """Return the minor page faults of a process since its start; None where unreadable."""
        try:
            return procfs.read_stat(pid, self.root).minor_faults
        except (OSError, ValueError):
            return None  # it ended

    def throttled_s(self) -> dict[int, float]:
        """Return, per pid, the seconds that its CPU quota throttled it since `begin`."""
        found = {}
        for pid, now in cgroup.sample_cgroups(self._cgroups, self.root).items():
            if now.cpu:
                found[pid] = sum(level.throttled_s for level in cgroup.cgroup_delta(self._cgroups[pid], now).cpu)
        return found

    def host_rows(self) -> list[CounterRow]:
        """Build rows of growth and levels of the whole host since `begin`."""
        return self._host_rows() + self._disk_rows() + self._server_rows()

    def member_rows(self, members: Sequence[Member]) -> list[CounterRow]:
        """Build rows of what these ranks use: interfaces of their network namespaces, control
        groups, pages.
        """
        rows = []
        for member in {member.netns: member for member in reversed(members)}.values():
            rows += self._interface_rows(member)
        groups = cgroup.sample_cgroups([member.pid for member in members if member.pid in self._cgroups], self.root)
        for member in members:
            if member.pid in groups:
                rows += self._cgroup_rows(member, groups[member.pid])
            before, now = self._faults.get(member.pid), self._minor_faults(member.pid)
            if before is not None and now is not None:
                rows.append(
                    CounterRow("rank", rank=member.rank, name="memory.minor_faults", unit="events", value=now - before)
                )
        return rows

    def _host_rows(self) -> list[CounterRow]:
        """Build rows of CPU time, pressure, memory and CPU clocks of the host; [] before `begin`."""
        if self._host is None:
            return []
        now = cpu_memory.sample_host(self.root, clocks=True)
        # Virtual machines have no cpufreq; `doctor` reports what a host lacks permanently.
        self.notes += [missing for missing in now.missing if not missing.startswith("CPU clocks")]
        delta = cpu_memory.host_delta(self._host, now)
        rows = [*_cpu_rows(delta), *_memory_rows(delta)]
        rows += [
            CounterRow(
                "host", f"cpu{clock.cpu}", name="cpu.clock_hz", unit="Hz", kind="gauge", value=clock.current_hz,
                limit=clock.max_hz,
            )
            for clock in now.clocks
        ]  # fmt: skip
        return rows

    def _disk_rows(self) -> list[CounterRow]:
        """Build rows of each disk that read or wrote since `begin`: operations, bytes and seconds."""
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
                where = disk_words(delta.device, delta.major, delta.minor)
                rows.append(CounterRow("disk", where, name=name, unit=unit, value=value))
        return rows

    def _server_rows(self) -> list[CounterRow]:
        """Build rows of what the servers of network file systems answered."""
        if self._servers is None:
            return []
        rows = []
        for one in grown_servers(self._servers, sample_servers(self.pids, self.root), self.root):
            of_server = partial(CounterRow, "storage", one.words)
            # Also without growth: a server that answers nothing has to be named.
            rows.append(of_server(name="storage.reads", unit="events", value=one.reads))
            for name, unit, value in (
                ("storage.read_s", "s", one.read_s),
                ("storage.writes", "events", one.writes),
                ("storage.write_s", "s", one.write_s),
                ("storage.retransmits", "events", one.retransmits),
            ):
                if value:
                    rows.append(of_server(name=name, unit=unit, value=value))
            if one.in_flight:
                rows.append(of_server(name="storage.in_flight", unit="events", kind="gauge", value=one.in_flight))
        return rows

    def _interface_rows(self, member: Member) -> list[CounterRow]:
        """Build rows of the interfaces and their queues in a rank's network namespace since `begin`."""
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
            of_port = partial(CounterRow, "nic", delta.name, rank=member.rank)
            rows += [
                of_port(name="nic.tx_bytes", unit="bytes", value=delta.tx_bytes, limit=limit),
                of_port(name="nic.rx_bytes", unit="bytes", value=delta.rx_bytes, limit=limit),
                of_port(name="nic.tx_errors", unit="events", value=delta.tx_errors),
                of_port(name="nic.rx_errors", unit="events", value=delta.rx_errors),
                of_port(name="nic.tx_dropped", unit="events", value=delta.tx_dropped),
                of_port(name="nic.rx_dropped", unit="events", value=delta.rx_dropped),
            ]
        after = qdisc.read_qdiscs(member.pid, self.root)
        for queue in qdisc.qdisc_deltas(self._qdiscs[member.netns], after):
            of_queue = partial(CounterRow, "nic", queue.interface, rank=member.rank)
            if queue.rate_hz:
                rows.append(
                    of_queue(
                        name="qdisc.rate_limit", unit="bytes/s", kind="gauge", value=queue.rate_hz, limit=queue.rate_hz
                    )
                )
            if queue.loss:
                rows.append(of_queue(name="qdisc.loss", unit="share", kind="gauge", value=queue.loss))
            if queue.drops or queue.overlimits:
                rows.append(of_queue(name="qdisc.drops", unit="events", value=queue.drops))
                rows.append(of_queue(name="qdisc.overlimits", unit="events", value=queue.overlimits))
            if queue.backlog_bytes:
                rows.append(of_queue(name="qdisc.backlog_bytes", unit="bytes", kind="gauge", value=queue.backlog_bytes))
        return rows

    def _cgroup_rows(self, member: Member, now: CgroupSample) -> list[CounterRow]:
        """Build rows of a rank's control groups since `begin`: CPU throttling, disk and memory limits.

        `now`: a sample taken at present.
        """
        delta = cgroup.cgroup_delta(self._cgroups[member.pid], now)
        rows = []
        for level in delta.cpu:
            if level.quota_cpus is None and not level.throttled_periods:
                continue
            of_group = partial(CounterRow, "cgroup", level.path, rank=member.rank)
            rows.append(of_group(name="cpu.throttled_s", value=level.throttled_s, limit=level.quota_cpus))
            rows.append(of_group(name="cpu.throttled_periods", unit="events", value=level.throttled_periods))
        for limit in now.io:
            for direction, rate in (("read", limit.read_bytes_hz), ("write", limit.write_bytes_hz)):
                if rate is not None:
                    of_disk = partial(CounterRow, "cgroup", f"{limit.device} {direction}", rank=member.rank)
                    rows.append(of_disk(name="disk.throttled", unit="bytes/s", kind="gauge", value=rate, limit=rate))
        for memory in delta.memory:
            for name, events in (("memory.limit_hits", memory.limit_hits), ("memory.oom_kills", memory.oom_kills)):
                if events:
                    of_memory = partial(CounterRow, "cgroup", memory.path, rank=member.rank)
                    rows.append(of_memory(name=name, unit="events", value=events, limit=memory.limit_bytes))
        return rows
