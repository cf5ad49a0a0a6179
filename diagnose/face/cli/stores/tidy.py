"""`rankscope prune` and `rankscope compact`: maintain a store."""

from __future__ import annotations

import math
import time
from pathlib import Path

from rankscope.diagnose import budgets
from rankscope.diagnose.face.cli.output import patience, print_json, tell
from rankscope.diagnose.text import clean
from rankscope.observer.window.store import objects, tidy
from rankscope.observer.window.store.age import Clocks
from rankscope.observer.window.store.place import Store, is_uri, open_store
from rankscope.observer.window.store.tidy import Tidied
from rankscope.probes.base.errors import EXIT_HEALTHY, UsageError


def prune(place: str, *, older_than_days: float, dry: bool, clock_is_right: bool, as_json: bool) -> int:
    """Remove windows that began more than `older_than_days` ago; return exit code 0.

    Raises ClockInDoubt, which ends with 3.
    """
    store = _store(place)
    with patience("looking through the store"):
        clocks = Clocks(time.time(), math.nan if dry else objects.clock(store))  # this writes to the store
        done = tidy.prune(store, older_than_days * budgets.DAY_S, clocks, dry=dry, clock_is_right=clock_is_right)
    _print("would be removed" if dry else "removed", done, as_json)
    return EXIT_HEALTHY


def compact(place: str, *, as_json: bool) -> int:
    """Merge the windows of each shard and window time into one object; return exit code 0."""
    with patience("putting windows together"):
        done = tidy.compact(_store(place), time.time())
    _print("put together", done, as_json)
    return EXIT_HEALTHY


def _store(place: str) -> Store:
    """Open the store at a URI or in a folder. Raises UsageError if there is no such folder."""
    if is_uri(place):
        return open_store(place)
    if not Path(place).is_dir():
        raise UsageError(f"{clean(place, 200)} is not a folder")
    return open_store(Path(place).absolute().as_uri())


def _print(what: str, done: Tidied, as_json: bool) -> None:
    """Print what was removed or made, as JSON or text; `what`: the participle for the text."""
    if as_json:
        print_json(
            {
                "removed": done.removed, "removed_bytes": done.removed_bytes, "made": done.made,
                "unreadable": [clean(path, 300) for path in done.unreadable], "foreign": done.foreign,
                "ahead": done.ahead,
            }
        )  # fmt: skip
        return
    made = f" into {done.made}" if done.made else ""
    tell(f"{done.removed} objects {what}{made}, {done.removed_bytes / 1e6:.1f} MB less")
    for path in done.unreadable[:8]:
        tell(f"  left alone, as it cannot be read or removed: {clean(path, 300)}")
    if done.foreign:
        tell(f"  {done.foreign} other things lie there, and stay")
    if done.ahead:
        tell(f"  {done.ahead} windows of moments to come stay: a host's clock was ahead; they go by when they came")
