"""An observer that lives long: one window after the other in one process. WINDOW-SECONDS; a line on its input begins one.

It does what the service does: without pandas, and after each window it gives back what it has no more use for.

After each it says, as JSON: when, how long, what it holds (resident bytes, descriptors), what was seen and lost.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from rankscope.diagnose.no_pandas import spare_pandas
from rankscope.observer.live.limits import give_back, resident_bytes
from rankscope.observer.recorder import RecordOptions, record
from rankscope.probes.base.errors import RankscopeError

_NAMES = 1 << 19  # several times its room
_OF_CHILDREN = "cpu.workers_run_s"  # a counter that is there where processes were watched that a rank had started


def main() -> None:
    spare_pandas()
    window_s, first = float(sys.argv[1]), True
    for _ in sys.stdin:
        began, failed, lost, ranks, stepped, watched = time.monotonic(), "", 0, 0, 0, False
        try:
            done = record(RecordOptions(window_s=window_s, align_s=0.0))
            lost = sum(loss.count for one in done for loss in one.window.manifest.losses)
            ranks = sum(one.window.ranks.num_rows for one in done)
            stepped = sum(len(one.window.steps.column("rank").unique()) for one in done)
            watched = any(_OF_CHILDREN in one.window.counters.column("name").to_pylist() for one in done)
            del done
        except RankscopeError as error:
            failed = str(error)[:200]
        give_back(garbage=True)
        if first:
            _grow_names()  # all that a window needs is loaded
            first = False
        held = {"rss_bytes": resident_bytes(), "descriptors": len(list(Path("/proc/self/fd").iterdir()))}
        seen = {"lost": lost, "ranks": ranks, "stepped": stepped, "watched": watched, "failed": failed}
        said = {"began_s": began, "ended_s": time.monotonic(), **held, **seen}
        print(json.dumps(said), flush=True)


def _grow_names() -> None:
    """Python's table of names doubles once, by 0.94 MB, when as many names have come and gone (of files that were opened, say) as it has
    room for: some hundred windows after it began, and never again. Here that is after the first one."""
    for number in range(_NAMES):
        sys.intern(f"name {number}")


if __name__ == "__main__":
    main()
