"""The ledgers of all jobs of a host: fed by the service once a beat, stored, and asked for windows to record.

A job that ends in any other way than by itself and is there again within `RESTART_S`, of the same
user, script and size, goes on in the same ledger; also under another name, as torchrun makes an id
for each run, if arguments and folder are the same. After a restart of the service a ledger goes on
if one of its processes still runs, or as if the job had been restarted.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from rankscope.diagnose import limits
from rankscope.diagnose.service.alarms import Alarm, AlarmKind, JobWatch, Relief
from rankscope.diagnose.service.ledger import whose
from rankscope.diagnose.service.ledger.account import Account
from rankscope.diagnose.service.ledger.as_json import TEXT_MOST
from rankscope.diagnose.service.ledger.entry import UNKNOWN, Kind, Ledger, Whose
from rankscope.diagnose.service.ledger.naming import NAME_MOST
from rankscope.diagnose.service.ledger.pace import LongSteps
from rankscope.diagnose.service.ledger.plan import Plan
from rankscope.diagnose.service.ledger.store import FILES, Store
from rankscope.diagnose.service.looks.look import Seen
from rankscope.diagnose.text import clean
from rankscope.observer.census.found import FoundRank
from rankscope.observer.watch.marker import StepMarker
from rankscope.observer.watch.ranks import Death, RankPulse
from rankscope.observer.watch.shares import user_of
from rankscope.observer.watch.tier0 import Beat
from rankscope.probes.base.errors import RankscopeError

RESTART_S = 3600.0
SAVE_S = 30.0
FINISHED = "finished"
_BEFORE_S = 5.0  # a process that is older than the service by less began beside it
_PROCESSES = 16  # stored of a run
# Pauses a minute whose ranks are looked for, each 20 µs per rank: at least so many of any job, and
# more of a small one, up to 0.008 % of a core per rank.
_WHOSE_LEAST, _WHOSE_RANKS = 20, 2000


@dataclass(slots=True)
class _Live:
    """A job with ranks here. `pace`: pid of the rank whose steps count; `marker`: what ends them."""

    account: Account
    plan: Plan = field(default_factory=Plan)
    pids: set[int] = field(default_factory=set)
    died: list[Death] = field(default_factory=list)
    pace: int = -1
    marker: StepMarker | None = None
    saved_s: float = float("-inf")
    _minute: tuple[int, int] = (0, 0)

    def find_whose(self, ranks: Sequence[RankPulse], pause: LongSteps) -> Whose:
        """Find the ranks that work in a pause; UNKNOWN beyond a number of searches per minute, as they cost CPU time."""
        minute, count = self._minute
        now = int(pause.end_s // 60)
        self._minute = now, count + 1 if now == minute else 1
        if self._minute[1] > max(_WHOSE_LEAST, _WHOSE_RANKS // max(len(self.pids), 1)):
            return UNKNOWN
        return whose.find([one for one in ranks if one.found.pid in self.pids], pause)


@dataclass(slots=True)
class Book:
    """All ledgers of this host. `began_s`: when the service began, CLOCK_MONOTONIC; `store`: None to store nothing."""

    store: Store | None
    began_s: float
    _live: dict[str, _Live] = field(default_factory=dict)
    _past: dict[tuple[str, str], Ledger] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.store is not None:
            with suppress(OSError, RankscopeError):  # reported when one is written
                for ledger in reversed(self.store.read()):
                    self._past[ledger.user, ledger.job] = ledger

    # ---- jobs come and go --------------------------------------------------------------------------------------------

    def come(self, name: str, user: str, ranks: Sequence[FoundRank], now_s: float) -> None:
        """Add new ranks of the job `name`, without those of other users than `user`.

        Begins the job's account, continues its stored one, or begins another run if ranks of it had ended.
        """
        ranks = [one for one in ranks if user_of(one) == user]
        if not ranks:
            return
        apart_s = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
        starts_s = [min(one.start_s - apart_s, now_s) for one in ranks]
        live = self._live.get(name)
        if live is None:
            self._live[name] = live = _Live(self._account(name, user, ranks, min(starts_s), now_s))
        elif live.died and max(starts_s) >= min(one.at_s for one in live.died) - 1.0:
            how, at_s = _end_of(live.died, now_s)
            if not live.account.ledger.ended:
                live.account.end(min(at_s, now_s), how)
            live.account.again(min(starts_s), how)
            live.died.clear()
            live.pids.clear()
        live.pids.update(one.pid for one in ranks)
        known = live.account.ledger
        processes = tuple(dict.fromkeys((*((one.pid, one.start_ticks) for one in ranks), *known.processes)))[
            :_PROCESSES
        ]
        here = max(known.here, len(live.pids))
        live.account.ledger = replace(known, here=here, processes=processes)

    def _account(self, name: str, user: str, ranks: Sequence[FoundRank], started_s: float, now_s: float) -> Account:
        """Return the account of a job that is new here: its stored ledger continued, or a new one.

        `started_s`: start of its first process, CLOCK_MONOTONIC.
        """
        unix = time.time() - time.monotonic()
        first = ranks[0]
        ledger = Ledger(
            clean(name, TEXT_MOST), clean(user, TEXT_MOST), clean(first.identity.title, TEXT_MOST), max(first.identity.world_size, 1),
            len(ranks), any(map(_has_gpu, ranks)), float(math.floor(unix + started_s)), unix + now_s, run=first.identity.run,
        )  # fmt: skip
        past = self._past.pop((ledger.user, ledger.job), None) or self._run_before(ledger)
        if past is not None and (gone_on := self._goes_on(past, ledger, ranks, unix, started_s, now_s)) is not None:
            if past.job != ledger.job:
                self._rename(gone_on, past, ledger)
            return gone_on
        account = Account(ledger, unix, ledger.began - unix)
        if started_s < self.began_s - _BEFORE_S:
            account.not_seen(now_s, "before the service began")
            account.starting = False
        return account

    def _run_before(self, ledger: Ledger) -> Ledger | None:
        """Return the latest ledger of another run of this job, which has ended but not finished; None if there is none.

        `ledger`: the one that would begin.
        """
        runs = [
            one
            for one in self._past.values()
            if ledger.run and (one.user, one.run) == (ledger.user, ledger.run) and one.ended not in ("", FINISHED)
        ]
        return max(runs, key=lambda one: one.until, default=None)

    def _rename(self, account: Account, past: Ledger, new: Ledger) -> None:
        """Let the ledger `past` go on under the job's new name, and delete what was stored under the old one."""
        account.ledger = replace(account.ledger, job=new.job)
        self._past.pop((past.user, past.job), None)
        if self.store is not None:
            with suppress(OSError, RankscopeError):  # reported when one is written
                self.store.forget(past)

    def _goes_on(
        self, past: Ledger, new: Ledger, ranks: Sequence[FoundRank], unix: float, started_s: float, now_s: float
    ) -> Account | None:
        """Return an account that continues the stored ledger `past`; None if it is another job's, finished or too old.

        It continues if one of its processes still runs, or as another run if title and size are equal. `new`: the
        ledger that would begin; `unix`: Unix time at zero of CLOCK_MONOTONIC.
        """
        same = {(one.pid, one.start_ticks) for one in ranks} & set(past.processes)
        alike = (past.title, past.world) == (new.title, new.world)
        away_s = unix + started_s - past.until
        if not same and (past.ended == FINISHED or not alike or not -RESTART_S <= away_s <= RESTART_S):
            return None
        if past.until > unix + now_s:  # the clock was set back since
            past = replace(past, until=unix + now_s)
        account = Account.of(past, unix)
        if same:
            account.ledger = replace(account.ledger, ended="")
            account.not_seen(now_s, "the service did not run")
        else:
            if not past.ended:
                account.not_seen(started_s, "the service did not run")
            account.again(started_s, past.ended or "nobody saw how it ended")
        return account

    def gone(self, name: str, now_s: float) -> None:
        """End the ledger of a job without ranks here, and store it. Raises OSError, OutputFailed."""
        live = self._live.pop(name, None)
        if live is None:
            return
        how, at_s = _end_of(live.died, now_s)
        live.account.end(min(at_s, now_s), how)
        ledger = live.account.snapshot(now_s)
        self._past[ledger.user, ledger.job] = ledger
        while len(self._past) > FILES:
            del self._past[next(iter(self._past))]
        if self.store is not None:
            self.store.write(ledger)

    def died(self, deaths: Sequence[Death]) -> None:
        """Take note of ranks that ended. Call before `come` and `take` of the same beat."""
        for death in deaths:
            live = self._live.get(death.job)
            if live is not None and death.pid in live.pids:
                live.died.append(death)

    # ---- a beat ------------------------------------------------------------------------------------------------------

    def take(
        self, name: str, ranks: Sequence[RankPulse], beat: Beat, told: Sequence[Alarm | Relief], watch: JobWatch,
        written_hz: float,
    ) -> None:  # fmt: skip
        """Account for one beat of a job; do nothing if it is unknown.

        `told`: its alarms and reliefs in this beat; `watch`: for the step time before and after a slowdown;
        `written_hz`: bytes per second of the rank that writes most.
        """
        live = self._live.get(name)
        if live is None:
            return
        account = live.account
        shifted = watch.detector.shifted
        for each in told:
            if isinstance(each, Alarm):
                account.raised(each, None if shifted is None else (shifted.before, shifted.after))
        account.wrote |= written_hz >= limits.BYTES_LEAST
        steps = beat.steps.get(self._pace(live, ranks))
        if steps is not None:
            marker = next((one.marker for one in ranks if one.found.pid == live.pace), None)
            if marker != live.marker and live.marker is not None:
                account.other_steps()
            live.marker = marker
            account.take(steps, lambda pause: live.find_whose(ranks, pause))
        for each in told:
            if isinstance(each, Relief):
                account.relieved(each)
        account.decide(beat.at_s)

    def _pace(self, live: _Live, ranks: Sequence[RankPulse]) -> int:
        """Return the pid of the rank whose steps count: the last choice while timed, else the first; -1 if none."""
        first = -1
        for one in ranks:
            if one.marker is not None and one.found.pid in live.pids:
                if one.found.pid == live.pace:
                    return live.pace
                first = one.found.pid if first < 0 else first
        live.pace = first
        return first

    def save(self, now_s: float) -> None:
        """Store the ledger that was stored longest ago, if that is `SAVE_S` ago. Raises OSError, OutputFailed."""
        if self.store is None or not self._live:
            return
        live = min(self._live.values(), key=lambda one: one.saved_s)
        if now_s - live.saved_s >= SAVE_S:
            live.saved_s = now_s
            self.store.write(live.account.snapshot(now_s))

    def close(self, now_s: float) -> None:
        """Store the ledgers of all jobs with ranks here, as the service ends. Raises OSError, OutputFailed."""
        for live in self._live.values():
            if self.store is not None:
                self.store.write(live.account.snapshot(now_s))

    def snapshot(self, name: str, now_s: float) -> Ledger | None:
        """Return the ledger of a job as of `now_s` (CLOCK_MONOTONIC); None if the job has no ranks here."""
        live = self._live.get(name)
        return None if live is None else live.account.snapshot(now_s)

    def seconds(self, name: str, now_s: float) -> dict[str, tuple[float, int]]:
        """Return by kind the seconds of a job and the number of events, for the metrics; {} if it has no ranks here."""
        ledger = self.snapshot(name, now_s)
        if ledger is None:
            return {}
        counts = Counter[Kind]()
        for entry in ledger.entries:
            counts[entry.kind] += entry.count
        counts[Kind.PRODUCTIVE] = ledger.steps
        return {kind.value: (spent_s, counts[kind]) for kind, spent_s in ledger.seconds().items()}

    # ---- windows -----------------------------------------------------------------------------------------------------

    def due(self, name: str, now_s: float) -> Alarm | None:
        """Return an alarm that requests a window for a recurring pause, if one is due now; None if not."""
        live = self._live.get(name)
        return None if live is None else live.plan.due(name, live.account, now_s)

    def begun(self, alarm: Alarm) -> None:
        """Count the window that `due` requested by this alarm, as it has begun."""
        live = self._live.get(alarm.job)
        if live is not None:
            live.plan.begun(live.account)

    def learnt(self, seen: Seen) -> str:
        """Use a window's verdict and pauses; return what a window for a recurring pause found, '' for any other window."""
        live = self._live.get(seen.alarm.job)
        if live is None:
            return ""
        if seen.verdict is not None:
            status, words, who = _named(seen.verdict)
            live.account.judged(seen.alarm, status, words, who)
        named = live.account.named(seen.pauses) if seen.pauses else False
        if seen.alarm.kind is not AlarmKind.PAUSE:
            return ""
        if not named:
            return f"looked at a pause that recurs, and it did not come{f' ({seen.trouble})' if seen.trouble else ''}"
        most = max(seen.pauses, key=lambda one: (not one.waits, one.seconds))
        return f"a pause that recurs: {most.what} on rank {most.rank}, {most.seconds:.2f} s"


