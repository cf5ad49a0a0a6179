"""Send this host's window of an agreed interval to the store; on the judging host, judge the windows of all hosts.

Runs in the child process of a look (looks/look.py), so it may block.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rankscope.diagnose.infer.fleet.large import engines
from rankscope.diagnose.infer.fleet.sources import Source, Sources, load_found
from rankscope.diagnose.infer.past.history import History
from rankscope.diagnose.infer.solve import judge
from rankscope.diagnose.infer.solve.large_fleet import diagnose_large, is_large
from rankscope.diagnose.infer.verdict.as_json import to_json
from rankscope.diagnose.infer.verdict.contract import Verdict
from rankscope.diagnose.infer.verdict.note import Note, NoteCode
from rankscope.diagnose.service.hosts.board import VERDICT, Board
from rankscope.diagnose.service.hosts.share import Share, judged_as_json
from rankscope.diagnose.service.tell import drain
from rankscope.diagnose.text import clean
from rankscope.observer.window.folder import Window, write_window
from rankscope.observer.window.store.keys import label_of
from rankscope.observer.window.store.spool import SPREAD_S, Spool
from rankscope.observer.window.store.users import by_user
from rankscope.probes.base.errors import BadData, OutputFailed, RankscopeError
from rankscope.probes.base.scratch import scratch

_TAKES_HZ = 1000.0  # objects per second that any store accepts, and names that it lists


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a look with other hosts.

    `verdict`: JSON of schema rankscope.verdict/1; None where another host judges, or `trouble` gives the
    reason. `kept`: the window's name in the history, '' if not stored. `broken`: where another host judges,
    reasons to drain this one by its own window.
    """

    verdict: dict[str, Any] | None
    trouble: str = ""
    kept: str = ""
    broken: tuple[str, ...] = ()


def judge_with_others(share: Share, history: Path, mine: Window | None, ended_s: float | None = None) -> Outcome:
    """Send this host's window, if any; judge if this host is the judge, else find its own reasons to drain it.

    `history`: gets the judge's window; it is compared with only if the store shows no window. `ended_s`: when
    the windows of all hosts ended, CLOCK_MONOTONIC; None: by the clock. Raises RankscopeError.
    """
    trouble = _send(mine, share) if mine is not None else ""
    if not share.judges:
        return Outcome(None, trouble, broken=broken_by(mine, share.trigger.job) if mine is not None else ())
    return judge_all(share, history, mine, trouble, ended_s)


def judge_all(
    share: Share, history: Path, mine: Window | None = None, trouble: str = "", ended_s: float | None = None
) -> Outcome:
    """Judge the windows of all hosts and put the verdict into the store; another host's that is there already remains.

    `mine`: this host's window, judged alone if the store shows none, and added to the history. `trouble`: why
    sending it failed; `ended_s`: as for `judge_with_others`.
    """
    board, trigger = Board(share.uri), share.trigger
    found = _gathered(board, share, ended_s)
    if found.chosen:
        verdict = replace(_judged(found, share, mine), job=trigger.job)
    elif mine is not None:  # the store is unreachable: judge this host's window alone
        verdict = judge.diagnose([mine], (), trigger.job, History(history))
    else:
        return Outcome(None, trouble or "no window of it lies in the store")
    said = json.loads(to_json(verdict))
    kept = ""
    if mine is not None:
        try:
            kept = History(history).add(mine, verdict).name
        except RankscopeError as error:
            trouble = trouble or str(error)
    try:
        there = board.put(
            VERDICT, share.job, trigger.start, judged_as_json(share.host, {**said, "job": clean(share.job)})
        )
        if there is not None and there.get("host") != share.host:
            trouble = trouble or f"{there.get('host')} judged it as well, and before"
    except RankscopeError as error:
        trouble = trouble or str(error)
    return Outcome(said, trouble, kept)


def broken_by(mine: Window, job: str) -> tuple[str, ...]:
    """List reasons to drain this host by its own window, each once; () if it cannot be judged.

    Other hosts' verdicts are no sufficient reason: anyone who can write to the store could have hosts drained.
    """
    try:
        found = json.loads(to_json(judge.diagnose([mine], (), job)))
    except Exception:  # whatever fails here, the verdict of all hosts is still to come
        return ()
    reasons = (drain.of_verdict({**found, "suspects": [each]})[1] for each in found["suspects"])
    return tuple(dict.fromkeys(reason for reason in reasons if reason))


