"""The observers that are compared, each for one stretch of time over the same processes.

CPU time is counted in the steady state: compiling and loading the probes, and the first second of py-spy and Austin, are
told apart as start-up. Of Rankscope's BPF programs rs_sample and the whole of rs_sched_switch are charged to the samples,
although the latter also times absences and takes the stacks of threads that wait, which are not counted as samples.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from labkit.shell import LabError

from benchkit.unwinder_profile import Reading
from observer import kernel_probes, process_watch
from observer.functions import NO_STACK
from observer.gauges import Gauges
from observer.observation import Observation
from observer.process_watch import TRAINING
from probes import procfs, ring
from probes.network import FlowTracker
from unwinder import pyspy

CHARGED = frozenset({"rs_sample", "rs_sched_switch"})
_WARM_UP_S = 1.0
_ENDS_WITHIN_S = 20.0
_AUSTIN_LINE = re.compile(r"P\d+;T[^;]+;(.*) \d+$")
_AUSTIN_ERRORS = re.compile(r"errors: (\d+)/(\d+)")


@dataclass(frozen=True, slots=True)
class Seen:
    """One stack of ours with its process and how often it was found running."""

    pid: int
    name: str
    text: str
    count: int


@contextlib.contextmanager
def rankscope(pids: Sequence[int], hz: int) -> Iterator[Observation]:
    """The product's own probes and loop over `pids`."""
    probes = kernel_probes.load(hz=hz)
    processes = {}
    running = None
    try:
        for pid in pids:
            processes[pid] = process_watch.watch(pid, pid, TRAINING, probes)
        running = Observation((), probes, processes, Gauges(()), FlowTracker(()), Path("/"))
        yield running
    finally:
        if running is not None:
            running.close()
        else:
            probes.close()


def ours(pids: Sequence[int], seconds: float, hz: int) -> tuple[Reading, list[Seen]]:
    """Rankscope for `seconds`: its reading, and each stack of each process."""
    began_cpu_s = time.process_time()
    with rankscope(pids, hz) as running:
        running.run_until(time.time() + _WARM_UP_S)
        running.batches.clear()
        before, costs_before = running.probes.counted(), _costs(running)
        start_cpu_s, start = time.process_time(), time.monotonic()
        running.run_until(time.time() + seconds)
        wall_s, own_cpu_s = time.monotonic() - start, time.process_time() - start_cpu_s
        costs, counted = _costs(running), running.probes.counted()
        events = np.concatenate([np.empty(0, ring.EVENT), *running.batches])
        stacks = dict(running.stacks)
    grown = {name: costs[name] - costs_before.get(name, 0.0) for name in costs}
    samples = events[events["type"] == ring.SAMPLE]
    reading = Reading(
        attempts=len(samples),
        truncated=counted["walk_truncated"] - before["walk_truncated"],
        waits=int(((events["type"] == ring.OFFCPU) & (events["stack"] != 0)).sum()),
        wall_s=wall_s,
        kernel_cpu_s=sum(seconds for name, seconds in grown.items() if name in CHARGED),
        own_cpu_s=own_cpu_s,
        other_cpu_s=sum(seconds for name, seconds in grown.items() if name not in CHARGED),
        start_cpu_s=start_cpu_s - began_cpu_s,
    )
    seen = []
    pairs = Counter(zip(samples["tgid"].tolist(), samples["stack"].tolist(), strict=True))
    for (pid, identity), count in pairs.items():
        stack = stacks.get(identity, NO_STACK)
        if stack.name in ("", "?"):
            reading.failed += count
            continue
        reading.samples[bare(stack.name)] += count
        seen.append(Seen(pid, bare(stack.name), stack.text, count))
    return reading, seen


def _costs(running: Observation) -> dict[str, float]:
    return {cost.program: cost.run_time_ns / 1e9 for cost in running.probes.costs()}


def bare(name: str) -> str:
    """A function's name without its class or module: what every observer and every version tells."""
    return name.rpartition(".")[2]


