"""Match the steps of two hosts by their ends, which are ends of collectives and so simultaneous.

E(i): end of step i on the reference host; e(j): end of step j on another; both in Unix time by
their own clocks.

k0          median over j of nearest(j) - j, nearest(j) being the reference step that ends nearest in time
d(j)        E(j + k) - e(j), for the shifts k = k0 - 1, k0, k0 + 1
offset(k)   median over j of d(j): how far the other clock is behind, if k is the right shift
rest(k)     median over j of |d(j) - offset(k)|: small where step lengths agree one by one

Choose the shift with the least |offset|. If the next one's is less than twice as large (from a
third of a step on), clocks cannot decide: then the least rest, if the other rest is twice as large;
else the shift is unknown, and a note says so. If a clock may be an hour off (`far_offset`), every
shift is tried by lengths alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.verdict.note import Note, NoteCode
from rankscope.diagnose.stats.robust import deviations, median, nan_median
from rankscope.probes.base.arrays import Bools, Floats

STEPS_MOST = 512  # steps used per host: enough for a median
_SHIFTS = np.array([-1, 0, 1])


@dataclass(frozen=True, slots=True)
class Clocks:
    """Clock correction by host: seconds to add to its times (0: unknown), and whether the match is
    unsure."""

    offset_s: Floats
    unsure: Bools


def align(reference_s: Floats, ends_s: Floats, step_s: float) -> Clocks:
    """Match the steps of each host to the reference by their ends, and estimate its clock offset.

    `reference_s`: ends of the reference's steps, rising; `ends_s`: hosts x steps, rows rising, NaN
    after the last. Both in seconds from one origin by each host's own clock. `step_s`: a usual
    step.
    """
    reference_s, ends_s = reference_s[:STEPS_MOST], ends_s[:, :STEPS_MOST]
    if not len(reference_s) or not ends_s.size:
        return Clocks(np.zeros(len(ends_s)), np.zeros(len(ends_s), dtype=np.bool_))
    behind = _numbers_behind(reference_s, ends_s, step_s)
    shift = np.nan_to_num(np.round(behind)).astype(np.int64)
    place = np.arange(ends_s.shape[1])[None, None, :] + shift[:, None, None] + _SHIFTS[None, :, None]
    inside = (place >= 0) & (place < len(reference_s))
    apart = np.where(inside, reference_s[np.clip(place, 0, len(reference_s) - 1)], np.nan) - ends_s[:, None, :]
    offset = nan_median(apart, 2)
    rest = np.where(np.isfinite(apart).sum(axis=2) >= limits.SEVERAL, nan_median(deviations(apart, 2), 2), np.inf)
    rest[np.isnan(rest)] = np.inf
    far = np.where(np.isfinite(offset), np.abs(offset), np.inf)
    by_clock = np.argsort(far, axis=1)
    hosts = np.arange(len(ends_s))
    best, second = by_clock[:, 0], by_clock[:, 1]
    unclear = far[hosts, second] < limits.CONCENTRATED * far[hosts, best]
    otherwise = unclear & (limits.CONCENTRATED * rest[hosts, second] < rest[hosts, best])
    agreed = unclear & (limits.CONCENTRATED * rest[hosts, best] < rest[hosts, second])
    chosen = np.where(otherwise, second, best)
    common = np.isfinite(behind)
    return Clocks(np.where(common, np.nan_to_num(offset[hosts, chosen]), 0.0), common & unclear & ~otherwise & ~agreed)


def far_offset(reference_s: Floats, ends_s: Floats) -> float | None:
    """Return the seconds to add to a clock so that it matches the reference; None if undecided.

    By step lengths alone. Arguments: ends of steps in seconds, rising, as in `align`. At least half
    of the shorter series must match within CLOCK_NOTE_S.
    """
    reference_s, ends_s = reference_s[:STEPS_MOST], ends_s[:STEPS_MOST]
    common = max(min(len(reference_s), len(ends_s)) // 2, limits.STEPS_FEW)
    found: list[tuple[float, float]] = []
    if common > min(len(reference_s), len(ends_s)):
        return None
    for shift in range(common - len(ends_s), len(reference_s) - common + 1):
        first, last = max(0, -shift), min(len(ends_s), len(reference_s) - shift)
        apart = reference_s[first + shift : last + shift] - ends_s[first:last]
        offset = median(apart)
        found.append((median(np.abs(apart - offset)), offset))
    found.sort()
    if not found or found[0][0] > limits.CLOCK_NOTE_S:
        return None
    # Steps too alike to decide.
    if len(found) > 1 and found[1][0] < max(limits.CONCENTRATED * found[0][0], limits.EFFECT_SECONDS):
        return None
    return found[0][1]


def _numbers_behind(reference_s: Floats, ends_s: Floats, step_s: float) -> Floats:
    """Return, by host, the median of (index of the nearest reference step - own index); NaN: none near.

    Steps further than `step_s` seconds from any reference step do not count.
    """
    after = np.searchsorted(reference_s, np.nan_to_num(ends_s)).clip(1, max(len(reference_s) - 1, 1))
    before = after - 1
    after = np.minimum(after, len(reference_s) - 1)
    nearest = np.where(np.abs(reference_s[before] - ends_s) <= np.abs(reference_s[after] - ends_s), before, after)
    observed = np.abs(reference_s[nearest] - ends_s) <= step_s  # seen by both hosts; False for NaN
    return nan_median(np.where(observed, nearest - np.arange(ends_s.shape[1]), np.nan), 1)


def clock_notes(hosts: tuple[str, ...], clocks: Clocks) -> list[Note]:
    """Return notes on clocks that differ, and on hosts whose steps could not be matched reliably.

    `hosts`: names, in the order of `clocks`.
    """
    notes: list[Note] = []
    late = np.flatnonzero(np.abs(clocks.offset_s) > limits.CLOCK_NOTE_S)
    if len(late):
        worst = late[np.argsort(-np.abs(clocks.offset_s[late]))][:8]
        each = ", ".join(
            f"{hosts[host]} {1e3 * abs(clocks.offset_s[host]):.0f} ms {'behind' if clocks.offset_s[host] > 0 else 'ahead'}"
            for host in worst
        )
        more = f" and {len(late) - len(worst)} more" if len(late) > len(worst) else ""
        text = (
            f"by the hosts' clocks steps do not end together ({each}{more}): the clocks differ, or these steps end "
            "elsewhere in the iteration; they were matched by when they end"
        )
        notes.append(Note(NoteCode.CLOCKS_DIFFER, text))
    unsure = np.flatnonzero(clocks.unsure)
    if len(unsure):
        named = ", ".join(hosts[host] for host in unsure[:8])
        text = (
            f"which steps of {named}{' and others' if len(unsure) > 8 else ''} belong to which of the other hosts is not sure: "
            "clocks differ by a third of a step or more, and the steps are too alike to tell"
        )
        notes.append(Note(NoteCode.STEPS_UNMATCHED, text))
    return notes
