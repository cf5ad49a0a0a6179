"""Record one window of observation, from an untouched host to a `Window`.

census → probes loaded, processes watched → (aligned start) → run → (end) → rows → one Window per job → census: what changed

All of this runs in a process that has given up its rights (apart/); this process writes the result.

Windows start at whole multiples of `align_s` of Unix time, so that hosts that start at about the
same time observe the same interval without communication. Jobs with all ranks on this host need not
wait for that.
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
from rankscope.observer.census.rules.alone import pids_alone
from rankscope.observer.live import limits, observation
from rankscope.observer.live.observation import Observation, Progress
from rankscope.observer.live.priority import giving_way
from rankscope.observer.live.shares import jobs_with_room, ranks_with_room
from rankscope.observer.window.jobs import matching, names
from rankscope.probes.base import rights
from rankscope.probes.base.clocks import Clocks, clock_notes, read_clocks
from rankscope.probes.base.errors import NoRanks, NotPermitted, UsageError

if TYPE_CHECKING:
    from rankscope.observer.window.folder import Window

# seconds beyond its windows; loading and reporting take much less: a slower process is ended
_BEYOND_S = 600.0
_FAR_S = (
    # an agreed start is some seconds off: one further off was computed by a clock that has been set
    # since
    60.0
)
_WARM_UP_S = 0.4  # threads must have left the CPU once before their absences are known
STANDING_BY = "standing by"


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """What to record. `out` None: the window stays in memory only.

    `begin_at`: Unix time of the start, in place of the next multiple of `align_s`; ignored if far
    in the future, and the start is then as soon as possible, as it is if past. `align_s` is ignored
    if no job has ranks on other hosts.
    """

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
    """One job's window, and the folder it was written to; None if it stays in memory only."""

    window: Window
    folder: Path | None


def record(options: RecordOptions, progress: Progress = lambda _: None) -> list[Recorded]:
    """Observe one window of this host; return one Window per job, written below `options.out` if
    given.

    Raises UsageError, NotPermitted, NoRanks, MissingFeature, OutputFailed.
    """
    _may_record(options)
    from rankscope.observer.window.folder import prepare_folder, write_window

    know_tables()
    if options.out is not None:
        prepare_folder(options.out)  # a full disk is better detected before the window than after it
    limits.set_process_limits(options.root)
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
    """Observe windows of this host for as long as `further_s` asks for more. Writes nothing.

    `further_s`: called with the windows of each interval, one per job; returns the seconds of the
    next, or None to stop. `most_s`: limit for all of them together. Probes are loaded once, and
    detached while `further_s` runs. Raises as `record`.
    """
    _may_record(options)
    know_tables()
    limits.set_process_limits(options.root)
    moment: list[Window] = []

    def orders(_: int) -> dict[str, object]:
        """Pass the windows of the last interval to `further_s`; return the next order, or {} to stop."""
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
    """Write notes on other observers of this host, and report them to `progress`."""
    said = [f"another observer runs on this host, and also slows down the jobs: {one.text()}" for one in others]
    for line in said:
        progress(line)
    return said


def _with_notes(window: Window, said: Sequence[str]) -> Window:
    """Return a copy of the window with the notes `said` appended to its manifest's."""
    return replace(window, manifest=replace(window.manifest, notes=(*window.manifest.notes, *said)))


def _may_record(options: RecordOptions) -> None:
    """Raise UsageError where window or rate are out of range, NotPermitted where this process is not root's."""
    if not 0.5 <= options.window_s <= 3600 or not 1 <= options.hz <= 1000:
        raise UsageError("the window must be 0.5 to 3600 seconds, the rate 1 to 1000 Hz")
    if os.geteuid() != 0:
        raise NotPermitted("observing other users' processes needs root")


def know_tables() -> None:
    """Import the modules that make tables, before rights are given up.

    A standby observer imports them only when it has a window: that saves 25 MB, twice.
    """
    importlib.import_module("rankscope.observer.finish.windows")


def follow(options: RecordOptions, most_s: float, take: Callable[[Sequence[Window]], None], progress: Progress) -> None:
    """Observe interval after interval with probes loaded once; call `take` with the windows of
    each, one per job.

    Returns after `most_s`, or when the ranks are gone; call it again to find new ranks. Raises as
    `record`.
    """
    _may_record(options)
    know_tables()
    limits.set_process_limits(options.root)
    with present(progress) as others:
        _of_others(others, progress)
        longest_s = most_s + options.window_s + _BEYOND_S
        work = partial(observe_on, options, most_s)
        each_moment(work, take, progress, options.root, longest_s=longest_s, verbose=options.verbose)


@dataclass(frozen=True, slots=True)
class Order:
    """A window requested from a standby observer, of so many seconds: at once, or from `begin_at`
    on.

    `last`: no other will follow.
    """

    seconds: float
    begin_at: float | None = None
    last: bool = True


def stand_by(
    options: RecordOptions, orders: Callable[[int], Order], take: Callable[[Window], None], progress: Progress
) -> None:
    """Prepare to observe, and begin each window as soon as it is ordered; meanwhile the ranks pay
    nothing.

    Probes are loaded and everything is looked up, but nothing is attached. `orders`: called with
    the observer's pid, waits for the next order.
    `take`: called with each window, one per job. Ranks that start later are not seen. Returns after
    the last order. Raises as `record`.
    """
    _may_record(options)
    limits.set_process_limits(options.root)
    each_window(
        partial(_as_ordered, options, False), take, progress, options.root, orders=lambda pid: asdict(orders(pid)), longest_s=math.inf,
        verbose=options.verbose,
    )  # fmt: skip


