"""Windows that nobody recorded: events of ranks, workers and crowds from a seed, and how they end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from rankscope.observer.finish import last, windows
from rankscope.observer.live.observation import Observation, Totals
from rankscope.observer.live.process_watch import LOADER, TRAINING, ProcessWatch
from rankscope.observer.tables.reading import HardwareReading
from rankscope.observer.thread.functions import StackName
from rankscope.observer.window.folder import Window
from rankscope.observer.window.stacks import StackFrame
from rankscope.probes.bpf import ring
from rankscope.probes.calls.probe import OpenCall
from rankscope.probes.network.flows import FlowSummary
from rankscope.probes.sched.probe import ProcessTimes, Taken, ThreadTimes

START_NS, SECONDS = 5_000_000_000, 8.0
STEP_NS, SYSCALLS = 200_000_000, (202, 0, 7, 230, 0xFFFE)
WAIT = 10  # in the table of calls: wait of gloo


def rank(number: int, pid: int, job: str, owner: int, world: int) -> Any:
    identity = SimpleNamespace(
        run="",
        job=job, rank=number, local_rank=number, world_size=world, local_world_size=world, role="", host="here", node="here",
        container="", inner_pid=pid, netns=1, python="3.12", command="train", title=job,
    )  # fmt: skip
    libraries = SimpleNamespace(cuda="", cudart="", nccl="")
    return SimpleNamespace(
        pid=pid, identity=identity, owner=owner, cgroup="", guessed=False, start_s=1.0, start_ticks=7, workers=(),
        container=None, libraries=libraries,
    )  # fmt: skip


def events_of(pid: int, tids: Sequence[int], stacks: Sequence[int], seed: int, count: int) -> ring.Events:
    """What one process did: steps that end in a call, absences, samples, natives, in the order in which the kernel tells them."""
    rng = np.random.default_rng(seed)
    many = np.zeros(count, ring.EVENT)
    many["tid"], many["tgid"] = rng.choice([*tids, pid + 500], count), pid
    many["ts_ns"] = START_NS + rng.integers(0, int(SECONDS * 1e9), count)
    many["type"] = rng.choice([ring.OFFCPU, ring.OFFCPU, ring.SAMPLE, ring.NATIVE], count)
    many["type"] = np.where(many["tid"] == pid + 500, ring.NATIVE, many["type"])
    away = many["type"] == ring.OFFCPU
    many["dur_ns"] = np.where(away, rng.integers(10_000, 3_000_000, count), 0)
    many["ready_ns"] = np.where(away, many["dur_ns"] // 9, 0)
    many["what"] = np.where(away, rng.choice(SYSCALLS, count), 0)
    many["aux"] = np.where(away, 1 | (rng.choice(tids, count) << 8), 0)
    many["arg"] = rng.integers(1, 50, count)
    many["stack"] = np.where(many["type"] == ring.NATIVE, 0, rng.choice(stacks, count))
    steps = int(SECONDS * 1e9) // STEP_NS
    calls = np.zeros(steps, ring.EVENT)
    calls["type"], calls["what"], calls["tid"], calls["tgid"] = ring.CALL, WAIT, pid, pid
    calls["ts_ns"] = START_NS + np.arange(steps) * STEP_NS + rng.integers(0, 9_000_000, steps)
    calls["dur_ns"], calls["ready_ns"] = 20_000_000, stacks[0]
    files = calls[::3].copy()
    files["type"], files["what"], files["arg"], files["aux"], files["dur_ns"] = ring.FILE, 0, 4096, 66305, 900_000
    found = np.concatenate((many, calls, files))
    return found[np.argsort(found["ts_ns"] + found["dur_ns"], kind="stable")]


def merged(parts: Sequence[ring.Events]) -> ring.Events:
    found = np.concatenate(parts)
    return found[np.argsort(found["ts_ns"] + found["dur_ns"], kind="stable")]


class Recorded:
    """Processes by pid; `ranks` of jobs, with what each did."""

    def __init__(self) -> None:
        self.ranks: list[Any] = []
        self.processes: dict[int, ProcessWatch] = {}
        self.parts: list[ring.Events] = []
        self.stacks: dict[int, StackName] = {}
        self.threads: dict[int, ThreadTimes] = {}
        self.takers: dict[tuple[int, int], Taken] = {}
        self.calls: list[OpenCall] = []

    def process(self, pid: int, owner: int, seed: int, count: int, threads: int = 3) -> None:
        tids = list(range(pid, pid + threads))
        label = TRAINING if pid == owner else LOADER
        watch = ProcessWatch(pid, owner, label, None, "" if seed % 2 else f"reason of {pid}")
        watch.threads = {tid: tid << 12 for tid in tids[:-1]}
        watch.states = {tid << 12: tid for tid in tids[:-1]}
        self.processes[pid] = watch
        stacks = [pid * 100 + n for n in range(1, 9)]
        frames = [StackFrame(f"f{n}", "job.py", n) for n in range(3)]
        for n, identity in enumerate(stacks):
            self.stacks[identity] = StackName(
                f"leaf{n}", "job.py", n, (*frames, StackFrame(f"leaf{n}", "job.py", n)), n + 1
            )
        self.parts.append(events_of(pid, tids, stacks, seed, count))
        for tid in (*tids, pid + 500):
            out = START_NS + int((SECONDS - 0.3) * 1e9) if tid != pid else 0
            self.threads[tid] = ThreadTimes(tid, pid, 1.5 + tid % 7, 0.25, 1.0, 0.0, 9, out, 0, 1, 202, 7, stacks[1])
        self.takers[pid, pid + 1] = Taken(pid, pid + 1, "other", 0.5)
        self.calls.append(OpenCall(tids[-1], WAIT, START_NS + int((SECONDS - 0.2) * 1e9)))

    def job(self, name: str, owner: int, first: int, ranks: int, workers: int = 2, count: int = 800) -> None:
        for number in range(ranks):
            pid = first + 1000 * number
            self.ranks.append(rank(number, pid, name, owner, ranks))
            self.process(pid, pid, first + number, count)
            for worker in range(workers):
                self.process(pid + 20 * (worker + 1), pid, first + 50 + number + worker, 40)

    def observation(self, root: Path) -> Observation:
        quiet: Any = SimpleNamespace(
            sample=lambda: None,
            notes=[],
            host_rows=list,
            member_rows=lambda _: [],
            throttled_s=dict,
            summaries=self.flows,
        )
        calls = SimpleNamespace(open_calls=lambda: tuple(self.calls), notes=[], launches=None, untimed_of=lambda _: ())
        nothing = SimpleNamespace(drain=lambda: np.empty(0, ring.EVENT))
        kernel: Any = SimpleNamespace(
            module=None,
            calls=calls,
            events=nothing,
            stack=lambda _: None,
            costs=tuple,
            losses=tuple,
            notes=[],
            missing=[],
        )
        hardware: Any = SimpleNamespace(stop=HardwareReading)
        found = Observation(self.ranks, kernel, self.processes, quiet, quiet, root, hardware)
        found.stacks.update(self.stacks)
        return found

    def flows(self) -> list[FlowSummary]:
        return [
            FlowSummary(
                one.pid, f"10.0.0.{one.identity.rank}:7", "10.0.0.9:9", "eth0", 1, 2, 0, 0.1, 0.0, 0.0, 0.1, 0.1, 1.0
            )
            for one in self.ranks
        ]

    def end(self, root: Path, monkeypatch: Any, running: Any = None) -> list[Window]:
        """The windows, as they end."""
        running = running or self.observation(root)
        events = merged(self.parts)
        running.batches.extend([events[at : at + 777] for at in range(0, len(events), 777)])
        sums = {pid: ProcessTimes(2.0 + pid % 5, 0.5) for pid in self.processes}
        monkeypatch.setattr(last.sched, "thread_times", lambda _: tuple(self.threads.values()))
        monkeypatch.setattr(last.sched, "process_times", lambda _: sums)
        monkeypatch.setattr(last.sched, "takers", lambda _: self.takers)
        monkeypatch.setattr(last.sched, "ended_children", lambda _: {})
        monkeypatch.setattr(last.time, "clock_gettime_ns", lambda _: START_NS + int(SECONDS * 1e9))
        monkeypatch.setattr(windows, "observer_rows", lambda _: [])
        before = Totals({}, {}, {}, (), 0.0)
        return windows.windows_from(running, before, last.read_last(running, before, START_NS, 99), 100.0)
