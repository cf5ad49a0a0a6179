"""Evidence and advice of causes are made of what was seen: who, which process, which function, which CPUs, which address."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from unsound import unsound

from corpuskit.archive import HOME, SUFFIX, opened
from rankscope.diagnose.infer.causes.hypothesis import Hypothesis, suspect_from
from rankscope.diagnose.infer.causes.rank.gpu import smi
from rankscope.diagnose.infer.fleet.gather import gather
from rankscope.diagnose.infer.model.evidence.event_words import event_words
from rankscope.diagnose.infer.model.evidence.native_words import native_words
from rankscope.diagnose.infer.model.evidence.programs import Program, culprits
from rankscope.diagnose.infer.model.still.peer import peer_of
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.contract import AGAINST, Evidence, Verdict
from rankscope.diagnose.infer.verdict.function import Function
from rankscope.diagnose.infer.verdict.sentence import accusation_of
from rankscope.observer.window.folder import Window, read_window

SAMPLE = {
    "h100-5": ("collect-5", "upload-4", "word-5"),
    "jobs-5": ("learner-actors-dead-6",),
    "programs-4": tuple(
        f"{kind}-weak-52-ranking" for kind in ("every-50th", "pinned-together", "pipe-print", "strangers")
    ),
    "quiet-1": ("gpu-slow-strong-7", "gpu-thermal-strong-7", "pcie-replays-strong-7", "pcie-width-strong-7"),
}
_MANGLED = re.compile(r"\b_Z\w|\b_R[NIMXYC]\w{6}")
_OURS = re.compile(r"\brankscope \(|\bkdamond|taken by rankscope")


@pytest.fixture(scope="module")
def windows() -> dict[str, tuple[list[Window], list[Window]]]:
    with opened([HOME / f"{name}{SUFFIX}" for name in SAMPLE]) as corpus:
        wanted = {name for names in SAMPLE.values() for name in names}
        return {
            case.name: ([*map(read_window, corpus.windows(case))], [*map(read_window, corpus.baseline(case))])
            for case in corpus.cases
            if case.name in wanted
        }


@pytest.fixture(scope="module")
def verdicts(windows: dict[str, tuple[list[Window], list[Window]]]) -> dict[str, Verdict]:
    return {name: diagnose(*each) for name, each in windows.items()}


def pieces(verdict: Verdict) -> Iterator[str]:
    """Sentence, evidence, advice and notes of a verdict."""
    for suspect in verdict.suspects:
        yield accusation_of(suspect, verdict.guessed)
        yield suspect.action
        for one in suspect.evidence:
            yield f"{one.measure}: {one.value if isinstance(one.value, str) else f'{one.value:.4g} {one.unit}'}".strip()
    yield from (note.text for note in verdict.notes)


def test_every_text_of_the_sample_is_sound(verdicts: dict[str, Verdict]) -> None:
    assert len(verdicts) == sum(map(len, SAMPLE.values()))
    for name, verdict in verdicts.items():
        for text in pieces(verdict):
            assert not unsound(text) and not _MANGLED.search(text) and not _OURS.search(text), f"{name}: {text}"
        for suspect in verdict.suspects:
            told = [(one.measure, one.value, one.unit) for one in suspect.evidence]
            assert len(told) == len(set(told)), f"{name}: a line of evidence occurs twice"
            shares = [
                one.value for one in suspect.evidence if one.unit.startswith("%") and not one.source.startswith(AGAINST)
            ]
            assert all(0 <= float(value) <= 100 for value in shares if not isinstance(value, str)), name


@pytest.mark.parametrize(
    ("case", "cause", "says", "does"),
    [
        ("collect-5", "python/gc", "garbage collection", r"^tidy_up \(.*:144\) sets off garbage collection, 0\.\d+ s a step"),
        ("upload-4", "python/blocking-call", "copies between host and GPU", r"upload_volume \(.*:81\)"),
        ("word-5", "process/deadlock", "waits for an answer from 127.0.0.1:35095", r"sport = :35095.* pid 645"),
        ("learner-actors-dead-6", "process/exited", "ended by SIGKILL", r"^Find who sent SIGKILL to process \d+"),
        ("pinned-together-weak-52-ranking", "cpu/affinity", "run on CPU", r"taskset -acp 0-\d+ PID.* for PID \d+, \d+"),
        ("pipe-print-weak-52-ranking", "python/blocking-call", "pipe that is full", r"^The pipe that .* writes to is full: whoever reads"),
        ("strangers-weak-52-ranking", "cpu/contended", "take", r"^Move or stop [\w-]+ \((\d+ processes: )?\d+"),
        ("every-50th-weak-52-ranking", "python/blocking-call", "in every 50th step", r"^See why .*\.py:\d+\) sleeps"),
    ],
)  # fmt: skip
def test_sentence_and_advice_name_what_was_seen(
    verdicts: dict[str, Verdict], case: str, cause: str, says: str, does: str
) -> None:
    first = verdicts[case].suspects[0]
    assert first.code == cause
    assert says in accusation_of(first, ()) and re.search(does, first.action), (accusation_of(first, ()), first.action)


def test_a_line_that_another_source_repeats_is_told_once(windows: dict[str, tuple[list[Window], list[Window]]]) -> None:
    fleet = gather(windows["upload-4"][0])
    evidence = tuple(
        Evidence(source, "PCIe replays on 0000:ba:00.0", 8024.0, 0.0, "events") for source in ("pcie", "counters")
    )
    found = Hypothesis("pcie", "errors", (0,), 0.1, 0.9, evidence)
    assert suspect_from(fleet, found, 1.0, 0.9).evidence == evidence[:1]
    assert (
        len(
            suspect_from(
                fleet, replace(found, evidence=(*evidence, replace(evidence[0], value=1.0))), 1.0, 0.9
            ).evidence
        )
        == 2
    )


def test_the_observer_is_no_culprit_and_small_programs_have_no_line() -> None:
    first, second, small = (
        Program("tar", 1.0, (11, 12, 13, 14)),
        Program("node", 0.5, (-1,)),
        Program("pgrep", 0.05, (9,)),
    )
    found = culprits([first, Program("rankscope", 0.9, (5,)), second, Program("kdamond.0", 0.4, (6,)), small])
    assert found == (first, second)
    assert [one.words for one in found] == ["tar (4 processes: 11, 12, 13, 14)", "node"]
    many = Program("tar", 1.0, tuple(range(11, 20)))
    assert many.words == "tar (9 processes: 11, 12, 13, 14, 15, 16, 17, 18, …)"
    assert Program("tar", 1.0, (11,)).words == "tar (11)"


def test_names_from_inside_a_machine_are_told_in_words() -> None:
    assert [native_words(name) for name in ("_ZdlPvm", "_Znam", "sgemm_kernel")] == [
        "operator delete",
        "operator new[]",
        "sgemm_kernel",
    ]
    assert not native_words("_ZN1a1bE").startswith("_Z")
    assert (
        event_words("pcie.aer_correctable") == "corrected PCIe errors (AER)"
        and event_words("nic.new_name") == "new name"
    )
    assert Function("sched", "ready", "/a.py", 3).place == "waiting for a CPU (/a.py:3)"
    assert smi("gpu2", "pmon -c 1", "") == "`nvidia-smi pmon -i 2 -c 1`"
    assert smi("gpu2", "-q -d CLOCK", "n7") == "`nvidia-smi -i 2 -q -d CLOCK` on n7"


@pytest.mark.parametrize(
    ("detail", "peer"),
    [
        ("a socket to 127.0.0.1:35095 (poll)", "127.0.0.1:35095"), ("a socket to fe80::1:80", "fe80::1:80"), ("a socket", ""),
        ("a socket to {function|it}:1", ""), ("write", ""),
    ],
)  # fmt: skip
def test_the_other_end_of_a_socket_is_an_address_or_nothing(detail: str, peer: str) -> None:
    assert peer_of(detail) == peer
