"""The process that has the rights: what it does for the confined one, and nothing else.

Every request is a row of `_SERVICES`. Whoever takes hold of the confined process can ask for these and no more: so each takes numbers
and open descriptors, never a path or a command, and checks them. It can have our own programs attached to functions of any file that
it can read, which may slow a program down or, in the middle of an instruction, crash it; it cannot run anything.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rankscope.observer.live import kernel_probes
from rankscope.probes.bpf.loader import Module
from rankscope.probes.errors import RankscopeError
from rankscope.probes.host import kmsg, namespaces
from rankscope.probes.mapped import reader
from rankscope.probes.nccl import ras
from rankscope.probes.network import ethtool, netlink
from rankscope.unwinder.walk import pyspy
from rankscope.unwinder.walk.pyspy import Sampling

_MOST_PLACES = 65536  # offsets in one request
_MOST_CHILDREN = 256  # that read files, or sample with py-spy
_LONGEST_S = 3600.0
_PROTOCOLS = (netlink.NETLINK_ROUTE, netlink.NETLINK_SOCK_DIAG)
_ATTACHED = ("rs_enter_", "rs_leave_", "rs_call_site")
Answer = tuple[dict[str, Any], Sequence[int]]


@dataclass(slots=True)
class Broker:
    """Serves one confined process. Close it when that has ended."""

    root: Path
    served: int = 0  # its pid
    module: Module | None = None
    readers: set[int] = field(default_factory=set)
    samplings: dict[int, Sampling] = field(default_factory=dict)

    def answer(self, asked: dict[str, Any], handed: Sequence[int]) -> Answer:
        """The answer, with descriptors to send; they are the caller's to close. Raises one of REFUSALS."""
        service = _SERVICES.get(str(asked.pop("what", "")))
        if service is None:
            raise ValueError("no such service")
        return service(self, handed, **asked)

    def load(self, _: Sequence[int], *, hz: int, ranks: int, processes: int, threads: int, verbose: bool) -> Answer:
        """All probes, once."""
        if self.module is not None:
            raise ValueError("loaded already")
        numbers = {"hz": hz, "ranks": ranks, "processes": processes, "threads": threads}
        for name, value in numbers.items():
            _number(value, name, 1 << 24)
        loaded = kernel_probes.load_module(**numbers, root=self.root, verbose=verbose is True)
        self.module = loaded.module
        tables = list(loaded.module.maps.values())
        answer = {
            "maps": [asdict(table.shape) for table in tables],
            "ring_bytes": loaded.ring_bytes,
            "notes": list(loaded.notes),
            "remarks": loaded.module.remarks,
        }
        return answer, [os.dup(table.map_fd) for table in tables]

    def unload(self, _: Sequence[int]) -> Answer:
        """Detach everything."""
        if self.module is not None:
            self.module.close()
            self.module = None
        return {}, ()

    def attach(
        self, handed: Sequence[int], *, function: str, offsets: list[int], on_return: bool, counters: list[list[int]]
    ) -> Answer:
        """One of our programs to functions of an open file."""
        (library,) = handed
        if not isinstance(function, str) or not function.startswith(_ATTACHED):
            raise ValueError("no such program")
        if not 0 < len(offsets) <= _MOST_PLACES or len(counters) > _MOST_PLACES:
            raise ValueError("too many places, or none")
        places = [_number(one, "place", 1 << 62) for one in offsets]
        beside = {_number(place, "place", 1 << 62): _number(one, "counter", 1 << 62) for place, one in counters}
        path = Path(f"/proc/self/fd/{library}")
        links = self._loaded().attach_functions(function, path, places, beside, on_return=on_return is True)
        self._loaded().held.update(links)
        return {"links": list(links)}, ()

    def release(self, _: Sequence[int], *, links: list[int]) -> Answer:
        """Detach what was attached; other numbers are nothing to us."""
        self._loaded().release([_number(link, "link", 1 << 31) for link in links])
        return {}, ()

    def costs(self, _: Sequence[int]) -> Answer:
        """What the kernel spent in each program."""
        rows = [[cost.program, cost.run_count, cost.run_time_ns] for cost in self._loaded().costs()]
        return {"costs": rows}, ()

    def reader(self, _: Sequence[int]) -> Answer:
        """A child that opens files of targets."""
        if len(self.readers) >= _MOST_CHILDREN:
            raise ValueError("too many readers")
        pid, channel, shared = reader.start_child()
        self.readers.add(pid)
        return {"pid": pid}, (channel.detach(), shared)

    def end_reader(self, _: Sequence[int], *, pid: int, kill: bool) -> Answer:
        """Let one of them go."""
        if pid in self.readers:
            self.readers.discard(pid)
            reader.end_child(pid, kill=kill is True)
        return {}, ()

    def socket(self, _: Sequence[int], *, pid: int | None, protocol: int | None) -> Answer:
        """A socket in the network namespace of a process (None: our own): netlink, or one for questions to drivers."""
        where = None if pid is None else _pid(pid)
        if protocol is None:
            return {}, (ethtool.open_channel(where, self.root).detach(),)
        if protocol not in _PROTOCOLS:
            raise ValueError("no such protocol")
        return {}, (netlink.open_netlink(protocol, where, self.root).detach(),)

    def connection(self, _: Sequence[int], *, pid: int, host: str, port: int, timeout_s: float) -> Answer:
        """A connection to the loopback as a process sees it."""
        seconds = min(max(float(timeout_s), 0.0), ras.LIMIT_S)
        return {}, (ras.connect_in(_pid(pid), str(host), _number(port, "port", 1 << 16), seconds, self.root).detach(),)

    def stand(self, _: Sequence[int], *, tid: int, nice: int) -> Answer:
        """A thread of the confined process goes before others in the queue for the CPU, or behind them."""
        if not Path(f"/proc/{self.served}/task/{_pid(tid)}").exists():
            raise ValueError("no such thread")
        os.setpriority(os.PRIO_PROCESS, tid, _number(nice + 20, "place", 40) - 20)
        return {}, ()

    def uts_name(self, _: Sequence[int], *, pid: int) -> Answer:
        """The node name that a process sees."""
        return {"name": namespaces.uts_name(_pid(pid))}, ()

    def kernel_log(self, _: Sequence[int]) -> Answer:
        """The kernel's log, to read."""
        return {}, (kmsg.open_log(self.root),)

    def pyspy_start(self, _: Sequence[int], *, pid: int, duration_s: float, rate_hz: int, idle: bool) -> Answer:
        """py-spy on one process."""
        if pid in self.samplings or len(self.samplings) >= _MOST_CHILDREN:
            raise ValueError("sampled already, or too many")
        seconds = min(max(float(duration_s), 0.0), _LONGEST_S)
        self.samplings[_pid(pid)] = pyspy.start(pid, seconds, _number(rate_hz, "rate", 1001), idle is True)
        return {}, ()

    def pyspy_ended(self, _: Sequence[int], *, pid: int) -> Answer:
        """Whether it is over."""
        return {"ended": self.samplings[pid].ended()}, ()

    def pyspy_end(self, _: Sequence[int], *, pid: int) -> Answer:
        """What it wrote."""
        code, files = self.samplings.pop(pid).end()
        return {"code": code}, files

    def close(self) -> None:
        """Detach everything, and end what was started. Never raises."""
        self.unload(())
        for sampling in self.samplings.values():
            for file in sampling.end()[1]:
                os.close(file)
        self.samplings.clear()
        for pid in self.readers:
            reader.end_child(pid, kill=True)
        self.readers.clear()

    def _loaded(self) -> Module:
        if self.module is None:
            raise ValueError("nothing is loaded")
        return self.module


_SERVICES: dict[str, Callable[..., Answer]] = {
    service.__name__: service
    for service in (
        Broker.load, Broker.unload, Broker.attach, Broker.release, Broker.costs, Broker.reader, Broker.end_reader, Broker.socket,
        Broker.connection, Broker.stand, Broker.uts_name, Broker.kernel_log, Broker.pyspy_start, Broker.pyspy_ended, Broker.pyspy_end,
    )
}  # fmt: skip
REFUSALS = (RankscopeError, OSError, ValueError, TypeError, KeyError)


def _number(value: object, name: str, end: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < end:
        raise ValueError(f"no such {name}")
    return value


def _pid(value: object) -> int:
    pid = _number(value, "process", 1 << 31)
    if pid == 0:
        raise ValueError("no such process")
    return pid
