"""`rankscope blackbox`: show what the service recorded in the last minutes before a hang or a
death."""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from rankscope.diagnose import budgets
from rankscope.diagnose.face.cli.output import print_json, print_table, tell, width_of
from rankscope.diagnose.face.cli.report import stack_lines
from rankscope.diagnose.infer.past.history import DEFAULT_FOLDER
from rankscope.diagnose.infer.verdict.as_json import timestamp
from rankscope.diagnose.infer.verdict.stack_tree import from_json
from rankscope.diagnose.service.events import clock
from rankscope.diagnose.text import clean
from rankscope.observer.watch.blackbox import frozen_in, lines_of
from rankscope.observer.window.staging import safe_name
from rankscope.probes.base.errors import EXIT_HEALTHY, MissingFeature, UsageError
from rankscope.probes.base.folders import opened_folder, read_plain

_WHY, _VERDICT = "why.json", "verdict.json"
_NOW = "now"
SCHEMA = "rankscope.blackbox/1"


class NothingKept(MissingFeature):
    """There is no folder of a service."""

    help = "Give the --state of `rankscope watch`; one that never ran here has kept nothing."


def run(*, state: Path, name: str | None, as_json: bool) -> int:
    """List the frozen recordings, or show one (`now`: the running one).

    Raises UsageError; NothingKept without a service's folder; UnsafePlace if others could have written it.
    """
    if not state.is_dir():
        raise NothingKept(f"there is no {state}")
    box = state / "blackbox"
    if box.is_dir():
        with opened_folder(box):
            pass
    if name is None:
        return _list(box, as_json)
    folder = box / "ring" if name == _NOW else next((one for one in frozen_in(box) if one.name == name), None)
    if folder is None or not folder.is_dir():
        raise UsageError(f"the black box has no {name}: `rankscope blackbox` lists what it has")
    return _show(folder, as_json)


def _list(box: Path, as_json: bool) -> int:
    rows = [(path.name, _read(path / _WHY)) for path in frozen_in(box)]
    if as_json:
        print_json([{"name": name, "why": why or None} for name, why in rows])
    elif not rows:
        tell("nothing is frozen; `rankscope blackbox now` shows the last minutes")
    else:
        print_table(("NAME", "WHY"), [(name, str(why.get("words", "?"))) for name, why in rows])
    return EXIT_HEALTHY


def _show(folder: Path, as_json: bool) -> int:
    lines = list(lines_of(folder))
    why, verdict = _read(folder / _WHY), _read(folder / _VERDICT)
    if as_json:
        dated = [{**line, "time": timestamp(line["time"])} for line in lines]
        print_json({"schema": SCHEMA, "why": why or None, "verdict": verdict or None, "lines": dated})
        return EXIT_HEALTHY
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
    steps = [_number(seconds) for _, one in rows for seconds in _as_list(one.get("steps_s"))]
    median = f"{sorted(steps)[len(steps) // 2]:.3f}" if steps else "-"
    last = rows[-1][1]
    silent = f"{_number(last.get('silent_s', 0)):.1f}{' stopped' if last.get('stopped') else ''}"
    times = clock(rows[0][0]), clock(rows[-1][0])
    latest = f"{steps[-1]:.3f}" if steps else "-"
    return job, str(rank), str(last.get("pid", "?")), *times, str(len(steps)), median, latest, silent


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else math.nan


def _as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_plain(path, budgets.FILE_BYTES_MOST))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
