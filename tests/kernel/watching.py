"""A program under observation: its events, and its stacks in words."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from rankscope.observer.live import process_watch
from rankscope.observer.live.kernel_probes import KernelProbes
from rankscope.observer.live.process_watch import TRAINING, ProcessWatch
from rankscope.observer.thread.functions import StackName
from rankscope.probes.bpf import ring

HZ = 499


def interpreters() -> list[str]:
    """One program per minor version: the running one, the distribution's, and what pyenv has."""
    found = {sys.executable: None, "/usr/bin/python3": None}
    for folder in sorted((Path.home() / ".pyenv/versions").glob("3.*")):
        minor = int(folder.name.split(".")[1])
        if minor >= 8:
            found[str(folder / "bin/python")] = None
    return [path for path in found if Path(path).exists()]


class Watched:
    """One program under observation: its events, and its stacks in words."""

    def __init__(self, probes: KernelProbes, process: subprocess.Popen[str]) -> None:
        self.probes = probes
        self.process = process
        self.watch: ProcessWatch = process_watch.watch(process.pid, process.pid, TRAINING, probes)
        self.stacks: dict[int, StackName] = {}
        probes.events.drain()

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def observe(self, seconds: float) -> ring.Events:
        batches = []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.1)
            self.watch.refresh(self.probes)
            events = self.probes.events.drain()
            events = events[events["tgid"] == self.process.pid]
            for identity in np.unique(events["stack"]).tolist():
                raw = self.probes.stack(identity) if identity and identity not in self.stacks else None
                if raw is not None:
                    self.stacks[identity] = self.watch.name_stack(raw)
            batches.append(events)
        return np.concatenate(batches)

    def tasks(self) -> list[Path]:
        """The folders of its threads in /proc."""
        return list(Path("/proc", str(self.process.pid), "task").iterdir())

    def close(self) -> None:
        self.probes.forget_process(self.process.pid, self.watch.threads)
        self.watch.close()
