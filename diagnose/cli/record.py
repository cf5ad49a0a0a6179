"""`rankscope record`: observe one window and write window files."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from rankscope.diagnose.cli.keep_history import remember
from rankscope.diagnose.cli.output import print_json, progress, progress_done
from rankscope.diagnose.past.history import History
from rankscope.diagnose.text import clean
from rankscope.observer.window.folder import Window, folder_name
from rankscope.probes.errors import EXIT_HEALTHY, UsageError


def _written(out: Path, window: Window) -> str:
    """The folder of a window: a name that was taken has got a number."""
    found = sorted(out.glob(f"{folder_name(window.manifest)}*"), key=lambda path: path.stat().st_mtime)
    return str(found[-1]) if found else str(out)


def run(
    *, out: Path, window_s: float, job: str | None, pids: tuple[int, ...], as_json: bool, verbose: bool,
    history: Path | None = None,
) -> int:  # fmt: skip
    """Write the windows into `out` and say what they hold. Exit code 0: recording does not judge.

    `history`: where the windows are kept as well, with what is judged of them.
    """
    from rankscope.observer.recorder import RecordOptions, record

    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out} is not a folder")
    try:
        windows = record(RecordOptions(window_s=window_s, out=out, pids=pids, job=job, verbose=verbose), progress())
    finally:
        progress_done()
    _print(out, windows, as_json, verbose)
    if history is not None:
        for trouble in remember(History(history), windows):
            sys.stderr.write(f"rankscope: {clean(trouble, 300)}\n")
    return EXIT_HEALTHY


def _print(out: Path, windows: list[Window], as_json: bool, verbose: bool) -> None:
    if as_json:
        print_json(
            [
                {
                    "folder": _written(out, window),
                    "host": window.manifest.host,
                    "jobs": list(window.manifest.jobs),
                    "ranks": window.ranks.num_rows,
                    "steps": _steps(window),
                    "notes": list(window.manifest.notes),
                }
                for window in windows
            ]
        )
        return
    for window in windows:
        print(_written(out, window))
        print(f"  {window.ranks.num_rows} ranks, {_steps(window)} steps, {window.patterns.num_rows} patterns")
        for note in window.manifest.notes if verbose else window.manifest.notes[:3]:
            print(f"  note  {note}")


def _steps(window: Window) -> int:
    """Complete steps of a rank: the most that any has."""
    return max(Counter(window.steps.column("rank").to_pylist()).values(), default=0)
