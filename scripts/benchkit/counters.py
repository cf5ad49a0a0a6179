"""What sampling the hardware costs: 8 GPUs, 8 NICs and the PCI tree of the emulated machine, at the default rates.

The samplers run as in a window, in a process of their own that sees the emulated NVML and /sys. Beside their own account the
process's CPU time is taken, which has everything in it: threads, system calls, the emulated library itself. Real drivers answer
more slowly than the emulated one: `scripts/bench gpu` measures them where there is a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from labkit.machine.shell import REPOSITORY, LabError, module

TARGET_SHARE = 0.01
_INSIDE = "benchkit.counters"
_BURST_EVERY_S = 8.0  # as the observer does by default


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=20.0, help="length of the window")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--json", type=Path)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the table; 0 when the worst round is within the target."""
    from labkit.gpu.sim.sim import Machine

    rounds = []
    with (
        tempfile.TemporaryDirectory(prefix="rankscope-bench-", dir="/dev/shm") as folder,
        Machine(Path(folder) / "machine", gpus=options.gpus) as machine,
    ):
        command = module(_INSIDE, str(options.seconds))
        for _ in range(max(1, options.rounds)):
            rounds.append(_measure(machine.observer_command(command)))
    worst = max(rounds, key=lambda one: one["share"])
    print(
        f"{worst['gpus']} GPUs, {worst['ports_found']} ports, {worst['devices']} PCI devices; {options.seconds:g} s, {len(rounds)} rounds"
    )
    print(f"{'':26}{'CPU ms per s':>14}{'% of a core':>13}")
    for name in ("GPUs", "ports", "PCI"):
        print(f"{name + ' (their thread)':26}{worst[name] * 1e3:14.2f}{worst[name] * 100:13.3f}")
    print(f"{'whole process':26}{worst['share'] * 1e3:14.2f}{worst['share'] * 100:13.3f}   target {TARGET_SHARE:.0%}")
    print(
        f"samples {worst['samples']}, readings {worst['readings']}, bursts {worst['bursts']} with {worst['burst_samples']} samples"
    )
    for line in worst["missing"]:
        print(f"missing: {line}")
    if options.json:
        options.json.write_text(json.dumps(rounds, indent=2))
    return 0 if worst["share"] <= TARGET_SHARE else 1


def _measure(command: list[str]) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'scripts'}"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise LabError(f"sampling ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    sys.stderr.write(done.stderr)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def inside(seconds: float) -> dict[str, Any]:
    """One window of the default samplers; every burst is asked for, so that each costs what it may."""
    from rankscope.probes.gpu.sampler import GpuSampler
    from rankscope.probes.pci.sampler import PcieSampler
    from rankscope.probes.ports.sampler import PortSampler

    began, cpu = time.monotonic(), time.process_time()
    gpus, ports, pcie = GpuSampler(), PortSampler(), PcieSampler()
    for sampler in (gpus, ports, pcie):
        sampler.start()
    while (rest := began + seconds - time.monotonic()) > 0:
        time.sleep(min(rest, _BURST_EVERY_S))
        if rest > _BURST_EVERY_S:
            ports.burst()
    gpu, nic, pci = gpus.stop(), ports.stop(), pcie.stop()
    wall, cpu = time.monotonic() - began, time.process_time() - cpu
    return {
        "share": cpu / wall,
        "GPUs": gpu.cpu_s / wall,
        "ports": nic.cpu_s / wall,
        "PCI": pci.cpu_s / wall,
        "gpus": len(gpu.samples),
        "ports_found": len(nic.ports),
        "devices": len(pci.devices),
        "samples": sum(len(one.time_ns) for one in gpu.samples),
        "readings": sum(one.growth.readings for one in nic.ports),
        "bursts": sum(len(one.bursts) for one in nic.ports),
        "burst_samples": sum(len(burst.time_ns) for one in nic.ports for burst in one.bursts),
        "missing": [*gpu.missing, *nic.missing, *pci.missing],
    }


if __name__ == "__main__":
    inside(1.0)  # the first window also loads the libraries
    print(json.dumps(inside(float(sys.argv[1]))))
