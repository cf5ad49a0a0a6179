"""What the process that has the rights does for one that observes, and nothing else.

Every request is a row of `Broker.SERVICES`. Whoever takes hold of the confined process can ask for these and no more: so each takes
numbers and open descriptors, never a path or a command, and checks them. It can have our own programs attached to functions of any file
that it can read, which may slow a program down or, in the middle of an instruction, crash it; it cannot run anything.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rankscope.observer.apart import wire
from rankscope.observer.apart.reading import Reading, number, process
from rankscope.observer.apart.run import Answer
from rankscope.observer.live import kernel_probes, limits, priority
from rankscope.observer.live.limits import give_back
from rankscope.probes.bpf.functions import shared_uprobes
from rankscope.probes.bpf.module import Module
from rankscope.probes.calls.row import MAX_PLACES
from rankscope.probes.host import kmsg
from rankscope.probes.mapped.file import handed_file
from rankscope.probes.mapped.reader import READER
from rankscope.probes.nccl import ras
from rankscope.probes.network import netlink
from rankscope.unwinder.walk import pyspy
from rankscope.unwinder.walk.pyspy import Sampling

_MOST_PLACES = 65536  # offsets in one request
_LONGEST_S = 3600.0
_MOST_HZ = 1000  # as for record
_MOST_NUMBER = 1 << 24  # of ranks, processes, threads: what is made for them has limits of its own
_PROTOCOLS = (netlink.NETLINK_ROUTE, netlink.NETLINK_SOCK_DIAG)
_ATTACHED = ("rs_enter_", "rs_leave_", "rs_call_site")


@dataclass(slots=True)
class Broker(Reading):
    """Serves one confined process that observes. Close it when that has ended.

    `orders`: waits for the next one of whoever had the observer prepared, whose pid it gets, and returns it; None where its probes never
    rest.
    """

    root: Path = Path("/")
    orders: Callable[[int], dict[str, Any]] | None = None
    module: Module | None = None
    samplings: dict[int, Sampling] = field(default_factory=dict)
    priorities: priority.Priorities = field(default_factory=priority.Priorities)

    def load(self, _: Sequence[int], *, hz: int, ranks: int, processes: int, threads: int, verbose: bool) -> Answer:
        """All probes, once."""
        if self.module is not None:
            raise ValueError("loaded already")
        numbers = {"ranks": ranks, "processes": processes, "threads": threads}
        for name, value in numbers.items():
            number(value, name, _MOST_NUMBER)
        numbers["hz"] = number(hz, "rate", _MOST_HZ + 1)
        loaded = kernel_probes.load_module(**numbers, root=self.root, verbose=verbose is True)
        self.module = loaded.module
        self.module.may_rest = self.orders is not None
        tables = list(loaded.module.maps.values())
        answer = {
            "maps": [asdict(table.shape) for table in tables],
            "ring_bytes": loaded.ring_bytes,
            "notes": list(loaded.notes),
            "refused": [asdict(one) for one in loaded.refused],
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
        self, handed: Sequence[int], *, function: str, offsets: list[int], on_return: bool, place: int | None = None
    ) -> Answer:
        """One of our programs to functions of an open file. `place`: under which number it counts. Whether another tool has a counter
        there, which the kernel would write to, is found out here and not told."""
        (library,) = handed
        if not isinstance(function, str) or not function.startswith(_ATTACHED):
            raise ValueError("no such program")
        if not 0 < len(offsets) <= _MOST_PLACES:
            raise ValueError("too many places, or none")
        places = [number(one, "place", 1 << 62) for one in offsets]
        counted = None if place is None else number(place, "place", MAX_PLACES)
        module = self._loaded()
        try:
            with handed_file(library) as file:
                attach = partial(
                    module.attach_functions, function, file.path, places, on_return=on_return is True, place=counted
                )
                links = shared_uprobes.attach(attach, file, places, self.root)
        finally:
            READER.close()  # it was hardly ever asked
        module.held.update(links)
        return {"links": list(links)}, ()

    def release(self, _: Sequence[int], *, links: list[int]) -> Answer:
        """Detach what was attached; other numbers are nothing to us."""
        self._loaded().release([number(link, "link", 1 << 31) for link in links])
        return {}, ()

    def withdrawn(self, _: Sequence[int]) -> Answer:
        """Links whose probes were withdrawn since the last call, as their pages are mapped too often."""
        gone = self._loaded().withdrawn()
        return {"links": list(gone.links), "by": gone.by}, ()

    def rest(self, _: Sequence[int]) -> Answer:
        """Detach everything for a while."""
        self._loaded().rest()
        give_back(garbage=True)
        return {}, ()

    def wake(self, _: Sequence[int]) -> Answer:
        """Attach it again."""
        return {"refused": [asdict(one) for one in self._loaded().wake()]}, ()

    def order(self, _: Sequence[int]) -> Answer:
        """What is to be observed next. It is waited for here, as long as it takes."""
        if self.orders is None:
            raise ValueError("nobody gives orders")
        return self.orders(self.served), ()

    def costs(self, _: Sequence[int]) -> Answer:
        """What the kernel spent in each program."""
        rows = [[cost.program, cost.run_count, cost.run_time_ns] for cost in self._loaded().costs()]
        return {"costs": rows}, ()

    def socket(self, _: Sequence[int], *, pid: int | None, protocol: int) -> Answer:
        """A netlink socket in the network namespace of a process (None: our own), which reaches nobody but the kernel."""
        if protocol not in _PROTOCOLS:
            raise ValueError("no such protocol")
        where = None if pid is None else process(pid)
        return {}, (netlink.open_netlink(protocol, where, self.root).detach(),)

    def ras(self, _: Sequence[int], *, pid: int) -> Answer:
        """What NCCL's server in the namespace of a process answers: we speak with it, as whoever could say anything could steer others
        that listen on the loopback."""
        said = ras.fetch(process(pid), root=self.root)
        if isinstance(said, ras.RasSilence):
            return {"silence": said.reason}, ()
        file = wire.file_in_memory("ras")
        try:
            with os.fdopen(file, "wb", closefd=False) as writing:
                writing.write(said)
        except BaseException:
            os.close(file)
            raise
        return {"silence": ""}, (file,)

    def priority(self, _: Sequence[int], *, tid: int, nice: int, yields_s: float) -> Answer:
        """Set the priority of a thread of the confined process."""
        if not Path(f"/proc/{self.served}/task/{process(tid)}").exists():
            raise ValueError("no such thread")
        wanted = max(number(nice + 20, "place", 40) - 20, priority.AHEAD)
        self.priorities.set(tid, wanted, min(_seconds(yields_s), priority.YIELDS_S))
        return {}, ()

    def kernel_log(self, _: Sequence[int]) -> Answer:
        """The kernel's log, to read."""
        return {}, (kmsg.open_log(self.root),)

    def pyspy_start(self, _: Sequence[int], *, pid: int, duration_s: float, rate_hz: int, idle: bool) -> Answer:
        """py-spy on one process."""
        if pid in self.samplings or len(self.samplings) >= limits.SAMPLED_BESIDE:
            raise ValueError("sampled already, or too many")
        rate = number(rate_hz, "rate", _MOST_HZ + 1)
        self.samplings[process(pid)] = pyspy.start(pid, _seconds(duration_s), rate, idle is True)
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
        self.priorities.close()
        Reading.close(self)

    def _loaded(self) -> Module:
        if self.module is None:
            raise ValueError("nothing is loaded")
        return self.module


def _seconds(value: object) -> float:
    """An argument that says how long something is to last. ValueError."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
        raise ValueError("no such time")
    return float(min(value, _LONGEST_S))


_MORE: tuple[Callable[..., Answer], ...] = (
    Broker.load, Broker.unload, Broker.attach, Broker.release, Broker.withdrawn, Broker.rest, Broker.wake, Broker.order, Broker.costs,
    Broker.socket, Broker.ras, Broker.priority, Broker.kernel_log, Broker.pyspy_start, Broker.pyspy_ended, Broker.pyspy_end,
)  # fmt: skip
Broker.SERVICES = {**Reading.SERVICES, **{service.__name__: service for service in _MORE}}