def _has_gpu(rank: FoundRank) -> bool:
    """Tell whether a rank uses a GPU: it has loaded CUDA, or PyTorch's part for it on a host with a GPU driver."""
    driver = any(Path(path).exists() for path in ("/proc/driver/nvidia", "/dev/kfd"))
    return bool(rank.libraries.cuda) or (driver and bool(rank.libraries.torch_cuda))


def _named(verdict: dict[str, object]) -> tuple[str, str, tuple[int, ...]]:
    """Return status, first suspect in words and its ranks of a verdict's JSON; '' and () without suspects."""
    suspects = verdict.get("suspects")
    status = str(verdict.get("status", ""))
    if not isinstance(suspects, list) or not suspects:
        return status, "", ()
    first = suspects[0]
    function = first.get("function")
    words = f"{first['component']}/{first['cause']}"
    if function:
        words += f" {function['name']} ({function['file'].rpartition('/')[2]}:{function['line']})"
    return status, clean(words, NAME_MOST), tuple(first["ranks"])


def _end_of(died: Sequence[Death], now_s: float) -> tuple[str, float]:
    """Return how a run ended, in words, and when its last rank did; `now_s` without any death."""
    if not died:
        return "nobody saw how it ended", now_s
    at_s = max(one.at_s for one in died)
    failed = [one for one in died if one.failed]
    if failed:
        first = min(failed, key=lambda one: one.at_s)
        return f"rank {first.rank} {first.words}", at_s
    if all(one.status == 0 for one in died):
        return FINISHED, at_s
    return "it was told to end", at_s
