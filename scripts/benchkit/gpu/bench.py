"""The probes on a real GPU: which values this GPU and driver tell, how often each truly changes, and whether they are right.

Needs an NVIDIA GPU, its driver and (for the load) PyTorch with CUDA; without a GPU it says so and ends with 69. In order: every
value of NVML and what reading it costs; each that can move read as fast as it goes under a load, to see how often it changes;
clock, power, temperature and activity against nvidia-smi; every row of the library-call table against the functions that the
installed libcuda, libcudart and libnccl export; the cost of the samplers; a real training with and without the observer
(training.py, `--training` for that alone). `--json` keeps it, but for the training; the tables go to stdout.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchkit.gpu import faults as gpu_faults
from benchkit.gpu import training as gpu_training

if TYPE_CHECKING:
    from rankscope.probes.gpu.gpm import Gpm
    from rankscope.probes.gpu.nvml_fields import Field, FieldBatch, GpuReader

_LOAD = """
import time, torch
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
until = time.monotonic() + float(__import__("sys").argv[1])
print("ready", flush=True)
while time.monotonic() < until:
    for _ in range(8):
        a @ a
    torch.cuda.synchronize()
    time.sleep(0.02)
"""
_LIBRARIES = {
    "libcuda.so": ("/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/usr/lib64/libcuda.so.1", "/usr/local/cuda*/compat/libcuda.so.1"),
    "libcudart": ("/usr/local/cuda*/lib64/libcudart.so.1*", "{site}/nvidia/cuda_runtime/lib/libcudart.so.1*",
                  "{site}/nvidia/cu*/lib/libcudart.so.1*"),
    "libnccl.so": ("/usr/lib/x86_64-linux-gnu/libnccl.so.2", "{site}/nvidia/nccl/lib/libnccl.so.2"),
}  # fmt: skip


_FIELD_NAMES = {82: "memory temperature", 186: "power (instant)", 197: "PCIe sent", 198: "PCIe received", 138: "NVLink sent",
                139: "NVLink received"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pace:
    """How often a value changed while it was read in a loop. `call_us` is the median cost of one reading."""

    name: str
    readings: int
    changes: int
    seconds: float
    call_us: float
    least: float
    most: float

    @property
    def changes_hz(self) -> float:
        return self.changes / self.seconds


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--index", type=int, default=0, help="which GPU")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each value")
    parser.add_argument("--no-load", action="store_true", help="leave the GPU as it is")
    parser.add_argument("--json", type=Path)
    gpu_training.arguments(parser)
    gpu_faults.arguments(parser)
    parser.set_defaults(run=run, anywhere=True)


def run(options: argparse.Namespace) -> int:
    """The probes, then the training where PyTorch with CUDA is found; the latter alone with --training."""
    if options.faults:
        return gpu_faults.run(options)
    if options.training:
        return gpu_training.run(options)
    status = _probes(options)
    if status == 69:
        return status
    if why := gpu_training.cannot(options) or ("" if os.geteuid() == 0 else "it is observed as root only"):
        print(f"no training: {why}")
        return status
    return max(status, gpu_training.run(options))


def _probes(options: argparse.Namespace) -> int:
    """Print the tables; 0 when nothing contradicts nvidia-smi and every row of the call table is found, 69 without a GPU."""
    from rankscope.probes.gpu.nvml import open_library
    from rankscope.probes.gpu.nvml_fields import GpuReader

    library = open_library()
    if isinstance(library, str):
        print(
            f"bench: no NVIDIA GPU here ({library})\n       Run this on a host with a GPU and its driver.",
            file=sys.stderr,
        )
        return 69
    try:
        reader = GpuReader(library, options.index)
    except Exception as error:
        print(f"bench: GPU {options.index} does not answer: {error}", file=sys.stderr)
        return 69
    values = _all_values(library, reader)
    load = None if options.no_load else _load(options.index, options.seconds)
    try:
        paces = [_pace(name, function, options.seconds) for name, function in _moving(library, reader).items()]
        wrong = _against_nvidia_smi(library, reader, options.index)
    finally:
        if load is not None:
            load.kill()
            load.wait()
    _print_paces(paces)
    missing = _call_rows()
    cost = _cost(10.0)
    for line in (*wrong, *missing):
        print(f"WRONG: {line}")
    if options.json:
        told = [dataclasses.asdict(pace) for pace in paces]
        content = {"gpu": values, "paces": told, "wrong": wrong, "missing": missing, "cost": cost}
        options.json.write_text(json.dumps(content, indent=2, default=str))
    return 1 if wrong or missing else 0


def _all_values(library: Any, reader: GpuReader) -> dict[str, Any]:
    """Every value of NVML by name; says how many this GPU tells, and what the first reading cost."""
    began = time.perf_counter()
    gpu = reader.full()
    first_ms = (time.perf_counter() - began) * 1e3
    driver = library.nvmlSystemGetDriverVersion()
    print(f"{gpu.name}, driver {driver}, {time.strftime('%Y-%m-%d')}; first full reading {first_ms:.1f} ms")
    values = {field.name: getattr(gpu, field.name) for field in dataclasses.fields(gpu)}
    absent = sorted(name for name, value in values.items() if value is None or value == ())
    print(f"{len(values) - len(absent)} values told, {len(absent)} not: {', '.join(absent) or 'none'}")
    return values


def _print_paces(paces: Sequence[Pace]) -> None:
    print(f"{'value':22}{'changes/s':>11}{'readings/s':>12}{'us/call':>9}{'least':>12}{'most':>12}")
    for one in paces:
        rates = f"{one.changes_hz:11.1f}{one.readings / one.seconds:12.0f}{one.call_us:9.1f}"
        print(f"{one.name:22}{rates}{one.least:12.6g}{one.most:12.6g}")


def _load(index: int, seconds: float) -> subprocess.Popen[str] | None:
    """Matrix products with gaps on the GPU, for as long as all measurements can take; None without PyTorch and CUDA."""
    command = [sys.executable, "-I", "-c", _LOAD, str(60 + 20 * seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                               env={"CUDA_VISIBLE_DEVICES": str(index), **_environment()})  # fmt: skip
    assert process.stdout is not None
    if process.stdout.readline().strip() != "ready":
        process.wait()
        print("no load: PyTorch with CUDA is not installed here; what follows is of the GPU as it is")
        return None
    return process


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}


def _moving(library: Any, reader: Any) -> dict[str, Callable[[], float]]:
    """Everything that the samplers read again and again, and that this GPU tells."""
    from rankscope.probes.gpu.gpm import open_gpm
    from rankscope.probes.gpu.nvml_fields import CLOCK_MEMORY, CLOCK_SM, FIELD_POWER_INSTANT, MOVING_FIELDS, FieldBatch

    handle = reader.handle
    found: dict[str, Callable[[], float]] = {
        "utilisation": lambda: library.nvmlDeviceGetUtilizationRates(handle).gpu,
        "memory utilisation": lambda: library.nvmlDeviceGetUtilizationRates(handle).memory,
        "SM clock": lambda: library.nvmlDeviceGetClockInfo(handle, CLOCK_SM),
        "memory clock": lambda: library.nvmlDeviceGetClockInfo(handle, CLOCK_MEMORY),
        "clock reasons": lambda: library.nvmlDeviceGetCurrentClocksEventReasons(handle),
        "power (average)": lambda: library.nvmlDeviceGetPowerUsage(handle),
        "temperature": lambda: library.nvmlDeviceGetTemperature(handle, 0),
        "PCIe generation": lambda: library.nvmlDeviceGetCurrPcieLinkGeneration(handle),
        "PCIe replays": lambda: library.nvmlDeviceGetPcieReplayCounter(handle),
        "ECC corrected": lambda: library.nvmlDeviceGetTotalEccErrors(handle, 0, 0),
    }
    for key in (*MOVING_FIELDS, (FIELD_POWER_INSTANT, 0)):
        batch = FieldBatch(library, handle, (key,))
        if key in batch.read():
            found[_FIELD_NAMES.get(key[0], f"field {key[0]}")] = functools.partial(_value_of, batch, key)
    gpm = open_gpm(library, handle)
    if gpm is not None:
        found["GPM, SM activity"] = lambda: _sm_active(gpm)
    found["a moving reading"] = lambda: reader.moving().temperature_c or 0
    return found


def _value_of(batch: FieldBatch, key: Field) -> float:
    return batch.read().get(key, math.nan)


def _sm_active(gpm: Gpm) -> float:
    from rankscope.probes.gpu.gpm import readings_of

    sample = gpm.sample()
    gpm.fill()
    return readings_of([sample])[0].sm_active if sample is not None else math.nan


def _pace(name: str, function: Callable[[], float], seconds: float) -> Pace:
    values: list[float] = []
    costs: list[float] = []
    began = time.perf_counter()
    with_errors = 0
    while (before := time.perf_counter()) < began + seconds:
        try:
            value = float(function())
        except Exception:  # not supported here
            with_errors += 1
            if with_errors > 3:
                break
            continue
        costs.append(time.perf_counter() - before)
        if not math.isnan(value):
            values.append(value)
    changes = sum(one != other for one, other in itertools.pairwise(values))
    return Pace(
        name, len(values), changes, max(time.perf_counter() - began, 1e-9), statistics.median(costs or [0.0]) * 1e6,
        min(values, default=math.nan), max(values, default=math.nan),
    )  # fmt: skip


def _against_nvidia_smi(library: Any, reader: Any, index: int) -> list[str]:
    """What differs from nvidia-smi by more than two readings a moment apart may."""
    program = shutil.which("nvidia-smi")
    if program is None:
        print("no nvidia-smi here: nothing to compare with")
        return []
    names = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu", "pcie.link.gen.current", "pcie.link.width.current",
             "clocks.max.sm", "power.limit", "memory.total")  # fmt: skip
    before = reader.full()
    done = subprocess.run(
        [program, f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits", f"--id={index}"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    after = reader.full()
    fields = ("sm_clock_mhz", "memory_clock_mhz", "power_w", "temperature_c", "pcie_gen", "pcie_width", "sm_clock_max_mhz",
              "power_limit_w", "memory_total_bytes")  # fmt: skip
    wrong = []
    for name, field, text in zip(names, fields, done.stdout.split(","), strict=False):
        try:
            theirs = float(text) * (1 << 20 if field == "memory_total_bytes" else 1)
        except ValueError:
            continue
        ours = [value for value in (getattr(before, field), getattr(after, field)) if value is not None]
        slack = 0.15 * max([theirs, *ours]) + 1
        good = bool(ours) and min(ours) - slack <= theirs <= max(ours) + slack
        print(
            f"{name:26}{theirs:16g}   ours {', '.join(f'{value:g}' for value in ours) or 'none'}{'' if good else '   <-'}"
        )
        if not good:
            wrong.append(f"{name}: nvidia-smi says {theirs:g}, NVML {ours}")
    return wrong


def _call_rows() -> list[str]:
    """Rows of the call table that none of the functions of the installed libraries is for."""
    from rankscope.probes.calls.table import CALL_TABLE

    site = sysconfig.get_paths()["purelib"]
    wrong = []
    for library, patterns in _LIBRARIES.items():
        paths = sorted(
            path
            for pattern in patterns
            for path in Path("/").glob(pattern.format(site=site).lstrip("/"))
            if path.is_file()
        )
        if not paths:
            print(f"{library}: not installed here, its rows are not verified")
            continue
        exported = _exports(paths[0])
        rows = [row for row in CALL_TABLE if row.library.startswith(library)]
        absent = [row.symbol for row in rows if not exported & {*row.names}]
        print(
            f"{library}: {paths[0]}: {len(rows) - len(absent)} of {len(rows)} rows found; absent: {', '.join(absent) or 'none'}"
        )
        if rows and len(absent) == len(rows):
            wrong.append(f"{library}: no function of the table is there")
    return wrong


def _exports(path: Path) -> frozenset[str]:
    done = subprocess.run(["nm", "-D", "--defined-only", path], capture_output=True, text=True, check=False)
    return frozenset(line.split()[-1].partition("@")[0] for line in done.stdout.splitlines() if line.split())


def _cost(seconds: float) -> dict[str, object]:
    from benchkit.counters import inside

    inside(1.0)
    result = inside(seconds)
    print(f"sampling this host: {float(str(result['share'])):.2%} of a core")
    return result
