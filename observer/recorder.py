"""One window of observation, from an untouched host to a `Window`.

  census → probes loaded, processes watched → (aligned start) → run → (end) → rows → one Window per job → census: what changed

All of this runs in a process that has given its rights up (apart/); what it makes is written by this one.

Windows start at whole multiples of `align_s` of Unix time, so that hosts that are asked at about the same moment observe
the same interval without talking to each other.
"""

from __future__ import annotations

import importlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rankscope.observer.apart.presence import Observer, present
from rankscope.observer.apart.windows import each_moment, each_window, windows_of
from rankscope.observer.census.found import FoundRank, RankCensus
from rankscope.observer.census.ranks import find_ranks
from rankscope.observer.live import limits, observation
from rankscope.observer.live.observation import Observation, Progress
from rankscope.observer.live.priority import giving_way
from rankscope.observer.live.shares import jobs_with_room, ranks_with_room
from rankscope.observer.window.jobs import matching, names
from rankscope.probes import rights
from rankscope.probes.errors import NoRanks, NotPermitted, UsageError
from rankscope.probes.host.clocks import Clocks, clock_notes, read_clocks

if TYPE_CHECKING:
    from rankscope.observer.window.folder import Window

_BEYOND_S = 600.0  # of its windows, loading and telling last much less: who takes longer is ended
_FAR_S = (
    60.0  # a moment that is agreed on is some seconds off: one that is further was meant by a clock that was set since
)
_WARM_UP_S = 0.4  # threads must have left the CPU once before their absences are known
STANDING_BY = "standing by"


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """What to record. `out` None: keep the window in memory only. `begin_at`: Unix time, in place of the next multiple of `align_s`; the
    soonest moment where it is over, or further off than anybody agrees on."""

    window_s: float = 20.0
    out: Path | None = None
    hz: int = 99
    pids: tuple[int, ...] = ()
    job: str | None = None
    align_s: float = 5.0
    begin_at: float | None = None
    root: Path = Path("/")
    verbose: bool = False


@dataclass(frozen=True, slots=True)
class Recorded:
    """One job's window, and the folder it was written to; None where it was kept in memory only."""

    window: Window
    folder: Path | None


def record(options: RecordOptions, progress: Progress = lambda _: None) -> list[Recorded]:
    """Observe one window of this host; one Window for each job. Written below `options.out` when that is given.

    Raises UsageError, NotPermitted, NoRanks, MissingFeature, OutputFailed.
    """
    _may_record(options)
    from rankscope.observer.window.folder import prepare_place, write_window

    know_tables()
    if options.out is not None:
        prepare_place(options.out)  # a full disk is better known before the window than after it
    limits.take_place(options.root)
    with present(progress) as others:
        said = _of_others(others, progress)
        windows = windows_of(partial(observe, options), progress, options.root, verbose=options.verbose)
    windows = [_with_notes(window, said) for window in windows]
    if options.out is None:
        return [Recorded(window, None) for window in windows]
    return [Recorded(window, write_window(window, options.out)) for window in windows]


def record_on(
    options: RecordOptions, further_s: Callable[[list[Window]], float | None], most_s: float, progress: Progress
) -> None:
    """Observe one window of this host, and further ones for as long as they are asked for: `further_s` gets the windows of a moment, one
    for each job, and says how many seconds the next one is to last; None: it is enough. `most_s`: of all of them together.

    Probes are loaded once, and nothing is attached while `further_s` thinks. Nothing is written. Raises what `record` raises.
    """
    _may_record(options)
    know_tables()
    limits.take_place(options.root)
    moment: list[Window] = []

    def orders(_: int) -> dict[str, object]:
        windows = [_with_notes(window, said) for window in moment]
        moment.clear()
        seconds = further_s(windows)
        return {} if seconds is None else asdict(Order(seconds, last=False))

    with present(progress) as others:
        said = _of_others(others, progress)
        each_window(
            partial(_as_ordered, options, True), moment.append, progress, options.root, orders=orders,
            longest_s=most_s + _BEYOND_S, verbose=options.verbose,
        )  # fmt: skip


def _of_others(others: Iterable[Observer], progress: Progress) -> list[str]:
    """What to tell of the other observers of this host; it is told."""
    said = [f"another observer is at work on this host, and costs the jobs as well: {one.text()}" for one in others]
    for line in said:
        progress(line)
    return said


def _with_notes(window: Window, said: Sequence[str]) -> Window:
    return replace(window, manifest=replace(window.manifest, notes=(*window.manifest.notes, *said)))


