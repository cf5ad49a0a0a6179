"""Services that the privileged process performs for a confined observer: a fixed list, nothing else.

Every request is a row of `Broker.SERVICES`. An attacker who controls the confined process can
request these and no more: so each takes numbers and open descriptors, never a path or a command,
and checks them. He can have our own programs attached to functions of any file that he can read,
which may slow a program down or, in the middle of an instruction, crash it; he cannot run anything.
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
from rankscope.probes.mapped.file import file_from_descriptor
from rankscope.probes.mapped.reader import READER
from rankscope.probes.nccl import ras
from rankscope.probes.network import netlink
from rankscope.unwinder.walk import pyspy
from rankscope.unwinder.walk.pyspy import Sampling

_MOST_PLACES = 65536  # offsets in one request
_LONGEST_S = 3600.0
_MOST_HZ = 1000  # as for record
# limit for ranks, processes and threads: what is created for them has limits of its own
_MOST_NUMBER = 1 << 24
_PROTOCOLS = (netlink.NETLINK_ROUTE, netlink.NETLINK_SOCK_DIAG)
_ATTACHED = ("rs_enter_", "rs_leave_", "rs_call_site", "rs_launch_site_")


@dataclass(slots=True)
class Broker(Reading):
    """Performs the requests of one confined observer. Close it when that has ended.

    `orders`: called with the observer's pid, waits for the next observation to make and returns it;
    None if the probes never rest.
    """

    root: Path = Path("/")
    orders: Callable[[int], dict[str, Any]] | None = None
    module: Module | None = None
    samplings: dict[int, Sampling] = field(default_factory=dict)
    priorities: priority.Priorities = field(default_factory=priority.Priorities)

    def load(self, _: Sequence[int], *, hz: int, ranks: int, processes: int, threads: int, verbose: bool) -> Answer:
        """Load all probes, once; return the map descriptions and descriptors."""
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
        """Detach and free all probes; do nothing if none are loaded."""
        if self.module is not None:
            self.module.close()
            self.module = None
        return {}, ()

    def attach(
        self, handed: Sequence[int], *, function: str, offsets: list[int], on_return: bool, place: int | None = None
    ) -> Answer:
        """Attach one of our programs to functions of an open file, counted under the number
        `place`.

        Reference counters of other tools, which the kernel would write to, are determined here, not
        taken from the request.
        """
        (library,) = handed
        if not isinstance(function, str) or not function.startswith(_ATTACHED):
            raise ValueError("no such program")
        if not 0 < len(offsets) <= _MOST_PLACES:
            raise ValueError("too many places, or none")
        places = [number(one, "place", 1 << 62) for one in offsets]
        counted = None if place is None else number(place, "place", MAX_PLACES)
        module = self._loaded()
        try:
            with file_from_descriptor(library) as file:
                attach = partial(
                    module.attach_functions, function, file.path, places, on_return=on_return is True, place=counted
                )
                links = shared_uprobes.attach(attach, file, places, self.root)
        finally:
            READER.close()  # it was hardly ever used
        module.held.update(links)
        return {"links": list(links)}, ()

    def release(self, _: Sequence[int], *, links: list[int]) -> Answer:
        """Detach attached links; other numbers are ignored."""
        self._loaded().release([number(link, "link", 1 << 31) for link in links])
        return {}, ()

    def withdrawn(self, _: Sequence[int]) -> Answer:
        """Return the links whose probes were withdrawn since the last call, as their pages are mapped too often.

        `by`: names the user who maps them so often.
        """
        gone = self._loaded().withdrawn()
        return {"links": list(gone.links), "by": gone.by}, ()

    def rest(self, _: Sequence[int]) -> Answer:
        """Detach all probes until `wake`, keeping them loaded; return unused memory to the kernel."""
        self._loaded().rest()
        give_back(garbage=True)
        return {}, ()

    def wake(self, _: Sequence[int]) -> Answer:
        """Attach everything again; return what the kernel refused."""
        return {"refused": [asdict(one) for one in self._loaded().wake()]}, ()

    def order(self, _: Sequence[int]) -> Answer:
        """Wait until the next window is ordered; return the order, {} for none. Raises ValueError if none can come."""
        if self.orders is None:
            raise ValueError("nobody gives orders")
        return self.orders(self.served), ()

    def costs(self, _: Sequence[int]) -> Answer:
        """Return [name, run count, run time in ns] of each program in the kernel."""
        rows = [[cost.program, cost.run_count, cost.run_time_ns] for cost in self._loaded().costs()]
        return {"costs": rows}, ()

    def socket(self, _: Sequence[int], *, pid: int | None, protocol: int) -> Answer:
        """Open a netlink socket in the network namespace of a process (None: our own); it reaches
        only the kernel.
        """
        if protocol not in _PROTOCOLS:
            raise ValueError("no such protocol")
        where = None if pid is None else process(pid)
        return {}, (netlink.open_netlink(protocol, where, self.root).detach(),)

    def ras(self, _: Sequence[int], *, pid: int) -> Answer:
        """Query NCCL's RAS in the namespace of a process, and return its answer in a file.

        The conversation is held here: a free choice of words could control other services on the
        loopback.
        """
        said = ras.fetch(process(pid), root=self.root)
        if isinstance(said, ras.RasSilence):
            return {"silence": said.reason}, ()
        return {"silence": ""}, (wire.file_in_memory("ras", lambda file: file.write(said)),)

    def priority(self, _: Sequence[int], *, tid: int, nice: int, yields_s: float) -> Answer:
        """Set the nice value of a thread of the confined process, within limits.

        `yields_s`: seconds, at most, in which the thread runs only on idle CPUs. Raises ValueError for
        other processes' threads.
        """
        if not Path(f"/proc/{self.served}/task/{process(tid)}").exists():
            raise ValueError("no such thread")
        wanted = max(number(nice + 20, "place", 40) - 20, priority.AHEAD)
        self.priorities.set(tid, wanted, min(_seconds(yields_s), priority.YIELDS_S))
        return {}, ()

    def kernel_log(self, _: Sequence[int]) -> Answer:
        """Open the kernel's log for reading."""
        return {}, (kmsg.open_log(self.root),)

    def pyspy_start(self, _: Sequence[int], *, pid: int, duration_s: float, rate_hz: int, idle: bool) -> Answer:
        """Start py-spy on one process, for `duration_s` at `rate_hz`; `idle`: sample idle threads too."""
        checked = process(pid)  # before anything is started
        if checked in self.samplings or len(self.samplings) >= limits.SAMPLED_MOST:
            raise ValueError("sampled already, or too many")
        rate = number(rate_hz, "rate", _MOST_HZ + 1)
        self.samplings[checked] = pyspy.start(checked, _seconds(duration_s), rate, idle is True)
        return {}, ()

    def pyspy_ended(self, _: Sequence[int], *, pid: int) -> Answer:
        """Tell whether py-spy has ended."""
        return {"ended": self.samplings[pid].ended()}, ()

    def pyspy_end(self, _: Sequence[int], *, pid: int) -> Answer:
        """Stop py-spy; return its exit code and its output files."""
        code, files = self.samplings.pop(pid).end()
        return {"code": code}, files

    def close(self) -> None:
        """Detach everything, and stop what was started. Never raises."""
        self.unload(())
        for sampling in self.samplings.values():
            for file in sampling.end()[1]:
                os.close(file)
        self.samplings.clear()
        self.priorities.close()
        Reading.close(self)

    def _loaded(self) -> Module:
        """Return the loaded probes. Raises ValueError where none are loaded."""
        if self.module is None:
            raise ValueError("nothing is loaded")
        return self.module


def _seconds(value: object) -> float:
    """Check an argument that is a duration in seconds; cap it at one hour. Raises ValueError."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
        raise ValueError("no such time")
    return float(min(value, _LONGEST_S))


_MORE: tuple[Callable[..., Answer], ...] = (
    Broker.load, Broker.unload, Broker.attach, Broker.release, Broker.withdrawn, Broker.rest, Broker.wake, Broker.order, Broker.costs,
    Broker.socket, Broker.ras, Broker.priority, Broker.kernel_log, Broker.pyspy_start, Broker.pyspy_ended, Broker.pyspy_end,
)  # fmt: skip
Broker.SERVICES = {**Reading.SERVICES, **{service.__name__: service for service in _MORE}}
