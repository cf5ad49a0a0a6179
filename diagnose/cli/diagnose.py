"""`rankscope diagnose`: from window folders, a file of timings, or this host now, to one verdict for each job."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rankscope.diagnose.cli.keep_history import remember
from rankscope.diagnose.cli.output import progress
from rankscope.diagnose.cli.report import print_reports
from rankscope.diagnose.fleet.gather import jobs_in, load
from rankscope.diagnose.past.history import DEFAULT_FOLDER, History
from rankscope.diagnose.solve import judge
from rankscope.diagnose.solve.judge_steps_file import judge_file
from rankscope.diagnose.text import clean
from rankscope.diagnose.verdict.as_json import to_json
from rankscope.diagnose.verdict.contract import Verdict
from rankscope.diagnose.verdict.note import Note, NoteCode
from rankscope.observer.window.folder import Window
from rankscope.observer.window.jobs import names
from rankscope.probes.errors import EXIT_CRITICAL, EXIT_DEGRADED, EXIT_HEALTHY, EXIT_UNKNOWN, UsageError

_WORST_FIRST = (EXIT_CRITICAL, EXIT_DEGRADED, EXIT_UNKNOWN, EXIT_HEALTHY)
AUTO = Path("auto")  # a folder of this name: ./auto/


def run(
    *,
    folders: tuple[Path, ...],
    baseline: tuple[Path, ...],
    steps: Path | None,
    window_s: float,
    job: str | None,
    pids: tuple[int, ...],
    as_json: bool,
    verbose: bool,
    history: Path | None = None,
    keep: bool = True,
) -> int:
    """Print the verdicts; the exit code of the worst. `history`: None is the usual folder. `keep`: put what is observed here into it."""
    if folders and pids:
        raise UsageError("--pid chooses what to observe: it makes no sense with window folders")
    if steps is not None and (folders or baseline or pids):
        raise UsageError("--steps brings all there is to judge: it makes no sense with folders, --baseline or --pid")
    if steps is not None:
        return _print([judge_file(steps)], as_json, verbose)
    automatic = AUTO in baseline
    if automatic and len(baseline) > 1:
        raise UsageError("--baseline auto chooses by itself: give it alone")
    store = History(history if history is not None else DEFAULT_FOLDER)
    # Before observing: a bad baseline or history must not cost a window.
    earlier = [] if automatic else load(baseline)
    if history is not None and keep and not folders:
        store.prepare()
    windows = load(folders) if folders else _observe(window_s, job, pids, verbose)
    verdicts = _judge_all(windows, earlier, job, store if automatic else None)
    code = _print(verdicts, as_json, verbose)
    if keep and not folders:
        for trouble in remember(store, windows, verdicts):
            sys.stderr.write(f"rankscope: {clean(trouble, 300)}\n")
    return code


def _judge_all(
    windows: Sequence[Window], earlier: Sequence[Window], wanted: str | None, history: History | None
) -> list[Verdict]:
    """One verdict for each job that is meant, the worst first. A baseline is for the jobs that it holds, if it holds one of them."""
    titles = jobs_in(windows, wanted)
    held = {job for window in earlier for job in window.ranks["job"].to_pylist()} & titles.keys()
    called = names(titles)
    verdicts = []
    for job, title in titles.items():
        without = bool(held) and job not in held
        verdict = judge.diagnose(windows, () if without else earlier, job, history)
        if without:
            note = Note(NoteCode.BASELINE_NONE, "the baseline is of another job: this one is judged without it")
            verdict = replace(verdict, notes=(*verdict.notes, note))
        verdicts.append(verdict if called[job] == title else replace(verdict, title=called[job]))
    return sorted(verdicts, key=lambda verdict: _WORST_FIRST.index(verdict.exit_code))


def _print(verdicts: Sequence[Verdict], as_json: bool, verbose: bool) -> int:
    """`verdicts`: the worst first; its exit code is that of the command."""
    if as_json:
        print(to_json(*verdicts))
    else:
        print_reports(verdicts, sys.stdout, verbose)
    sys.stdout.flush()
    return verdicts[0].exit_code


def _observe(window_s: float, job: str | None, pids: tuple[int, ...], verbose: bool) -> list[Window]:
    from rankscope.observer.recorder import RecordOptions, record

    options = RecordOptions(window_s=window_s, out=None, pids=pids, job=job, verbose=verbose)
    with progress() as say:
        return [recorded.window for recorded in record(options, say)]
