"""The command with small maps in the kernel: NAME=ENTRIES[,…] COMMAND …; `ring=PAGES` is the ring of events.

All else is as it is installed: what fills the maps are the job and a few children of a rank.
"""

import os
import sys

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the way into the command does, before it loads anything

from rankscope.observer.live import kernel_probes

wanted = {name: int(entries) for name, _, entries in (word.partition("=") for word in sys.argv[1].split(","))}
pages = wanted.pop("ring", 0)
usual = kernel_probes.map_sizes
kernel_probes.map_sizes = lambda processes, threads: {**usual(processes, threads), **wanted}
if pages:
    kernel_probes.ring_pages = lambda ranks: pages

from rankscope.diagnose.face.cli.start import main  # noqa: E402

sys.argv = ["rankscope", *sys.argv[2:]]
main()
