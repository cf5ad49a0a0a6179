"""Windows that were recorded in the lab are judged as well as they ever were: which culprit, and nobody who is healthy."""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from labkit.cases import from_json
from labkit.run import Result, judged
from rankscope.diagnose.solve.judge import diagnose
from rankscope.diagnose.verdict.as_json import to_json
from rankscope.observer.window.folder import find_windows, read_window

DATA = Path(__file__).parents[2] / "data" / "windows"
# Archive: cases, and of them those whose culprit comes first. These must not fall. While they were recorded compilers and tests ran on
# the same cores: of the others most accuse the CPU that these took, which was true and is not what the lab did.
RIGHT_FIRST = {"lab-31": (69, 65), "lab-32": (46, 38)}


def judge_again(folder: Path) -> Result:
    result = from_json(json.loads((folder / "result.json").read_text()))
    windows = [read_window(place) for place in find_windows(folder / "windows/case")]
    earlier = folder / "windows/baseline"
    baseline = [read_window(place) for place in find_windows(earlier)] if earlier.exists() else []
    return judged(replace(result, verdict=to_json(diagnose(windows, baseline))))


@pytest.mark.parametrize("archive", sorted(RIGHT_FIRST))
def test_recorded_windows_are_judged_as_well_as_before(archive: str, tmp_path: Path) -> None:
    with tarfile.open(DATA / f"{archive}.tar.xz") as packed:
        packed.extractall(tmp_path)
    results = [judge_again(folder) for folder in sorted((tmp_path / archive).iterdir())]
    cases, least = RIGHT_FIRST[archive]
    assert len(results) == cases
    bad = [f"{result.case.name}: {result.outcome}, {result.said}" for result in results if result.outcome != "first"]
    assert Counter(result.outcome for result in results)["first"] >= least, bad
    others = [result.said for result in results if result.accused and not result.accused_rightly]
    assert [said for said in others if not said.startswith(("fault: cpu/contended", "fault: cpu/quota"))] == []
    assert [result.said for result in results if result.healthy and result.accused] == []
