"""Workload: the rank has more work; all functions grew alike and no counter explains it.

Evidence for: Python excess without an odd function; kernels that take longer while the GPU reads
more over PCIe: with x the excess of kernel time and b that of the bytes read, both over the peers',
b >= x / 2 and 5 % (longer sequences, larger batches); a function that takes longer while the
model's other functions do as well, by as much; the same while the rank reads more from files than
any peer, or while it sleeps there and its training thread computes more besides. Evidence against:
one odd function; a counter of the device; the peers' bytes. The verdict is then an imbalance,
without a fault.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.causes.hypothesis import CONVICTED, GUESS, REPORTED, Hypothesis
from rankscope.diagnose.infer.causes.rank.case import Case
from rankscope.diagnose.infer.causes.rank.device import behaviour, beside, device_time
from rankscope.diagnose.infer.causes.registry import cause
from rankscope.diagnose.infer.model.attribute import Located
from rankscope.diagnose.infer.verdict.contract import Evidence
from rankscope.diagnose.infer.verdict.phrases import NAME
from rankscope.diagnose.stats.robust import median, robust_sd_of
from rankscope.diagnose.text import short

_MODEL = re.compile(r"/torch/(nn|autograd)/|/jax/|/flax/|/tensorflow/")


@cause("workload", "data-imbalance", witness="all functions alike, or so before",
       says="its work takes longer, as with more input than its peers have")  # fmt: skip
def judge(case: Case) -> Iterator[Hypothesis]:
    """Propose workload/data-imbalance if the excess is in all functions, or follows the rank's input."""
    found = case.python
    if found is not None and found.spread:
        yield case.charge(
            "workload", "data-imbalance", found.excess_s, GUESS,
            (Evidence("stacks", "own Python time, all functions alike", found.own_s, found.peers_s, "s/step", len(case.peers)),),
            "This rank has more work per step: compare its batch shapes and sequence lengths with its peers'.",
        )  # fmt: skip
    yield from _more_input(case)
    shared = _shared(case)
    if shared is not None:
        yield from list(_longer_model(case, shared)) or list(_more_read(case, shared)) or _more_cpu(case, shared)


def _shared(case: Case) -> Located | None:
    """Return the rank's odd Python function if the peers run it too; else None."""
    found = case.python
    if found is None or found.spread or not found.shared or not len(case.peers):
        return None
    return found


def _longer_model(case: Case, found: Located) -> Iterator[Hypothesis]:
    """Propose imbalance if the model's other functions grow as much as the odd one.

    With m the seconds per step of the model's other functions and g the growth factor of the odd
    one: z = (m - m') / √(m' sampling_s / steps · (1 + 1/peers)) >= 2 and m / m' >= 1 + (g - 1) / 2.
    A function that is slow by itself leaves the model's functions as they are.
    """
    times = found.own_s / found.peers_s
    named = (found.function.name, found.leaf.name if found.leaf is not None else "")
    model = [f for f in case.functions if f.kind == "python" and _MODEL.search(f.file) and f.name not in named]
    own, peers = sum(f.own_s for f in model), sum(f.peers_s for f in model)
    if peers <= 0 or own / peers < 1 + 0.5 * (times - 1):
        return
    error = math.sqrt(peers * case.fleet.sampling_s / max(case.steps, 1) * (1 + 1 / len(case.peers)))
    if (own - peers) / error < limits.Z_HINT:
        return
    yield case.charge(
        "workload", "data-imbalance", found.excess_s + own - peers, CONVICTED,
        (Evidence("stacks", f"time in {found.function.name}", found.own_s, found.peers_s, "s/step", len(case.peers)),
         Evidence("stacks", "time in the model's other functions", own, peers, "s/step", len(case.peers))),
        "Compare its batch shapes and sequence lengths with its peers'; where they are alike, see why "
        f"{short(found.function.name, NAME)} takes longest there.",
    )  # fmt: skip


def _more_read(case: Case, found: Located) -> Iterator[Hypothesis]:
    """Propose imbalance if the rank reads more bytes from files per step than its peers.

    With b the bytes over the peers' and g the growth factor of the odd function: b - 1 >= max((g -
    1) / 2, 5 %), and 3.5 times as far above the peers' median as any peer is from it. Bytes are
    counted exactly; the function must have half of the excess. Reads of loader processes are not
    included.
    """
    if found.excess_s < limits.HOLDS_LEAST * case.excess_s:
        return
    read = case.fleet.bytes_per_step("io", "read")
    own, peers = float(read[case.rank]), read[case.peers]
    expected = median(peers)
    furthest = float(np.abs(peers - expected).max())
    more, longer = own / expected - 1 if expected > 0 else 0.0, found.own_s / found.peers_s - 1
    if more < max(limits.HOLDS_LEAST * longer, limits.EFFECT_SHARE) or own - expected < limits.Z_CLEAR * furthest:
        return
    yield case.charge(
        "workload", "data-imbalance", found.excess_s, CONVICTED,
        (Evidence("stacks", f"time in {found.function.name}", found.own_s, found.peers_s, "s/step", len(case.peers)),
         Evidence("files", "read", own / 1e6, expected / 1e6, "MB/step", len(peers))),
        "This rank reads more input per step and works longer on it: compare its batch shapes and sequence lengths with its peers'.",
    )  # fmt: skip


