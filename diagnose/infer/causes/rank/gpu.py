"""GPU: kernels take longer than on the peers; counters give the reason.

A counter is compared with the same counter of the peers, and its prediction with the measured
excess e. With the rank's kernel time g per step:

clock      r = SM clock while busy / peers' median       predicted = g · (1 - r)   reason: the
               throttle bits, the power cap
neighbour  f = share of the GPU used by others - peers'   predicted = g · f

Evidence for: a prediction of half of e; the larger one if both are. The cause of a low clock is the
throttle reason that was set longer than on the peers: thermal, power (also a power cap below the
peers'), else clock-low. Without a prediction: corrected memory errors at 1/s and ten times the
peers', any uncorrected one, a failed remap; an Xid that user code does not cause. Where the rank
waits for kernels in a function in which its peers wait for none, the cause is that function:
python/blocking-call.

Evidence against: peers with the same clock, the same bit for as long, the same errors, the same
neighbour. Then it is gpu/slow: kernels are slow and no counter shows why. A lost GPU:
../hang/failed_hardware.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from rankscope.diagnose import limits, xids
from rankscope.diagnose.infer.causes.hypothesis import CONVICTED, REPORTED, SEEN, Hypothesis
from rankscope.diagnose.infer.causes.rank.case import Case
from rankscope.diagnose.infer.causes.rank.device import (
    Beside,
    DeviceTime,
    behaviour,
    beside,
    device_time,
    grown,
    of_function,
    slow,
    total_beside,
)
from rankscope.diagnose.infer.causes.registry import cause
from rankscope.diagnose.infer.fleet.counters import Counter
from rankscope.diagnose.infer.model.evidence.event_words import event_words
from rankscope.diagnose.infer.model.functions import sample
from rankscope.diagnose.infer.verdict.contract import RULED_OUT, Evidence, process_text
from rankscope.diagnose.stats.robust import median
from rankscope.diagnose.text import after
from rankscope.observer.sources import Source

_OWN_KERNELS = "{function|it} runs kernels on its GPU that its peers do not"
_THERMAL, _POWER, _CLOCKS = "throttled-thermal", "throttled-power", "clock-low"
# Specific reasons first: hw_slowdown is set together with hw_thermal and power_brake, and names
# neither.
_REASONS = {
    "hw_thermal": _THERMAL, "sw_thermal": _THERMAL, "power_cap": _POWER, "power_brake": _POWER,
    "app_clocks": _CLOCKS, "sync_boost": _CLOCKS, "hw_slowdown": _POWER,
}  # fmt: skip


@cause("gpu", "throttled-thermal", witness="clock below the peers', thermal bit", rests_on=[Source.GPU],
       says="{instance|the GPU} runs slower because it is too hot")  # fmt: skip
@cause("gpu", "throttled-power", witness="clock below peers', power bit, cap", rests_on=[Source.GPU],
       says="{instance|the GPU} runs slower because its power is capped")  # fmt: skip
@cause("gpu", "clock-low", witness="clock below the peers'", rests_on=[Source.GPU],
       says="{instance|the GPU} runs at a lower clock than its peers")  # fmt: skip
@cause("gpu", "ecc-errors", witness="memory errors that the peers lack", rests_on=[Source.GPU],
       says="{instance|the GPU} has memory errors")  # fmt: skip
@cause("gpu", "xid", witness="the driver's Xid", rests_on=[Source.GPU],
       says="{instance|the GPU} reported a critical error (Xid)")  # fmt: skip
@cause("gpu", "contended", witness="another process uses the GPU", rests_on=[Source.GPU],
       says="{process|somebody else} uses {instance|the GPU} as well")  # fmt: skip
@cause("gpu", "slow", witness="kernels longer than the peers'", rests_on=[Source.GPU],
       says="{instance|the GPU} computes more slowly than its peers")  # fmt: skip
def judge(case: Case) -> Iterator[Hypothesis]:
    """Propose one cause for the excess of kernel time, by the counters of the rank's GPU."""
    device = device_time(case, "gpu")
    if device is None:
        return
    measured = [reason for reason in (_clock(case, device), _neighbour(case, device)) if reason is not None]
    told = [r for r in measured if r.lost_s >= limits.HOLDS_LEAST * device.excess_s]
    told.sort(key=lambda reason: -reason.lost_s)
    told += [r for r in measured if math.isnan(r.lost_s)]
    errors = [reason for reason in (_lost(case), _memory_errors(case), _xid(case)) if reason is not None]
    told += errors
    if errors and told[0].cause == _CLOCKS and not _explained(told[0]):
        # A low clock without a throttle reason, on a GPU with a reported fault: the fault lowers
        # it.
        told = [replace(errors[0], lost_s=told[0].lost_s, evidence=(*errors[0].evidence, *told[0].evidence[:1]))]
    if not told:
        if (charge := of_function(case, "gpu", "waits for kernels of its own GPU", _OWN_KERNELS)) is not None:
            yield charge
            return
        weak = tuple(evidence for reason in measured for evidence in reason.evidence)
        gpu = name_of(case)
        where = f"{gpu or 'this GPU'}{after('of', case.host)}"
        why_not = f"Timings hold no counters of {where}" if case.fleet.timed else f"Nothing on {where} was reported"
        action = (
            f"{why_not}: run `dcgmi diag -r 3` on it with the job stopped, swap ranks between GPUs to see whether the slowness "
            "stays with the GPU."
        )
        yield slow(case, device, "gpu", "slow", action, gpu, weak or _unremarkable(case))
        return
    why = told[0]
    more = tuple(evidence for reason in told[1:3] for evidence in reason.evidence[:1])
    predicted: tuple[Evidence, ...] = ()
    if math.isfinite(why.lost_s):
        predicted = (
            Evidence("functions", "its kernels take longer than the peers' by", device.excess_s, None, "s/step"),
            Evidence("functions", "of that the counter explains", min(why.lost_s, device.excess_s), None, "s/step"),
        )
    found = case.charge(
        "gpu", why.cause, device.excess_s, why.support,
        (*why.evidence, *predicted, *behaviour(case, device)[:1], *more),
        why.action, why.instance, device.function,
    )  # fmt: skip
    yield replace(found, comm=why.comm, pid=why.pid)


