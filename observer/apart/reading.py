"""What the process that has the rights does for one that only reads: children that open files of targets, GPUs, the names of hosts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rankscope.observer.apart import devices, wire
from rankscope.observer.apart.run import Answer
from rankscope.probes.host import namespaces
from rankscope.probes.mapped import reader

_MOST_CHILDREN = (
    8  # that read files: one at a time is asked, and each takes 8 MB beyond the confined process's own limit
)


@dataclass(slots=True)
class Reading:
    """Serves one confined process: each request is a method that `SERVICES` lists. Close it when that has ended."""

    served: int = 0  # its pid
    readers: set[int] = field(default_factory=set)
    opener: int = 0  # the pid of what opens GPUs for it
    SERVICES: ClassVar[Mapping[str, Callable[..., Answer]]]

    def answer(self, asked: dict[str, Any], handed: Sequence[int]) -> Answer:
        """The answer, with descriptors to send; they are the caller's to close. Raises one of run.REFUSALS."""
        return self.SERVICES[wire.text(asked, "what")](
            self, handed, **{name: value for name, value in asked.items() if name != "what"}
        )

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

    def uts_name(self, _: Sequence[int], *, pid: int) -> Answer:
        """The node name that a process sees."""
        return {"name": namespaces.uts_name(process(pid))}, ()

    def open_devices(self, handed: Sequence[int]) -> Answer:
        """Have GPUs opened for who is behind this listener, and nothing else."""
        (listener,) = handed
        if self.opener:
            raise ValueError("they are already")
        self.opener = devices.start(listener)
        return {}, ()

    def close(self) -> None:
        """End what was started. Never raises."""
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
    """An argument that is a number from 0 on, below `end`. ValueError."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < end:
        raise ValueError(f"no such {name}")
    return value


def process(value: object) -> int:
    """An argument that may be a pid. ValueError."""
    pid = number(value, "process", 1 << 31)
    if pid == 0:
        raise ValueError("no such process")
    return pid