def _as_ordered(options: RecordOptions, begin: bool, progress: Progress) -> Iterator[Window]:
    """Yield the ordered windows until an order is empty or the last.

    `begin`: observe one window before the first order.
    """
    asked = rights.delegate()
    assert asked is not None
    here, ranks, options = _find_to_begin(options)
    running = _begin(ranks, options, progress)
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
    """Yield the windows of `follow`, interval after interval. Raises NoRanks, MissingFeature."""
    running = _begin(choose(_find(options), options), options, progress)
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
    """Observe one window from now on; return one per job.

    `clocks`: read when it was planned; `begun`: progress message at its begin; `goes_on`: probes stay
    attached, as another window follows.
    """
    before = running.begin_window(options.window_s, options.hz)
    begin = read_clocks()
    if begun:
        progress(begun)
    loading = threading.Thread(target=know_tables)  # a no-op unless this was a standby observer
    loading.start()
    running.run_until(begin.monotonic_ns / 1e9 + options.window_s, progress)
    of_clocks = clock_notes(clocks, read_clocks())
    running.notes += of_clocks
    loading.join()
    from rankscope.observer.finish.last import read_last
    from rankscope.observer.finish.windows import windows_from

    last = read_last(running, before, begin.monotonic_ns, options.hz)
    if not goes_on:
        running.probes.rest()  # ranks pay for no probe while rows are made
    with giving_way():
        made = windows_from(running, before, last, begin.realtime_ns / 1e9)
    for note in of_clocks:  # of this window alone
        running.notes.remove(note)
    return made


def observe(options: RecordOptions, progress: Progress) -> list[Window]:
    """Observe one window; return one per job. Raises NoRanks, MissingFeature."""
    here, ranks, options = _find_to_begin(options)
    running = _begin(ranks, options, progress)
    try:
        windows = _planned(running, options, progress)
    finally:
        running.close()
    return _with_changes(windows, here, options.root)


def _find(options: RecordOptions) -> RankCensus:
    """Take the census of the host. Processes that are named are ranks whatever they do."""
    return find_ranks(options.root, options.pids, seeks_alone=not options.pids)


def _find_to_begin(options: RecordOptions) -> tuple[RankCensus, tuple[FoundRank, ...], RecordOptions]:
    """Take the census and select the requested ranks; return both, and the options.

    If all ranks of their jobs are on this host, no other host has to start at the same time: `align_s`
    of the returned options is 0.
    """
    here = _find(options)
    ranks = choose(here, options)
    alone = here.has_all_of({rank.identity.job for rank in ranks})
    return here, ranks, replace(options, align_s=0.0) if alone else options


def _begin(ranks: Sequence[FoundRank], options: RecordOptions, progress: Progress) -> Observation:
    """Load the probes and watch these ranks, or as many jobs and ranks as there is room for; note the others."""
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
    """Take another census; add notes on jobs and ranks that came since the census `here`, and rows of missing ranks."""
    from rankscope.observer.finish.changes import with_changes
    from rankscope.observer.finish.gone import with_gone

    # What works alone is sought at the begin only: whether it is busy at the end is no news.
    after = find_ranks(root, tuple(pids_alone((rank.pid, rank.launcher) for rank in here.ranks)), seeks_alone=False)
    return with_gone(with_changes(windows, here, after), here, after)


def _at_once(running: Observation, options: RecordOptions, progress: Progress) -> list[Window]:
    """Start now; exclude each thread's time before its first context switch."""
    # Reported once it has begun: the receiver then imports what judges, and answers nothing
    # meanwhile.
    return _window(running, options, progress, read_clocks(), f"observing {options.window_s:g} s from now")


def _planned(running: Observation, options: RecordOptions, progress: Progress) -> list[Window]:
    """Wait for the start that `options` set, then observe one window; return one per job."""
    clocks = read_clocks()
    start = _start(options, clocks.realtime_ns / 1e9 + _WARM_UP_S)
    progress(f"observing {options.window_s:g} s from {time.strftime('%H:%M:%S', time.localtime(start))}")
    running.wait_until((clocks.monotonic_ns - clocks.realtime_ns) / 1e9 + start)
    return _window(running, options, progress, clocks)


def choose(census: RankCensus, options: RecordOptions) -> tuple[FoundRank, ...]:
    """Select the requested ranks. Raises NoRanks, with the nearest misses, where there are none."""
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
    """Explain why the process `pid` is none of the requested ranks."""
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
    return "it is no Python program, and nothing says which rank it is"


def _start(options: RecordOptions, soonest: float) -> float:
    """Compute when the window begins, Unix s; `soonest`: the earliest possible.

    At `begin_at` if given (at once where that is past or far in the future), else at a multiple of
    `align_s`; 0: at once.
    """
    if options.begin_at is not None:
        return max(options.begin_at, soonest) if options.begin_at - soonest < _FAR_S else soonest
    return soonest if options.align_s <= 0 else -(-soonest // options.align_s) * options.align_s