def name_of(case: Case) -> str:
    """Return the rank's GPU, such as 'gpu2', by its counters or the rank itself; '' if unknown."""
    for name in ("gpu.sm_clock_hz", "gpu.sm_active", "gpu.power_w"):
        for counter in case.counters(name):
            return counter.instance
    gpus = case.fleet.ranks.gpus
    return gpus[case.rank][0] if len(gpus) > case.rank and gpus[case.rank] else ""


def smi(instance: str, what: str, host: str) -> str:
    """Return the nvidia-smi command for a GPU, such as '`nvidia-smi -i 2 -q -d CLOCK` on node-7'."""
    index = instance.removeprefix("gpu")
    which, (first, _, rest) = f" -i {index}" if index.isdigit() else "", what.partition(" ")
    told = f"{which} {what}" if first.startswith("-") else f" {first}{which} {rest}"  # a subcommand comes first
    return f"`nvidia-smi{told.rstrip()}`{after('on', host)}"


# ---- clocks and their limits ------------------------------------------------------------------------------------------


def _clock(case: Case, device: DeviceTime) -> Hypothesis | None:
    """Return the hypothesis on an SM clock below the peers' with its reason, or None.

    Without a clock: by the throttle bits alone, at unknown cost.
    """
    clocks = list(case.counters("gpu.sm_clock_hz"))
    if not clocks:
        return _bits_alone(case)
    mine = min(clocks, key=_of_limit)
    expected, peers = _expected_clock(case, mine)
    ratio = mine.value / expected if expected > 0 else 1.0
    if ratio > ((1 - limits.EFFECT_SHARE) if peers else limits.NEARLY_ALL):
        return None
    cause, why = _held_by(case, mine.instance)
    clock = Evidence("nvml", f"SM clock of {mine.instance}", mine.value / 1e9, expected / 1e9, "GHz", peers)
    return case.charge(
        "gpu",
        cause,
        device.own_s * (1 - ratio),
        CONVICTED,
        (clock, *why),
        _clock_action(case, cause, mine.instance),
        mine.instance,
    )


