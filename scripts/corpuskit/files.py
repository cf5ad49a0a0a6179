"""Judgings of the corpus in files: one with everything, for comparing; and the table that must not fall."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from corpuskit import tables
from corpuskit.archive import HOME
from corpuskit.case import Case
from corpuskit.judging import Answer, Judged
from corpuskit.tables import Count
from corpuskit.truth import Truths
from labkit import verdicts
from labkit.compare import differences
from labkit.machine.shell import EXIT_USAGE, LabError

SCHEMA = "rankscope.corpus/1"
HELD = HOME / "table.json"
_GOOD = (verdicts.FIRST, verdicts.IN_THREE, verdicts.SILENT, verdicts.WRONG, verdicts.FAILED)


def write(path: Path, judged: Sequence[Judged]) -> None:
    """Every answer with what it is held against, and all tables."""
    truths = Truths(judged)
    lost, known = tables.lost_time(judged, truths), tables.lost_time(truths.known(judged), truths)
    content = {
        "schema": SCHEMA,
        "answers": [
            {**answer.as_json(), "kind": case.kind, "job": case.job, "dose": case.dose, "quiet": case.quiet,
             "doubt": case.doubt, **_about_lost(truths, case, answer)}
            for case, answer in judged
        ],
        "kinds": _counts(judged),
        "lost_time": asdict(lost) if lost else None,
        "lost_time_known": asdict(known) if known else None,
        "calibration": [asdict(one) for one in tables.calibration(judged)],
        "innocent_accused": [case.key for case, _ in tables.innocent_accused(judged)],
    }  # fmt: skip
    draft = path.with_name(path.name + ".draft")
    draft.write_text(json.dumps(content, indent=1))
    draft.rename(path)


def _about_lost(truths: Truths, case: Case, answer: Answer) -> dict[str, Any]:
    lost = truths.lost(case, answer)
    return {
        "true_lost_s": lost.seconds if lost else None,
        "truth_error_points": lost.error if lost else None,
        "lost_points": truths.points(case, answer),
    }


def read(path: Path) -> dict[str, Answer]:
    """Key → answer, of a file that `write` made. LabError where it is none."""
    try:
        content = json.loads(path.read_text())
        if content["schema"] != SCHEMA:
            raise ValueError(f"schema {content['schema']!r}")
        names = Answer.__dataclass_fields__
        return {item["key"]: Answer(**{k: v for k, v in item.items() if k in names}) for item in content["answers"]}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise LabError(f"{path} is no judging of the corpus: {error}", exit_code=EXIT_USAGE) from None


def compared(before: dict[str, Answer], after: dict[str, Answer]) -> tuple[list[str], bool]:
    """What to print about two judgings, and whether no case ended worse."""
    common = [key for key in before if key in after]
    groups: dict[str, list[str]] = {"worse": [], "better": [], "other words": []}
    for key in common:
        was, now = before[key], after[key]
        steps = _GOOD.index(now.outcome) - _GOOD.index(was.outcome)
        if steps:
            groups["worse" if steps > 0 else "better"].append(
                f"{key}: {was.outcome} → {now.outcome}; {was.said} → {now.said}"
            )
        elif was.verdict != now.verdict:
            groups["other words"] += [f"{key}: {line}" for line in differences(was.verdict, now.verdict)]
    lines = [f"{name}: {line}" for name, found in groups.items() for line in found]
    lines += [f"only in the first: {key}" for key in before if key not in after]
    lines += [f"only in the second: {key}" for key in after if key not in before]
    lines.append(f"{len(common)} cases in both: {len(groups['better'])} better, {len(groups['worse'])} worse")
    return lines, not groups["worse"]


# ---- the table that must not fall ------------------------------------------------------------------------------------


def hold(judged: Sequence[Judged], path: Path = HELD) -> None:
    """Write down how well the corpus is judged now, as what later versions are held to."""
    kinds = ",\n".join(f" {json.dumps(kind)}: {json.dumps(doses)}" for kind, doses in _counts(judged).items())
    accused = len(tables.innocent_accused(judged))
    path.write_text(f'{{"innocent_accused": {accused},\n"kinds": {{\n{kinds}\n}}}}\n')


def fallen(judged: Sequence[Judged], path: Path = HELD) -> Iterator[str]:
    """In what the judging is worse than the table, a line each."""
    held = json.loads(path.read_text())
    now = _counts(judged)
    for kind, doses in held["kinds"].items():
        for dose, was in doses.items():
            is_now = now.get(kind, {}).get(dose, asdict(Count()))
            for what, sign in (("cases", -1), ("first", -1), ("wrong", 1), ("failed", 1)):
                if sign * (is_now[what] - was[what]) > 0:
                    yield f"{kind}, {dose}: {what} {was[what]} → {is_now[what]}"
    accused = len(tables.innocent_accused(judged))
    if accused > held["innocent_accused"]:
        yield f"healthy and imbalanced windows accused: {held['innocent_accused']} → {accused}"


def _counts(judged: Sequence[Judged]) -> dict[str, dict[str, Any]]:
    """Kind → dose → counts; doses that have no case are left out."""
    return {
        kind: {dose: asdict(found) for dose, found in tables.by_dose(among).items() if found.cases}
        for kind, among in tables.grouped(judged, lambda case: case.kind).items()
    }
