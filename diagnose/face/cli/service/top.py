"""`rankscope top`: live view of this host's ranks, drawn on a terminal, as lines elsewhere."""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rankscope.diagnose.face.top import draw, from_watch
from rankscope.diagnose.face.top.host import counters_now
from rankscope.diagnose.face.top.snapshot import PARTS, Snapshot
from rankscope.diagnose.infer.verdict.as_json import timestamp
from rankscope.diagnose.service.place import WatchPlace
from rankscope.diagnose.text import clean, clean_all
from rankscope.observer.live.gauges import Gauges
from rankscope.observer.watch.blackbox import latest_lines
from rankscope.observer.window.folder import Window
from rankscope.probes.base.errors import EXIT_HEALTHY, NeedsRoot, NoRanks

SCHEMA = "rankscope.top/1"
_READ_EVERY_S = 2.0  # the service writes every 5 s
_ANEW_S = 600.0  # after this time search for ranks again and drop collected data
_NO_RANKS_S = 5.0

Show = Callable[[Snapshot], None]
Say = Callable[[str], None]


class _Enough(Exception):
    """The requested number of updates is reached."""


def run(*, state: Path, window_s: float, job: str | None, updates: int, as_json: bool) -> int:
    """Show updates until q, Ctrl-C, SIGTERM, or `updates` of them; return exit code 0."""
    if os.geteuid() != 0:
        raise NeedsRoot("observing other users' processes needs root, and so does what the service keeps")
    place = WatchPlace(state)
    with contextlib.suppress(KeyboardInterrupt, _Enough), _shown(as_json) as (show, say):
        counted = _counted(show, updates)
        if state.is_dir() and place.is_held():
            _from_watch(place, job, counted)
        else:
            _by_itself(window_s, job, counted, say, patient=updates == 0)
    return EXIT_HEALTHY


def _counted(show: Show, updates: int) -> Show:
    """Wrap `show` to raise _Enough after `updates` calls; 0: never."""
    shown = 0

    def counted(snapshot: Snapshot) -> None:
        """Show a snapshot, and count it. Raises _Enough at the last one."""
        nonlocal shown
        show(snapshot)
        shown += 1
        if shown == updates:
            raise _Enough

    return counted


# ---- where it comes from -------------------------------------------------------------------------------------------------


def _from_watch(place: WatchPlace, job: str | None, show: Show) -> None:
    """Show what the service records, with the host's own counters, until the service ends."""
    host = socket.gethostname()
    while True:
        gauges, began_s = Gauges(()), time.monotonic()
        gauges.begin()
        time.sleep(_READ_EVERY_S)
        counters = counters_now(gauges.host_rows(), time.monotonic() - began_s)
        lines = [line for line in latest_lines(place.box.folder) if job is None or _is_meant(line, job)]
        show(from_watch.snapshot_of(lines, counters, host, time.time()))
        if not place.is_held():
            return


def _is_meant(line: dict[str, Any], job: str) -> bool:
    """Tell whether a line of the black box is of this job: its title or name begins so."""
    return any(str(line.get(name) or "").startswith(job) for name in ("title", "job"))


def _by_itself(window_s: float, job: str | None, show: Show, say: Say, patient: bool) -> None:
    """Observe window after window. `patient`: wait for a rank if there is none."""
    # Imported here, as reading from the service does not need it: 0.3 s of CPU.
    from rankscope.diagnose.face.top.from_windows import Scene
    from rankscope.observer.recorder import RecordOptions, follow

    scene = Scene(f"windows of {window_s:g} s, observed here")
    options = RecordOptions(window_s=window_s, job=job, align_s=0.0)  # observed alone

    def take(windows: Sequence[Window]) -> None:
        """Show one update for all jobs of a window."""
        for snapshot in [scene.take(window) for window in windows][-1:]:
            show(snapshot)

    said = ""
    while True:
        try:
            follow(options, _ANEW_S, take, say)
            said = ""
        except NoRanks as error:
            if not patient:
                raise
            if str(error) != said:
                said = str(error)
                say(f"{said}; waiting for one")
            time.sleep(_NO_RANKS_S)


# ---- where it goes -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _shown(as_json: bool) -> Iterator[tuple[Show, Say]]:
    """Yield a function that shows a snapshot, and one that reports progress before the first."""
    if as_json:
        yield _print_json, _complain
    elif not sys.stdout.isatty():
        yield _print_lines, _complain
    else:
        # Imported here, as a pipe needs no drawing: 50 ms.
        from rankscope.diagnose.face.top.screen import screen

        with screen() as both:
            yield both


def _print_json(snapshot: Snapshot) -> None:
    """Print a snapshot as one line of JSON."""
    print(json.dumps(clean_all(_finite(as_object(snapshot))), ensure_ascii=False, allow_nan=False), flush=True)


def as_object(snapshot: Snapshot) -> dict[str, Any]:
    """Return a snapshot as JSON: with its time in ISO 8601, and shares of a rank's time by name."""
    content = {"schema": SCHEMA, "time": timestamp(snapshot.at), **asdict(snapshot)}
    del content["at"]
    for job in content["jobs"]:
        for rank in job["ranks"]:
            rank["parts"] = dict(zip(PARTS, rank["parts"], strict=True)) if rank["parts"] else None
    return content


def _finite(content: Any) -> Any:
    """Replace NaN and infinities by None."""
    if isinstance(content, dict):
        return {name: _finite(value) for name, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def _print_lines(snapshot: Snapshot) -> None:
    """Print a snapshot as lines of text."""
    print("\n".join(draw.plain(snapshot)), flush=True)


def _complain(text: str) -> None:
    """Print a message on stderr."""
    sys.stderr.write(f"rankscope: {clean(text, 300)}\n")
    sys.stderr.flush()
