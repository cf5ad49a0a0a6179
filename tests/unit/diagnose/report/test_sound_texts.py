"""What people read of a verdict has no empty field, no impossible number and no name from inside the program: every cause of the corpus,
and every registered one with as little and as much as can be known of it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from unsound import unsound

from corpuskit.archive import HOME, SUFFIX, Corpus, opened
from rankscope.diagnose.face.cli.report import report
from rankscope.diagnose.face.report.words import evidence_line, sureness
from rankscope.diagnose.infer.causes.causes import TABLE, counted
from rankscope.diagnose.infer.causes.link import nic, nvlink
from rankscope.diagnose.infer.causes.rank.gpu import smi
from rankscope.diagnose.infer.causes.rank.pcie import errors_action
from rankscope.diagnose.infer.causes.registry import Cause, sentence
from rankscope.diagnose.infer.fleet import from_windows
from rankscope.diagnose.infer.fleet.model import Ranks
from rankscope.diagnose.infer.fleet.timings.steps_file import check
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.solve.judge_steps_file import judge_timings
from rankscope.diagnose.infer.verdict.advice import action_of
from rankscope.diagnose.infer.verdict.contract import GUESSED, Evidence, Instance, Suspect, Verdict
from rankscope.diagnose.infer.verdict.function import NOT_TIMED, Function
from rankscope.diagnose.infer.verdict.sentence import accusation_of, price_of, sentence_of, summary_of
from rankscope.observer.window.folder import Window, read_window

# One case of the corpus for each cause that occurs in it, from the smallest archives that have them all.
SAMPLE = {
    "h100-1": ("stranger-1", "stuck-1"),
    "h100-3": ("exited-12",),
    "h100-5": ("word-5",),
    "lab-141": ("gc-storm-weak-141", "heavy-stage-strong-141"),
    "programs-4": tuple(
        f"{kind}-weak-52-ranking"
        for kind in ("cpu-quota", "few-workers", "gil-hog", "lock-held", "packet-flood", "pinned-together", "stopped", "strangers")
    ),
    "programs-5": tuple(
        f"{kind}-strong-63-speech"
        for kind in (
            "function+link", "function+read", "bigger-model", "cut-off", "equal-quotas", "in-turn", "long-sequences", "memory-limit",
            "page-faults", "pinned-together", "slow-checkpoint", "slow-folder",
        )
    ),
    "quiet-1": tuple(
        f"{kind}-strong-7"
        for kind in (
            "gpu-brake", "gpu-clock", "gpu-ecc", "gpu-shared", "gpu-slow", "gpu-thermal", "gpu-xid", "nic-errors", "nic-flap", "nic-speed",
            "nvlink-down", "nvlink-errors", "pcie-replays", "pcie-width",
        )
    ),
}  # fmt: skip
BAD = {
    "rank 1 on node-0: cpu/quota, no progress for 0.314 s": "no progress, for less than a hang lasts",
    "step as it was, and as it would be without this: 0.2 s; expected -37.4 ms": "a negative measure",
    "Look at not timed (:0): only on this rank it takes so long.": "a place without a file",
    "ranks 0-2: step (train.py:1) > … (?:0)": "a place without a file",
    "Nothing on this GPU of  was reported: run `dcgmi diag -r 3`": "two blanks: a field between them is empty",
    "Find what runs on the CPUs of this rank on (pidstat 1, top).": "a preposition without its noun",
    "No PCIe counter of this rank on": "a preposition without its noun",
    "Look at load (), which is slow.": "empty brackets",
    "Move or stop None on node-0.": "a value that is not known",
    "ranks that wait: nan s": "a value that is not known",
    "throttled by sw_thermal: 101 % of the window": "a share above 100 %",
    "for this much of the window: 1.2 share": "a share above 1",
    "cpu.throttled_s: 7.0 s; expected 0 s": "the counter name cpu.throttled_s",
    "psi.memory.some_s: 3.0 s": "the counter name psi.memory.some_s",
    "{function|it} waits for a lock": "a field of a template",
    "called by:": "nothing after the colon",
    "ranks 0-7: workload/data-imbalance moves from rank to rank costs 0.108 s": "two verbs in one clause",
    "Rank 3: augment takes longer costs 0.1 s of each 0.3 s step": "two verbs in one clause",
}
_WORD = re.compile(r"^(?:[A-Z]+  |\d+\. |  [a-z]+(?: out)? +| +)")
GOOD = (
    "Rank 3 on node-0: augment (train.py:56) takes longer there than on its peers, which costs 0.080 s of each 0.320 s step (25 %).",
    "Collect less often: gc.freeze() after start-up, a higher gc.set_threshold, fewer cyclic objects.",
    "See `nvidia-smi -i 2 -q -d CLOCK` on node-7; lift application clocks with `nvidia-smi -i 2 -rgc` (and -rac).",
    "waits least of all in: 100 % of steps",
    "ranks 0-3, 5 on 10.0.0.1: no progress for 14 s",
    "Both ranks: they may run on the same few CPUs, which costs 0.1 s of each 0.3 s step, 33 % (cpu/affinity)",
    "send is called more than 300 times a second per process: it is timed, but no longer told where it is called from",
)


@pytest.mark.parametrize("text", BAD)
def test_what_a_reader_stumbles_over_is_unsound(text: str) -> None:
    assert BAD[text] in unsound(text)


@pytest.mark.parametrize("text", GOOD)
def test_what_reads_well_is_sound(text: str) -> None:
    assert unsound(text) == []


@pytest.fixture(scope="module")
def corpus() -> Iterator[Corpus]:
    with opened([HOME / f"{name}{SUFFIX}" for name in SAMPLE]) as unpacked:
        yield unpacked


@pytest.fixture(scope="module")
def cases(corpus: Corpus) -> dict[str, tuple[list[Window], list[Window]]]:
    wanted = {f"{archive}/{name}" for archive, names in SAMPLE.items() for name in names}

    def read(places: list[Path]) -> list[Window]:
        return [read_window(place) for place in places]

    return {
        case.key: (read(corpus.windows(case)), read(corpus.baseline(case)))
        for case in corpus.cases
        if case.key in wanted
    }


def texts_of(verdict: Verdict) -> Iterator[str]:
    """Everything that people read of a verdict, piece by piece."""
    yield from (sentence_of(verdict), summary_of(verdict, True), action_of(verdict), price_of(verdict))
    for suspect in verdict.suspects:
        yield from (accusation_of(suspect, verdict.guessed, True), suspect.action, sureness(suspect, True))
        yield from map(evidence_line, suspect.evidence)
    yield from (note.text for note in verdict.notes)
    for verbose in (False, True):
        yield from (_text(line) for line in report(verdict, verbose, 4000) if line.strip())


def _text(line: str) -> str:
    """A line of a report without the word before it."""
    return _WORD.sub("", line)


def complaints(verdict: Verdict) -> list[tuple[str, list[str]]]:
    return [(text, reasons) for text in texts_of(verdict) if (reasons := unsound(text.strip()))]


def test_every_cause_of_the_corpus_is_told_in_sound_texts(cases: dict[str, tuple[list[Window], list[Window]]]) -> None:
    met, found = set(), dict[str, object]()
    for key, (windows, baseline) in cases.items():
        verdict = diagnose(windows, baseline)
        met |= {(one.component, one.cause, one.scope) for one in verdict.suspects}
        found |= {f"{key}: {text}": reasons for text, reasons in complaints(verdict)}
    assert found == {}
    assert set(counted()[0]) <= met


def test_a_job_whose_hosts_have_no_name_is_told_in_sound_texts(
    cases: dict[str, tuple[list[Window], list[Window]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    named = from_windows.ranks

    def unnamed(*given: object) -> Ranks:
        ranks = named(*given)  # type: ignore[arg-type]
        return replace(ranks, host=("",) * len(ranks))

    monkeypatch.setattr(from_windows, "ranks", unnamed)
    found, suspects = dict[str, object](), 0
    for key, (windows, baseline) in cases.items():
        verdict = diagnose(windows, baseline)
        suspects += sum(not one.host for one in verdict.suspects)
        found |= {f"{key}: {text}": reasons for text, reasons in complaints(verdict)}
    assert found == {}
    assert suspects >= 30


@pytest.mark.parametrize("kind", ["python", "gpu", "memory", "io", "sync", "sched"])
def test_timings_without_hosts_files_and_counters_are_told_in_sound_texts(kind: str) -> None:
    rows = []
    for step in range(24):
        for rank in range(6):
            more = 0.1 if rank == 3 else 0.0
            own = 0.1 + 0.001 * ((step * 7 + rank) % 5) + more
            rows.append({"rank": rank, "step": step, "function": "load", "kind": kind, "seconds": own})
            rows.append({"rank": rank, "step": step, "function": "wait", "kind": "collective", "seconds": 0.12 - more})
    verdict = judge_timings(check(pa.Table.from_pylist(rows), "file"), "job")
    assert verdict.suspects and verdict.suspects[0].ranks == (3,)
    assert complaints(verdict) == []
    assert not any("computing" in text for text in texts_of(verdict)), "nobody saw what it did"


def test_what_was_not_timed_is_told_as_that() -> None:
    rows = [
        {"rank": rank, "step": step, "function": name, "kind": kind, "seconds": seconds}
        for step in range(24)
        for rank in range(4)
        for name, kind, seconds in (
            ("forward", "python", 0.1),
            ("allreduce", "collective", 0.02 if rank == 3 else 0.08),
        )
    ]
    verdict = judge_timings(check(pa.Table.from_pylist(rows), "file"), "job")
    assert verdict.suspects and verdict.suspects[0].ranks == (3,)
    assert complaints(verdict) == []
    assert verdict.suspects[0].action.startswith("Time the rest of its step in parts")
    assert verdict.suspects[0].sure == GUESSED


LOAD = Function("python", "load", "/a/b.py", 3)


def known(row: Cause) -> Suspect:
    """A suspect of which all is known that can be."""
    return Suspect(
        row.component, row.cause, "node-1", (Instance("gpu2", "trainer", 4711),), (4, 5), LOAD, 0.1, 25.0, 0.9, 1.7e9,
        (Evidence("steps", "own time", 0.4, 0.3, "s/step", 7),), row.action or "Look there.", row.scope, says=sentence(*row.key),
    )  # fmt: skip


@pytest.mark.parametrize("row", TABLE, ids=lambda row: "-".join(row.key))
def test_every_cause_reads_well_whatever_is_known_of_it(row: Cause) -> None:
    full = known(row)
    bare = replace(full, host="", instances=(), ranks=(4,), function=None, evidence=(), since=None)
    places = (replace(LOAD, file="", line=0), replace(LOAD, line=0), replace(LOAD, name=NOT_TIMED, file="", line=0))
    costs = ((0.01, 1e-5), (100.0, 0.314), (130.0, 0.39))
    still = [
        replace(each, still=True, lost_percent=100.0, lost_seconds_per_step=s)
        for each in (full, bare)
        for s in (14.0, 0.0, math.nan)
    ]
    for one in (
        full, bare, replace(bare, ranks=()), *still, *(replace(each, function=place) for each in (full, bare) for place in places),
        *(replace(full, lost_percent=share, lost_seconds_per_step=lost_s) for share, lost_s in costs),
    ):  # fmt: skip
        for text in (
            accusation_of(one, ()),
            accusation_of(one, (4,), True),
            accusation_of(one, (), True, True),
            one.action,
        ):
            assert unsound(text) == [], text
        assert ("and no step" in accusation_of(one, ())) == one.still


def test_a_cost_is_never_more_than_the_step() -> None:
    much = replace(known(TABLE[0]), lost_percent=130.0, lost_seconds_per_step=0.39)
    assert accusation_of(much, (), True).endswith(f", which costs 0.300 s of each 0.300 s step, 100 % ({much.code})")


@pytest.mark.parametrize("host", ["", "node-1"])
def test_advice_reads_well_with_and_without_a_host(host: str) -> None:
    for text in (
        nic.slow_action(host, "mlx5_0/1"),
        nvlink.slow_action(host, "gpu2"),
        errors_action("0000:3b:00.0", host),
        smi("gpu2", "-q", host),
    ):
        assert unsound(text) == []
        assert (host in text) and (host or " on " not in text.replace(" on it", ""))
