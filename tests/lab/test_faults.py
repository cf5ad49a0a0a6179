"""Each fault of the lab, once, on a real job: the culprit is the first suspect, and nobody is accused when there is none.

How often that holds, for these and many more kinds of fault, is what `scripts/lab --faults all --seeds N` measures. Here
one wrong answer is forgiven a fault (a second seed is tried), because the machine that runs the tests may be busy; in the
healthy run none is. One job serves all faults of the first seed, as in the lab.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from labsupport import RANKSCOPE, REPOSITORY

pytestmark = pytest.mark.apart

FAULTS = ("python-slow", "cpu-hog", "cpu-quota", "slow-link", "slow-read")  # a rank that is stopped: test_watch.py
Outcomes = dict[str, tuple[str, str]]  # of each fault: the outcome, and what was said of all


def outcomes(faults: Sequence[str], seed: int, folder: Path) -> Outcomes:
    """Cases of the lab, one of each fault."""
    results = folder / f"{seed}.json"
    command = [REPOSITORY / "scripts/lab", "--faults", ",".join(faults), "--seeds", f"{seed}-{seed}", "--window", "8"]
    command += ["--doses", "strong", "--json", results]
    environment = {
        "RANKSCOPE_PYTHON": sys.executable,
        "RANKSCOPE_COMMAND": str(RANKSCOPE),
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert results.exists(), done.stderr + done.stdout
    found = {one["case"]["fault"]: (one["outcome"], done.stdout) for one in json.loads(results.read_text())}
    assert found.keys() == set(faults), done.stderr + done.stdout
    return found


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    return outcomes((*FAULTS, "none"), 11, tmp_path_factory.mktemp("faults"))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_real_fault_is_named_first(fault: str, first: Outcomes, tmp_path: Path) -> None:
    outcome, said = first[fault]
    if outcome != "first":
        second, said_again = outcomes([fault], 12, tmp_path)[fault]
        assert second == "first", said + said_again


def test_nobody_is_accused_when_nothing_is_wrong(
    first: Outcomes, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    again = getattr(request.node, "execution_count", 1) > 1  # run once more (tests/conftest.py): in a fresh job
    outcome, said = (outcomes(["none"], 11, tmp_path) if again else first)["none"]
    assert outcome == "first", said
