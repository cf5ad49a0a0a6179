"""Do all programs load, is a sampled Python stack right, is a timed call right? Of one process that does a known thing."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from kernelkit.guest.judge import COMPUTED_S, calls_right, samples_right
from kernelkit.lines import Check, encode
from rankscope.observer.live import kernel_probes, process_watch
from rankscope.observer.live.kernel_probes import KernelProbes
from rankscope.observer.live.process_watch import TRAINING
from rankscope.observer.thread.functions import StackName
from rankscope.probes.base.errors import RankscopeError
from rankscope.probes.bpf import programs, ring
from rankscope.probes.files import probe as files
from rankscope.probes.sched import probe as sched

_PROGRAMS = Path(__file__).resolve().parents[1] / "programs"
_LIBRARY = Path("/tmp/libtorch_cpu.so")  # a name that the table of calls knows
_HZ = 99
CALLS_US = tuple(range(20_000, 90_000, 7_000))  # each of another length
_PATIENCE_S = 120.0  # until the known program has done all
_CHECKS = ("programs", "sampled stack", "timed call")


def main() -> None:
    began = time.monotonic()
    try:
        probes = kernel_probes.load(hz=_HZ)
    except RankscopeError as error:
        for name in _CHECKS:
            _say(name, str(error), began)
        return
    try:
        good, words = programs_loaded(probes)
        _say("programs", "" if good else words, began, words)
        began = time.monotonic()
        events, stacks, own_ns, reason = _watch(probes)
        samples = events[events["type"] == ring.SAMPLE]
        named = [
            (found.name, found.file, found.line) for one in samples["stack"].tolist() if (found := stacks.get(one))
        ]
        known = _PROGRAMS / "known.py"
        wrong, words = samples_right(named, len(samples), known.name, _line_of("def crunch", known))
        why = [reason, *(note for note in probes.notes if "stack" in note)]
        _say("sampled stack", "; ".join(filter(None, (wrong, *why))) if wrong else "", began, words)
        calls = events[events["type"] == ring.CALL]
        wrong, words = calls_right(
            calls[np.argsort(calls["ts_ns"])]["dur_ns"].tolist(), own_ns, [1000 * asked for asked in CALLS_US]
        )
        why = [
            *sorted(probes.calls.notes, key=lambda note: _LIBRARY.name not in note),
            f"{len(probes.calls.rows_attached())} rows attached",
        ]
        _say("timed call", "; ".join((wrong, *why)) if wrong else "", began, words)
    finally:
        probes.close()


def programs_loaded(probes: KernelProbes) -> tuple[bool, str]:
    """Load every program that was compiled, each shape of those that differ by numbers once; the refused ones by name."""
    module = probes.module
    first = {variant.of: name for name, variant in reversed([*module.variants.items()])}
    at_tracepoints = {point.function for point in (*sched.TRACEPOINTS, *files.tracepoints())}
    refused = []
    for compiled in module.compiled.programs:
        kind = programs.TRACEPOINT if compiled.name in at_tracepoints else programs.KPROBE
        kind = programs.PERF_EVENT if compiled.name == "rs_sample" else kind
        try:
            module.program(first.get(compiled.name, compiled.name), kind)
        except (OSError, ValueError) as error:
            refused.append(f"{compiled.name}: {str(error).splitlines()[0]}")
    count = len(module.compiled.programs)
    said = [f"{count - len(refused)} of {count}"]
    said += refused or [note for note in probes.notes if "is not attached" in note or "not sampled" in note]
    return len(said) == 1, "; ".join(said)


def _watch(probes: KernelProbes) -> tuple[ring.Events, dict[int, StackName], list[int], str]:
    """Observe the known program from its start to its end: events, stacks in words, how long its calls took by its own clock, and why
    its stacks cannot be walked ('' where they can)."""
    subprocess.run(["cc", "-shared", "-fPIC", "-o", _LIBRARY, _PROGRAMS / "known.c"], check=True)
    words = [sys.executable, str(_PROGRAMS / "known.py"), str(_LIBRARY), str(COMPUTED_S), *map(str, CALLS_US)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        watch = process_watch.watch(process.pid, process.pid, TRAINING, probes)
        probes.calls.watch([process.pid])
        probes.events.drain()
        process.stdin.write("go\n")
        process.stdin.flush()
        batches, stacks = [], dict[int, StackName]()
        until = time.monotonic() + COMPUTED_S + _PATIENCE_S
        own_ns: list[int] = []
        while time.monotonic() < until and len(own_ns) < len(CALLS_US):
            if time.monotonic() > until - _PATIENCE_S:
                own_ns.append(int(process.stdout.readline()))
            else:
                time.sleep(0.2)
            watch.refresh(probes)
            batches.append(_drained(probes, process.pid, watch, stacks))
        process.kill()
        watch.close()
    return np.concatenate(batches), stacks, own_ns, watch.reason


def _drained(
    probes: KernelProbes, pid: int, watch: process_watch.ProcessWatch, stacks: dict[int, StackName]
) -> ring.Events:
    events: ring.Events = probes.events.drain()
    events = events[events["tgid"] == pid]
    for identity in np.unique(events["stack"]).tolist():
        raw = probes.stack(identity) if identity and identity not in stacks else None
        if raw is not None:
            stacks[identity] = watch.name_stack(raw)
    return events


def _line_of(text: str, path: Path) -> int:
    return next(number for number, line in enumerate(path.read_text("utf-8").splitlines(), 1) if line.startswith(text))


def _say(name: str, wrong: str, began: float, words: str = "") -> None:
    print(encode(Check(name, not wrong, wrong or words, round(time.monotonic() - began, 1))), flush=True)


if __name__ == "__main__":
    main()
