"""Read each value of a GPU from NVML, with a fallback where the first choice is unsupported.

In: pynvml (or its replacement) and a device handle. Out: Gpu. A value that is not supported, not
permitted or fails is None, without affecting others. Values documented as fields
(nvmlDeviceGetFieldValues) are read in one call.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from rankscope.probes.gpu.model import Gpu, GpuProcess, NvLink
from rankscope.probes.gpu.nvml_calls import counter

MAX_LINKS, MAX_PROCESSES = 18, 256
CLOCK_SM, CLOCK_MEMORY = 1, 2
# nvml.h, NVML_FI_DEV_*. Per link the scope is its number; ALL_LINKS requests the sum over them.
ALL_LINKS = 0xFFFFFFFF
FIELD_RETIRED_SINGLE, FIELD_RETIRED_DOUBLE, FIELD_MEMORY_TEMPERATURE, FIELD_LINK_SPEED = 29, 30, 82, 90
FIELD_NVLINK_TX_KIB, FIELD_NVLINK_RX_KIB = 138, 139
FIELD_POWER_INSTANT, FIELD_PCIE_TX_BYTES, FIELD_PCIE_RX_BYTES = 186, 197, 198
# Replay, recovery, CRC errors of a link; in Blackwell and later: retried blocks, recoveries,
# received errors. Where neither is known: nvmlDeviceGetNvLinkErrorCounter, whose kinds are replay,
# recovery, CRC of flits, CRC of data.
_LINK_ERRORS, _LINK_ERRORS_LATER = (161, 162, 163), (295, 215, 208)
FIELD_LINK_STATE, FIELD_RECOVERY_ACTION = 165, 230
MOVING_FIELDS = (
    (FIELD_MEMORY_TEMPERATURE, 0), (FIELD_PCIE_TX_BYTES, 0), (FIELD_PCIE_RX_BYTES, 0),
    (FIELD_NVLINK_TX_KIB, ALL_LINKS), (FIELD_NVLINK_RX_KIB, ALL_LINKS),
)  # fmt: skip
# struct nvmlFieldValue_st, and how its union is decoded by valueType.
_FIELD = np.dtype([("id", "<u4"), ("scope", "<u4"), ("time", "<i8"), ("latency", "<i8"), ("type", "<u4"), ("error", "<u4"),
                   ("value", "<u8")])  # fmt: skip
_WIDTHS = {2: 64, 3: 64, 4: 64, 5: 32, 6: 16}
_ANSWER, _ANSWER_AT = struct.Struct("<IIQ"), _FIELD.fields["type"][1]  # type: ignore[index]
_DOUBLE, _WORD = struct.Struct("<d"), struct.Struct("<Q")
# Values that are read repeatedly: the function, its arguments after the device, the type it writes.
_COUNTERS: dict[str, tuple[str, tuple[int, ...], type[Any]]] = {
    "temperature_c": ("nvmlDeviceGetTemperature", (0,), ctypes.c_uint),
    "ecc_corrected": ("nvmlDeviceGetTotalEccErrors", (0, 0), ctypes.c_ulonglong),
    "ecc_uncorrected": ("nvmlDeviceGetTotalEccErrors", (1, 0), ctypes.c_ulonglong),
    "pcie_gen": ("nvmlDeviceGetCurrPcieLinkGeneration", (), ctypes.c_uint),
    "pcie_width": ("nvmlDeviceGetCurrPcieLinkWidth", (), ctypes.c_uint),
    "pcie_replays": ("nvmlDeviceGetPcieReplayCounter", (), ctypes.c_uint),
}

_Value = TypeVar("_Value")
Field = tuple[int, int]


def ask(function: Callable[..., _Value] | None, *arguments: object) -> _Value | None:
    """Call a library function; None where it does not exist or fails for any reason."""
    if function is None:
        return None
    try:
        return function(*arguments)
    except Exception:
        return None


def is_lost(error: BaseException) -> bool:
    """Tell whether pynvml's error says that the GPU fell off the bus."""
    return "Lost" in type(error).__name__ or "is lost" in str(error).lower()