def _more_cpu(case: Case, found: Located) -> Iterator[Hypothesis]:
    """Propose imbalance if a rank that sleeps longer also computes more on its training thread.

    c: CPU time of the training thread, less what the odd function computes more than on the peers;
    c' the peers' median, sd their spread (robust_sd), at least 1.4 % of c'. A late rank finds its
    caches cold and computes up to 5 % more for that alone: c - c' >= 5 % of c' + 2 sd √(1 +
    1/peers), with one peer, of unknown spread, 3.5 times that 5 %; and c / c' >= 1 + (g - 1) / 4,
    because much of a step does not depend on its input. Not the CPU time of the whole process,
    whose other threads differ far more between ranks. The function must have half of the excess.
    Not with GPUs: waiting for one may spin.
    """
    if found.excess_s < limits.HOLDS_LEAST * case.excess_s:
        return
    seen = _computed(case)
    if seen is None:
        return
    asleep = case.profiles.locate(case.rank, case.beside, ("python",), 0.0, details=("sleep",))
    computing = max(found.excess_s - (max(asleep.excess_s, 0.0) if asleep is not None else 0.0), 0.0)
    own, times = seen.own - computing * case.steps, found.own_s / found.peers_s
    if own - seen.peers < seen.least or own / seen.peers < 1 + limits.LARGE_SHARE * (times - 1):
        return
    steps = max(case.steps, 1)
    yield case.charge(
        "workload", "data-imbalance", found.excess_s, CONVICTED,
        (Evidence("stacks", f"time in {found.function.name}", found.own_s, found.peers_s, "s/step", len(case.peers)),
         Evidence("scheduler", "CPU time of all else", own / steps, seen.peers / steps, "s/step", len(case.peers))),
        "All that this rank does takes longer: compare its batch shapes and sequence lengths with its peers'.",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Computed:
    """CPU seconds of the training thread in the window: the rank's, and its peers' median.

    `least`: the smallest difference that is not by chance.
    """

    own: float
    peers: float
    least: float


def _computed(case: Case) -> _Computed | None:
    """Return the training thread's CPU time and its peers'; None if not counted, or with GPUs.

    Waiting for a device may spin.
    """
    mine = beside(case, "cpu.run_s")
    if mine is None or not mine.expected > 0 or device_time(case, "gpu") is not None:
        return None
    peers = np.array([counter.value for counter in case.peers_of("cpu.run_s")])
    cold, spread = limits.EFFECT_SHARE * mine.expected, max(robust_sd_of(peers), limits.SCALE_FLOOR * mine.expected)
    least = cold + limits.Z_HINT * spread * math.sqrt(1 + 1 / len(peers)) if len(peers) > 1 else limits.Z_CLEAR * cold
    return _Computed(mine.value, mine.expected, least)


def has_no_more_input(case: Case, asleep: Located) -> bool:
    """Return whether more input would show in what a longer sleeping rank computes (see `_more_cpu`).

    True if c' (g - 1) / 4 is above the smallest clear difference; else a rank that sleeps longer
    may have more work.
    """
    seen = _computed(case)
    return seen is not None and seen.peers * limits.LARGE_SHARE * (asleep.own_s / asleep.peers_s - 1) >= seen.least


def _more_input(case: Case) -> Iterator[Hypothesis]:
    """Propose imbalance if kernels take longer while the GPU reads more over PCIe, by half as much or more."""
    device = device_time(case, "gpu")
    if device is None or device.peers_s <= 0:
        return
    # The device counts all of it; the bytes of calls are known in part only.
    read = beside(case, "pcie.rx_bytes")
    if read is None or not read.expected > 0:
        return
    more, longer = read.value / read.expected - 1, device.excess_s / device.peers_s
    if more < max(limits.HOLDS_LEAST * longer, limits.EFFECT_SHARE):
        return
    copied = read.evidence("pcie", "GB", "read by its GPU over PCIe", 1e-9)
    yield case.charge(
        "workload", "data-imbalance", device.excess_s, REPORTED, (copied, *behaviour(case, device)[:1]),
        "This rank gets more input per step and computes longer for it: balance batch shapes and sequence lengths.",
    )  # fmt: skip
