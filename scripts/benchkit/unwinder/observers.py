"""The observers that are compared, each for one stretch of time over the same processes.

CPU time without start-up, which is told apart: compiling and loading the probes and their first second; for py-spy and Austin
what it costs them to begin and take one stack of each thread. Of Rankscope's BPF programs rs_sample and the whole of
rs_sched_switch are charged to the samples, although the latter also times absences and takes the stacks of threads that
wait, which are not counted as samples.

py-spy and Austin take a thread for running when /proc says R, which it also says of a thread in the run queue. How many of
their samples were of threads on a CPU follows from their ticks and the CPU time that the processes used meanwhile.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchkit.unwinder.profile import Reading
from labkit.machine.shell import LabError
from rankscope.observer.live import kernel_probes, process_watch
from rankscope.observer.live.gauges import Gauges
from rankscope.observer.live.observation import Observation
from rankscope.observer.live.process_watch import TRAINING
from rankscope.observer.live.samplers import Hardware
from rankscope.observer.thread.functions import NO_STACK
from rankscope.probes.bpf import ring
from rankscope.probes.host import procfs
from rankscope.probes.network.flows import FlowTracker
from rankscope.unwinder.names.code import UNKNOWN_NAME
from rankscope.unwinder.walk import pyspy

CHARGED = frozenset({"rs_sample", "rs_sched_switch"})
_WARM_UP_S = 1.0
_ENDS_WITHIN_S = 120.0
_AUSTIN_LINE = re.compile(r"P\d+;T[^;]+;(.*) \d+$")
_AUSTIN_ERRORS = re.compile(r"Error rate\D*?(\d+)/(\d+)")


@dataclass(frozen=True, slots=True)
class Seen:
    """One stack of ours with its process and how often it was found running. `name` is empty where it could not be walked."""

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
        running = Observation((), probes, processes, Gauges(()), FlowTracker(()), Path("/"), Hardware((), Path("/")))
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
        running.run_until(time.monotonic() + _WARM_UP_S)
        running.batches.clear()
        before, costs_before = running.probes.counted(), _costs(running)
        start_cpu_s, start = time.process_time(), time.monotonic()
        running.run_until(time.monotonic() + seconds)
        wall_s, own_cpu_s = time.monotonic() - start, time.process_time() - start_cpu_s
        costs, counted = _costs(running), running.probes.counted()
        events = np.concatenate([np.empty(0, ring.EVENT), *running.batches])
        stacks = dict(running.stacks)
    grown = {name: costs[name] - costs_before.get(name, 0.0) for name in costs}
    samples = events[events["type"] == ring.SAMPLE]
    reading = Reading(
        running=len(samples),
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
        name = "" if stack.name == UNKNOWN_NAME else bare(stack.name)
        seen.append(Seen(pid, name, stack.text, count))
        if name:
            reading.samples[name] += count
        else:
            reading.failed += count
    return reading, seen


def _costs(running: Observation) -> dict[str, float]:
    return {cost.program: cost.run_time_ns / 1e9 for cost in running.probes.costs()}


def bare(name: str) -> str:
    """A function's name without its class or module: what every observer and every version tells."""
    return name.rpartition(".")[2]


