"""How often each row of the table of hypotheses was named first, and was right: what `rankscope causes` shows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from corpuskit.judging import Judged, of_the_lab
from labkit import verdicts
from rankscope.diagnose.infer.causes.causes import COUNTED, SCHEMA, TABLE


def write(judged: Sequence[Judged], path: Path = COUNTED) -> None:
    """Write the counts, a line a row; rows that were never named first are left out."""
    right, wrong = Counter[tuple[str, str, str]](), Counter[tuple[str, str, str]]()
    for case, answer in judged:
        if not answer.verdict:
            continue
        verdict = of_the_lab(case, verdicts.parse(answer.verdict)).without_waste
        if verdict.suspects:
            first = verdict.suspects[0]
            good = answer.right if verdict.accuses else answer.outcome == verdicts.FIRST
            (right if good else wrong)[first.component, first.cause, json.loads(first.said)["scope"]] += 1
    rows = [
        {"component": row.component, "cause": row.cause, "scope": row.scope, "right": right[row.key], "wrong": wrong[row.key]}
        for row in TABLE
        if right[row.key] or wrong[row.key]
    ]  # fmt: skip
    lines = ",\n".join(f" {json.dumps(row)}" for row in rows)
    path.write_text(f'{{"schema": "{SCHEMA}",\n"cases": {len(judged)},\n"causes": [\n{lines}\n]}}\n')