def _of_limit(clock: Counter) -> float:
    """Return the clock over its limit (0..1); the clock in Hz where the limit is unknown."""
    return clock.value / clock.limit if clock.limit > 0 else clock.value


def _expected_clock(case: Case, mine: Counter) -> tuple[float, int]:
    """Return (expected clock of this GPU in Hz, number of peers): the median of peers of the same model.

    Without such peers: the median of their clocks over their limits, times this GPU's limit.
    """
    counters = case.fleet.counters
    rows = counters.rows_of("gpu.sm_clock_hz", sample(case.peers))
    value, limit = counters.table.value[rows], counters.table.limit[rows]
    if not mine.limit > 0:
        return (median(value), len(value)) if len(value) else (0.0, 0)
    alike = np.abs(limit / mine.limit - 1) <= limits.NOTHING
    if alike.any():
        return median(value[alike]), int(alike.sum())
    share = (value / limit)[limit > 0]
    return (median(share) * mine.limit, len(share)) if len(share) else (mine.limit, 0)


def _held_by(case: Case, instance: str) -> tuple[str, tuple[Evidence, ...]]:
    """Return (cause, evidence) of a low clock: a low power cap, else the throttle reason set longer than on the peers.

    clock-low where no reason was set.
    """
    over: dict[str, tuple[float, Beside]] = {}
    for reason, holds in _REASONS.items():
        found = beside(case, f"gpu.throttle.{reason}_s", instance=instance)
        if found is None:
            continue
        more = found.value - (found.expected if found.known else 0.0)
        if more < limits.EFFECT_SHARE * case.fleet.seconds or (reason == "hw_slowdown" and over):
            continue
        if more > over.get(holds, (0.0, found))[0]:
            over[holds] = (more, found)
    cap = beside(case, "gpu.power_cap_w", lowest=True, instance=instance)
    if cap is not None and cap.value <= (1 - limits.EFFECT_SHARE) * (cap.expected if cap.known else cap.counter.limit):
        low = cap.evidence("nvml", "W", f"power cap of {instance}")
        bit = over.get(_POWER)
        return _POWER, (low, *((_bit(case, bit[1]),) if bit else ()))
    if not over:
        return _CLOCKS, (
            Evidence("nvml", "throttle reasons set longer than on its peers", "none", None, "", role=RULED_OUT),
        )
    cause = max(over, key=lambda each: over[each][0])
    evidence = [_bit(case, over[cause][1])]
    if cause == _POWER and over[cause][1].counter.name == "gpu.throttle.hw_slowdown_s" and _hot(case, instance):
        cause = _THERMAL
    level = {"throttled-thermal": ("gpu.temperature_c", "°C"), "throttled-power": ("gpu.power_w", "W")}.get(cause)
    if level is not None and (now := beside(case, level[0], instance=instance)) is not None:
        evidence.append(now.evidence("nvml", level[1], f"{level[0].split('.')[1].split('_')[0]} of {instance}"))
    return cause, tuple(evidence)


def _bit(case: Case, found: Beside) -> Evidence:
    """Return the evidence of a throttle reason: % of the window in which it was set, at most 100."""
    reason = found.counter.name.removeprefix("gpu.throttle.").removesuffix("_s")
    told = found.evidence("nvml", "% of the window", f"throttled by {reason}", 100 / case.fleet.seconds)
    # Read at slightly other times than the window begins and ends.
    return replace(told, value=min(100 / case.fleet.seconds * found.value, 100.0))


def _hot(case: Case, instance: str) -> bool:
    """Return whether the GPU came within 2 °C of its temperature limit."""
    now = beside(case, "gpu.temperature_c", instance=instance)
    return now is not None and now.counter.maximum >= now.counter.limit - 2


