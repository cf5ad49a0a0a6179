"""Services that the privileged process performs for one that only reads: child readers, GPUs, host names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rankscope.observer.apart import devices, wire
from rankscope.observer.apart.run import Answer
from rankscope.probes.host import namespaces
from rankscope.probes.mapped import reader

_MOST_CHILDREN = (
    # that read files: one at a time is used, and each takes 8 MB beyond the confined process's own
    # limit
    8
)


@dataclass(slots=True)
class Reading:
    """Performs the requests of one confined process, each a method in `SERVICES`. Close it when that has ended."""

    served: int = 0  # its pid
    readers: set[int] = field(default_factory=set)
    opener: int = 0  # the pid of the program that opens GPUs for it
    SERVICES: ClassVar[Mapping[str, Callable[..., Answer]]]

    def answer(self, asked: dict[str, Any], handed: Sequence[int]) -> Answer:
        """Perform a request; return the answer, with descriptors to send, which the caller closes.

        Raises one of run.REFUSALS.
        """
        return self.SERVICES[wire.text(asked, "what")](
            self, handed, **{name: value for name, value in asked.items() if name != "what"}
        )

    def reader(self, _: Sequence[int]) -> Answer:
        """Start a child that opens files of targets; return its pid, its socket and its shared memory."""
        if len(self.readers) >= _MOST_CHILDREN:
            raise ValueError("too many readers")
        pid, channel, shared = reader.start_child()
        self.readers.add(pid)
        return {"pid": pid}, (channel.detach(), shared)

    def end_reader(self, _: Sequence[int], *, pid: int, kill: bool) -> Answer:
        """Let one of these children end, or with `kill` kill it, without waiting; ignore other pids."""
        if pid in self.readers:
            self.readers.discard(pid)
            reader.end_child(pid, kill=kill is True)
        return {}, ()

    def uts_name(self, _: Sequence[int], *, pid: int) -> Answer:
        """Return the node name that a process sees."""
        return {"name": namespaces.uts_name(process(pid))}, ()

    def open_devices(self, handed: Sequence[int]) -> Answer:
        """Start the program that opens GPUs for the process behind this seccomp listener, once: then ValueError."""
        (listener,) = handed
        if self.opener:
            raise ValueError("they are already")
        self.opener = devices.start(listener)
        return {}, ()

    def close(self) -> None:
        """Stop what was started. Never raises."""
        if self.opener:
            reader.end_child(self.opener, kill=True)
            self.opener = 0
        for pid in self.readers:
            reader.end_child(pid, kill=True)
        self.readers.clear()


_SERVICES: tuple[Callable[..., Answer], ...] = (
    Reading.reader,
    Reading.end_reader,
    Reading.uts_name,
    Reading.open_devices,
)
Reading.SERVICES = {service.__name__: service for service in _SERVICES}


def number(value: object, name: str, end: int) -> int:
    """Check an argument that is a whole number from 0 on, below `end`. Raises ValueError, which calls it `name`."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < end:
        raise ValueError(f"no such {name}")
    return value


def process(value: object) -> int:
    """Check an argument that may be a pid. Raises ValueError."""
    pid = number(value, "process", 1 << 31)
    if pid == 0:
        raise ValueError("no such process")
    return pid
