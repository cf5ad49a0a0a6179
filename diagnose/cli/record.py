"""`rankscope record`: observe one window and write window files."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from rankscope.diagnose.cli.output import print_json, progress
from rankscope.diagnose.text import clean
from rankscope.diagnose.verdict.note import NOTE_CAP
from rankscope.observer.window.folder import Window
from rankscope.probes.errors import EXIT_HEALTHY, UsageError

if TYPE_CHECKING:
    from rankscope.observer.recorder import Recorded


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
    with progress() as say:
        done = record(RecordOptions(window_s=window_s, out=out, pids=pids, job=job, verbose=verbose), say)
    _print(done, as_json, verbose)
    if history is not None:
        # Here, as recording alone needs nothing of the diagnoser: 0.3 s of CPU.
        from rankscope.diagnose.cli.keep_history import remember
        from rankscope.diagnose.past.history import History

        for trouble in remember(History(history), [recorded.window for recorded in done]):
            sys.stderr.write(f"rankscope: {clean(trouble, 300)}\n")
    return EXIT_HEALTHY


def _print(done: list[Recorded], as_json: bool, verbose: bool) -> None:
    if as_json:
        print_json(
            [
                {
                    "folder": str(recorded.folder),
                    "host": recorded.window.manifest.host,
                    "jobs": list(recorded.window.manifest.jobs),
                    "ranks": recorded.window.ranks.num_rows,
                    "steps": _steps(recorded.window),
                    "notes": list(recorded.window.manifest.notes),
                }
                for recorded in done
            ]
        )
        return
    for recorded in done:
        window = recorded.window
        print(clean(str(recorded.folder), 4096))
        print(f"  {window.ranks.num_rows} ranks, {_steps(window)} steps, {window.patterns.num_rows} patterns")
        for note in window.manifest.notes if verbose else window.manifest.notes[:3]:
            print(f"  note  {clean(note, NOTE_CAP)}")


def _steps(window: Window) -> int:
    """Complete steps of a rank: the most that any has."""
    return max(Counter(window.steps.column("rank").to_pylist()).values(), default=0)