def _send(window: Window, share: Share) -> str:
    """Send a window to the store through the spool; return why that failed, '' if it did not."""
    try:
        spool = Spool(share.spool, share.uri)
        key = spool.add(window)
        # All hosts end at one time: if they are many, they wait randomly so as not to collide; two
        # do not.
        spread_s = min(share.hosts / _TAKES_HZ, SPREAD_S)
        done = spool.deliver(share.pace.gather_s / 2, spread_s=spread_s)
        return "" if key in done.sent else done.trouble
    except RankscopeError as error:
        return str(error)


def _gathered(board: Board, share: Share, ended_s: float | None = None) -> Sources:
    """Wait until the windows of all hosts are in the store, or until it is late, and list them.

    Only names are listed meanwhile; windows are read once. `ended_s`: when they ended, CLOCK_MONOTONIC; None:
    by the clock.
    """
    now_s, end = time.monotonic(), share.trigger.start + share.trigger.seconds
    sent = time.time() if ended_s is None else end + now_s - ended_s
    until = now_s + share.pace.gathered_within(share.trigger, sent)
    found = Sources((), ())
    while True:
        late = time.monotonic() >= until
        try:
            found = board.windows(share.job, share.trigger.start)
            if late or sum(each.hosts for each in found.chosen) >= share.hosts:
                return _with_late(board, share, found)
        except RankscopeError:
            if late:
                return found
        time.sleep(min(1.0, max(share.hosts / _TAKES_HZ, 0.2)))


def _with_late(board: Board, share: Share, found: Sources) -> Sources:
    """Add windows of hosts missing in `found` that began later: on a busy host loading may take two slots longer."""
    chosen, hosts = list(found.chosen), {each.host for each in found.chosen}
    for second in range(1, int(2 * share.pace.slot_s) + 1):
        if sum(each.hosts for each in chosen) >= share.hosts:
            break
        later = [
            each for each in board.windows(share.job, share.trigger.start + second).chosen if each.host not in hosts
        ]
        chosen += later
        hosts.update(each.host for each in later)
    return replace(found, chosen=tuple(chosen))


def _judged(found: Sources, share: Share, mine: Window | None) -> Verdict:
    """Judge these windows, and this host's own if the store lacks it; add a note if hosts are missing."""
    not_sent = _not_sent(mine, found)
    came = sum(each.hosts for each in found.chosen)
    with _with_own(found, not_sent) as all_of_it:
        verdict = _verdict(all_of_it, share, () if is_large(all_of_it) else not_sent)
    if came < share.hosts:
        text = f"of {share.hosts} hosts {came} sent a window in time"
        verdict = replace(verdict, notes=(*verdict.notes, Note(NoteCode.HOSTS_MISSING, text)))
    return verdict


def _verdict(found: Sources, share: Share, beside: tuple[Window, ...]) -> Verdict:
    """Judge the windows in `found` and `beside` in this process; of a large fleet only `found`, by worker processes.

    `beside`: windows in memory; ignored for a large fleet, for which `_with_own` adds them to `found`.
    """
    earlier, job = _earlier(share), share.job
    if is_large(found):
        with engines.started("local") as pool:
            ((_, verdict),) = diagnose_large(found, job, pool, (), earlier.chosen)
            return verdict
    loaded = load_found(found)
    windows = [by_user(window) for window in (*loaded.windows, *beside)]
    before = [by_user(window) for window in load_found(earlier).windows] if earlier.chosen else []
    return judge.diagnose(windows, before, job, None, loaded.notes, agreed_s=share.trigger.start)


@contextmanager
def _with_own(found: Sources, mine: tuple[Window, ...]) -> Iterator[Sources]:
    """Yield `found`; for a large fleet with `mine` added as a temporary folder, as its workers read by location."""
    if not mine or not is_large(replace(found, chosen=(*found.chosen, Source("", "")))):
        yield found
        return
    with ExitStack() as closing:
        try:
            folder = closing.enter_context(scratch()).path
            own = tuple(Source("", str(write_window(window, folder))) for window in mine)
        except (OSError, OutputFailed):  # the missing window is then reported by the number of hosts
            own = ()
        yield replace(found, chosen=(*found.chosen, *own))


def _not_sent(mine: Window | None, found: Sources) -> tuple[Window, ...]:
    """Return this host's own window, alone in a tuple, if it is not among those of the store; else ()."""
    if mine is None or label_of(mine.manifest.host, mine.manifest.machine) in {each.host for each in found.chosen}:
        return ()
    return (mine,)


def _earlier(share: Share) -> Sources:
    """List the stored windows of the job's last healthy look of all hosts; empty if none or unavailable."""
    if share.earlier is None:
        return Sources((), ())
    try:
        return Board(share.uri).windows(share.job, share.earlier)
    except (BadData, RankscopeError):
        return Sources((), ())
