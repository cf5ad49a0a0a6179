"""A representative part of scripts/chaos: what the command does when the host is unwell, beside a job that must not notice."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from labsupport import REPOSITORY

pytestmark = pytest.mark.apart


@pytest.mark.parametrize(
    "kinds", [("disk-full", "descriptors"), ("swapped-library", "killed"), ("full-maps", "execs")], ids=" and ".join
)
def test_faults_of_the_host_end_in_a_verdict_or_one_line_and_nothing_is_left(
    kinds: tuple[str, ...], tmp_path: Path
) -> None:
    results = tmp_path / "results.json"
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
    cases = json.loads(results.read_text())
    assert len(cases) >= 2
    assert {one["key"].partition(" ")[0] for one in cases} <= set(kinds)
    assert all(one["outcome"] in ("verdict", "one line", "killed") and not one["problems"] for one in cases)
