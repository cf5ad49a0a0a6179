"""An observer that lives long: one window after the other in one process. WINDOW-SECONDS; a line on its input begins one, of the ranks
whose pids it holds (none: of all).

After each it says, as JSON: when, how long, what it holds (resident bytes, descriptors), what was lost.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from rankscope.observer.live.limits import resident_bytes
from rankscope.observer.recorder import RecordOptions, record
from rankscope.probes.errors import RankscopeError


def main() -> None:
    window_s = float(sys.argv[1])
    for line in sys.stdin:
        pids = tuple(int(word) for word in line.split())
        began, failed, lost, ranks = time.monotonic(), "", 0, 0
        try:
            done = record(RecordOptions(window_s=window_s, align_s=0.0, pids=pids))
            lost = sum(loss.count for one in done for loss in one.window.manifest.losses)
            ranks = sum(one.window.ranks.num_rows for one in done)
            del done
        except RankscopeError as error:
            failed = str(error)[:200]
        held = {"rss_bytes": resident_bytes(), "descriptors": len(list(Path("/proc/self/fd").iterdir()))}
        said = {"began_s": began, "ended_s": time.monotonic(), **held, "lost": lost, "ranks": ranks, "failed": failed}
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
