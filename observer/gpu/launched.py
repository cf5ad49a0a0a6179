"""GPU functions: the kernels that a rank launches, and the places in its code that launch them. Pure.

In: located launches (LAUNCH events), names of kernels and of launching files. Out: rows of the table
`patterns`, thread `gpu`. How long one kernel runs is not seen from outside, so the time of all
(row `kernels`) is divided by the numbers of launches, and marked as such. NCCL's kernels are left
out of that: their time is the collectives'.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rankscope.observer.thread.functions import NO_STACK, FunctionKey, StackName
from rankscope.observer.thread.patterns import MeasuredPattern
from rankscope.observer.window.schema import BY_LAUNCHES, KERNELS
from rankscope.probes.bpf.ring import Events

GRAPH, UNNAMED, OTHERS = "CUDA graph", "kernel", "other kernels"
_RUNTIME = "libcudart"  # its calls of the driver launch what its own callers launched
_COLLECTIVES = "ncclDev"  # NCCL's kernels begin with it
_MOST = 24  # rows of a rank; real jobs launch some hundreds of kernels, of which a dozen matters

LaunchKey = tuple[int, int]  # the function that was passed, and where the call returns to


@dataclass(frozen=True, slots=True)
class LaunchSite:
    """`count` located launches of one kernel from one Python stack, or by one thread without any."""

    kernel: str
    stack: int
    thread: str
    count: int


def keys_of(events: Events) -> list[LaunchKey]:
    """Return the key of each located launch, in order."""
    return list(zip(events["stack"].tolist(), events["arg"].tolist(), strict=True))


def launch_sites(
    events: Events, kernels: Mapping[LaunchKey, str], files: Mapping[LaunchKey, str], threads: Mapping[int, str]
) -> tuple[LaunchSite, ...]:
    """Count located launches by kernel and place, the most frequent first.

    `kernels`: names of known kernels; `files`: name of the file whose code launches; `threads`: names
    of threads without Python stack.
    """
    counts: Counter[tuple[str, int, str]] = Counter()
    columns = zip(keys_of(events), *(events[name].tolist() for name in ("what", "ready_ns", "tid")), strict=True)
    for key, argument, stack, tid in columns:
        file = files.get(key, "")
        named = kernels.get(key, "") if argument else GRAPH
        if named or not file.startswith(_RUNTIME):
            words = named or (f"{UNNAMED} of {file}" if file else UNNAMED)
            counts[words, stack, "" if stack else threads.get(tid, "")] += 1
    return tuple(LaunchSite(*site, count) for site, count in counts.most_common())


def launch_patterns(
    sites: Sequence[LaunchSite], stacks: Mapping[int, StackName], training: Sequence[MeasuredPattern]
) -> tuple[MeasuredPattern, ...]:
    """Build the rows of a rank's GPU functions, the most launched first, the rare ones as one row.

    `training`: the patterns of its training thread.
    """
    counts: Counter[FunctionKey] = Counter()
    usual: dict[FunctionKey, FunctionKey] = {}  # with the stack that most of its launches have
    for site in sites:
        stack = stacks.get(site.stack, NO_STACK)
        key = FunctionKey("gpu", site.kernel, stack.file, stack.line, "", stack.name or site.thread, resource="gpu")
        usual.setdefault(key, key.called_from(stack) if stack.name else key)
        counts[key] += site.count
    shown = counts.most_common(_MOST)
    rest = counts.total() - sum(count for _, count in shown)
    found = [(usual[key], count) for key, count in shown]
    if rest:
        found.append((FunctionKey("gpu", OTHERS, resource="gpu"), rest))
    computing = sum(count for function, count in found if not function.name.startswith(_COLLECTIVES))
    whole = [one for one in training if (one.function.kind, one.function.name) == ("gpu", KERNELS)]
    return tuple(_pattern(function, count, computing, whole) for function, count in found)


def _pattern(function: FunctionKey, count: int, of: int, whole: Sequence[MeasuredPattern]) -> MeasuredPattern:
    """Build a GPU function's row: `count` of `of` launches, and that share of the time of the rows `whole`.

    `of`: launches of all functions but collectives, which get a count and no time.
    """
    share = 0.0 if function.name.startswith(_COLLECTIVES) else count / of
    timed = bool(share and whole)
    longest = max(whole, key=lambda one: one.total_s, default=None)
    per_step_s = [one.per_step_s for one in whole if one.per_step_s is not None]
    return MeasuredPattern(
        replace(function, detail=BY_LAUNCHES) if timed else function,
        beta=share * sum(one.beta for one in whole),
        mu=longest.mu if timed and longest else None,
        sigma=longest.sigma if timed and longest else None,
        count=count,
        total_s=share * sum(one.total_s for one in whole),
        p50_s=0.0,
        p99_s=0.0,
        max_s=0.0,
        per_step_s=share * sum(per_step_s) if per_step_s else None,
        per_step_sd_s=None,
        bytes=0,
    )
