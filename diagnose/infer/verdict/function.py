"""A function as named in the verdict."""

from __future__ import annotations

from dataclasses import dataclass

NOT_TIMED = "not timed"  # name of a function: the part of a step that a file of timings does not cover


@dataclass(frozen=True, slots=True)
class Function:
    """A function as named in the verdict: kind, name, file and first line."""

    kind: str
    name: str
    file: str
    line: int

    @property
    def words(self) -> str:
        """The name as it is said in a sentence; 'waiting for a CPU' for the run queue."""
        if (self.kind, self.name) == ("sched", "ready"):
            return "waiting for a CPU"
        return "what was not timed" if self.name == NOT_TIMED and not self.file else self.name

    @property
    def place(self) -> str:
        """The name with what is known of its location: 'augment (/srv/train.py:88)', 'augment'."""
        if not self.file:
            return self.words
        return f"{self.words} ({self.file}:{self.line})" if self.line > 0 else f"{self.words} ({self.file})"
