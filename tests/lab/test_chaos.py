"""A representative part of scripts/chaos: what the command does when the host is unwell, beside a job that must not notice."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from labsupport import REPOSITORY

pytestmark = pytest.mark.alone  # what others leave on the host would be told as left


@pytest.mark.parametrize(
    "kinds",
    [("disk-full", "swapped-library"), ("others-job", "killed")],
    ids=" and ".join,
)
def test_faults_of_the_host_end_in_a_verdict_or_one_line_and_nothing_is_left(
    kinds: tuple[str, ...], tmp_path: Path
) -> None:
    results = tmp_path / "results.jsonl"
    command = [
        REPOSITORY / "scripts/chaos",
        "--kinds",
        *kinds,
        "--window",
        "1",
        "--results",
        results,
        "--seconds",
        "15",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    assert len(rows) >= 2
    assert {one["case"].partition(" ")[0] for one in rows} <= set(kinds)
    assert all(one["count"] == 1 and not one["problems"] for one in rows)
