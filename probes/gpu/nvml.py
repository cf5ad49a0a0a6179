"""Read all GPUs through NVIDIA's management library (NVML).

In: libnvidia-ml through pynvml. Out: NvmlReading. A GPU's field that the library does not support,
or that fails, is None; a host without the library or the driver is a reading without GPUs that says
why. Nothing is ever set. A recorded tree has the file `nvml.json`, written by `to_json`. About
10-30 ms for 8 GPUs. `sampler.py` watches them over a window.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankscope.probes.gpu.model import RECOVERY_ACTIONS, Gpu, GpuProcess, NvLink
from rankscope.probes.gpu.nvml_fields import GpuReader, ask, is_lost, text
from rankscope.probes.host.procfs import ROOT, read_file

__all__ = ("MISMATCH", "RECOVERY_ACTIONS", "Gpu", "GpuProcess", "NvLink", "NvmlReading", "from_json", "open_library",
           "read_gpus", "to_json")  # fmt: skip

MISMATCH = "the NVML library and the loaded driver are of different versions"
MAX_GPUS = 64


@dataclass(frozen=True, slots=True)
class NvmlReading:
    """A reading of all GPUs; `absent`: why it could not be made, '' if it was."""

    driver_version: str | None = None
    gpus: tuple[Gpu, ...] = ()
    absent: str = ""


def read_gpus(root: Path = ROOT, library: Any = None) -> NvmlReading:
    """Read every GPU through NVML. Never raises: `absent` says why there is no reading.

    `library` replaces pynvml. Without it, a `root` other than / means: parse the recorded reading in
    `root`/nvml.json instead of calling NVML.
    """
    if root != ROOT and library is None:
        try:
            return from_json(read_file(f"{str(root).rstrip('/')}/nvml.json", 16 << 20))
        except (OSError, ValueError) as error:
            return NvmlReading(absent=f"no recorded reading: {error}")
    opened = open_library(library)
    if isinstance(opened, str):
        return NvmlReading(absent=opened)
    try:
        count = ask(opened.nvmlDeviceGetCount)
        return NvmlReading(
            text(ask(opened.nvmlSystemGetDriverVersion)),
            tuple(_gpu(opened, index) for index in range(min(count or 0, MAX_GPUS))),
        )
    finally:
        with contextlib.suppress(Exception):
            opened.nvmlShutdown()


def open_library(library: Any = None) -> Any:
    """Return pynvml (or `library`) initialised, or a text that says why it cannot be used. Never
    raises.
    """
    if library is None:
        try:
            library = importlib.import_module("pynvml")
        except ImportError:
            return "pynvml is not installed"
    try:
        library.nvmlInit()
    except Exception as error:
        mismatch = "Mismatch" in type(error).__name__ or "mismatch" in str(error)
        return MISMATCH if mismatch else f"NVML: {error}"[:200]
    return library


def to_json(reading: NvmlReading) -> str:
    """Encode a reading as JSON for recording."""
    return json.dumps(dataclasses.asdict(reading), indent=1)


def from_json(data: bytes) -> NvmlReading:
    """Decode a reading that `to_json` encoded. Raises ValueError."""
    try:
        content = json.loads(data)
        gpus = []
        for gpu in content.get("gpus", [])[:MAX_GPUS]:
            links = tuple(NvLink(**link) for link in gpu.pop("links", []))
            processes = tuple(GpuProcess(**process) for process in gpu.pop("processes", []))
            gpus.append(Gpu(links=links, processes=processes, **gpu))
        return NvmlReading(content.get("driver_version"), tuple(gpus), content.get("absent", ""))
    except (TypeError, AttributeError) as error:
        raise ValueError(f"not an NVML reading: {error}") from error


def _gpu(library: Any, index: int) -> Gpu:
    """Read all values of GPU `index`. Never raises.

    Where that fails only the index is set, and `lost` where the GPU fell off the bus.
    """
    try:
        return GpuReader(library, index).full()
    except Exception as error:
        return Gpu(index, lost=is_lost(error))