class FieldBatch:
    """Fields of a GPU that are read together repeatedly: one prepared call each time."""

    def __init__(self, library: Any, handle: Any, wanted: Sequence[Field]) -> None:
        """Create it. Never raises: with a library without fields, `read` returns none."""
        self.wanted = tuple(wanted)
        self.memory: Any = b""
        self._function: Callable[..., int] | None = None
        self._state = b""
        self._found: dict[Field, int | float] = {}
        try:
            self.memory = (library.c_nvmlFieldValue_t * len(self.wanted))()
            self._rows = np.frombuffer(self.memory, _FIELD)
            self._rows["id"], self._rows["scope"] = [field for field, _ in wanted], [scope for _, scope in wanted]
            # The function behind pynvml's, which makes a new array for each call at 1 µs per field.
            self._function = library.nvmlLib.nvmlDeviceGetFieldValues
            self._arguments = (handle, ctypes.c_int32(len(self.wanted)), ctypes.byref(self.memory))
        except (AttributeError, TypeError, ValueError):
            self._function = None

    def ask(self) -> bool:
        """Have the driver write all fields to `memory` at once; return whether it did. Never raises."""
        return self._function is not None and bool(self.wanted) and self._function(*self._arguments) == 0

    def read(self) -> dict[Field, int | float]:
        """Read the values by (field, scope), without unsupported ones; empty where the call fails. Never raises.

        Returns the same object as before while nothing has changed.
        """
        if not self.ask():
            return {}
        rows = self._rows
        # Nearly always nothing has changed: then return the same object.
        state = rows["error"].tobytes() + rows["value"].tobytes()
        if state == self._state:
            return self._found
        columns = (rows["type"].tolist(), rows["error"].tolist(), rows["value"].tolist())
        found: dict[Field, int | float] = {}
        for key, kind, error, bits in zip(self.wanted, *columns, strict=True):
            value = field_value(kind, bits) if error == 0 else None
            if value is not None:
                found[key] = value
        self._state, self._found = state, found
        return found


class OneField:
    """Reader of one NVML field, prepared once for many reads."""

    def __init__(self, library: Any, handle: Any, field: int) -> None:
        """Create it. Never raises: with a library without fields, `read` returns NaN."""
        self._batch = FieldBatch(library, handle, ((field, 0),))

    def read(self) -> float:
        """Read the value; NaN where the GPU does not report it. Never raises."""
        if not self._batch.ask():
            return math.nan
        kind, error, bits = _ANSWER.unpack_from(self._batch.memory, _ANSWER_AT)
        value = field_value(kind, bits) if error == 0 else None
        return math.nan if value is None else value


def field_value(kind: int, bits: int) -> int | float | None:
    """Decode the 8 bytes `bits` of a field by its nvmlValueType_t `kind`.

    0: double; 1: unsigned, 32 bits; 2 and 3: unsigned, 64; 4: signed, 64; 5: signed, 32; 6: unsigned,
    16. None for other kinds, and for a double that is not finite.
    """
    if kind == 0:
        value: float = _DOUBLE.unpack(_WORD.pack(bits))[0]
        return value if math.isfinite(value) else None
    if kind == 1:  # true of nearly all
        return bits & 0xFFFFFFFF
    width = _WIDTHS.get(kind)
    if width is None:
        return None
    number = bits & ((1 << width) - 1)
    return number - (1 << width) if kind in (4, 5) and number >> (width - 1) else number


