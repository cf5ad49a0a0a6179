"""The programs that the lab can train: `scripts/lab --program NAME`.

The diagnoser was tuned on the first. A program that was written without a look at the diagnoser tells what to expect of other people's
code, until its windows have mended a rule: then the windows go to the corpus and the program leaves the tree.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "training"


@dataclass(frozen=True, slots=True)
class Program:
    """One training script with the options and files of training/job.py.

    functions: those that can be slow, of the training thread. reads: what reads samples; makes_batch: what a loader worker makes a
    batch with; logs: what takes the lock of the metrics. lacks: faults that need what this program has not.
    """

    script: str
    functions: tuple[str, ...]
    reads: str
    makes_batch: str
    logs: str
    lacks: frozenset[str] = frozenset()

    @property
    def path(self) -> Path:
        return FOLDER / self.script


PROGRAMS = {
    "job": Program(
        "job.py", ("tokenize", "augment", "build_mask", "collate", "log_metrics"), "load_batch", "collate", "log_metrics"
    ),
    "language": Program(
        "language.py", ("split_words", "tokens", "pack", "shift", "write"), "read_document", "pack", "write",
        lacks=frozenset({"heavy-stage"}),
    ),
}  # fmt: skip