def pyspy_reading(pids: Sequence[int], seconds: float, hz: int) -> tuple[Reading, dict[int, Counter[str]]]:
    """py-spy, one for each process: the whole, and the samples of each."""
    program = pyspy.find_pyspy()

    def command(pid: int, whole_s: int, out: Path) -> list[str]:
        words = [str(program), "record", "--nonblocking", "--threads", "-F", "-r", str(hz), "-d", str(whole_s)]
        return [*words, "-f", "raw", "-o", str(out), "-p", str(pid)]

    with tempfile.TemporaryDirectory() as folder:
        reading, share, ended = _run(command, pids, seconds, Path(folder))
        each: dict[int, Counter[str]] = {}
        failed = ticks = 0
        for pid in pids:
            log = _text(Path(folder, f"{pid}.log"))
            if ended[pid]:
                raise LabError(f"py-spy on pid {pid}: {pyspy.explain(log) or log.strip()[-200:]}")
            each[pid] = Counter()
            for sample in pyspy.parse_raw(_text(Path(folder, f"{pid}.out"))):
                each[pid][bare(sample.frames[0].name) if sample.frames else "?"] += sample.count
            taken, errors, behind_s = pyspy.parse_log(log)
            ticks, failed = ticks + taken + errors, failed + errors
            reading.behind_s = max(reading.behind_s, behind_s)
    reading.samples = sum(each.values(), Counter())
    reading.attempts, reading.failed = ticks, failed
    _only_steady(reading, share)
    return reading, each


def austin_program() -> tuple[Path | None, str]:
    """An Austin that runs here, or why there is none. BENCH_AUSTIN names one that is elsewhere than on PATH or in .venv."""
    named = os.environ.get("BENCH_AUSTIN", "")
    beside = Path(sys.executable).with_name("austin")
    found = named or (str(beside) if beside.is_file() else shutil.which("austin"))
    if not found:
        return None, "not installed (pip install 'austin-dist<4', or BENCH_AUSTIN=PATH)"
    try:
        said = subprocess.run([found, "--version"], capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.SubprocessError) as error:
        return None, f"{found}: {error}"
    if said.returncode:
        return None, f"{found}: {said.stderr.strip().splitlines()[0][:90] if said.stderr.strip() else 'does not run'}"
    return Path(found), said.stdout.strip()


def austin_reading(program: Path, pids: Sequence[int], seconds: float, hz: int) -> Reading:
    """Austin, one for each process, idle samples suppressed."""

    def command(pid: int, whole_s: int, out: Path) -> list[str]:
        return [str(program), "-s", "-i", f"{1_000_000 // hz}us", "-x", str(whole_s), "-o", str(out), "-p", str(pid)]

    with tempfile.TemporaryDirectory() as folder:
        reading, share, _ = _run(command, pids, seconds, Path(folder))
        for pid in pids:
            for line in _text(Path(folder, f"{pid}.out")).splitlines():
                match = _AUSTIN_LINE.match(line)
                if match:
                    leaf = match[1].rpartition(";")[2].split(":")
                    reading.samples[bare(leaf[1]) if len(leaf) == 3 else "?"] += 1
            errors = _AUSTIN_ERRORS.search(_text(Path(folder, f"{pid}.out")) + _text(Path(folder, f"{pid}.log")))
            if errors:
                reading.failed += int(errors[1])
                reading.attempts += int(errors[2])
    if not reading.taken:
        raise LabError(f"{program} took no samples")
    _only_steady(reading, share)
    return reading


def _only_steady(reading: Reading, share: float) -> None:
    """The observer ran for longer than its CPU time was measured: its CPU time is brought to the length of its samples."""
    reading.own_cpu_s /= share
    reading.wall_s /= share


def _run(
    command: Callable[[int, int, Path], list[str]], pids: Sequence[int], seconds: float, folder: Path
) -> tuple[Reading, float, Mapping[int, int]]:
    """Run one observer per process; (reading with its steady CPU time, share of the run that was metered, exit codes)."""
    whole_s = int(np.ceil(seconds + _WARM_UP_S))
    with contextlib.ExitStack() as cleanup:
        running = {}
        for pid in pids:
            log = cleanup.enter_context((folder / f"{pid}.log").open("wb"))
            words = command(pid, whole_s, folder / f"{pid}.out")
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
            cleanup.callback(_end, process)
            running[pid] = process
        since = time.monotonic()
        time.sleep(_WARM_UP_S)
        start_cpu_s, start = _cpu_s(running.values()), time.monotonic()
        time.sleep(max(since + whole_s - 0.3 - time.monotonic(), 0.1))
        wall_s, own_cpu_s = time.monotonic() - start, _cpu_s(running.values()) - start_cpu_s
        for process in running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_ENDS_WITHIN_S)
        ended = {pid: process.returncode if process.returncode is not None else -1 for pid, process in running.items()}
    reading = Reading(wall_s=wall_s, own_cpu_s=own_cpu_s, start_cpu_s=start_cpu_s)
    return reading, wall_s / whole_s, ended


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()


def _cpu_s(processes: Iterable[subprocess.Popen[bytes]]) -> float:
    total = 0.0
    for process in processes:
        with contextlib.suppress(OSError, ValueError):
            stat = procfs.read_stat(process.pid)
            total += stat.user_s + stat.system_s
    return total


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
