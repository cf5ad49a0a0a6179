"""`rankscope ranks`: the training processes found here, and what was rejected and why."""

from __future__ import annotations

from pathlib import Path

from rankscope.diagnose.cli.output import print_json, table
from rankscope.diagnose.text import clean
from rankscope.probes.errors import NoRanks

_REJECTED_SHOWN = 5


def run(*, as_json: bool, verbose: bool) -> int:
    """Print the census; 3 if there is no rank."""
    from rankscope.observer.census.ranks import find_ranks

    census = find_ranks(Path("/"))
    if as_json:
        print_json(
            {
                "ranks": [
                    {
                        "job": clean(found.identity.job),
                        "rank": found.identity.rank,
                        "local_rank": found.identity.local_rank,
                        "world_size": found.identity.world_size,
                        "role": clean(found.identity.role),
                        "host": clean(found.identity.host),
                        "node": clean(found.identity.node),
                        "container": clean(found.identity.container),
                        "pid": found.identity.pid,
                        "workers": len(found.workers),
                        "python": clean(found.identity.python),
                        "command": clean(found.identity.command),
                    }
                    for found in census.ranks
                ],
                "rejected": [{"pid": r.pid, "comm": clean(r.comm), "reason": clean(r.reason)} for r in census.rejected],
                "notes": [clean(note) for note in census.notes],
            }
        )
        return 0 if census.ranks else NoRanks.exit_code
    if census.ranks:
        ordered = sorted(census.ranks, key=lambda found: (found.identity.job, found.identity.rank))
        rows = [
            [str(f.identity.rank), str(f.identity.pid), f.identity.node or f.identity.host, str(len(f.workers)),
             f.identity.python, f.identity.job[:20], f.identity.command]
            for f in ordered
        ]  # fmt: skip
        for line in table(["RANK", "PID", "NODE", "WORKERS", "PYTHON", "JOB", "COMMAND"], rows):
            print(line)
    else:
        print("No training process was found here.")
    rejected = census.rejected if verbose or not census.ranks else ()
    for process in rejected if verbose else rejected[:_REJECTED_SHOWN]:
        print(f"not a rank: {clean(process.comm, 16)} ({process.pid}): {clean(process.reason, 120)}"[:80])
    hidden = len(census.rejected) - (len(rejected) if verbose else min(len(rejected), _REJECTED_SHOWN))
    if hidden > 0:
        print(f"{hidden} {'other ' if rejected else ''}processes were looked at and rejected; -v lists them")
    for note in census.notes:
        print(f"note  {clean(note, 300)}"[:80])
    return 0 if census.ranks else NoRanks.exit_code
