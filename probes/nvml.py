"""GPUs as NVIDIA's management library (NVML) sees them.

In: libnvidia-ml through pynvml. Out: NvmlReading. One GPU's field that the library does not support, or that fails, is None;
a host without the library or the driver is a reading without GPUs that says why. Nothing is ever set. A recorded tree
has the file `nvml.json`: what `to_json` wrote. About 10-30 ms for 8 GPUs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from probes.procfs import ROOT, read_file

MISMATCH = "the NVML library and the loaded driver are of different versions"
MAX_GPUS, MAX_LINKS, MAX_PROCESSES = 64, 18, 256
# NVML_FI_DEV_GET_GPU_RECOVERY_ACTION and its values.
_FIELD_RECOVERY_ACTION = 230
RECOVERY_ACTIONS = (
    "none", "reset the GPU", "reboot the host", "drain peer-to-peer", "drain and reset", "recover the IMEX domain",
    "reset the bus", "reboot the system",
)  # fmt: skip

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class NvLink:
    """One NVLink. Errors since the driver was loaded; None where not counted."""

    link: int
    active: bool
    errors: int | None


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process with a context on a GPU; `pid` of the host."""

    pid: int
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU; None: not supported here. Clocks in MHz, ECC counts since the last reset (volatile) or ever (aggregate)."""

    index: int
    lost: bool = False
    uuid: str | None = None
    bus: str | None = None
    name: str | None = None
    vbios: str | None = None
    pstate: int | None = None
    temperature_c: int | None = None
    slowdown_c: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None
    utilisation_percent: int | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    sm_clock_app_mhz: int | None = None
    sm_clock_app_default_mhz: int | None = None
    throttle_reasons: int | None = None
    ecc_enabled: bool | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    ecc_uncorrected_ever: int | None = None
    remap_corrected: int | None = None
    remap_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    retired_pending: bool | None = None
    recovery_action: int | None = None
    links: tuple[NvLink, ...] = ()
    processes: tuple[GpuProcess, ...] = ()


@dataclass(frozen=True, slots=True)
class NvmlReading:
    """All GPUs. `absent` says why there are none, '' otherwise."""

    driver_version: str | None = None
    gpus: tuple[Gpu, ...] = ()
    absent: str = ""


def read_gpus(root: Path = ROOT, library: Any = None) -> NvmlReading:
    """Reads every GPU. Never raises. `library` takes the place of pynvml."""
    if root != ROOT and library is None:
        try:
            return from_json(read_file(f"{str(root).rstrip('/')}/nvml.json", 16 << 20))
        except (OSError, ValueError) as error:
            return NvmlReading(absent=f"no recorded reading: {error}")
    if library is None:
        try:
            library = importlib.import_module("pynvml")
        except ImportError:
            return NvmlReading(absent="pynvml is not installed")
    try:
        library.nvmlInit()
    except Exception as error:
        mismatch = "Mismatch" in type(error).__name__ or "mismatch" in str(error)
        return NvmlReading(absent=MISMATCH if mismatch else f"NVML: {error}"[:200])
    try:
        count = _ask(library.nvmlDeviceGetCount)
        return NvmlReading(
            _text(_ask(library.nvmlSystemGetDriverVersion)),
            tuple(_gpu(library, index) for index in range(min(count or 0, MAX_GPUS))),
        )
    finally:
        with contextlib.suppress(Exception):
            library.nvmlShutdown()


def to_json(reading: NvmlReading) -> str:
    """A reading as it can be recorded."""
    return json.dumps(dataclasses.asdict(reading), indent=1)


def from_json(data: bytes) -> NvmlReading:
    """A recorded reading. Raises ValueError."""
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


def _ask(function: Callable[..., _Value], *arguments: object) -> _Value | None:
    """What a function of the library says; None where it is not supported, not permitted, or fails."""
    try:
        return function(*arguments)
    except Exception:
        return None


def _gpu(library: Any, index: int) -> Gpu:
    try:
        handle = library.nvmlDeviceGetHandleByIndex(index)
        library.nvmlDeviceGetUUID(handle)
    except Exception as error:
        return Gpu(index, lost="Lost" in type(error).__name__ or "lost" in str(error).lower())

    def call(name: str, *arguments: object) -> Any:
        # Older libraries lack newer functions.
        function = getattr(library, name, None)
        return _ask(function, handle, *arguments) if function is not None else None

    pci = call("nvmlDeviceGetPciInfo")
    rows = call("nvmlDeviceGetRemappedRows")
    utilisation = call("nvmlDeviceGetUtilizationRates")
    ecc_mode = call("nvmlDeviceGetEccMode")
    power, limit, default = (
        call(name)
        for name in (
            "nvmlDeviceGetPowerUsage",
            "nvmlDeviceGetEnforcedPowerLimit",
            "nvmlDeviceGetPowerManagementDefaultLimit",
        )
    )
    retired = call("nvmlDeviceGetRetiredPagesPendingStatus")
    reasons = call("nvmlDeviceGetCurrentClocksEventReasons")
    return Gpu(
        index=index,
        uuid=_text(call("nvmlDeviceGetUUID")),
        bus=(_text(getattr(pci, "busId", None)) or "").lower() or None,
        name=_text(call("nvmlDeviceGetName")),
        vbios=_text(call("nvmlDeviceGetVbiosVersion")),
        pstate=_below(call("nvmlDeviceGetPerformanceState"), 16),
        temperature_c=_below(call("nvmlDeviceGetTemperature", 0), 200),
        slowdown_c=_below(call("nvmlDeviceGetTemperatureThreshold", 1), 200),
        power_w=power / 1e3 if power is not None else None,
        power_limit_w=limit / 1e3 if limit is not None else None,
        power_default_w=default / 1e3 if default is not None else None,
        utilisation_percent=getattr(utilisation, "gpu", None),
        sm_clock_mhz=call("nvmlDeviceGetClockInfo", 1),
        sm_clock_max_mhz=call("nvmlDeviceGetMaxClockInfo", 1),
        sm_clock_app_mhz=call("nvmlDeviceGetApplicationsClock", 1),
        sm_clock_app_default_mhz=call("nvmlDeviceGetDefaultApplicationsClock", 1),
        throttle_reasons=reasons if reasons is not None else call("nvmlDeviceGetCurrentClocksThrottleReasons"),
        ecc_enabled=bool(ecc_mode[0]) if ecc_mode is not None else None,
        ecc_corrected=call("nvmlDeviceGetTotalEccErrors", 0, 0),
        ecc_uncorrected=call("nvmlDeviceGetTotalEccErrors", 1, 0),
        ecc_uncorrected_ever=call("nvmlDeviceGetTotalEccErrors", 1, 1),
        remap_corrected=rows[0] if rows is not None else None,
        remap_uncorrected=rows[1] if rows is not None else None,
        remap_pending=bool(rows[2]) if rows is not None else None,
        remap_failed=bool(rows[3]) if rows is not None else None,
        retired_pending=bool(retired) if retired is not None else None,
        recovery_action=_recovery(call("nvmlDeviceGetFieldValues", [_FIELD_RECOVERY_ACTION])),
        links=_links(call),
        processes=_processes(call("nvmlDeviceGetComputeRunningProcesses")),
    )


def _links(call: Callable[..., Any]) -> tuple[NvLink, ...]:
    links = []
    for link in range(MAX_LINKS):
        state = call("nvmlDeviceGetNvLinkState", link)
        if state is None:
            continue
        # Replay, recovery, CRC flit, CRC data; NVLink 5 counts none of them this way.
        counts = [call("nvmlDeviceGetNvLinkErrorCounter", link, kind) for kind in range(4)]
        known = [count for count in counts if count is not None]
        links.append(NvLink(link, bool(state), sum(known) if known else None))
    return tuple(links)


def _processes(listed: Any) -> tuple[GpuProcess, ...]:
    return tuple(
        GpuProcess(int(one.pid), getattr(one, "usedGpuMemory", None)) for one in list(listed or [])[:MAX_PROCESSES]
    )


def _recovery(values: Any) -> int | None:
    try:
        return int(values[0].value.uiVal) if values and values[0].nvmlReturn == 0 else None
    except (AttributeError, IndexError, TypeError):
        return None


def _below(value: Any, limit: int) -> int | None:
    """A number that makes sense (P-state 32 is "unknown"), else None."""
    return value if isinstance(value, int) and 0 <= value < limit else None


def _text(value: Any) -> str | None:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    return value[:100] if isinstance(value, str) else None
