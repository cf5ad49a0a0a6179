"""nvidia-smi beside the observer: its readings of one GPU, stamped as they arrive. Without nvidia-smi: nothing is read."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import threading
import time
from dataclasses import dataclass, field

_QUERY = ("clocks.sm", "power.draw", "temperature.gpu", "utilization.gpu")
_PERIOD_MS = 500
_GPM = "1,2"  # graphics and SM activity, by the numbers of `nvidia-smi dmon --help`; columns are found by their header


@dataclass(slots=True)
class Smi:
    """Both ways of asking, one process each, until `stop`. Values by name: of the query, and `dmon <column>`."""

    index: int
    readings: list[tuple[float, str, float]] = field(default_factory=list)
    _processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self) -> None:
        program = shutil.which("nvidia-smi")
        if program is None:
            return
        query = [program, f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits", f"--id={self.index}",
                 f"--loop-ms={_PERIOD_MS}"]  # fmt: skip
        for command in (query, [program, "dmon", "-i", str(self.index), "--gpm-metrics", _GPM, "-s", "u", "-d", "1"]):
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            self._processes.append(process)
            threading.Thread(target=self._read, args=(process, "dmon" in command), daemon=True).start()

    def _read(self, process: subprocess.Popen[str], is_dmon: bool) -> None:
        names: list[str] = [] if is_dmon else list(_QUERY)
        assert process.stdout is not None
        for line in process.stdout:
            now = time.time()
            words = line.split() if is_dmon else [word.strip() for word in line.split(",")]
            if is_dmon and line.startswith("#"):
                if "gpu" in words:
                    names = [f"dmon {name}" for name in words[1:]]
                continue
            for name, word in zip(names, words, strict=False):
                try:
                    self.readings.append((now, name, float(word)))
                except ValueError:
                    continue

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def means(self, since: float, until: float) -> dict[str, float]:
        """Mean of each value over an interval of Unix time."""
        found: dict[str, list[float]] = {}
        for at, name, value in list(self.readings):
            if since <= at < until:
                found.setdefault(name, []).append(value)
        return {name: statistics.fmean(values) for name, values in found.items() if name != "dmon gpu"}
