"""Probes that another process has loaded and attaches; this process reads their maps."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rankscope.probes.base import rights
from rankscope.probes.bpf import tables
from rankscope.probes.bpf.compiler.compiled import Compiled, MapShape
from rankscope.probes.bpf.functions.walks import Withdrawn
from rankscope.probes.bpf.module import Module, ProgramCost, Refused
from rankscope.probes.bpf.tables import Table
from rankscope.probes.elf.reader import FileBytes
from rankscope.probes.mapped.file import MappedFile

_NOTHING = Compiled((), (), "", ())


@dataclass(frozen=True, slots=True)
class LoadedProbes:
    """Attached programs with their maps. `notes` says what is missing, `refused` which programs are
    not attached.
    """

    module: Module
    ring_bytes: int
    notes: tuple[str, ...]
    refused: tuple[Refused, ...] = ()


class DelegatedModule(Module):
    """A module in another process. `held`: that process's descriptors of attached probes, closed
    there.
    """

    def __init__(self, asked: rights.Delegate, maps: dict[str, Table], root: Path, remarks: list[str]) -> None:
        super().__init__(_NOTHING, maps, root, remarks)
        self._asked = asked

    def attach_functions(self, *_: object, **__: object) -> tuple[int, ...]:
        """Raise NotImplementedError: the other process attaches only to files that it is given open."""
        raise NotImplementedError("the other process attaches what it is given open")

    def _attach_uprobes(
        self, function: str, library: FileBytes, offsets: Sequence[int], on_return: bool, place: int | None
    ) -> tuple[int, ...]:
        """Have the other process attach the program `function` to a mapped file; return the descriptors there.

        `place`: number under which calls are counted, None without one. Raises TypeError for other files.
        """
        if not isinstance(library, MappedFile):
            raise TypeError("only what a process has mapped is attached to")

        answer, _ = self._asked.ask(
            "attach", (library.descriptor,), function=function, offsets=[int(one) for one in offsets],
            on_return=on_return, place=place,
        )  # fmt: skip
        return tuple(answer["links"])

    def release(self, descriptors: Sequence[int]) -> None:
        """Close descriptors of attached probes in the other process."""
        ours = [one for one in descriptors if one in self.held]
        self.held.difference_update(ours)
        if ours:
            self._asked.ask("release", links=ours)

    def withdrawn(self) -> Withdrawn:
        """Return the probes that the other process withdrew since the last call."""
        answer, _ = self._asked.ask("withdrawn")
        return Withdrawn(tuple(answer["links"]), str(answer["by"]))

    def rest(self) -> None:
        """Detach everything until `wake`; do nothing if that is so already."""
        if not self.rests:
            self.rests = True
            self._asked.ask("rest")

    def wake(self) -> tuple[Refused, ...]:
        """Attach everything again; return what was refused."""
        self.rests = False
        return tuple(Refused(**one) for one in self._asked.ask("wake")[0]["refused"])

    def costs(self) -> tuple[ProgramCost, ...]:
        """Return run count and time of every loaded program."""
        return tuple(ProgramCost(*row) for row in self._asked.ask("costs")[0]["costs"])

    def close(self) -> None:
        """Detach everything, and close the maps. Safe to call twice."""
        for end in self.before_close:
            end()
        self.before_close.clear()
        self.held.clear()
        for table in self.maps.values():
            os.close(table.map_fd)
        if self.maps:
            self.maps.clear()
            self._asked.ask("unload")


def take(
    asked: rights.Delegate, root: Path, *, hz: int, ranks: int, processes: int, threads: int, verbose: bool
) -> LoadedProbes:
    """Have the other process load and attach all programs. Raises that process's errors."""
    answer, descriptors = asked.ask("load", hz=hz, ranks=ranks, processes=processes, threads=threads, verbose=verbose)
    cpus = tables.possible_cpus(root)
    shapes = [MapShape(**one) for one in answer["maps"]]
    maps = {shape.name: Table(shape, cpus, fd) for shape, fd in zip(shapes, descriptors, strict=True)}
    module = DelegatedModule(asked, maps, root, list(answer["remarks"]))
    refused = tuple(Refused(**one) for one in answer["refused"])
    return LoadedProbes(module, answer["ring_bytes"], tuple(answer["notes"]), refused)