def _may_record(options: RecordOptions) -> None:
    if not 0.5 <= options.window_s <= 3600 or not 1 <= options.hz <= 1000:
        raise UsageError("the window must be 0.5 to 3600 seconds, the rate 1 to 1000 Hz")
    if os.geteuid() != 0:
        raise NotPermitted("observing other users' processes needs root")


def know_tables() -> None:
    """Read what makes tables, before rights are given up. Who stands by does without until it has a window: that is 25 MB less, twice."""
    importlib.import_module("rankscope.observer.finish.windows")


def follow(options: RecordOptions, most_s: float, take: Callable[[Sequence[Window]], None], progress: Progress) -> None:
    """Observe moment after moment with probes that are loaded once; `take` gets the windows of each, one for a job. Returns after
    `most_s`, or when the ranks are gone: who goes on calls it again, and meets the ranks that are new. Raises what `record` raises."""
    _may_record(options)
    know_tables()
    limits.take_place(options.root)
    with present(progress) as others:
        _of_others(others, progress)
        longest_s = most_s + options.window_s + _BEYOND_S
        work = partial(observe_on, options, most_s)
        each_moment(work, take, progress, options.root, longest_s=longest_s, verbose=options.verbose)


@dataclass(frozen=True, slots=True)
class Order:
    """A window that is wanted of who stands by, for so many seconds: at once, or from `begin_at` on. `last`: no other will be."""

    seconds: float
    begin_at: float | None = None
    last: bool = True


def stand_by(
    options: RecordOptions, orders: Callable[[int], Order], take: Callable[[Window], None], progress: Progress
) -> None:
    """Prepare to observe, and begin a window as soon as one is ordered: probes are loaded, found and named what is needed, and nothing
    is attached, so that it costs the ranks nothing. `orders` gets the pid of who observes, and waits for the next one; `take` gets the
    windows of each, one for a job. Ranks that come later are not seen. Returns after the last one. Raises what `record` raises."""
    _may_record(options)
    limits.take_place(options.root)
    each_window(
        partial(_as_ordered, options, False), take, progress, options.root, orders=lambda pid: asdict(orders(pid)), longest_s=math.inf,
        verbose=options.verbose,
    )  # fmt: skip


def _as_ordered(options: RecordOptions, begin: bool, progress: Progress) -> Iterator[Window]:
    """The windows that are ordered, until an order is empty or the last. `begin`: one before anybody has ordered any."""
    asked = rights.elsewhere()
    assert asked is not None
    here = find_ranks(options.root)
    running = _begin(choose(here, options), options, progress)
    try:
        if begin:
            yield from _with_changes(_planned(running, options, progress), here, options.root)
        while True:
            running.rest()
            if not begin:
                progress(STANDING_BY)
            ordered = asked.ask("order")[0]
            if not ordered:
                return
            order = Order(**ordered)
            running.wake()
            now = replace(options, window_s=order.seconds, begin_at=order.begin_at)
            windows = _at_once(running, now, progress) if order.begin_at is None else _planned(running, now, progress)
            yield from _with_changes(windows, here, options.root)
            if order.last:
                return
    finally:
        running.close()


def observe_on(options: RecordOptions, most_s: float, progress: Progress) -> Iterator[Sequence[Window]]:
    """The windows of `follow`, moment after moment. NoRanks, MissingFeature."""
    running = _begin(choose(find_ranks(options.root), options), options, progress)
    ends = time.monotonic() + most_s
    try:
        running.wait_until(time.monotonic() + _WARM_UP_S)
        while True:
            yield _window(running, options, progress, read_clocks(), goes_on=True)
            if time.monotonic() >= ends or all(running.processes[rank.pid].gone for rank in running.ranks):
                return
            running.renew()
    finally:
        running.close()


def _window(
    running: Observation,
    options: RecordOptions,
    progress: Progress,
    clocks: Clocks,
    begun: str = "",
    goes_on: bool = False,
) -> list[Window]:
    """Observe from now on for as long as a window is. `clocks`: as they were when it was planned; `begun`: what to say as it begins;
    `goes_on`: probes stay attached, as another window follows."""
    before = running.begin_window(options.window_s, options.hz)
    begin = read_clocks()
    if begun:
        progress(begun)
    loading = threading.Thread(target=know_tables)  # who did not stand by knows them
    loading.start()
    running.run_until(begin.monotonic_ns / 1e9 + options.window_s, progress)
    running.notes += clock_notes(clocks, read_clocks())
    loading.join()
    from rankscope.observer.finish.last import read_last
    from rankscope.observer.finish.windows import windows_from

    last = read_last(running, before, begin.monotonic_ns, options.hz)
    if not goes_on:
        running.probes.rest()  # ranks pay for no probe while rows are made
    with giving_way():
        return windows_from(running, before, last, begin.realtime_ns / 1e9)


