"""`rankscope record`: observe one window and write window files."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from rankscope.diagnose import budgets
from rankscope.diagnose.collector import paused
from rankscope.diagnose.face.cli.output import print_json, progress, tell
from rankscope.diagnose.infer.lacking import missing, sees
from rankscope.diagnose.text import clean
from rankscope.observer.sources import ESSENTIAL, IN_WORDS
from rankscope.observer.window.folder import Window
from rankscope.observer.window.store.place import is_uri
from rankscope.probes.base.errors import EXIT_HEALTHY, UsageError

if TYPE_CHECKING:
    from rankscope.diagnose.face.cli.stores.sending import Sending
    from rankscope.observer.recorder import Recorded


def run(
    *, out: Path | str, window_s: float, job: str | None, pids: tuple[int, ...], as_json: bool, verbose: bool,
    history: Path | None = None, spool: Path | None = None,
) -> int:  # fmt: skip
    """Observe, write the windows into `out`, and print what they hold; return exit code 0.

    `out`: a folder, or the URI of a store; `spool`: folder for windows until the store has them;
    `history`: folder in which the windows are also stored, with verdicts.
    """
    with paused():
        from rankscope.observer.recorder import RecordOptions, know_tables, record

        know_tables()
    sending = _sending(str(out), spool) if is_uri(str(out)) else None
    folder = None if sending is not None else Path(out)
    if folder is not None and folder.exists() and not folder.is_dir():
        raise UsageError(f"--out {out} is not a folder")
    with progress() as say:
        done = record(RecordOptions(window_s=window_s, out=folder, pids=pids, job=job, verbose=verbose), say)
    _print(done, [sending.keep(each.window) for each in done] if sending is not None else [], as_json, verbose)
    trouble = sending.deliver() if sending is not None else None
    if history is not None:
        # Imported here, as recording does not need the diagnoser: 0.3 s of CPU.
        from rankscope.diagnose.face.cli.keep_history import remember
        from rankscope.diagnose.infer.past.history import History

        for said in remember(History(history), [recorded.window for recorded in done]):
            sys.stderr.write(f"rankscope: {clean(said, 300)}\n")
    if trouble is not None:
        raise trouble
    return EXIT_HEALTHY


def _sending(uri: str, spool: Path | None) -> Sending:
    """Prepare sending windows to a store. Raises OutputFailed if the spool is unusable."""
    from rankscope.diagnose.face.cli.stores.sending import Sending  # not needed for a folder: 0.03 s of CPU

    return Sending(uri, spool)


def _print(done: list[Recorded], sent_to: list[str], as_json: bool, verbose: bool) -> None:
    """Print the recorded windows. `sent_to`: destinations in a store, if any."""
    places = sent_to or [str(recorded.folder) for recorded in done]
    if as_json:
        print_json(
            [
                {
                    "folder": place,
                    "host": recorded.window.manifest.host,
                    "jobs": list(recorded.window.manifest.jobs),
                    "ranks": recorded.window.ranks.num_rows,
                    "steps": _steps(recorded.window),
                    "notes": list(recorded.window.manifest.notes),
                    "missing": {one.source.value: one.why for one in missing(recorded.window.manifest)},
                }
                for recorded, place in zip(done, places, strict=True)
            ]
        )
        return
    for recorded, place in zip(done, places, strict=True):
        window = recorded.window
        print(clean(place, 4096))
        tell(f"  {window.ranks.num_rows} ranks, {_steps(window)} steps, {window.patterns.num_rows} patterns")
        if not sees(window.manifest):
            lacks = ", ".join(IN_WORDS[one.source] for one in missing(window.manifest) if one.source in ESSENTIAL)
            tell(
                f"  no verdict can be had of this window: {lacks} could not be observed; `rankscope doctor` says what to do",
                " " * 8,
            )
        for note in window.manifest.notes if verbose else window.manifest.notes[:3]:
            tell(f"  note  {clean(note, budgets.NOTE_MOST)}", " " * 8)


def _steps(window: Window) -> int:
    """Complete steps of the rank that has most."""
    return max(Counter(window.steps.column("rank").to_pylist()).values(), default=0)