def _explained(reason: Hypothesis) -> bool:
    """Whether a throttle bit or power cap explains the lower clock."""
    return any(evidence.measure.startswith(("throttled by", "power cap")) for evidence in reason.evidence)


def _bits_alone(case: Case) -> Hypothesis | None:
    """Return the hypothesis on a throttle reason set for a quarter of the window longer than on the peers; else None.

    Its cost is unknown (NaN).
    """
    for reason in _REASONS:
        found = beside(case, f"gpu.throttle.{reason}_s")
        if found is None:
            continue
        if found.value - (found.expected if found.known else 0.0) >= limits.LARGE_SHARE * case.fleet.seconds:
            instance = found.counter.instance
            cause, why = _held_by(case, instance)
            action = _clock_action(case, cause, instance)
            return case.charge("gpu", cause, float("nan"), REPORTED, why, action, instance)
    return None


def _clock_action(case: Case, cause: str, instance: str) -> str:
    """Return the advice for a low clock with this cause; `instance`: the GPU."""
    if cause == _THERMAL:
        see = smi(instance, "-q -d TEMPERATURE,PERFORMANCE", case.host)
        return f"{instance}{after('of', case.host)} is too hot: check fans, airflow and its neighbours ({see}); move the rank meanwhile."
    if cause == _POWER:
        see, cap = smi(instance, "-q -d POWER,PERFORMANCE", case.host), smi(instance, "-pl <watts>", case.host)
        return f"{instance} is held down by its power: see {see}; raise a lowered cap with {cap}, check power supplies and cables."
    see, reset = smi(instance, "-q -d CLOCK", case.host), smi(instance, "-rgc", case.host)
    return f"{instance} runs below the clock of its peers: see {see}; lift locked or application clocks with {reset} (and -rac)."


# ---- neighbours --------------------------------------------------------------------------------------------------------


def _neighbour(case: Case, device: DeviceTime) -> Hypothesis | None:
    """Return the hypothesis on another process that uses the GPU, or None.

    Memory of another process counts only where use is not measured.
    """
    users = sorted(case.counters("gpu.foreign_active"), key=lambda counter: -counter.value)
    if users:
        gpu = users[0].instance
        share = total_beside(case, "gpu.foreign_active", gpu)
        if share < limits.EFFECT_SHARE:
            return None
        active = Evidence("nvml", f"share of {gpu} used by others", 100 * min(share, 1.0), 0.0, "%", len(case.peers))
        return _neighbour_reason(case, users[0], device.own_s * min(share, 1.0), CONVICTED, active)
    holders = sorted(case.counters("gpu.foreign_memory_bytes"), key=lambda counter: -counter.value)
    if not holders:
        return None
    gpu = holders[0].instance
    held = total_beside(case, "gpu.foreign_memory_bytes", gpu)
    if held < limits.FOREIGN_BYTES:
        return None
    memory = Evidence("nvml", f"memory of {gpu} held by others", held / 1e9, 0.0, "GB", len(case.peers))
    return _neighbour_reason(case, holders[0], float("nan"), REPORTED, memory)


def _neighbour_reason(case: Case, user: Counter, predicted_s: float, support: float, what: Evidence) -> Hypothesis:
    """Return gpu/contended by the process that the counter `user` names.

    `predicted_s`: seconds per step, NaN if unknown; `what`: evidence of how much others use the GPU.
    """
    gpu, who = user.instance, process_text(user.comm, user.pid)
    action = f"Stop {who or 'the other process'}{after('on', case.host)} or move it off {gpu} ({smi(gpu, 'pmon -c 1', case.host)})."
    more = Evidence("nvml", "the process that uses it most", who, None, "") if who else None
    told = (what, more) if more else (what,)
    found = case.charge("gpu", "contended", predicted_s, support, told, action, gpu)
    return replace(found, comm=user.comm, pid=user.pid)


# ---- errors ------------------------------------------------------------------------------------------------------------


