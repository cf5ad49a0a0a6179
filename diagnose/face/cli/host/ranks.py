"""`rankscope ranks`: list the training processes of this host, and rejected ones with reasons."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rankscope.diagnose import budgets
from rankscope.diagnose.face.cli.output import patience, print_json, print_table, tell
from rankscope.diagnose.face.documents.ranks import as_object, loaders, reason
from rankscope.diagnose.text import clean
from rankscope.probes.base.errors import NoRanks

if TYPE_CHECKING:
    from rankscope.observer.census.found import FoundRank
    from rankscope.observer.sight import Sight


def run(*, as_json: bool, verbose: bool) -> int:
    """Print the census, made by an unprivileged process; return 0, or 3 without ranks.

    Raises ObserverEnded, OutOfMemory.
    """
    from rankscope.observer.sight import see

    with patience("looking for training processes"):
        sight = see(progress=_warn, verbose=verbose)
    if as_json:
        print_json(as_object(sight))
    else:
        _print(sight, verbose)
    return 0 if sight.census.ranks else NoRanks.exit_code


def _warn(text: str) -> None:
    """Print a message on stderr; on a terminal over the progress line."""
    begin = "\r\x1b[K" if sys.stderr.isatty() else ""  # overwrite the progress line
    sys.stderr.write(f"{begin}rankscope: {clean(text, 300)}\n")


def _job_names(ranks: Sequence[FoundRank], verbose: bool) -> dict[str, str]:
    """Display name of each job; title and identity with -v."""
    from rankscope.observer.window.jobs import names

    titles = {found.identity.job: found.identity.title for found in reversed(ranks)}
    return {job: f"{title} [{job}]" if title else job for job, title in titles.items()} if verbose else names(titles)


def _print(sight: Sight, verbose: bool) -> None:
    """Print the census as text: ranks, what else is seen of their jobs, rejected processes (all with -v), and notes."""
    census, devices = sight.census, sight.devices
    if census.ranks:
        ordered = sorted(census.ranks, key=lambda found: (found.identity.job, found.identity.rank))
        names = _job_names(ordered, verbose)
        told_once = sys.stdout.isatty() and not verbose  # ranks of a job share one long command line
        heads = ["RANK", "PID", "NODE", "WORKERS", "PYTHON", "JOB", "COMMAND"]
        rows = [
            [f"{f.identity.rank}{'?' if f.guessed else ''}", str(f.identity.pid), f.identity.node or f.identity.host,
             str(loaders(f)), f.identity.python, names[f.identity.job], f.identity.command]
            for f in ordered
        ]  # fmt: skip
        print_table(heads[:-1] if told_once else heads, [row[:-1] for row in rows] if told_once else rows)
        for job, name in names.items() if told_once else ():
            commands = Counter(found.identity.command for found in ordered if found.identity.job == job)
            (usual, _), *others = commands.most_common()
            differ = f" ({len(others)} more with -v)" if others else ""
            tell(f"command of {clean(name, 60)}{differ}: {clean(usual, 400)}", "  ")
        for seen in sight.collectives:
            tell(f"collectives of {clean(names[seen.job], 60)}: {clean(seen.text, 300)}", "  ")
        for one in sight.servers:
            asking = ", ".join(map(str, one.asked_by[: budgets.INSTANCES_SHOWN]))
            name = f"{clean(one.program, 60) or 'a program'} (pid {one.pid}, port {one.port})"
            tell(f"server of {clean(names[one.job], 60)}: {name}, asked by rank {asking}", "  ")
    else:
        print("No training process was found here.")
    rejected = census.rejected if verbose or not census.ranks else ()
    shown = rejected if verbose else rejected[: budgets.SHOWN]
    if shown:
        print_table(["NOT A RANK", "PID", "WHY"], [[clean(r.comm, 16), str(r.pid), reason(r, devices)] for r in shown])
    hidden = len(census.rejected) - len(shown)
    if hidden > 0:
        other = "other " if rejected else ""
        were = f"{other}process was" if hidden == 1 else f"{other}processes were"
        tell(f"{hidden} {were} looked at and rejected; -v lists them")
    for what in sorted({devices[f.pid] for f in census.ranks if f.pid in devices}):
        who = ", ".join(str(f.identity.rank) for f in census.ranks if devices.get(f.pid) == what)
        many = (
            f"note  one process with several devices, told together as one rank: rank {clean(who, 100)} drives {what}"
        )
        tell(many, " " * 6)
    for note in census.notes:
        tell(f"note  {clean(note, 300)}", " " * 6)
