"""State of each source of a window: from refused programs, untimed functions, and samplers.

An attached program that never ran gives as little as a refused one: the clock of a CPU that does
not tick, a tracepoint that does not fire.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from rankscope.observer.sources import Seen, Source, SourceState
from rankscope.observer.window.manifest import EVENTS_DROPPED, Loss, ProbeCost
from rankscope.probes.base import abilities
from rankscope.probes.bpf.module import Refused
from rankscope.probes.calls import row
from rankscope.probes.calls.attached import Untimed
from rankscope.probes.calls.programs import program_rows
from rankscope.probes.files import probe as files

# Roles of timed calls that are used to find steps and to separate waiting from own time.
MARKING = frozenset({row.COLLECTIVE, row.WAIT, row.BACKWARD, row.DISPATCH, row.ENQUEUE, row.GROUP, row.GPU_WAIT})
SAMPLE, SWITCH, WAKING, EXIT, SITE = "rs_sample", "rs_sched_switch", "rs_sched_waking", "rs_sched_exit", "rs_call_site"
_ALWAYS_RUN = (SAMPLE, SWITCH)  # run on any host in any second
_EVENTS = (
    Source.SAMPLES,
    Source.RUN_QUEUE,
    Source.COLLECTIVES,
    Source.CALLS,
    Source.FILE_CALLS,
)  # delivered through the ring


def programs() -> Mapping[str, Source]:
    """Map each program in the kernel to its source."""
    found = {
        SAMPLE: Source.SAMPLES,
        SWITCH: Source.RUN_QUEUE,
        WAKING: Source.RUN_QUEUE,
        EXIT: Source.EXITS,
        SITE: Source.COLLECTIVES,
    }
    found |= {name: _of_roles({one.role}) for name, one in program_rows()}
    found |= {variant.name: Source.FILE_CALLS for variant in files.programs().variants}
    return found


def left_out() -> frozenset[str]:
    """Return programs disabled by their name or their source's (probes/base/abilities.py)."""
    without = abilities.without()
    if not without:
        return frozenset()
    return without | {name for name, source in programs().items() if source.value in without}


def lacks(source: Source) -> bool:
    """Tell whether this source is disabled."""
    return source.value in abilities.without()


def of_programs(refused: Sequence[Refused]) -> Iterator[SourceState]:
    """Yield states of sources with refused programs."""
    known = programs()
    for one in refused:
        if one.program in known:
            what = "running threads are not sampled" if one.program == SAMPLE else f"{one.program} is not attached"
            yield SourceState(known[one.program], Seen.NOT, f"{what}: {one.reason}")


def of_calls(untimed: Sequence[Untimed]) -> Iterator[SourceState]:
    """Yield states of sources with functions that were never timed (NOT), or only part of the time (PART)."""
    for one in untimed:
        for source in {_of_roles({role}) for role in one.roles}:
            yield SourceState(source, Seen.NOT if one.refused else Seen.PART, one.why)


def never_ran(costs: Sequence[ProbeCost]) -> Iterator[SourceState]:
    """Yield states of sources whose attached program did not run in the window.

    `costs`: empty where the kernel does not meter programs.
    """
    ran = {cost.program for cost in costs if cost.run_count > 0}
    known = programs()
    for name in _ALWAYS_RUN if ran else ():
        if name not in ran:
            yield SourceState(known[name], Seen.NOT, f"{name} is attached and never ran")


def of_losses(losses: Sequence[Loss]) -> Iterator[SourceState]:
    """Yield states of sources whose events came faster than they were read."""
    lost = sum(loss.count for loss in losses if loss.name == EVENTS_DROPPED)
    for source in _EVENTS if lost else ():
        yield SourceState(source, Seen.PART, f"{lost} events were lost")


def of_samplers(
    flows: Collection[str], any_flow: bool, gpus: Collection[str], host: Collection[str]
) -> Iterator[SourceState]:
    """Yield the states of connections, GPUs, ports and host counters, which need no programs.

    `flows`, `gpus`, `host`: notes of their readers on what could not be read, empty if nothing;
    `any_flow`: some connections were read; `gpus` has notes only if no GPU was read at all.
    """
    for source in (Source.FLOWS, Source.GPU, Source.PORTS, Source.HOST):
        if lacks(source):
            yield SourceState(source, Seen.NOT, "left out")
    if flows:
        yield SourceState(Source.FLOWS, Seen.PART if any_flow else Seen.NOT, next(iter(flows)))
    if gpus:
        yield SourceState(Source.GPU, Seen.NOT, next(iter(gpus)))
    if host:
        yield SourceState(Source.HOST, Seen.PART, next(iter(host)))


def _of_roles(roles: Collection[str]) -> Source:
    """Return COLLECTIVES if one of these roles marks steps or waiting for others, else CALLS."""
    return Source.COLLECTIVES if MARKING & set(roles) else Source.CALLS