def observe(options: RecordOptions, progress: Progress) -> list[Window]:
    """The windows, one for each job. NoRanks, MissingFeature."""
    here = find_ranks(options.root)
    running = _begin(choose(here, options), options, progress)
    try:
        windows = _planned(running, options, progress)
    finally:
        running.close()
    return _with_changes(windows, here, options.root)


def _begin(ranks: Sequence[FoundRank], options: RecordOptions, progress: Progress) -> Observation:
    ranks, jobs_left_out = jobs_with_room(ranks)
    ranks, ranks_left_out = ranks_with_room(ranks)
    progress(f"{len(ranks)} ranks found; loading kernel probes")
    running = observation.begin(ranks, hz=options.hz, root=options.root, verbose=options.verbose)
    running.notes += filter(None, [jobs_left_out, ranks_left_out])
    try:
        for remark in running.probes.remarks:
            progress(remark)
    except BaseException:
        running.close()
        raise
    return running


def _with_changes(windows: list[Window], here: RankCensus, root: Path) -> list[Window]:
    from rankscope.observer.finish.changes import with_changes
    from rankscope.observer.finish.gone import with_gone

    after = find_ranks(root)
    return with_gone(with_changes(windows, here, after), here, after)


def _at_once(running: Observation, options: RecordOptions, progress: Progress) -> list[Window]:
    """The windows from now on. Threads leave the CPU while counters are read; what is not known of their first moments is left out."""
    # Told when it has begun: whoever hears it reads what judges, and answers nobody meanwhile.
    return _window(running, options, progress, read_clocks(), f"observing {options.window_s:g} s from now")


def _planned(running: Observation, options: RecordOptions, progress: Progress) -> list[Window]:
    """The windows of when `options` say."""
    clocks = read_clocks()
    start = _start(options, clocks.realtime_ns / 1e9 + _WARM_UP_S)
    progress(f"observing {options.window_s:g} s from {time.strftime('%H:%M:%S', time.localtime(start))}")
    running.wait_until((clocks.monotonic_ns - clocks.realtime_ns) / 1e9 + start)
    return _window(running, options, progress, clocks)


def choose(census: RankCensus, options: RecordOptions) -> tuple[FoundRank, ...]:
    """The ranks that were asked for. NoRanks, with the nearest misses, where there are none."""
    titles = {rank.identity.job: rank.identity.title for rank in census.ranks}
    meant = titles if options.job is None else matching(options.job, titles)
    ranks = tuple(
        rank for rank in census.ranks if (not options.pids or rank.pid in options.pids) and rank.identity.job in meant
    )
    if ranks:
        return ranks
    for pid in options.pids:
        raise NoRanks(f"pid {pid} is not a rank: {_why_not(pid, census, options.root)}")
    if census.ranks:
        jobs = ", ".join(sorted(names(titles).values()))
        raise NoRanks(f"no rank here belongs to the job {options.job}; there are: {jobs}")
    near = "; ".join(f"pid {rejected.pid} ({rejected.comm}): {rejected.reason}" for rejected in census.rejected[:3])
    raise NoRanks("no training process found on this host" + (f" ({near})" if near else ""))


def _why_not(pid: int, census: RankCensus, root: Path) -> str:
    for rejected in census.rejected:
        if rejected.pid == pid:
            return rejected.reason
    for rank in census.ranks:
        if pid == rank.pid:
            return f"it belongs to another job, {rank.identity.job}"
        if any(worker.pid == pid for worker in rank.workers):
            return f"it is a worker of rank {rank.identity.rank} (pid {rank.pid})"
    if not (root / "proc" / str(pid)).exists():
        return "there is no such process"
    return "it has no training library mapped, or nothing says which rank it is"


def _start(options: RecordOptions, soonest: float) -> float:
    """When the window begins, Unix time."""
    if options.begin_at is not None:
        return max(options.begin_at, soonest) if options.begin_at - soonest < _FAR_S else soonest
    return soonest if options.align_s <= 0 else -(-soonest // options.align_s) * options.align_s
