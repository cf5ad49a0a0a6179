"""The recorded window that is shipped, and the truth about it."""

from __future__ import annotations

from pathlib import Path

CASE = "quiet-1/cpu-hog-strong-41"  # in tests/data/windows
PLACE = Path(__file__).with_name("window.rankscope")
ABOUT = (
    "A window of 10 s of a training job of ours, 6 ranks on 3 hosts, is judged as `rankscope diagnose DIR` judges yours. "
    "Lines with | explain the lines above them."
)
TRUTH = "What was done to that job: three processes called backup-agent were started on the CPU of rank 0. Nobody told Rankscope."