class GpuReader:
    """Reads one GPU. `full` reads everything; `moving` only what can change within a window, for
    sampling once a second.

    The first full reading finds the number of links and how their errors are counted. Methods raise
    only errors that mean that the GPU is gone.
    """

    def __init__(self, library: Any, index: int) -> None:
        """Open the GPU. Raises the library's errors if there is no such GPU or it is lost."""
        self.index = index
        self.library = library
        self.handle = library.nvmlDeviceGetHandleByIndex(index)
        self.uuid = text(library.nvmlDeviceGetUUID(self.handle))
        self._links: tuple[int, ...] | None = None
        self._error_kinds: tuple[int, ...] | None = None
        self._batches: dict[int, FieldBatch] = {}
        self._last_links: tuple[dict[Field, int | float], tuple[NvLink, ...]] | None = None
        self._states_by_field = False
        self._wanted: tuple[Field, ...] | None = None
        self._processes_since_us = 0
        self._counters = {
            name: counter(library, function, kind, self.handle, *(ctypes.c_uint(one) for one in arguments))
            for name, (function, arguments, kind) in _COUNTERS.items()
        }

    def _call(self, name: str, *arguments: object) -> Any:
        """Call a library function for this GPU; None for any failure but a lost GPU, which raises."""
        try:
            return getattr(self.library, name)(self.handle, *arguments)
        except Exception as error:
            if is_lost(error):
                raise
            return None

    def full(self) -> Gpu:
        """Read every value of this GPU. Raises the library's error if the GPU is lost.

        Long, for it names every value.
        """
        call = self._call
        pci = call("nvmlDeviceGetPciInfo")
        utilisation = call("nvmlDeviceGetUtilizationRates")
        decoder = call("nvmlDeviceGetDecoderUtilization")
        memory = call("nvmlDeviceGetMemoryInfo")
        ecc_mode = call("nvmlDeviceGetEccMode")
        retired = call("nvmlDeviceGetRetiredPagesPendingStatus")
        moving = self._moving((
            (FIELD_POWER_INSTANT, 0), (FIELD_RECOVERY_ACTION, 0), (FIELD_RETIRED_SINGLE, 0), (FIELD_RETIRED_DOUBLE, 0),
            (FIELD_LINK_SPEED, 0),
        ))  # fmt: skip
        reasons = call("nvmlDeviceGetCurrentClocksEventReasons")
        return Gpu(
            **moving,
            power_w=_watts(call("nvmlDeviceGetPowerUsage")),
            throttle_reasons=reasons if reasons is not None else call("nvmlDeviceGetCurrentClocksThrottleReasons"),
            bus=(text(getattr(pci, "busId", None)) or "").lower() or None,
            name=text(call("nvmlDeviceGetName")),
            vbios=text(call("nvmlDeviceGetVbiosVersion")),
            pstate=below(call("nvmlDeviceGetPerformanceState"), 16),
            slowdown_c=self._slowdown(moving["temperature_c"]),
            power_limit_w=_watts(call("nvmlDeviceGetEnforcedPowerLimit")),
            power_default_w=_watts(call("nvmlDeviceGetPowerManagementDefaultLimit")),
            utilisation_percent=getattr(utilisation, "gpu", None),
            memory_utilisation_percent=getattr(utilisation, "memory", None),
            decoder_percent=decoder[0] if decoder else None,
            memory_used_bytes=getattr(memory, "used", None),
            memory_total_bytes=getattr(memory, "total", None),
            sm_clock_mhz=call("nvmlDeviceGetClockInfo", CLOCK_SM),
            sm_clock_max_mhz=call("nvmlDeviceGetMaxClockInfo", CLOCK_SM),
            sm_clock_app_mhz=call("nvmlDeviceGetApplicationsClock", CLOCK_SM),
            sm_clock_app_default_mhz=call("nvmlDeviceGetDefaultApplicationsClock", CLOCK_SM),
            memory_clock_mhz=call("nvmlDeviceGetClockInfo", CLOCK_MEMORY),
            memory_clock_max_mhz=call("nvmlDeviceGetMaxClockInfo", CLOCK_MEMORY),
            ecc_enabled=bool(ecc_mode[0]) if ecc_mode is not None else None,
            ecc_uncorrected_ever=call("nvmlDeviceGetTotalEccErrors", 1, 1),
            ecc_corrected_ever=call("nvmlDeviceGetTotalEccErrors", 0, 1),
            retired_pending=bool(retired) if retired is not None else None,
            pcie_gen_max=call("nvmlDeviceGetMaxPcieLinkGeneration"),
            pcie_width_max=call("nvmlDeviceGetMaxPcieLinkWidth"),
        )

    def moving(self) -> Gpu:
        """Read what can change within a window, except what is sampled faster (power, reasons for
        lowered clocks).

        Raises the library's error if the GPU is lost.
        """
        return Gpu(**self._moving())

    def _moving(self, more: tuple[Field, ...] = ()) -> dict[str, Any]:
        """Read what can change within a window: the fields of `Gpu` by name.

        `more`: further (field, scope) pairs to read in the same call. Raises the library's error if the
        GPU is lost.
        """
        call = self._call
        counts = {name: told() for name, told in self._counters.items()}
        found = self._fields(len(more), (*MOVING_FIELDS, *more))
        rows = call("nvmlDeviceGetRemappedRows")
        retired = [found[(field, 0)] for field in (FIELD_RETIRED_SINGLE, FIELD_RETIRED_DOUBLE) if (field, 0) in found]
        return {
            "index": self.index,
            "uuid": self.uuid,
            **counts,
            "temperature_c": below(counts["temperature_c"], 200),
            "memory_temperature_c": below(_whole(found.get((FIELD_MEMORY_TEMPERATURE, 0))), 200),
            "power_instant_w": _watts(found.get((FIELD_POWER_INSTANT, 0))),
            "remap_corrected": rows[0] if rows is not None else None,
            "remap_uncorrected": rows[1] if rows is not None else None,
            "remap_pending": bool(rows[2]) if rows is not None else None,
            "remap_failed": bool(rows[3]) if rows is not None else None,
            "retired_pages": int(sum(retired)) if retired else None,
            "recovery_action": _whole(found.get((FIELD_RECOVERY_ACTION, 0))),
            "pcie_tx_bytes": _whole(found.get((FIELD_PCIE_TX_BYTES, 0))),
            "pcie_rx_bytes": _whole(found.get((FIELD_PCIE_RX_BYTES, 0))),
            "nvlink_tx_bytes": _whole(found.get((FIELD_NVLINK_TX_KIB, ALL_LINKS)), 1024),
            "nvlink_rx_bytes": _whole(found.get((FIELD_NVLINK_RX_KIB, ALL_LINKS)), 1024),
            "link_speed_mbps": _whole(found.get((FIELD_LINK_SPEED, 0))),
            "links": self._read_links(self._fields(-1, self._link_fields())),
            "processes": self._read_processes(),
        }

    def _fields(self, which: int, wanted: tuple[Field, ...]) -> dict[Field, int | float]:
        """Read the `wanted` (field, scope) pairs in one call; unsupported ones are left out. Never raises.

        `which`: key under which the prepared call is cached, until other fields are wanted.
        """
        batch = self._batches.get(which)
        if batch is None or batch.wanted != wanted:
            batch = self._batches[which] = FieldBatch(self.library, self.handle, wanted)
        return batch.read()

    def _slowdown(self, temperature: int | None) -> int | None:
        """Return the temperature at which the hardware slows down, in °C; None where unknown.

        It is the threshold, else `temperature` plus the margin that the GPU reports.
        """
        threshold = below(self._call("nvmlDeviceGetTemperatureThreshold", 1), 200)
        if threshold is not None or temperature is None:
            return threshold
        margin = self._call("nvmlDeviceGetMarginTemperature")
        return below(temperature + margin, 200) if isinstance(margin, int) else None

    def _link_fields(self) -> tuple[Field, ...]:
        """List the (field, link) pairs to read: all possible ones at first, then only supported ones."""
        if self._links is None or self._error_kinds is None:
            return tuple(
                (kind, link)
                for link in self._states()
                for kind in (*_LINK_ERRORS, *_LINK_ERRORS_LATER, FIELD_LINK_STATE)
            )
        if self._wanted is None:
            kinds = (*self._error_kinds, FIELD_LINK_STATE) if self._states_by_field else self._error_kinds
            self._wanted = tuple((kind, link) for link in self._links for kind in kinds)
        return self._wanted

    def _states(self) -> dict[int, bool]:
        """Return whether each NVLink of this GPU is up, by link number. One call per link."""
        numbers = range(MAX_LINKS) if self._links is None else self._links
        states = {link: self._call("nvmlDeviceGetNvLinkState", link) for link in numbers}
        return {link: bool(state) for link, state in states.items() if state is not None}

    def _read_links(self, found: dict[Field, int | float]) -> tuple[NvLink, ...]:
        """Build the state and error counts of each NVLink from the values `found` of `_link_fields`.

        Returns the same object while `found` is the same. The first call also finds out which links there
        are, how their errors are counted, and whether `found` may replace one call per link.
        """
        if self._last_links is not None and found is self._last_links[0] and self._states_by_field:
            return self._last_links[1]
        told = {link: value == 1 for (kind, link), value in found.items() if kind == FIELD_LINK_STATE}
        states = told if self._states_by_field and told else self._states()
        if self._links is None or self._error_kinds is None:
            known = {kind for kind, _ in found}
            self._error_kinds = next((kinds for kinds in (_LINK_ERRORS, _LINK_ERRORS_LATER) if known & {*kinds}), ())
            self._links = tuple(states)
            # Use one field per link in the batch in place of one call per link, if both agree.
            self._states_by_field = bool(states) and told == states
        links = tuple(self._link(link, active, found, self._error_kinds) for link, active in states.items())
        self._last_links = found, links
        return links

    def _link(self, link: int, active: bool, found: dict[Field, int | float], kinds: tuple[int, ...]) -> NvLink:
        """Build the record of one NVLink from the values `found`.

        `kinds`: fields that count its replay, recovery and CRC errors, in this order; if empty, the library
        is called for each counter.
        """
        if kinds:
            replay, recovery, crc = (_whole(found.get((kind, link))) for kind in kinds)
        else:
            replay, recovery, *crcs = (self._call("nvmlDeviceGetNvLinkErrorCounter", link, kind) for kind in range(4))
            counted = [one for one in crcs if one is not None]
            crc = sum(counted) if counted else None
        known = [count for count in (crc, replay, recovery) if count is not None]
        return NvLink(link, active, sum(known) if known else None, crc, replay, recovery)

    def _read_processes(self) -> tuple[GpuProcess, ...]:
        """List the processes with a context on this GPU: memory, and mean SM share since the last call.

        At most MAX_PROCESSES; the share is None where the driver has no sample of it.
        """
        listed = self._call("nvmlDeviceGetComputeRunningProcesses")
        use: dict[int, list[float]] = {}
        latest = self._processes_since_us
        for sample in list(self._call("nvmlDeviceGetProcessUtilization", self._processes_since_us) or [])[:4096]:
            pid, stamp, share = int(sample.pid), int(sample.timeStamp), float(sample.smUtil)
            latest = max(latest, stamp)
            if pid and share <= 100:
                use.setdefault(pid, []).append(share)
        self._processes_since_us = latest
        found = []
        for one in list(listed or [])[:MAX_PROCESSES]:
            shares = use.get(int(one.pid))
            found.append(
                GpuProcess(
                    int(one.pid), getattr(one, "usedGpuMemory", None), sum(shares) / len(shares) if shares else None
                )
            )
        return tuple(found)


def below(value: Any, limit: int) -> int | None:
    """Return `value` if it is an int from 0 to `limit` - 1, else None (P-state 32 means "unknown")."""
    return value if isinstance(value, int) and 0 <= value < limit else None


def text(value: Any) -> str | None:
    """Decode text of the library, cut to 100 characters; None for what is neither bytes nor str."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    return value[:100] if isinstance(value, str) else None


def _whole(value: int | float | None, factor: int = 1) -> int | None:
    """Convert to an int and multiply by `factor`; None remains None."""
    return int(value) * factor if value is not None else None


def _watts(milliwatts: int | float | None) -> float | None:
    return milliwatts / 1e3 if milliwatts is not None else None