def _lost(case: Case) -> Hypothesis | None:
    """Return gpu/lost if a GPU of the rank has fallen off the bus; else None."""
    for counter in case.counters("gpu.lost"):
        if counter.value > 0:
            evidence = Evidence("nvml", f"{counter.instance} answers", "no: it has fallen off the bus", None, "")
            action = xids.meaning(79)[2]
            return case.charge("gpu", "lost", float("nan"), CONVICTED, (evidence,), action, counter.instance)
    return None


def _memory_errors(case: Case) -> Hypothesis | None:
    """Return gpu/ecc-errors for memory errors that the peers lack, or None.

    One uncorrected error, remapped row, failed remap or retired page is enough; corrected errors
    count from EVENTS_HZ on. Each must be far more than on the peers (see `grown`).
    """
    storm = limits.EVENTS_HZ * case.fleet.seconds
    for name, least in (("gpu.ecc_uncorrected", 1), ("gpu.remap_failed", 1), ("gpu.ecc_corrected", storm),
                        ("gpu.rows_remapped", 1), ("gpu.retired_pages", 1)):  # fmt: skip
        found = grown(case, name, least)
        if found is None:
            continue
        instance = found.counter.instance
        see = smi(instance, "-q -d ECC,ROW_REMAPPER", case.host)
        action = f"Drain {case.host or 'its host'}, reset {instance}, and replace it if the errors return or a remap failed ({see})."
        evidence = [found.evidence("nvml", "events", f"{event_words(name)} on {instance}")]
        evidence += [_xid_evidence(counter) for counter in _xids(case) if xids.of_memory(_number(counter))]
        return case.charge("gpu", "ecc-errors", float("nan"), SEEN, tuple(evidence), action, instance)
    return None


def _xid(case: Case) -> Hypothesis | None:
    """Return the hypothesis on the worst Xid that user code does not cause, or None."""
    hardware = [c for c in _xids(case) if not xids.by_application(_number(c)) and not xids.of_nvlink(_number(c))]
    if not hardware:
        return None
    worst = max(hardware, key=lambda c: (xids.ends_ranks(_number(c)), c.value))
    action = f"{xids.meaning(_number(worst))[2]} See `dmesg -T | grep Xid`{after('on', case.host)}."
    cause = "ecc-errors" if xids.of_memory(_number(worst)) else "lost" if xids.means_lost(_number(worst)) else "xid"
    told = tuple(_xid_evidence(c) for c in hardware[:3])
    return case.charge("gpu", cause, float("nan"), SEEN, told, action, worst.instance)


def _xids(case: Case) -> list[Counter]:
    """Return the rank's counters of Xids (errors that the driver reports) that occurred."""
    names = case.fleet.counters.names("gpu.xid.")
    return [c for name in names for c in case.counters(name) if c.value > 0 and xids.number_of(name[8:]) is not None]


def _number(counter: Counter) -> int:
    """Return the number of an Xid by the name of its counter; -1 if it has none."""
    number = xids.number_of(counter.name.removeprefix("gpu.xid."))
    return -1 if number is None else number


def _xid_evidence(counter: Counter) -> Evidence:
    """Return the evidence of an Xid: its number, its meaning, how often it occurred."""
    number = _number(counter)
    return Evidence(
        "nvml", f"Xid {number} on {counter.instance}: {xids.meaning(number)[0]}", counter.value, None, "events"
    )


def _unremarkable(case: Case) -> tuple[Evidence, ...]:
    """Return the evidence of counters that were read and show nothing, so that readers know of them."""
    found = []
    clock = beside(case, "gpu.sm_clock_hz", lowest=True)
    if clock is not None and clock.known:
        told = clock.evidence("nvml", "GHz", f"SM clock of {clock.counter.instance}", 1e-9)
        found.append(replace(told, role=RULED_OUT))
    active = beside(case, "gpu.sm_active_computing", lowest=True)
    if active is not None and active.known:
        found.append(active.evidence("nvml", "%", "SM activity while computing", 100))
    return tuple(found)
