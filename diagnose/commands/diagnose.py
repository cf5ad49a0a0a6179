"""`rankscope diagnose`: from window folders, a file of timings, or this host now, to one verdict."""

from __future__ import annotations

import sys
from pathlib import Path

from diagnose import judge
from diagnose.commands.output import progress, progress_done
from diagnose.from_timings import load_fleet
from diagnose.gather import load
from diagnose.report import print_report
from diagnose.verdict import Verdict, to_json
from observer.windows import Window
from probes.errors import UsageError


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
) -> int:
    """Print the verdict; its exit code."""
    if folders and pids:
        raise UsageError("--pid chooses what to observe: it makes no sense with window folders")
    if steps is not None and (folders or baseline or pids):
        raise UsageError("--steps brings all there is to judge: it makes no sense with folders, --baseline or --pid")
    if steps is not None:
        return _print(judge.judge(load_fleet(steps)), as_json, verbose)
    earlier = load(baseline)  # before observing: a bad baseline must not cost a window
    windows = load(folders) if folders else _observe(window_s, job, pids, verbose)
    return _print(judge.diagnose(windows, earlier, job), as_json, verbose)


def _print(verdict: Verdict, as_json: bool, verbose: bool) -> int:
    if as_json:
        print(to_json(verdict))
    else:
        print_report(verdict, sys.stdout, verbose)
    sys.stdout.flush()
    return verdict.exit_code


def _observe(window_s: float, job: str | None, pids: tuple[int, ...], verbose: bool) -> list[Window]:
    from observer.recorder import RecordOptions, record

    try:
        return record(RecordOptions(window_s=window_s, out=None, pids=pids, job=job, verbose=verbose), progress())
    finally:
        progress_done()
