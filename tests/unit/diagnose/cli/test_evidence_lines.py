"""Evidence in words: one line, whole."""

from __future__ import annotations

from rankscope.diagnose.face.report.words import evidence_line
from rankscope.diagnose.infer.verdict.contract import Evidence


def test_what_was_measured_is_told_to_its_end() -> None:
    what = "waiting for a CPU meanwhile in RandomResizedCrop.get_params_of_the_whole_batch, per second no longer than its peers"
    line = evidence_line(Evidence("scheduler", what, 0.0034, 0.0, "s/step", 1))
    assert line == f"{what}: 3.4 ms/step; its peer 0 s"


def test_a_forged_name_of_any_length_does_not_fill_the_terminal() -> None:
    line = evidence_line(Evidence("stacks", "time in " + "x" * 100_000, 1.0, None, "s/step"))
    assert len(line) < 300
