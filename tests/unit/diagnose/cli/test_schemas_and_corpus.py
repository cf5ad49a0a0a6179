"""Verdicts on recorded windows, of each outcome, are what the schema says."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import promised
import pytest

from corpuskit.archive import HOME, SUFFIX, Corpus, opened
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.as_json import to_json
from rankscope.observer.window.folder import read_window

# From small archives of every lab: cards, the emulated machine, jobs, programs; a job that died, one that builds, strangers.
CASES = {
    "h100-1": ("stuck-1", "stopped-2", "upload-2", "healthy-2"),
    "h100-3": ("stuck-12", "exited-12"),
    "h100-5": ("word-5", "collect-5"),
    "jobs-5": ("jax-shell-dead-6",),
    "jobs-6": ("accelerate-debug-quiet-9",),
    "programs-1": ("in-turn-strong-5-language", "long-sequences-strong-5-trees"),
    "programs-2": ("none-weak-6-language",),
    "quiet-1": (
        "gpu-xid-strong-7",
        "gpu-power-strong-7",
        "nic-errors-strong-7",
        "nvlink-down-strong-7",
        "pcie-width-strong-7",
    ),
}


@pytest.fixture(scope="module")
def corpus() -> Iterator[Corpus]:
    with opened([HOME / f"{name}{SUFFIX}" for name in CASES]) as unpacked:
        yield unpacked


def test_verdicts_on_recorded_windows_keep_the_contract(corpus: Corpus) -> None:
    statuses: Counter[str] = Counter()
    causes, wrong = set(), {}
    wanted = {f"{archive}/{name}" for archive, names in CASES.items() for name in names}
    cases = [case for case in corpus.cases if case.key in wanted]
    assert {case.key for case in cases} == wanted
    for case in cases:
        windows, earlier = (
            [read_window(one) for one in each] for each in (corpus.windows(case), corpus.baseline(case))
        )
        told = json.loads(to_json(diagnose(windows, earlier)))
        statuses[told["status"]] += 1
        causes |= {f"{one['component']}/{one['cause']}" for one in told["suspects"]}
        if found := promised.complaints("verdict", told):
            wrong[case.key] = found
    assert wrong == {}
    assert set(statuses) == {"healthy", "inefficient", "fault", "imbalance", "hang", "unknown"}, statuses
    assert len(causes) >= 12, causes
