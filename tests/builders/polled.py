"""A host with two ranks that tier 0 polls, with probes that see what they are told and a clock that is turned by hand."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from rankscope.observer.watch import pulse
from rankscope.observer.watch.marker import MARKERS
from rankscope.observer.watch.shares import Notes
from rankscope.observer.watch.tier0 import Beat, Tier0
from rankscope.probes.bpf import ring
from rankscope.probes.bpf.ring import Events
from rankscope.probes.calls.table import UPDATE

UPDATES = next(place for place, row in enumerate(MARKERS) if row.name == UPDATE)
BROADCAST = next(place for place, row in enumerate(MARKERS) if row.name == "broadcast" and row.family == "mpi")
LIBRARY = ("08:01", 7)
START_TICKS = 500
SIGKILL = 9


class FakePulse:
    """Probes that are told what to see."""

    def __init__(self) -> None:
        self.queue: list[tuple[int, int, int, float, float, int]] = []  # type, pid, row, start, stay, status
        self.watched: set[int] = set()
        self.loaded: set[int] = set()
        self.looked: list[int] = []
        self.maps_s: dict[int, float] = {}
        self.kept: set[tuple[int, tuple[str, int]]] | None = None
        self.notes = Notes()
        self.put_off = 0
        self.room = 1 << 20
        self.takes_s = 0.0
        self.heard: list[int] = []
        self.tidied: list[bool] = []
        self.lost = 0
        self.turn: Any = lambda _: None
        self.events = self

    def drain(self) -> Events:
        events = np.zeros(len(self.queue), ring.EVENT)
        for at, (kind, pid, row, start_s, stay_s, status) in enumerate(self.queue):
            events["type"][at], events["tgid"][at], events["what"][at], events["arg"][at] = kind, pid, row, status
            events["ts_ns"][at], events["dur_ns"][at] = round(start_s * 1e9), round(stay_s * 1e9)
        self.queue.clear()
        return events

    def watch(self, pid: int) -> None:
        if len(self.watched) >= self.room:
            raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))
        self.watched.add(pid)

    def postpone(self, what: str, error: OSError) -> None:
        pulse.Pulse.postpone(cast(Any, self), what, error)

    def maps_a_library(self, pid: int) -> bool:
        self.looked.append(pid)
        self.turn(self.maps_s.get(pid, 0.0))
        return pid in self.loaded

    def forget(self, pid: int) -> None:
        self.watched.discard(pid)

    def listen(self, pid: int, rows: Any = None, user: str = "") -> frozenset[tuple[int, tuple[str, int]]]:
        self.heard.append(pid)
        self.turn(self.takes_s)
        return frozenset((row, LIBRARY) for row in (UPDATES, BROADCAST))

    def detach_others(self, places: Any) -> None:
        self.kept = set(places)

    def missed(self) -> int:
        return self.lost

    def tidy(self, now_s: float, ended: bool) -> None:
        self.tidied.append(ended)


class Host:
    """Two ranks on a host whose clock is turned by hand."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.now, self.pulse = root, 1000.0, FakePulse()
        self.pids = [101, 102]
        self.owners: dict[int, int] = {}
        self.pulse.turn = self.turn
        for pid in self.pids:
            self.state(pid, "S")
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        self.tier = Tier0(cast(Any, self.pulse), root, cast(Any, self.census))

    def turn(self, seconds: float) -> None:
        self.now += seconds

    def come(self, owner: int, pids: range) -> None:
        """Ranks of a user, each of a job of his own."""
        self.pids += pids
        for pid in pids:
            self.owners[pid] = owner
            self.state(pid, "S")

    def state(self, pid: int, letter: str, start_ticks: int = START_TICKS, uid: int = 1000) -> None:
        folder = self.root / "proc" / str(pid)
        folder.mkdir(parents=True, exist_ok=True)
        fields = [letter, *["0"] * 18, str(start_ticks), *["0"] * 30]
        (folder / "stat").write_text(f"{pid} (python) {' '.join(fields)}\n")
        lines = {"Name": "x", "State": "S (x)", "Tgid": pid, "Pid": pid, "PPid": 1, "Uid": f"{uid}\t{uid}\t{uid}\t{uid}",
                 "NSpid": pid, "Threads": 1, "Cpus_allowed_list": 0}  # fmt: skip
        (folder / "status").write_text("".join(f"{name}:\t{value}\n" for name, value in lines.items()))

    def census(self, root: Path) -> Any:
        ranks = tuple(
            SimpleNamespace(
                pid=pid, start_ticks=START_TICKS, owner=self.owners.get(pid, 1000), container=None,
                identity=SimpleNamespace(job=f"job {pid}" if pid in self.owners else "job", rank=pid - 101, world_size=2),
            )
            for pid in self.pids
        )  # fmt: skip
        return SimpleNamespace(ranks=ranks, starting=(), rejected=(), alone=())

    def poll(self, seconds: float = 1.0) -> Beat:
        self.now += seconds
        return self.tier.poll()

    def calls(self, row: int, period_s: float, count: int) -> None:
        starts = self.now + period_s * (np.arange(count) + 0.01 * np.random.default_rng(count).standard_normal(count))
        for pid in self.pids:
            self.pulse.queue += [(ring.CALL, pid, row, float(start_s), 0.01, 0) for start_s in starts]
        self.now += period_s * count