def pyspy_reading(pids: Sequence[int], seconds: float, hz: int) -> tuple[Reading, dict[int, Counter[str]]]:
    """py-spy, one for each process: the whole, and the samples of each. It takes all its ticks, however long that lasts."""
    program = str(pyspy.find_pyspy())
    whole_s = max(round(seconds), 1)

    def command(pid: int, out: Path) -> list[str]:
        words = [program, "record", "--nonblocking", "--threads", "-F", "-r", str(hz), "-d", str(whole_s)]
        return [*words, "-f", "raw", "-o", str(out), "-p", str(pid)]

    each: dict[int, Counter[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        once = _run(lambda pid, _: [program, "dump", "--nonblocking", "-p", str(pid)], pids, Path(folder))
        runs = _run(command, pids, Path(folder))
        reading = _reading(runs, once, hz * whole_s)
        for pid, one in runs.items():
            log = _text(Path(folder, f"{pid}.log"))
            if one.code:
                raise LabError(f"py-spy on pid {pid}: {pyspy.explain(log) or log.strip()[-200:]}")
            each[pid] = Counter()
            for sample in pyspy.parse_raw(_text(Path(folder, f"{pid}.out"))):
                each[pid][bare(sample.frames[0].name) if sample.frames else "?"] += sample.count
            taken, errors, behind_s = pyspy.parse_log(log)
            reading.attempts, reading.failed = reading.attempts + taken + errors, reading.failed + errors
            reading.behind_s = max(reading.behind_s, behind_s)
    reading.samples = sum(each.values(), Counter())
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
    """Austin, one for each process, idle samples suppressed. It does not tell its ticks: none is taken to be missing."""
    whole_s = max(round(seconds), 1)

    def command(pid: int, out: Path) -> list[str]:
        return [str(program), "-s", "-i", f"{1_000_000 // hz}us", "-x", str(whole_s), "-o", str(out), "-p", str(pid)]

    with tempfile.TemporaryDirectory() as folder:
        once = _run(lambda pid, _: [str(program), "-w", str(pid)], pids, Path(folder))
        runs = _run(command, pids, Path(folder))
        reading = _reading(runs, once, hz * whole_s)
        for pid in pids:
            for line in _text(Path(folder, f"{pid}.out")).splitlines():
                match = _AUSTIN_LINE.match(line)
                if match:
                    leaf = match[1].rpartition(";")[2].split(":")
                    reading.samples[bare(leaf[1]) if len(leaf) == 3 else "?"] += 1
            errors = _AUSTIN_ERRORS.search(_text(Path(folder, f"{pid}.log")))
            if errors:
                reading.failed += int(errors[1])
                reading.attempts += int(errors[2])
    if not reading.samples:
        raise LabError(f"{program} took no samples")
    return reading


@dataclass(frozen=True, slots=True)
class _Run:
    """One observer of one process, from its start to its end."""

    code: int
    cpu_s: float
    wall_s: float
    busy_s: float  # CPU time of the observed process meanwhile


def _run(command: Callable[[int, Path], list[str]], pids: Sequence[int], folder: Path) -> dict[int, _Run]:
    """Run one observer per process, all at once, and wait for their ends."""
    began = {pid: _cpu_s(pid) for pid in pids}
    start = time.monotonic()
    with contextlib.ExitStack() as cleanup:
        running = {}
        for pid in pids:
            log = cleanup.enter_context((folder / f"{pid}.log").open("wb"))
            process = subprocess.Popen(
                command(pid, folder / f"{pid}.out"), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
            cleanup.callback(_end, process)
            running[process] = pid
        ended: dict[int, _Run] = {}
        while len(ended) < len(running):
            for process, pid in running.items():
                if pid in ended:
                    continue
                done, status, usage = os.wait4(process.pid, os.WNOHANG)
                if done:
                    process.returncode = os.waitstatus_to_exitcode(status)
                    cpu_s, wall_s = usage.ru_utime + usage.ru_stime, time.monotonic() - start
                    ended[pid] = _Run(process.returncode, cpu_s, wall_s, _cpu_s(pid) - began[pid])
            if time.monotonic() - start > _ENDS_WITHIN_S:
                raise LabError(f"{command(0, folder)[0]} did not end in {_ENDS_WITHIN_S:.0f} s")
            time.sleep(0.05)
    return ended


def _reading(runs: Mapping[int, _Run], once: Mapping[int, _Run], ticks: int) -> Reading:
    start_cpu_s = sum(one.cpu_s for one in once.values())
    return Reading(
        running=sum(ticks * one.busy_s / one.wall_s for one in runs.values()),
        wall_s=max(one.wall_s for one in runs.values()),
        own_cpu_s=max(sum(one.cpu_s for one in runs.values()) - start_cpu_s, 0.0),
        start_cpu_s=start_cpu_s,
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()


def _cpu_s(pid: int) -> float:
    stat = procfs.read_stat(pid)
    return stat.user_s + stat.system_s


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
