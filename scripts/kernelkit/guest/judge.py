"""Whether what was observed of the known program is what it did. Pure.

Nothing here rests on how fast the guest is: calls are compared with the program's own clock, samples with one another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import PurePath

COMPUTED_S = 4.0
_FEWEST_SAMPLES = 40  # of 99 Hz for four seconds 396: an emulator loses ticks
_SHARE = 0.9  # of the samples that were named
_ENTRY_NS = 1_000_000  # an emulated CPU's clocks differ by less


def samples_right(named: Sequence[tuple[str, str, int]], samples: int, file: str, line: int) -> tuple[str, str]:
    """Compare named samples (function, file, first line) with the one function that computed: what is wrong, and what was found."""
    counts = Counter((name, PurePath(path).name, at) for name, path, at in named)
    right = counts[("crunch", file, line)]
    words = f"{right} of {samples} samples are crunch ({file}:{line})"
    if samples < _FEWEST_SAMPLES:
        return f"{samples} samples in {COMPUTED_S:g} s, fewer than {_FEWEST_SAMPLES}", words
    if right < _SHARE * samples:
        others = ", ".join(f"{name} ({path}:{at}) {count}" for (name, path, at), count in counts.most_common(3))
        return f"{words}; most: {others or 'no stack was named'}", words
    return "", words


def calls_right(seen_ns: Sequence[int], own_ns: Sequence[int], asked_ns: Sequence[int]) -> tuple[str, str]:
    """Compare timed calls with what each was asked to take and what the program measured around it: what is wrong, and what was found."""
    if not len(seen_ns) == len(own_ns) == len(asked_ns):
        return f"{len(seen_ns)} calls were timed of {len(own_ns)}", ""
    calls = [*zip(seen_ns, own_ns, asked_ns, strict=True)]
    far = [one for one in calls if not one[2] - _ENTRY_NS <= one[0] <= one[1] + _ENTRY_NS]
    if far:
        seen, own, asked = (ns / 1e6 for ns in far[0])
        return (
            f"{len(far)} calls of {len(calls)} are wrong: {seen:.1f} ms, asked {asked:.1f} ms, by its own clock {own:.1f} ms",
            "",
        )
    typical = sorted(own - seen for seen, own, _ in calls)[len(calls) // 2]
    return (
        "",
        f"{len(calls)} calls of {asked_ns[0] / 1e6:g} to {asked_ns[-1] / 1e6:g} ms, {typical / 1e6:.1f} ms below the program's clock",
    )
