"""`rankscope blackbox`: show what the service recorded in the last minutes before a hang or a
death."""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from rankscope.diagnose.face.cli.output import print_json, print_table, tell, width_of
from rankscope.diagnose.face.cli.report import stack_lines
from rankscope.diagnose.face.documents.blackbox import (
    as_object,
    frozen_list,
    opened_box,
    recording,
    verdict_of,
    why_of,
)
from rankscope.diagnose.infer.past.history import DEFAULT_FOLDER
from rankscope.diagnose.infer.verdict.stack_tree import from_json
from rankscope.diagnose.service.events import clock
from rankscope.diagnose.text import clean
from rankscope.observer.watch.blackbox import lines_of
from rankscope.observer.window.staging import safe_name
from rankscope.probes.base.errors import EXIT_HEALTHY


def run(*, state: Path, name: str | None, as_json: bool) -> int:
    """List the frozen recordings, or show one (`now`: the running one).

    Raises UsageError; NothingKept without a service's folder; UnsafePlace if others could have written it.
    """
    box = opened_box(state)
    return _list(box, as_json) if name is None else _show(recording(box, name), as_json)


def _list(box: Path, as_json: bool) -> int:
    """Print the frozen recordings; return exit code 0."""
    rows = frozen_list(box)
    if as_json:
        print_json(rows)
    elif not rows:
        tell("nothing is frozen; `rankscope blackbox now` shows the last minutes")
    else:
        print_table(("NAME", "WHY"), [(row["name"], str((row["why"] or {}).get("words", "?"))) for row in rows])
    return EXIT_HEALTHY


def _show(folder: Path, as_json: bool) -> int:
    """Print one recording: why it was frozen, stacks, and a row per rank; return exit code 0."""
    if as_json:
        print_json(as_object(folder))
        return EXIT_HEALTHY
    lines, why, verdict = list(lines_of(folder)), why_of(folder), verdict_of(folder)
    for said in (why, verdict):
        if said:
            tell(f"{clean(str(said.get('time', '')), 40)}  {clean(str(said.get('words', '')), 400)}")
    _print_stacks(verdict or why)
    ranks: dict[tuple[str, int], list[tuple[float, dict[str, Any]]]] = defaultdict(list)
    for line in lines:
        told = line.get("ranks")
        for rank in told if isinstance(told, list) else ():
            if isinstance(rank, dict) and isinstance(number := rank.get("rank"), int):
                ranks[str(line.get("job")), number].append((float(line["time"]), rank))
    print_table(
        ("JOB", "RANK", "PID", "FROM", "UNTIL", "STEPS", "MEDIAN S", "LAST S", "SILENT S"),
        [_row(job, rank, rows) for (job, rank), rows in sorted(ranks.items())],
    )
    return EXIT_HEALTHY


def _print_stacks(event: dict[str, Any]) -> None:
    """Print where all ranks were in the closer look, if it saw a hang."""
    judged = event.get("verdict")
    tree = from_json(judged.get("stacks")) if isinstance(judged, dict) else None
    if tree is not None:
        print("\n".join(["", *stack_lines(tree, False, width_of(sys.stdout), "--json"), ""]))
    window = DEFAULT_FOLDER / "windows" / safe_name(str(event.get("window") or ""))
    if event.get("window") and window.is_dir():
        tell(f"as a page: rankscope report {window} --html FILE")
        print()


def _row(job: str, rank: int, rows: list[tuple[float, dict[str, Any]]]) -> tuple[str, ...]:
    """Make the row of a rank: its times, number and length of steps, and silence. `rows`: (Unix time, what was stored)."""
    steps = [_number(seconds) for _, one in rows for seconds in _as_list(one.get("steps_s"))]
    median = f"{sorted(steps)[len(steps) // 2]:.3f}" if steps else "-"
    last = rows[-1][1]
    silent = f"{_number(last.get('silent_s', 0)):.1f}{' stopped' if last.get('stopped') else ''}"
    times = clock(rows[0][0]), clock(rows[-1][0])
    latest = f"{steps[-1]:.3f}" if steps else "-"
    return job, str(rank), str(last.get("pid", "?")), *times, str(len(steps)), median, latest, silent


def _number(value: object) -> float:
    """Return a number as float; NaN for any other value."""
    return float(value) if isinstance(value, (int, float)) else math.nan


def _as_list(value: object) -> list[Any]:
    """Return a list as it is; [] for any other value."""
    return value if isinstance(value, list) else []
